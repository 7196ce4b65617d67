"""How a compiler would group the calls of a graph into kernels, after Inductor.

Calls that compute element by element, and reductions, may share a kernel that loops over one domain of elements. A call
joins the kernel of what it reads, and brings several such kernels together, where the domains agree and no kernel would
have to wait for itself; a call that reads what another kernel reads joins that one. Matrix products, attention and
everything else are kernels of their own; views are none. Forward and backward are compiled apart, and so are regions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ._graph import Graph, Node, Ref

_FAR = 64  # calls between two that share a kernel only for what both read


def is_inlined(node: Node) -> bool:
    """Whether each element of a call's results is computed where it is used."""
    known = node.facts
    return not known.view and (known.elementwise or known.inlined) and known.kernel is None


def _reduces(node: Node) -> bool:
    return node.facts.kernel == "reduction" and bool(node.inputs)


@dataclass(eq=False)
class _Kernel:
    """Calls that loop over `elements`. Reductions leave `reduced` of them; they are `inner` if the last dim is reduced,
    and the kernel can then go over the same elements again."""

    elements: int
    first: int
    last: int
    phase: str
    fuses: bool = True
    reduced: int | None = None
    inner: bool = True
    before: "set[_Kernel]" = field(default_factory=set)
    into: "_Kernel | None" = None  # that it was merged into

    @property
    def domain(self) -> tuple[int, int | None, str]:
        return self.elements, self.reduced, self.phase

    def takes(self, later: "_Kernel") -> bool:
        """Whether a kernel whose last call comes later can be the same loop."""
        if not (self.fuses and later.fuses and self.phase == later.phase):
            return False
        if self.elements > later.elements:  # it goes on with what a reduction leaves
            return later.reduced is None and later.elements == self.reduced
        if self.elements < later.elements:  # repeated, or put together with others
            return self.reduced is None
        if self.reduced is not None and later.reduced is not None:
            return (self.reduced, self.inner) == (later.reduced, later.inner)
        return self.inner

    def absorb(self, other: "_Kernel") -> None:
        if other.reduced is not None:
            self.reduced, self.inner = other.reduced, other.inner
        self.elements = max(self.elements, other.elements)
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.before |= other.before
        other.into = self


class Fusion:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.of: dict[str, _Kernel] = {}
        self.readers: dict[Ref, list[_Kernel]] = {}

    def kernels(self) -> dict[str, int]:
        """The number of the kernel of every call that may share one."""
        for position, node in enumerate(self.graph.nodes):
            if Ref(node.name) not in self.graph.views and self.graph.region(node) is not None:
                self._add(position, node)
        numbers: dict[_Kernel, int] = {}
        found = {name: _merged(kernel) for name, kernel in self.of.items()}
        return {name: numbers.setdefault(k, len(numbers)) for name, k in found.items() if k.fuses}

    def waiting(self) -> dict[str, str]:
        """For calls whose kernel is launched with a later one: the last call of that.

        Sums over rows, such as gradients of a norm's weight, wait for others of the same shape that read the same.
        """
        found: dict[_Kernel, _Kernel] = {}
        for kernels in self.readers.values():
            sums = [k for k in dict.fromkeys(map(_merged, kernels)) if k.reduced is not None and not k.inner]
            for kernel in sums:
                alike = [k for k in sums if k.domain == kernel.domain]
                found[kernel] = max([found.get(kernel, kernel), *alike], key=lambda k: k.last)
        names = [node.name for node in self.graph.nodes]
        waits = ((name, found.get(_merged(kernel))) for name, kernel in self.of.items())
        return {name: names[last.last] for name, last in waits if last is not None}

    def _add(self, position: int, node: Node) -> None:
        own = self._alone(position, node)
        self.of[node.name] = own
        read = {self.graph.base(ref) for ref in node.inputs}
        makers = {_merged(self.of[ref.name]) for ref in read if ref.name in self.of}
        own.before = makers.copy()
        if own.fuses:
            for other in self._candidates(own, makers, read):
                other, own = _merged(other), _merged(own)
                if other is not own and other.takes(own) and not self._would_wait(other, own):
                    other.absorb(own)
        kernel = _merged(own)
        if kernel.fuses:
            for ref in read:
                self.readers.setdefault(ref, []).append(kernel)

    def _candidates(self, own: _Kernel, makers: set[_Kernel], read: set[Ref]) -> Iterator[_Kernel]:
        """The kernels of what a call reads, the largest first, then those nearby that read the same."""
        yield from sorted(makers, key=lambda kernel: (-kernel.elements, -kernel.last))
        for ref in sorted(read, key=str):
            if self.graph.tensor(ref).numel == own.elements:
                for kernel in self.readers.get(ref, ()):
                    near = _merged(kernel)
                    if own.last - near.last <= _FAR and near.elements == own.elements:
                        yield near

    def _would_wait(self, one: _Kernel, two: _Kernel) -> bool:
        """Whether a kernel outside of both needs one of them and is needed by the other."""
        return _depends(two.before, one, two) or _depends(one.before, two, one)

    def _alone(self, position: int, node: Node) -> _Kernel:
        made = [self.graph.tensor(ref).numel for ref in node.results]
        elements = max(made, default=0)
        kernel = _Kernel(elements, position, position, f"{node.phase} {self.graph.region(node)}")
        if _reduces(node):
            whole = self.graph.tensor(node.inputs[0])
            last = whole.shape[-1] if whole.shape else 1
            kernel.elements = whole.numel
            kernel.reduced = min(made, default=0)
            if kernel.reduced == whole.numel:  # a norm or softmax: rows stay rows
                kernel.reduced = whole.numel // max(last, 1)
            kernel.inner = _reduces_last(self.graph, node, len(whole.shape))
        else:
            kernel.fuses = is_inlined(node)
        return kernel


def _reduces_last(graph: Graph, node: Node, dims: int) -> bool:
    given = graph.call(node).arguments.get("dim")
    if given is None:
        return True
    chosen: Iterable[int] = given if isinstance(given, list | tuple) else (given,)
    return not chosen or any(dim % max(dims, 1) == dims - 1 for dim in chosen)


def _merged(kernel: _Kernel) -> _Kernel:
    while kernel.into is not None:
        kernel = kernel.into
    return kernel


def _depends(start: set[_Kernel], on: _Kernel, besides: _Kernel) -> bool:
    """Whether one of some kernels, other than `on` itself and `besides`, needs `on`, directly or not."""
    waiting = [k for k in map(_merged, start) if k is not on and k is not besides]
    seen: set[_Kernel] = set()
    while waiting:
        kernel = waiting.pop()
        if kernel in seen or kernel.last < on.first:  # all of it comes before
            continue
        seen.add(kernel)
        for before in map(_merged, kernel.before):
            if before is on:
                return True
            if before is not besides:
                waiting.append(before)
    return False
