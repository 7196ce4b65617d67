"""`Cluster`: the speed of devices and of the links between them, and so the cost of collectives.

A cluster is a device and a stack of links, from the closest (inside an island) outwards. The link of a mesh axis
follows from the positions of its ranks: rank r is in island r // size, with ranks numbered as in `DeviceMesh`.
Every collective costs latency + bytes / bandwidth, with factors that depend on the collective.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ..documents import Field
from ..errors import UsageError, require
from ..files import read_document
from ._mesh import Mesh

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

# The cluster of prices where none is given.
DEFAULT_CLUSTER = "h100"

Topology = Literal["switch", "ring"]
Algorithm = Literal["ring", "tree"]


@dataclass(frozen=True)
class Link:
    """A kind of connection.

    `bandwidth` is the rate at which one device can send, in bytes per second; `latency` the seconds of one hop and
    `launch` the seconds to start a collective. On a `switch` every pair is one hop apart; on a `ring` data for a
    distant device passes through the devices between. `all_reduce` is the algorithm of that collective: both move the
    same bytes, a tree in fewer hops.
    """

    bandwidth: float
    latency: float = 0.0
    launch: float = 0.0
    topology: Topology = "switch"
    all_reduce: Algorithm = "ring"

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise UsageError(
                f"a link has bandwidth {self.bandwidth}: it must be positive, in bytes per second"
            )
        if self.latency < 0 or self.launch < 0:
            raise UsageError("a link has a negative latency: give seconds, 0 or more")
        if self.topology not in get_args(Topology):
            raise UsageError(
                f"unknown topology {self.topology!r}: use one of {', '.join(get_args(Topology))}"
            )
        if self.all_reduce not in get_args(Algorithm):
            raise UsageError(
                f"unknown algorithm {self.all_reduce!r}: use one of {', '.join(get_args(Algorithm))}"
            )

    def time(self, collective: Collective, size: float, ranks: int) -> float:
        """Seconds of one collective among `ranks` devices.

        `size` is the bytes of the larger side on one device: the output of an all-gather, the input of the others.

        >>> link = Link(bandwidth=1e9)
        >>> link.time("all_gather", 8e9, 4), link.time("all_reduce", 8e9, 4), link.time("all_reduce", 8e9, 1)
        (6.0, 12.0, 0.0)
        """
        fixed, per_byte = self.terms(collective, ranks)
        return fixed + per_byte * size

    @cache  # noqa: B019  (links are few and live as long as the process)
    def terms(self, collective: Collective, ranks: int) -> tuple[float, float]:
        """Latency in seconds, and seconds per byte."""
        if ranks == 1:
            return 0.0, 0.0
        share = (ranks - 1) / ranks
        hops: float = ranks - 1
        if collective == "all_reduce":
            hops, share = 2 * hops, 2 * share
            if self.all_reduce == "tree":
                hops = 2 * math.log2(ranks)
        elif collective == "all_to_all" and self.topology == "ring":
            share = (ranks * ranks // 4) / ranks  # mean distance times the bytes that travel it
        elif collective == "permute":
            hops, share = 1, 1
            if self.topology == "ring":
                hops, share = ranks // 2, max(1.0, ranks / 4)
        elif collective not in COLLECTIVES:
            raise UsageError(f"unknown collective {collective!r}: use one of {', '.join(COLLECTIVES)}")
        return self.launch + hops * self.latency, share / self.bandwidth


@dataclass(frozen=True)
class Level:
    """Islands of `size` devices joined by `link`; the outermost level has no limit and so no size."""

    link: Link
    size: int | None = None


# Kinds of kernels that may be limited by arithmetic.
ARITHMETIC = ("matmul", "attention", "attention_backward")

# All kinds of kernels that are priced.
KERNELS = (*ARITHMETIC, "memory", "reduction", "strided")

# The fraction of a device's peak that kernels reach, where none was measured.
_EFFICIENCY = {"matmul": 0.7, "attention": 0.45, "attention_backward": 0.35, "memory": 0.8, "reduction": 0.6}


@dataclass(frozen=True)
class Device:
    """Peak rates of one device: operations per second by dtype, memory in bytes and bytes per second.

    `efficiency` is the fraction of the peak that each kind of kernel reaches: `matmul`, `attention` and
    `attention_backward` of the operations, `memory` (elementwise kernels on contiguous tensors) and `reduction` of the
    bandwidth. Memory traffic overlaps with arithmetic, except for the kinds in `exposed`: there it is added, at that
    fraction of the bandwidth. `elements` is the rate, in elements per second, of `strided` kernels, which compute the
    address of each element (broadcasts, permuted tensors); None if only bytes count. With `tiled_heads`, attention's
    operations are counted with the head dim `worked_head`. `launch` is the seconds to launch any kernel, `startup` the
    additional fixed time of a kernel by kind.
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

    def rate(self, dtype: object) -> float:
        """Operations per second in `dtype` (a `torch.dtype` or its name); float32's if there is none."""
        name = str(dtype).removeprefix("torch.")
        return self.flops.get(name, self.flops["float32"])

    def share(self, kind: str) -> float:
        """The fraction of the peak that kernels of a kind reach; that of `memory` if there is none."""
        return self.efficiency.get(kind, self.efficiency["memory"])

    def seconds(self, kind: str, flops: float, moved: float, dtype: object, elements: float) -> float:
        """The time of one kernel of a kind, given its operations, bytes moved and output elements.

        >>> device = Device("d", {"float32": 1e12}, 1e9, 1e9, {"matmul": 0.5, "memory": 1.0}, launch=1.0)
        >>> device.seconds("matmul", 1e12, 1e9, "float32", 0), device.seconds("memory", 0, 4e9, "float32", 0)
        (3.0, 5.0)
        """
        share = self.share("reduction" if kind == "reduction" else "memory")
        traffic = moved / (self.memory_bandwidth * self.exposed.get(kind, share))
        arithmetic = 0.0
        if kind in ARITHMETIC:
            arithmetic = flops / (self.rate(dtype) * self.share(kind))
        elif kind == "strided" and self.elements is not None:
            arithmetic = elements / self.elements
        work = arithmetic + traffic if kind in self.exposed else max(arithmetic, traffic)
        return work + self.startup.get(kind, 0.0) + self.launch

    def __post_init__(self) -> None:
        if "float32" not in self.flops:
            raise UsageError(f"device {self.name!r} has no flops for float32, which other dtypes default to")
        if "memory" not in self.efficiency:
            raise UsageError(
                f"device {self.name!r} has no efficiency for memory, which other kinds of kernels default to"
            )
        stated = {"memory": self.memory, "memory_bandwidth": self.memory_bandwidth, "elements": self.elements}
        for table in ("flops", "efficiency", "exposed"):
            stated |= {f"{table} of {key}": rate for key, rate in getattr(self, table).items()}
        for what, rate in stated.items():
            if rate is not None and not rate > 0:
                raise UsageError(f"device {self.name!r} has {what} {rate}: it must be positive")

    def __hash__(self) -> int:
        tables = (self.flops, self.efficiency, self.startup, self.exposed)
        rates = tuple(tuple(sorted(table.items())) for table in tables)
        return hash((self.name, rates, self.memory, self.memory_bandwidth, self.launch, self.elements))


