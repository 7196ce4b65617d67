"""`Device`: the rates of one device, and so the time of a kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from ..documents import Field
from ..errors import UsageError
from ._links import RATES, SECONDS
from ._matmul import Matmul, read_matmul

# Kinds of kernels that may be limited by arithmetic.
ARITHMETIC = ("matmul", "attention", "attention_backward")

# All kinds of kernels that are priced.
KERNELS = (*ARITHMETIC, "memory", "reduction", "strided", "fused")

# The fraction of a device's peak that kernels reach, where none was measured.
_EFFICIENCY = {"matmul": 0.7, "attention": 0.45, "attention_backward": 0.35, "memory": 0.8, "reduction": 0.6}


@dataclass(frozen=True)
class Device:
    """Peak rates of one device: operations per second by dtype, memory in bytes and bytes per second.

    `efficiency` is the fraction of the peak that each kind of kernel reaches: `matmul`, `attention` and
    `attention_backward` of the operations, `memory` (elementwise kernels on contiguous tensors), `reduction` and
    `fused` (kernels that torch.compile makes) of the bandwidth. Memory traffic overlaps with arithmetic, except for the
    kinds in `exposed`: there it is added, at that fraction of the bandwidth. `elements` is the rate, in elements per
    second, of `strided` kernels, which compute the address of each element (broadcasts, permuted tensors); None if only
    bytes count. With `tiled_heads`, attention's operations are counted with the head dim `worked_head`. `launch` is the
    seconds to launch any kernel, `startup` the additional fixed time of a kernel by kind.

    Where `matmul` has a law of matrix products by shape, it takes the place of their efficiency and launch. `sustained`
    is what remains of the rate of a kind in a program, whose power lowers the clock that a kernel alone has. A causal
    kernel waits for its longest tile, `tail` of whose time is not hidden behind others.

    `host` is the seconds that the host needs for a step, and for each call or compiled kernel of it, by execution, and
    for a `collective`: a device that is faster waits. `workspace` is the bytes that libraries of matrix products keep
    for each thread that calls them. `host_link` is the bytes per second that are copied between the device and the
    memory of its host, each way, and `host_bandwidth` those that an optimizer on the host's processors reads and
    writes, of a host with several devices the share of each; None where they are unknown. `origin` says where the
    numbers are from.
    """

    name: str
    flops: Mapping[str, float]
    memory: float
    memory_bandwidth: float
    efficiency: Mapping[str, float] = field(default_factory=lambda: dict(_EFFICIENCY))
    launch: float = 2e-6
    startup: Mapping[str, float] = field(default_factory=dict)
    exposed: Mapping[str, float] = field(default_factory=dict)
    elements: float | None = None
    tiled_heads: bool = False
    matmul: Matmul | None = None
    sustained: Mapping[str, float] = field(default_factory=dict)
    tail: float = 0.0
    host: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workspace: int = 0
    host_link: float | None = None
    host_bandwidth: float | None = None
    origin: str = ""

    def rate(self, dtype: object) -> float:
        """Operations per second in `dtype` (a `torch.dtype` or its name); float32's if there is none."""
        name = str(dtype).removeprefix("torch.")
        return self.flops.get(name, self.flops["float32"])

    def share(self, kind: str) -> float:
        """The fraction of the peak that kernels of a kind reach; that of `memory` if there is none."""
        return self.efficiency.get(kind, self.efficiency["memory"])

    def traffic_seconds(self, kind: str, moved: float, *, starts: bool = True) -> float:
        """The time in which a kernel that does little else moves bytes, with that of launching it if it `starts`."""
        launch = self.startup.get(kind, 0.0) + self.launch if starts else 0.0
        return moved / (self.memory_bandwidth * self._share_of_bandwidth(kind)) + launch

    def _share_of_bandwidth(self, kind: str) -> float:
        return self.share(kind if kind in ("reduction", "fused") else "memory")

    def seconds(self, kind: str, flops: float, moved: float, dtype: object, elements: float) -> float:
        """The time of one kernel of a kind, given its operations, bytes moved and output elements.

        >>> device = Device("d", {"float32": 1e12}, 1e9, 1e9, {"matmul": 0.5, "memory": 1.0}, launch=1.0)
        >>> device.seconds("matmul", 1e12, 1e9, "float32", 0), device.seconds("memory", 0, 4e9, "float32", 0)
        (3.0, 5.0)
        """
        share = self.exposed.get(kind, self._share_of_bandwidth(kind))
        traffic = moved / (self.memory_bandwidth * share)
        arithmetic = 0.0
        if kind in ARITHMETIC:
            arithmetic = flops / (self.rate(dtype) * self.share(kind))
        elif kind == "strided" and self.elements is not None:
            arithmetic = elements / self.elements
        work = arithmetic + traffic if kind in self.exposed else max(arithmetic, traffic)
        return work + self.startup.get(kind, 0.0) + self.launch

    def tail_seconds(self, kind: str, flops: float, dtype: object) -> float:
        """How long a kernel waits for its longest tile, of so many operations."""
        if not self.tail or self.matmul is None:
            return 0.0
        return self.tail * flops * self.matmul.processors / (self.rate(dtype) * self.share(kind))

    def host_seconds(self, execution: str, calls: int) -> float:
        """How long the host needs to start a step of so many calls, compiled kernels or collectives; 0 where that is
        unknown."""
        step, each = self.host.get(execution, (0.0, 0.0))
        return step + each * calls

    def product_seconds(
        self,
        batch: int,
        rows: int,
        columns: int,
        inner: float,
        dtype: torch.dtype,
        moved: float | None = None,
    ) -> float:
        """The time of a matrix product of rows x inner by inner x columns, for each of a batch.

        `moved` is the bytes that it reads and writes, by default all three matrices once.

        >>> plain = Device("d", {"float32": 1e12}, 1e9, 1e12, {"matmul": 0.5, "memory": 1.0}, launch=0.0)
        >>> plain.product_seconds(1, 1000, 1000, 1000, torch.float32)
        0.004
        """
        if moved is None:
            moved = dtype.itemsize * batch * (rows * columns + (rows + columns) * inner)
        if self.matmul is None:
            flops = 2 * batch * rows * columns * inner
            return self.seconds("matmul", flops, moved, dtype, batch * rows * columns)
        return self.matmul.seconds(
            (batch, rows, columns, inner),
            peak=self.rate(dtype),
            bandwidth=self.memory_bandwidth,
            moved=moved,
            dtype=str(dtype).removeprefix("torch."),
        )

    def __post_init__(self) -> None:
        if "float32" not in self.flops:
            raise UsageError(f"device {self.name!r} has no flops for float32, which other dtypes default to")
        if "memory" not in self.efficiency:
            raise UsageError(
                f"device {self.name!r} has no efficiency for memory, which other kinds of kernels default to"
            )
        names = ("memory", "memory_bandwidth", "elements", "host_link", "host_bandwidth")
        stated = {name: getattr(self, name) for name in names}
        for table in ("flops", "efficiency", "exposed", "sustained"):
            stated |= {f"{table} of {key}": rate for key, rate in getattr(self, table).items()}
        for what, rate in stated.items():
            if rate is not None and not rate > 0:
                raise UsageError(f"device {self.name!r} has {what} {rate}: it must be positive")

    def __hash__(self) -> int:
        tables = (self.flops, self.efficiency, self.startup, self.exposed, self.sustained)
        rates = tuple(tuple(sorted(table.items())) for table in tables)
        host = self.host_link, self.host_bandwidth
        return hash((self.name, rates, self.memory, self.memory_bandwidth, self.launch, self.elements, host))


