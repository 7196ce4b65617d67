"""Communicating forms: what one rank of a group runs for a call while it exchanges tensors with the others.

A form is a generator. It begins a collective by calling its `Group`, and gets what arrives by yielding what it began:
`k = yield group.permute(k)`. What it computes in between runs beside the collective. Whoever runs the form decides what
a collective is: one of torch's on real ranks, an exchange between lists on simulated ones, seconds on a link where it
is priced. So there is one text of a form, and its price is that of the collectives which it performs.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from ..mesh import Collective
from ..placements import join, partial
from ._piece import Held


@dataclass(eq=False)
class Request:
    """A collective that was begun: what this rank sends, and how what arrives becomes the result.

    An all-gather and a reduce-scatter are of equal parts, stacked along a new first dim. For an all-to-all and a
    permute `sent` is flat, with `counts` elements for and from each rank.
    """

    kind: Collective
    sent: Tensor
    ranks: int
    finish: Callable[[Tensor], Any]
    reduction: str = "sum"
    counts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    arriving: Any = field(default=None, repr=False)

    @property
    def arriving_shape(self) -> tuple[int, ...]:
        shape = tuple(self.sent.shape)
        if self.kind == "all_gather":
            return (self.ranks, *shape)
        if self.kind == "reduce_scatter":
            return shape[1:]
        return shape if self.kind == "all_reduce" else (sum(self.counts[1]),)

    @property
    def size(self) -> int:
        """The bytes of the larger side."""
        return max(self.sent.numel(), math.prod(self.arriving_shape)) * self.sent.element_size()


Run = Generator[Request, Any, Any]


def _as_is(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Group:
    """The ranks along the axis of a communicating row, seen from the one with position `rank`.

    `held` is what each of them holds of the call's tensors. A method begins a collective; the form yields what it
    returns where it needs the result. All ranks of a group must begin and yield the same collectives in the same order.
    """

    rank: int
    held: Sequence[Held]
    begin: Callable[[Request], None] = field(default=lambda request: None, repr=False)

    @property
    def size(self) -> int:
        return len(self.held)

    @property
    def own(self) -> Held:
        return self.held[self.rank]

    def sizes(self, name: str, dim: int) -> list[int]:
        """How many elements each rank holds along a dim of an argument."""
        return [held[name].local[dim] for held in self.held]

    def all_gather(self, tensor: Tensor, dim: int = 0, sizes: Sequence[int] | None = None) -> Request:
        """The tensors of all ranks joined along a dim; `sizes` are theirs along it where they differ."""
        sizes = [tensor.shape[dim]] * self.size if sizes is None else list(sizes)
        longest = max(sizes)

        def finish(parts: Tensor) -> Tensor:
            pieces = [part.narrow(dim, 0, size) for part, size in zip(parts.unbind(), sizes, strict=True)]
            return torch.cat(pieces, dim)

        return self._begun(Request("all_gather", _padded(tensor, dim, longest), self.size, finish))

    def all_reduce(self, tensor: Tensor, reduction: str = "sum") -> Request:
        """The sum of all ranks' tensors, or another reduction."""
        return self._begun(Request("all_reduce", tensor.contiguous(), self.size, _as_is, reduction))

    def reduce_scatter(
        self, tensor: Tensor, dim: int = 0, sizes: Sequence[int] | None = None, reduction: str = "sum"
    ) -> Request:
        """This rank's part along a dim of the sum of all ranks' tensors; `sizes` are the parts' where they differ."""
        sizes = [tensor.shape[dim] // self.size] * self.size if sizes is None else list(sizes)
        parts = [_padded(part, dim, max(sizes)) for part in tensor.split(sizes, dim)]
        own = sizes[self.rank]

        def finish(part: Tensor) -> Tensor:
            return part.narrow(dim, 0, own)

        return self._begun(Request("reduce_scatter", torch.stack(parts), self.size, finish, reduction))

    def all_to_all(self, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> Request:
        """What each rank has for this one, given what this one has for each; `shapes` are those of what arrives."""
        arriving = dict(enumerate(map(tuple, shapes)))
        return self._exchange(
            "all_to_all", dict(enumerate(parts)), arriving, parts[0], lambda each: list(each.values())
        )

    def permute(self, tensor: Tensor, shift: int = 1, shape: Sequence[int] | None = None) -> Request:
        """The tensor of the rank `shift` places before this one, in a ring; `shape` is its shape where they differ."""
        shape = tuple(tensor.shape if shape is None else shape)
        to, source = (self.rank + shift) % self.size, (self.rank - shift) % self.size
        return self._exchange("permute", {to: tensor}, {source: shape}, tensor, lambda each: each[source])

    def send(self, parts: Mapping[int, Tensor], shapes: Mapping[int, Sequence[int]], like: Tensor) -> Request:
        """Tensors from some ranks, for tensors to some, by their positions; `shapes` are those of what arrives, in the
        dtype of `like`."""
        return self._exchange("permute", parts, shapes, like, dict)

    def _exchange(
        self,
        kind: Collective,
        parts: Mapping[int, Tensor],
        shapes: Mapping[int, Sequence[int]],
        like: Tensor,
        finish: Callable[[dict[int, Tensor]], Any],
    ) -> Request:
        """Only ranks that send are looked at: in a ring it is one, in each of as many steps as there are ranks."""
        sent, arriving = [0] * self.size, [0] * self.size
        for other, part in parts.items():
            sent[other] = part.numel()
        for other, shape in shapes.items():
            arriving[other] = math.prod(shape)
        sources = sorted(shapes)

        def split(arrived: Tensor) -> Any:
            flat = arrived.split([arriving[source] for source in sources])
            made = dict(zip(sources, flat, strict=True))
            return finish({source: made[source].view(tuple(shape)) for source, shape in shapes.items()})

        given = [parts[other].reshape(-1) for other in sorted(parts) if sent[other]]
        whole = given[0] if len(given) == 1 else torch.cat(given or [like.new_empty(0)])
        return self._begun(Request(kind, whole, self.size, split, counts=(tuple(sent), tuple(arriving))))

    def _begun(self, request: Request) -> Request:
        self.begin(request)
        return request


def _padded(tensor: Tensor, dim: int, length: int) -> Tensor:
    missing = list(tensor.shape)
    missing[dim] = length - tensor.shape[dim]
    return torch.cat([tensor, tensor.new_zeros(missing)], dim) if missing[dim] else tensor.contiguous()


def run_together(runs: Sequence[Run], record: Callable[[Request], None] | None = None) -> list[Any]:
    """The results of all ranks of a group inside one process: each runs until it waits for a collective, which then
    takes place. `record` is called with every collective of the first rank."""
    values: list[Any] = [None] * len(runs)
    while True:
        waiting: list[Request | None] = []
        for number, (run, value) in enumerate(zip(runs, values, strict=True)):
            try:
                waiting.append(run.send(value))
            except StopIteration as end:
                waiting.append(None)
                values[number] = end.value
        requests = [request for request in waiting if request is not None]
        if not requests:
            return values
        kinds = {None if request is None else request.kind for request in waiting}
        if len(kinds) > 1:
            waits = ", ".join("nothing" if request is None else request.kind for request in waiting)
            raise UsageError(f"the ranks of a group wait for different things: {waits}")
        if record is not None:
            record(requests[0])
        arrived = _exchanged(requests)
        values = [request.finish(tensor) for request, tensor in zip(requests, arrived, strict=True)]


def run_alone(run: Run, arrive: Callable[[Request], Tensor]) -> Any:
    """The result of one rank, where `arrive` gives what the others send."""
    value = None
    while True:
        try:
            request = run.send(value)
        except StopIteration as end:
            return end.value
        value = request.finish(arrive(request))


def _exchanged(requests: Sequence[Request]) -> list[Tensor]:
    """What arrives on each rank."""
    kind, sent = requests[0].kind, [request.sent for request in requests]
    if kind in ("all_to_all", "permute"):
        return _delivered(requests)
    if len({tensor.shape for tensor in sent}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in sent)
        raise UsageError(f"the ranks of a group put tensors of different shapes into one {kind}: {shapes}")
    if kind == "all_gather":
        return [torch.stack(sent)] * len(sent)
    reduced = join(sent, partial(requests[0].reduction))
    return [reduced] * len(sent) if kind == "all_reduce" else list(reduced.unbind())


def _delivered(requests: Sequence[Request]) -> list[Tensor]:
    parts = [request.sent.split(request.counts[0]) for request in requests]
    arrived = []
    for rank, request in enumerate(requests):
        got = [part[rank] for part in parts]
        if (found := tuple(part.numel() for part in got)) != request.counts[1]:
            raise UsageError(f"rank {rank} of a group gets {found} elements and expects {request.counts[1]}")
        arrived.append(torch.cat(got))
    return arrived
