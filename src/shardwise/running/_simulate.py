"""Simulation: all ranks of a plan inside one process, a plain interpreter over lists of local tensors.

The schedule is run entry by entry: a call on every rank's pieces, a redistribution by the steps that were priced.
Nothing is distributed and nothing is approximated: each rank computes what it would compute on a device of its own,
and what the ranks would send each other is recorded.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..dtensor import Recorded, run_step_on_all
from ..errors import UsageError, require
from ..forms import Request, run_together
from ..graph import Ref, autocast_to, inputs_of
from ..layout import Layout
from ..placements import is_replicate
from ..planning import Compute, Plan, Value, Wait, require_plan
from ..redistribution import Chain
from ._lower import Lowering, RankCompute, widened


@dataclass(frozen=True)
class Pieces:
    """What all ranks hold of one tensor."""

    layout: Layout
    shape: tuple[int, ...]
    locals: tuple[Tensor, ...]

    @classmethod
    def of(cls, tensor: Tensor, layout: Layout) -> "Pieces":
        """The tensor cut up; a piece that is smaller than the tensor has memory of its own."""
        pieces = layout.split(tensor.detach())
        own = (
            p if p.shape == tensor.shape else p.clone(memory_format=torch.contiguous_format) for p in pieces
        )
        return cls(layout, tuple(tensor.shape), tuple(own))

    def __repr__(self) -> str:
        return f"<Pieces of {list(self.shape)}: {self.layout}>"

    def whole(self) -> Tensor:
        """The tensor put together, partials reduced."""
        return self.layout.join(self.locals)

    def disagreement(self) -> float:
        """The largest difference between ranks that should hold the same."""
        mesh, worst = self.layout.mesh, 0.0
        for rank, local in enumerate(self.locals):
            place = mesh.coordinate(rank)
            first = [
                0 if is_replicate(p) else at for p, at in zip(self.layout.placements, place, strict=True)
            ]
            other = self.locals[mesh.rank(first)]
            if local is not other and local.numel():
                worst = max(worst, float(difference(local, other).max()))
        return worst


@dataclass
class Simulated:
    """The results of a simulated run. `peak` is the peak memory of the values on the first rank, in bytes, and `left`
    what they take at the end."""

    outputs: dict[str, Pieces | None] = field(default_factory=dict)
    gradients: dict[str, Pieces | None] = field(default_factory=dict)
    mutations: dict[str, Pieces] = field(default_factory=dict)
    collectives: list[Recorded] = field(default_factory=list)
    peak: int = 0
    left: int = 0


@autocast_to(None)
def simulate(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    plan: Plan | None = None,
    seed: int = 0,
    tangents: Mapping[str, Tensor] | None = None,
) -> Simulated:
    """Run a plan on all its ranks inside this process: forward, and backward where the plan has one.

    `plan` is required: the result of `shardwise.plan` for this model and such arguments. `tangents` are the gradients
    of outputs, by name, that backward starts from; the default is ones. The model itself is not changed.
    """
    require_plan(plan, "simulate")
    assert plan is not None
    require(seed, int, "seed", "a whole number")
    given = inputs_of(plan.graph, model, args, kwargs, tangents)
    return Simulation(plan).run(plan_pieces(plan, given), seed)


def plan_pieces(plan: Plan, given: Mapping[str, Any], wide: bool = False) -> dict[str, Pieces]:
    """The graph's inputs, each sharded as planned; with `wide`, in double precision."""
    require_planned(plan, given)
    pieces = {}
    for entry in plan.graph.inputs:
        pieces[entry.name] = Pieces.of(widened(given[entry.name], wide), plan.inputs[entry.name])
    return pieces


def require_planned(plan: Plan, given: Mapping[str, Any]) -> None:
    """Raise unless all inputs of the graph have the planned shapes and dtypes."""
    for entry in plan.graph.inputs:
        tensor = given[entry.name]
        if not isinstance(tensor, Tensor):
            raise UsageError(
                f"{entry.role} {entry.target!r} is {tensor!r}, but was planned as {entry.tensor}"
            )
        if tuple(tensor.shape) != entry.tensor.shape or tensor.dtype != entry.tensor.dtype:
            raise UsageError(
                f"{entry.role} {entry.target!r} is {str(tensor.dtype)[6:]}{list(tensor.shape)}, "
                f"but was planned as {entry.tensor}"
            )