@dataclass(frozen=True)
class Cluster:
    """Devices and links. `axes` overrides the link of mesh axes by name.

    >>> mesh, h100 = Mesh.parse("dp=4,tp=8"), Cluster.preset("h100")
    >>> h100.link(mesh, "tp").bandwidth > 5 * h100.link(mesh, "dp").bandwidth
    True
    >>> Cluster.from_json(h100.to_json()) == h100
    True
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    axes: Mapping[str, Link] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.device, Device, "device", "a Device")
        require(self.levels, (tuple, list), "levels", "a tuple of Levels, innermost first")
        for level in self.levels:
            require(level, Level, "a level", "a Level, such as Level(link, 8)")
        sizes = [level.size for level in self.levels]
        if not sizes or sizes[-1] is not None or None in sizes[:-1]:
            raise UsageError(f"cluster {self.name!r} must have levels, of which only the last has no size")
        inner = [size for size in sizes if size is not None]
        if any(size < 1 for size in inner) or any(b % a for a, b in pairwise(inner)):
            raise UsageError(f"cluster {self.name!r}: a level's size must be a multiple of the one inside")

    def __hash__(self) -> int:
        return hash((self.name, self.device, self.levels, tuple(sorted(self.axes.items()))))

    @classmethod
    def preset(cls, name: str) -> "Cluster":
        presets = _presets()
        if name not in presets:
            raise UsageError(f"unknown cluster {name!r}: use one of {', '.join(presets)}, or a JSON file")
        return presets[name]

    @classmethod
    def presets(cls) -> tuple[str, ...]:
        return tuple(_presets())

    @classmethod
    def of(cls, cluster: "Cluster | str | Path") -> "Cluster":
        """A cluster given as a `Cluster`, the name of a preset or a JSON file."""
        if isinstance(cluster, Cluster):
            return cluster
        if str(cluster).endswith(".json"):
            return read_document(Path(cluster), cls.from_json)
        return cls.preset(str(cluster))

    def __repr__(self) -> str:
        sizes = " of ".join(str(level.size) for level in self.levels if level.size is not None)
        inside = f", islands of {sizes}" if sizes else ""
        return f"<Cluster {self.name}: {self.device.name}, {self.device.memory / 1e9:.0f} GB{inside}>"

    def with_axes(self, **links: Link) -> "Cluster":
        """This cluster with the given links for the named axes."""
        return replace(self, axes={**self.axes, **links})

    def link(self, mesh: Mesh, axis: str | int) -> Link:
        """The link that collectives along one axis of a mesh use."""
        index = mesh.index(axis) if isinstance(axis, str) else axis
        if mesh.names[index] in self.axes:
            return self.axes[mesh.names[index]]
        return self._reach(math.prod(mesh.shape[index + 1 :]), mesh.shape[index], mesh.ranks)

    def _reach(self, stride: int, ranks: int, devices: int) -> Link:
        """The slowest link among the groups of `ranks` with this stride, on this number of devices.

        Groups fill consecutive blocks of `stride * ranks` devices. Unless all devices are in one island, a block size
        that does not divide the island puts some group in two islands. A group that crosses islands sends through the
        outer links of all its members in an island at once, and is never faster than the island's own link.
        """
        block = stride * ranks
        for depth, level in enumerate(self.levels):
            if level.size is None or devices <= level.size or level.size % block == 0:
                link = level.link
                inner = self.levels[depth - 1] if depth else None
                if inner is not None and inner.size is not None and stride < inner.size:
                    fewest = max(math.gcd(inner.size, block) // stride, 1)  # members in one island
                    together = link.bandwidth * fewest
                    link = replace(link, bandwidth=min(together, inner.link.bandwidth))
                return link
        raise AssertionError("the last level has no limit")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> "Cluster":
        return cls.read(Field(document))

    @classmethod
    def read(cls, document: Field) -> "Cluster":
        """The cluster in a field of a document."""
        fields = document.object(("name", "device", "levels"), ("axes",))
        levels = []
        for level in fields["levels"].items():
            inside = level.object(("link",), ("size",))
            size = inside["size"].optional(lambda one: one.integer(least=1)) if "size" in inside else None
            levels.append(Level(_link(inside["link"]), size))
        axes = fields["axes"].members() if "axes" in fields else {}
        links = {name: _link(link) for name, link in axes.items()}
        device = _device(fields["device"])
        with document.checked():
            return cls(fields["name"].text(), device, tuple(levels), links)


# What a number of a document may be: rates in something per second (and bytes of memory), fractions of peaks, and
# fixed times. Wider limits would let prices overflow.
_RATES = (1e3, 1e21)
_SHARES = (1e-3, 10.0)
_SECONDS = (0.0, 60.0)


def _link(document: Field) -> Link:
    numbers = ("latency", "launch")
    fields = document.object(("bandwidth",), (*numbers, "topology", "all_reduce"))
    given: dict[str, Any] = {name: fields[name].number(*_SECONDS) for name in numbers if name in fields}
    if "topology" in fields:
        given["topology"] = fields["topology"].one_of(get_args(Topology))
    if "all_reduce" in fields:
        given["all_reduce"] = fields["all_reduce"].one_of(get_args(Algorithm))
    return Link(fields["bandwidth"].number(*_RATES), **given)


def _device(document: Field) -> Device:
    required = ("name", "flops", "memory", "memory_bandwidth")
    optional = ("efficiency", "launch", "startup", "exposed", "elements", "tiled_heads")
    fields = document.object(required, optional)
    given: dict[str, Any] = {
        name: _rates(fields[name], KERNELS, _SECONDS if name == "startup" else _SHARES)
        for name in ("efficiency", "startup", "exposed")
        if name in fields
    }
    if "launch" in fields:
        given["launch"] = fields["launch"].number(*_SECONDS)
    if "elements" in fields:
        given["elements"] = fields["elements"].optional(lambda one: one.number(*_RATES))
    if "tiled_heads" in fields:
        given["tiled_heads"] = fields["tiled_heads"].flag()
    with document.checked():
        return Device(
            fields["name"].text(),
            _rates(fields["flops"], dtype_names(), _RATES),
            fields["memory"].number(*_RATES),
            fields["memory_bandwidth"].number(*_RATES),
            **given,
        )


def _rates(document: Field, names: Sequence[str], limits: tuple[float, float]) -> dict[str, float]:
    fields = document.object((), names)
    return {name: rate.number(*limits) for name, rate in fields.items()}


@cache
def dtype_names() -> tuple[str, ...]:
    return tuple(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))


@cache
def _presets() -> dict[str, Cluster]:
    """Peak rates are the vendors'; bandwidths of links are those of large collectives, about 80 % of the vendors'.

    Efficiencies were measured for the H200 (benchmarks/results/h200_samples.json, written by
    `python src/shardwise/mesh/_measure.py` and fitted by `shardwise calibrate --samples`). The H100 is the same chip
    with slower memory, so it has the same efficiencies. Those of the other devices are estimates.
    """

    def nvlink(bandwidth: float) -> Link:
        return Link(bandwidth, latency=0.6e-6, launch=6.6e-6)

    def infiniband(bandwidth: float) -> Link:
        return Link(bandwidth, latency=2.7e-6, launch=8e-6, all_reduce="tree")

    def gpus(device: Device, island: Link, between: Link) -> Cluster:
        return Cluster(device.name, device, (Level(island, 8), Level(between)))

    hopper = {
        "float64": 67e12,
        "float32": 67e12,
        "bfloat16": 989e12,
        "float16": 989e12,
        "float8_e4m3fn": 1979e12,
        "float8_e5m2": 1979e12,
        "int8": 1979e12,
    }
    reached: dict[str, Any] = {
        "efficiency": {
            "matmul": 0.817,
            "attention": 0.726,
            "attention_backward": 0.675,
            "memory": 0.885,
            "reduction": 0.628,
        },
        "launch": 2.27e-6,
        "startup": {"matmul": 1.94e-6, "memory": 0.0, "reduction": 2.58e-6, "strided": 2.98e-7},
        "exposed": {"attention": 0.713, "attention_backward": 0.295},
        "elements": 3.78e11,
        "tiled_heads": True,
    }
    ampere = {"float64": 19.5e12, "float32": 19.5e12, "bfloat16": 312e12, "float16": 312e12, "int8": 624e12}
    ada = {
        "float64": 1.4e12,
        "float32": 91.6e12,
        "bfloat16": 362e12,
        "float16": 362e12,
        "float8_e4m3fn": 733e12,
        "float8_e5m2": 733e12,
        "int8": 733e12,
    }
    tpu = {"float32": 57e12, "bfloat16": 459e12, "int8": 918e12}
    cpu = {"float64": 0.1e12, "float32": 0.2e12, "bfloat16": 0.2e12, "float16": 0.2e12}
    clusters = (
        gpus(Device("h100", hopper, 80e9, 3.35e12, **reached), nvlink(360e9), infiniband(45e9)),
        gpus(Device("h200", hopper, 141e9, 4.8e12, **reached), nvlink(360e9), infiniband(45e9)),
        gpus(Device("a100", ampere, 80e9, 2.04e12), nvlink(235e9), infiniband(22e9)),
        gpus(
            Device("l40s", ada, 48e9, 0.864e12),
            Link(bandwidth=20e9, latency=1.5e-6, launch=7e-6),  # PCIe
            Link(bandwidth=3e9, latency=5e-6, launch=12e-6, all_reduce="tree"),
        ),
        Cluster(
            "tpu",
            Device("tpu", tpu, 95e9, 2.765e12),
            (Level(Link(bandwidth=160e9, latency=1e-6, launch=2e-6, topology="ring")),),
        ),
        Cluster(
            "laptop",
            Device("laptop", cpu, 16e9, 50e9),
            (Level(Link(bandwidth=4e9, latency=20e-6, launch=60e-6)),),
        ),
    )
    return {cluster.name: cluster for cluster in clusters}