# Fractions of peaks in a document.
_SHARES = (1e-3, 10.0)


def read_device(document: Field) -> Device:
    """The device in a field of a document."""
    required = ("name", "flops", "memory", "memory_bandwidth")
    optional = (
        "efficiency",
        "launch",
        "startup",
        "exposed",
        "elements",
        "tiled_heads",
        "matmul",
        "sustained",
    )
    host = ("host", "host_link", "host_bandwidth")
    fields = document.object(required, (*optional, "tail", *host, "workspace", "origin"))
    given: dict[str, Any] = {
        name: _rates(fields[name], KERNELS, SECONDS if name == "startup" else _SHARES)
        for name in ("efficiency", "startup", "exposed", "sustained")
        if name in fields
    }
    if "launch" in fields:
        given["launch"] = fields["launch"].number(*SECONDS)
    for name in ("elements", "host_link", "host_bandwidth"):
        if name in fields:
            given[name] = fields[name].optional(lambda one: one.number(*RATES))
    if "tiled_heads" in fields:
        given["tiled_heads"] = fields["tiled_heads"].flag()
    if "matmul" in fields:
        given["matmul"] = fields["matmul"].optional(lambda one: read_matmul(one, dtype_names()))
    if "tail" in fields:
        given["tail"] = fields["tail"].number(0.0, 10.0)
    if "host" in fields:
        known = fields["host"].object((), ("eager", "compiled", "collective"))
        given["host"] = {
            how: tuple(part.number(*SECONDS) for part in both.items(2)) for how, both in known.items()
        }
    if "workspace" in fields:
        given["workspace"] = fields["workspace"].integer(0, 10**12)
    if "origin" in fields:
        given["origin"] = fields["origin"].text()
    with document.checked():
        return Device(
            fields["name"].text(),
            _rates(fields["flops"], dtype_names(), RATES),
            fields["memory"].number(*RATES),
            fields["memory_bandwidth"].number(*RATES),
            **given,
        )


def _rates(document: Field, names: Sequence[str], limits: tuple[float, float]) -> dict[str, float]:
    fields = document.object((), names)
    return {name: rate.number(*limits) for name, rate in fields.items()}


@cache
def dtype_names() -> tuple[str, ...]:
    return tuple(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
