"""All private APIs of torch that discovery needs, in one place: to be checked with every new version of torch.

The OpInfo database is imported at first use, since that takes seconds.
"""

import functools
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def share_memory(first: Tensor, second: Tensor) -> bool:
    """True for tensors in one storage, those on meta too, which have no memory that could be compared."""
    return torch._C._is_alias_of(first, second)


def is_composite(op: torch._ops.OpOverload) -> bool:
    """True for an overload that is decomposed before it reaches dispatch."""
    return op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def resolved(
    packet: torch._ops.OpOverloadPacket, args: Sequence[Any], kwargs: dict[str, Any]
) -> torch._ops.OpOverload | None:
    """The overload that a call of a packet means; None where the arguments fit none."""
    try:
        return getattr(packet, torch._C._jit_resolve_packet(packet._qualified_op_name, *args, **kwargs))
    except RuntimeError:
        return None


@functools.cache
def opinfos() -> tuple[Any, ...]:
    """torch's own database of operators, with sample calls of each."""
    return tuple(_database().op_db)


@functools.cache
def foreach_opinfos() -> tuple[Any, ...]:
    """The operators on lists of tensors, which have a database of their own."""
    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    return tuple(info for kind in kinds for info in getattr(_database(), f"foreach_{kind}_op_db"))


def _database() -> ModuleType:
    """The module that has them. When it is imported, a torch with CUDA says on stderr what it misses on a machine
    without: nothing here needs that."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        from torch.testing._internal import common_methods_invocations
    finally:
        logging.disable(before)
    return common_methods_invocations


def registered_names() -> list[str]:
    """Every operator that is registered, as `aten::mm` or `aten::add.Tensor`."""
    return torch._C._dispatch_get_all_op_names()