class Simulation:
    """A plan prepared to be run any number of times."""

    def __init__(self, plan: Plan, wide: bool = False) -> None:
        self.plan = plan
        self.lowering = Lowering(plan, wide)
        self.schedule = plan.schedule

    def run(
        self,
        inputs: Mapping[str, Pieces],
        seed: int = 0,
        watch: Callable[[Value, Pieces], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Simulated:
        """`watch` is called with every value that a call computes, `progress` with the number of entries that have
        run."""
        values = {Value(Ref(name)): pieces for name, pieces in inputs.items()}
        result = Simulated()
        memory = _Memory()
        for entry in self.plan.graph.inputs:
            memory.add(inputs[entry.name])
            if entry.role not in ("user_input", "tangent"):
                memory.add(inputs[entry.name])  # it is never freed
        # Values that are inside of kernels, though here each call is one, and their views.
        inner = {Value(ref) for ref in self.plan.graph.kernels.inner}
        inner |= {Value(view) for view, base in self.plan.graph.views.items() if Value(base) in inner}
        draws = torch.tensor(seed)
        with torch.no_grad():
            for number, item in enumerate(self.schedule.entries):
                if progress is not None:
                    progress(number)
                if isinstance(item, Compute):
                    used = [values[v] for v in item.inputs]
                    made = self._compute(item, used, draws, result.collectives)
                elif isinstance(item, Wait):
                    made = {}
                else:
                    made = {item.target: moved(item.change, values[item.source], result.collectives)}
                    if item.joined:
                        last = result.collectives.pop()
                        result.collectives.append(result.collectives.pop().joined(last))
                for value, pieces in made.items():
                    values[value] = pieces
                    if value not in inner:
                        memory.add(pieces)
                if watch is not None and isinstance(item, Compute):
                    for value, pieces in made.items():
                        watch(value, pieces)
                for value in item.dead:
                    pieces = values.pop(value)
                    if value not in inner:
                        memory.drop(pieces)
        places: dict[str, dict[str, Any]] = {
            "user_output": result.outputs,
            "gradient": result.gradients,
            "mutation": result.mutations,
        }
        result.peak, result.left = memory.peak, memory.now
        for output, given in zip(self.plan.graph.outputs, self.schedule.outputs, strict=True):
            places[output.role][output.target] = None if given is None else values[given]
        return result

    def _compute(
        self, entry: Compute, inputs: Sequence[Pieces], seed: Tensor, record: list[Recorded]
    ) -> dict[Value, Pieces]:
        ranks = range(self.plan.mesh.ranks)
        local = [self.lowering.on_rank(entry, rank) for rank in ranks]
        tensors = [[pieces.locals[rank] for pieces in inputs] for rank in ranks]
        made: list[tuple[Any, ...]] = []
        known: dict[Any, tuple[Any, ...]] = {}  # replicas need not compute the same again
        if entry.choice.group_axes:
            made = self._compute_in_groups(entry, local, tensors, record)
        else:
            for rank in ranks:
                key = (*map(id, tensors[rank]), local[rank].key)
                if key not in known:
                    computed = local[rank](tensors[rank], seed)
                    known[key] = self._checked(computed, entry, rank, local[rank].outputs)
                made.append(known[key])
        columns = zip(
            entry.outputs,
            entry.node.outputs,
            entry.choice.output_layouts,
            zip(*made, strict=True),
            strict=True,
        )
        return {
            value: Pieces(layout, info.shape, column)
            for value, info, layout, column in columns
            if value is not None and info is not None and layout is not None
        }

    def _compute_in_groups(
        self,
        entry: Compute,
        local: Sequence[RankCompute],
        tensors: Sequence[list[Tensor]],
        record: list[Recorded],
    ) -> list[tuple[Any, ...]]:
        """The same where ranks communicate inside of the call: all of a group run together."""
        made: dict[int, tuple[Any, ...]] = {}

        def note(request: Request) -> None:
            kind = "all_to_all" if request.kind == "permute" else request.kind
            record.append(Recorded(kind, request.size, request.ranks))

        for rank in range(len(local)):
            if rank not in made:
                ranks = entry.choice.group(rank)
                runs = [local[member].in_group(tensors[member]) for member in ranks]
                results = run_together(runs, None if rank else note)
                for member, result in zip(ranks, results, strict=True):
                    made[member] = self._checked(result, entry, member, local[member].outputs)
        return [made[rank] for rank in range(len(local))]

    def _checked(
        self, made: tuple[Any, ...], entry: Compute, rank: int, expected: Sequence[Any]
    ) -> tuple[Any, ...]:
        for tensor, piece in zip(made, expected, strict=True):
            if piece is not None and tuple(tensor.shape) != piece.local:
                raise UsageError(
                    f"{entry.node} by {entry.choice} computes on rank {rank} a piece of shape {tuple(tensor.shape)}, "
                    f"where {piece.local} of {piece.shape} was planned"
                )
        return made


def difference(some: Tensor, other: Tensor) -> Tensor:
    """How far apart two tensors are, element by element, in double precision; equal infinities and NaNs are not."""
    if some.dtype.is_complex:
        some, other = torch.view_as_real(some), torch.view_as_real(other)
    some, other = some.double(), other.double()
    same = (some == other) | (some.isnan() & other.isnan())
    return (some - other).abs().nan_to_num(nan=torch.inf).masked_fill(same, 0.0)


def moved(change: Chain, pieces: Pieces, record: list[Recorded]) -> Pieces:
    """The pieces after a redistribution, whose collectives are recorded."""
    locals_ = list(pieces.locals)
    for step in change.steps:
        locals_ = run_step_on_all(locals_, step, pieces.shape, record)
    return Pieces(change.target, pieces.shape, tuple(locals_))


class _Memory:
    """Bytes of memory of the first rank's pieces. A view takes no memory and keeps its base alive."""

    def __init__(self) -> None:
        self.users: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def add(self, pieces: Pieces) -> None:
        local = pieces.locals[0]
        storage = local.untyped_storage().data_ptr()
        if not self.users[storage]:
            self.sizes[storage] = local.nbytes
            self.now += local.nbytes
            self.peak = max(self.peak, self.now)
        self.users[storage] += 1

    def drop(self, pieces: Pieces) -> None:
        storage = pieces.locals[0].untyped_storage().data_ptr()
        self.users[storage] -= 1
        if not self.users[storage]:
            self.now -= self.sizes[storage]
