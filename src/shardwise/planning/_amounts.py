"""Amounts of memory, as numbers and as text."""

import math
import re

from ..errors import UsageError
from ..mesh import Cluster


def memory_of(memory: int | float | str | None, cluster: Cluster) -> int:
    """The bytes that a device may hold: by default all that it has."""
    return int(cluster.device.memory) if memory is None else bytes_of(memory)


_AMOUNT = re.compile(r"(\d+\.?\d*(?:e\d+)?)\s*([KMGT]?)(I?)B", re.IGNORECASE)


def bytes_of(memory: int | float | str) -> int:
    """Bytes from a number or from `80GB`, `512MiB`."""
    if isinstance(memory, str) and (match := _AMOUNT.fullmatch(memory.strip())):
        number, prefix, binary = match.groups()
        return round(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))
    if isinstance(memory, int | float) and 0 <= memory < math.inf:
        return int(memory)
    raise UsageError(f"memory {memory!r} is not a byte count: write it as 80GB or 512MiB")
