"""Which calls of a graph share a kernel, and what each of them moves across its border.

It is decided once, on the unsharded graph, by how the program is executed. Eagerly a call is a kernel, except that the
calls into which an operator was decomposed for the sake of its rules are the one kernel that torch runs for it.
Compiled, calls are grouped as Inductor groups them (`_fusion`). A call pays for what it reads from outside its kernel
and for what others read of its results, so that the price of a kernel is a sum over its calls, each by its own layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ._fusion import Fusion, is_inlined
from ._graph import Graph, Node, Ref

# Values that a kernel reads to compute another kernel's value again; one that takes more is stored (Inductor's limit).
_MOST_READ = 4


@dataclass(frozen=True)
class Border:
    """What a call moves across the border of its kernel.

    `reads` are positions among its inputs, each with how many times the bytes of that input are read; `writes` are
    positions among its outputs. `starts` says that it is the call which stands for the launch. `kind` is the kernel's.
    """

    reads: tuple[tuple[int, float], ...]
    writes: tuple[int, ...]
    starts: bool
    kind: str


@dataclass(frozen=True)
class Kernels:
    """The kernels of a graph: the borders of calls that share one, and the tensors that are never in memory.

    `number` has a number for every call that may share a kernel. A call without a border is a kernel of its own, that
    reads its inputs and writes its outputs. A call may be `waiting` for another, with whose kernel its own is launched.
    """

    number: Mapping[str, int] = field(default_factory=dict)
    borders: Mapping[str, Border] = field(default_factory=dict)
    inner: frozenset[Ref] = frozenset()
    waiting: Mapping[str, str] = field(default_factory=dict)


def kernels_of(graph: Graph) -> Kernels:
    fusion = Fusion(graph)
    fused = fusion.kernels()
    kernels = _Borders(graph, fused | _decomposed(graph, len(fused)), set(fused.values())).kernels()
    return replace(kernels, waiting=fusion.waiting())


def _decomposed(graph: Graph, first: int) -> dict[str, int]:
    """The calls that operators outside of compiled regions were decomposed into, by the operator's call."""
    numbers: dict[str, int] = {}
    return {
        node.name: numbers.setdefault(node.part_of, first + len(numbers))
        for node in graph.nodes
        if node.part_of and graph.region(node) is None and Ref(node.name) not in graph.views
    }


class _Borders:
    """From the kernel of each call to what crosses the borders. `compiled` are the kernels of a compiler."""

    def __init__(self, graph: Graph, kernel: dict[str, int], compiled: set[int]) -> None:
        self.graph, self.kernel, self.compiled = graph, kernel, compiled
        self.read_by: dict[Ref, list[Node | None]] = {}
        for node in graph.nodes:
            if Ref(node.name) not in graph.views:
                for ref in node.inputs:
                    self.read_by.setdefault(graph.base(ref), []).append(node)
        for output in graph.outputs:
            if output.value is not None:
                self.read_by.setdefault(graph.base(output.value), []).append(None)
        self.stored: set[Ref] = set()

    def kernels(self) -> Kernels:
        reads = self._all_reads()
        started: set[int] = set()
        borders, inner = {}, set()
        for node in self.graph.nodes:
            number = self.kernel.get(node.name)
            if number is None:
                continue
            writes = []
            for ref in node.results:
                if self._is_stored(ref):
                    writes.append(ref.output)
                else:
                    inner.add(ref)
            starts = number not in started
            started.add(number)
            borders[node.name] = Border(reads[node.name], tuple(writes), starts, self._kind(number))
        return Kernels(self.kernel, borders, frozenset(inner))

    def _kind(self, number: int) -> str:
        if number in self.compiled:
            return "fused"
        return "reduction" if number in self._reducing else "memory"

    @cached_property
    def _reducing(self) -> set[int]:
        shared = [node for node in self.graph.nodes if node.name in self.kernel]
        return {self.kernel[node.name] for node in shared if node.facts.kernel == "reduction"}

    def _all_reads(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """By call the inputs from outside its kernel, each where the kernel reads it first."""
        found = {}
        seen: dict[int, set[Ref]] = {}
        for node in self.graph.nodes:
            if node.name in self.kernel:
                known = seen.setdefault(self.kernel[node.name], set())
                reads = ((place, self._read(node, ref, known)) for place, ref in enumerate(node.inputs))
                found[node.name] = tuple((place, times) for place, times in reads if times)
        return found

    def _read(self, node: Node, ref: Ref, known: set[Ref]) -> float:
        """How many times the bytes of an input are read for a call; `known` is what its kernel has read."""
        base, own = self.graph.base(ref), self.kernel[node.name]
        if self.kernel.get(base.name) == own:
            return 0.0
        bytes_ = self.graph.tensor(ref).stored_bytes
        if self._is_stored(base):
            part = bytes_ < self.graph.tensor(base).stored_bytes
            sources = {ref if part else base: bytes_}
        else:
            again = self._computed_from(base)
            if again is None:
                self.stored.add(base)
                again = {base}
            self.stored |= {leaf for leaf in again if leaf.name in self.kernel}
            sources = {leaf: self.graph.tensor(leaf).stored_bytes for leaf in again}
        fresh = sum(size for leaf, size in sources.items() if leaf not in known)
        known.update(sources)
        return fresh / bytes_ if bytes_ else 0.0

    def _is_stored(self, base: Ref) -> bool:
        """Whether a tensor is in memory: read by another kernel that cannot compute it again, or given back."""
        if base.name not in self.kernel or base in self.stored:
            return True
        maker, own = self.graph[base.name], self.kernel[base.name]
        others = [
            user for user in self.read_by.get(base, ()) if user is None or self.kernel.get(user.name) != own
        ]
        return any(user is None or not self._may_inline(maker, user) for user in others)  # type: ignore[arg-type]

    def _may_inline(self, maker: Node, user: Node) -> bool:
        together = (self.graph.region(user), user.phase) == (self.graph.region(maker), maker.phase)
        return together and self.kernel.get(user.name) in self.compiled and is_inlined(maker)

    def _computed_from(self, base: Ref) -> set[Ref] | None:
        """The tensors in memory that one is computed from, where they are few and all else is cheap."""
        maker = self.graph[base.name]
        found: set[Ref] = set()
        for ref in maker.inputs:  # type: ignore[union-attr]
            source = self.graph.base(ref)
            above = self.graph[source.name]
            if self._is_stored(source) or not is_inlined(above):  # type: ignore[arg-type]
                found.add(source)
            else:
                deeper = self._computed_from(source)
                if deeper is None:
                    return None
                found |= deeper
            if len(found) > _MOST_READ:
                return None
        return found
