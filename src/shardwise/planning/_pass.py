"""One pass of a rank, forward and backward, as data parallelism sees it: entries in blocks, and buckets of parameters.

A block is the outermost numbered module (`model.layers.3`). The parameters of a block are gathered, and their gradients
reduced, together; so are those that are used one after another outside of blocks, such as the last norm and the head.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..graph import Input, Ref, TensorInfo, block_of
from ._evaluate import shares_memory_of
from ._plan import Plan
from ._prices import SLOWDOWN
from ._schedule import Compute, Entry, Move, Value


@dataclass(frozen=True)
class Bucket:
    """Parameters that are gathered and reduced together: which, their local bytes, and the entries that need them.

    `forward` and `backward` are the first and the last entry that use one; after entry `ready` all gradients are there.
    """

    name: str
    parameters: tuple[str, ...]
    tensors: tuple[TensorInfo, ...]
    forward: tuple[int, int] | None
    backward: tuple[int, int] | None
    ready: int | None

    @property
    def numel(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def itemsize(self) -> int:
        return min((tensor.dtype.itemsize for tensor in self.tensors), default=1)


class Pass:
    """The entries of a plan's schedule with what they take, what they hold and where in the model they are.

    With `overlap`, collectives of a block's backward run beside the products that make gradients of its weights, as
    far as these take long enough, and take the pass only as long as they slow those down.
    """

    def __init__(self, plan: Plan, *, overlap: bool = False) -> None:
        self.plan = plan
        self.entries = plan.schedule.entries
        self.blocks = tuple(map(self._block, self.entries))
        phases = (isinstance(entry, Compute) and entry.node.phase == "backward" for entry in self.entries)
        self.turn = next((place for place, back in enumerate(phases) if back), len(self.entries))
        self.seconds = plan.cost.entries
        if overlap:
            hidden = self._beside_products()
            self.seconds = tuple(
                seconds - (1 - SLOWDOWN) * hidden.get(place, 0.0)
                for place, seconds in enumerate(self.seconds)
            )

    def _block(self, entry: Entry) -> str:
        """The block that an entry is in; a redistribution is in that of what it redistributes."""
        maker = entry.node if isinstance(entry, Compute) else self.plan.graph[entry.source.ref.name]
        return block_of(maker.target if isinstance(maker, Input) else maker.module)

    def _beside_products(self) -> dict[int, float]:
        """By move of backward the seconds in which products of its block, which nothing waits for, run too."""
        products: Counter[str] = Counter()
        for value in self.gradients.values():
            place = self.made_at.get(self.owners[value])
            if place is not None and isinstance(self.entries[place], Compute):
                products[self.blocks[place]] += self.seconds[place]  # type: ignore[assignment]
        moves: dict[str, list[int]] = {}
        for place, entry in enumerate(self.entries):
            if place >= self.turn and isinstance(entry, Move):
                moves.setdefault(self.blocks[place], []).append(place)
        hidden: dict[int, float] = {}
        for block, places in moves.items():
            share = min(1.0, products[block] / (sum(self.seconds[place] for place in places) or 1.0))
            hidden |= {place: share * self.seconds[place] for place in places}
        return hidden

    # -- memory

    @cached_property
    def owners(self) -> Mapping[Value, Value]:
        """The value in whose memory each value lies."""
        owner: dict[Value, Value] = {Value(Ref(entry.name)): Value(Ref(entry.name)) for entry in self._inputs}
        for entry in self.entries:
            base = shares_memory_of(entry)
            for value in entry.made:
                owner[value] = value if base is None else owner[base]
        return owner

    @cached_property
    def made_at(self) -> Mapping[Value, int]:
        """The entry that makes each value."""
        return {value: place for place, entry in enumerate(self.entries) for value in entry.made}

    def bytes_of(self, value: Value) -> int:
        """What a value takes in memory."""
        if not value.copy and value.ref in self.plan.graph.kernels.inner:
            return 0
        layout = self.plan.schedule.layouts[value]
        tensor = self.plan.graph.tensor(value.ref)
        shape = layout.local_shape(tensor.shape)
        return TensorInfo(tuple(shape), tensor.dtype).bytes

    @cached_property
    def activations(self) -> tuple[int, ...]:
        """Bytes held while each entry runs, beside parameters, the optimizer's states and gradients."""
        change = [0] * (len(self.entries) + 1)
        for owner in {self.owners[value] for value in self.gradients.values()}:
            if owner in self.made_at:
                change[self.made_at[owner]] += self.bytes_of(owner)
        gradients = accumulate(change)
        lasting = self.plan.cost.lasting
        return tuple(
            held - lasting - made for held, made in zip(self.plan.cost.held, gradients, strict=False)
        )

    @cached_property
    def gradients(self) -> Mapping[str, Value]:
        """The gradient of each parameter, by the parameter's name in the graph."""
        named = {entry.target: entry.name for entry in self._parameters}
        given = zip(self.plan.graph.outputs, self.plan.schedule.outputs, strict=True)
        return {
            named[output.target]: value
            for output, value in given
            if output.role == "gradient" and value is not None and output.target in named
        }

    # -- buckets

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """In the order of their first use."""
        uses = self._uses
        order = sorted((entry for entry in self._parameters), key=lambda entry: uses[entry.name][:1] or [0])
        return tuple(self._bucket(name, found) for name, found in _runs(order))

    def _bucket(self, name: str, parameters: list[Input]) -> Bucket:
        uses = sorted(place for entry in parameters for place in self._uses[entry.name])
        forward = [place for place in uses if place < self.turn]
        backward = [place for place in uses if place >= self.turn]
        gradients = [self.gradients[entry.name] for entry in parameters if entry.name in self.gradients]
        ready = [self.made_at[value] for value in gradients if value in self.made_at]
        return Bucket(
            name,
            tuple(entry.name for entry in parameters),
            tuple(self._local(entry) for entry in parameters),
            (forward[0], forward[-1]) if forward else None,
            (backward[0], backward[-1]) if backward else None,
            max(ready, default=None),
        )

    @cached_property
    def _uses(self) -> dict[str, list[int]]:
        """The entries that use each parameter, itself or a view of it."""
        uses: dict[str, list[int]] = {entry.name: [] for entry in self._parameters}
        for place, entry in enumerate(self.entries):
            if shares_memory_of(entry) is not None:
                continue
            for value in entry.used:
                owner = self.owners[value].ref.name
                if owner in uses:
                    uses[owner].append(place)
        return uses

    def _local(self, entry: Input) -> TensorInfo:
        shape = self.plan.inputs[entry.name].local_shape(entry.tensor.shape)
        return TensorInfo(tuple(shape), entry.tensor.dtype)

    @property
    def _inputs(self) -> tuple[Input, ...]:
        return self.plan.graph.inputs

    @property
    def _parameters(self) -> Iterator[Input]:
        return (entry for entry in self._inputs if entry.role == "parameter")


def _runs(parameters: Iterable[Input]) -> Iterator[tuple[str, list[Input]]]:
    """The parameters of each block, and those outside of blocks as long as they follow each other."""
    found: dict[str, list[Input]] = {}
    last, name = None, ""
    for entry in parameters:
        block = block_of(entry.target)
        if block != last:
            name = block or entry.target
        last = block
        found.setdefault(name, []).append(entry)
    yield from found.items()
