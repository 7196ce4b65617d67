"""A plan as one program for one rank: an fx graph of ATen calls on local tensors and functional collectives.

The schedule is run once on fake tensors and traced; the trace is what the rank will run, node by node, with
uneven sizes, offsets and process groups resolved for it. Forward and backward are two graphs, cut where the plan's
graph is: the tensors of forward that backward needs are saved.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.proxy_tensor import (
    disable_proxy_modes_tracing,
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)

from ..dtensor import (
    arrived,
    before_last_wait,
    begin_along,
    join_collectives,
    run_step,
    with_late_waits,
)
from ..forms import run_alone
from ..graph import Ref, autocast_to, without_memory
from ..planning import Compute, Move, Plan, Value, Wait, after_arguments, backward_entries
from ..planning import Entry as ScheduleEntry
from ._lower import Lowering, RankCompute, piece
from ._whole import Entry, Recomposed, with_whole_calls


@dataclass(frozen=True)
class Part:
    """Forward or backward: its inputs, its outputs, and the entries that compute the outputs."""

    takes: tuple[Value, ...]
    gives: tuple[Value, ...]
    entries: tuple[ScheduleEntry, ...]


@dataclass(frozen=True)
class RankProgram:
    """The program of one rank. The modules take a seed after the inputs of their part.

    Forward returns the graph's outputs and mutations and then the saved tensors; backward takes the
    saved tensors and the tangents, and returns the gradients. Where it is two modules, the first returns the gradients
    of arguments and then what the second takes, which returns those of parameters.
    """

    plan: Plan
    rank: int
    forward: fx.GraphModule
    backward: tuple[fx.GraphModule, ...]
    parts: "Parts"

    def __str__(self) -> str:
        lines = list(_listing("forward", self.forward))
        for module in self.backward:
            lines += ["", *_listing("backward", module)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Parts:
    """A schedule cut in two."""

    plan: Plan

    @cached_property
    def results(self) -> tuple[Value, ...]:
        """The values that forward returns to its caller: user outputs and mutations, each once."""
        return self._given("user_output", "mutation")

    @cached_property
    def gradients(self) -> tuple[Value, ...]:
        return self._given("gradient")

    @cached_property
    def saved(self) -> tuple[Value, ...]:
        """The inputs and intermediate values of forward that backward needs."""
        made = {value for entry in self._back for value in entry.made} | set(self.tangents)
        used = [value for entry in self._back for value in entry.used] + list(self.gradients)
        return tuple(dict.fromkeys(value for value in used if value not in made))

    @cached_property
    def tangents(self) -> tuple[Value, ...]:
        return tuple(Value(Ref(entry.name)) for entry in self.plan.graph.with_role("tangent"))

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(Value(Ref(e.name)) for e in self.plan.graph.inputs if e.role != "tangent")

    @cached_property
    def forward(self) -> Part:
        pairs = zip(self.plan.schedule.entries, self._is_back, strict=True)
        return Part(
            self.inputs, (*self.results, *self.saved), tuple(entry for entry, back in pairs if not back)
        )

    @cached_property
    def backward(self) -> Part:
        return Part((*self.saved, *self.tangents), self.gradients, self._back)

    # -- backward in two: what the stage before waits for, and the rest

    @cached_property
    def of_arguments(self) -> tuple[Value, ...]:
        """The gradients of arguments."""
        arguments = {entry.target for entry in self.plan.graph.with_role("user_input")}
        return tuple(
            value
            for value in self.gradients
            if any(
                output.role == "gradient" and output.target in arguments and given == value
                for output, given in zip(self.plan.graph.outputs, self.plan.schedule.outputs, strict=True)
            )
        )

    @cached_property
    def handed(self) -> tuple[Value, ...]:
        """What gradients of parameters follow from, besides what the second part of backward makes."""
        made = {value for entry in self._second for value in entry.made}
        used = [value for entry in self._second for value in entry.used] + list(self.of_parameters)
        return tuple(dict.fromkeys(value for value in used if value not in made))

    @cached_property
    def of_parameters(self) -> tuple[Value, ...]:
        return tuple(value for value in self.gradients if value not in self.of_arguments)

    @property
    def backwards(self) -> tuple[Part, Part]:
        """Backward in two parts."""
        first = tuple(entry for entry, second in self._in_two if not second)
        return (
            Part(self.backward.takes, (*self.of_arguments, *self.handed), first),
            Part(self.handed, self.of_parameters, self._second),
        )

    @cached_property
    def _second(self) -> tuple[ScheduleEntry, ...]:
        return tuple(entry for entry, second in self._in_two if second)

    @cached_property
    def _in_two(self) -> list[tuple[ScheduleEntry, bool]]:
        return list(zip(self._back, after_arguments(self._back, self.of_arguments), strict=True))

    def _given(self, *roles: str) -> tuple[Value, ...]:
        pairs = zip(self.plan.graph.outputs, self.plan.schedule.outputs, strict=True)
        return tuple(dict.fromkeys(v for output, v in pairs if v is not None and output.role in roles))

    @cached_property
    def _back(self) -> tuple[ScheduleEntry, ...]:
        pairs = zip(self.plan.schedule.entries, self._is_back, strict=True)
        return tuple(entry for entry, back in pairs if back)

    @cached_property
    def _is_back(self) -> list[bool]:
        return backward_entries(self.plan.schedule, self.results)


@autocast_to(None)
def emit(
    plan: Plan, rank: int, device_mesh: DeviceMesh, device: str | None = None, *, split: bool = False
) -> RankProgram:
    """The program of one rank, which must be the one that runs this (its process groups are looked up). With `split`,
    backward is in two parts."""
    parts = Parts(plan)
    emitter = _Emitter(plan, rank, device_mesh, device)
    forward = emitter.part(parts.forward)
    backwards = parts.backwards if split else (parts.backward,)
    backward = tuple(map(emitter.part, backwards)) if plan.graph.training else ()
    return RankProgram(plan, rank, forward, backward, parts)


class _Emitter:
    def __init__(self, plan: Plan, rank: int, device_mesh: DeviceMesh, device: str | None) -> None:
        self.plan, self.rank, self.device_mesh = plan, rank, device_mesh
        self.lowering = Lowering(plan, device=device, traced=True)
        self.fakes: dict[Value, Tensor] = {}
        with without_memory():
            self.seed = torch.empty((), dtype=torch.int64, device=device)
            for entry in plan.graph.inputs:
                local = piece(entry.tensor.shape, plan.inputs[entry.name], rank).local
                empty = torch.empty(local, dtype=entry.tensor.dtype, device=device)
                self.fakes[Value(Ref(entry.name))] = empty

    def part(self, part: Part) -> fx.GraphModule:
        notes: dict[fx.Node, Entry] = {}  # in the order in which the nodes shall run
        results: dict[fx.Node, Value] = {}
        waiting: dict[Value, list[fx.Node]] = {}  # how what is under way arrives
        buckets: list[list[fx.Node]] = []  # what is begun, together where it runs as one

        def run(*given: Tensor) -> list[Tensor]:
            *taken, seed = given
            values: dict[Value, Any] = dict(zip(part.takes, taken, strict=True))
            nodes = get_proxy_mode().tracer.graph.nodes
            for entry in with_whole_calls(self.plan, part.entries, part.gives):
                before = len(nodes)
                made = self._run(entry, values, seed)
                values.update(made)
                fresh = list(islice(reversed(nodes), len(nodes) - before))
                results.update(dict(zip(fresh, reversed(made), strict=False)))
                now = fresh[::-1]
                if isinstance(entry, Compute) and entry.choice.group_axes:
                    now = with_late_waits(now)
                if isinstance(entry, Move) and entry.begun:
                    number = before_last_wait(now)
                    now, waiting[entry.target] = now[:number], now[number:]
                    if not entry.joined:
                        buckets.append([])
                    buckets[-1] += now
                elif isinstance(entry, Wait):
                    now = waiting.pop(entry.move.target)
                notes.update(dict.fromkeys(now, entry))
            return [values[value] for value in part.gives]

        with torch.no_grad():
            traced = make_fx(run, tracing_mode="fake")(*(self.fakes[v] for v in part.takes), self.seed)
        for node, value in zip(traced.graph.find_nodes(op="placeholder"), (*part.takes, None), strict=True):
            node._rename(_identifier(value) if value else "seed")
        for value, node in zip(part.gives, traced.graph.output_node().args[0], strict=True):
            self.fakes[value] = node.meta["val"]
        for node, entry in notes.items():
            traced.graph.output_node().prepend(node)
            node.meta["shardwise"] = entry
            if node in results:
                node._rename(_identifier(results[node]))
        for bucket in buckets:
            join_collectives(traced.graph, bucket)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        return traced

    def _run(self, entry: Entry, values: dict[Value, Any], seed: Tensor) -> dict[Value, Any]:
        if isinstance(entry, Move):
            local, shape = values[entry.source], self.plan.graph.tensor(entry.source.ref).shape
            for step in entry.change.steps:
                local = run_step(local, step, self.device_mesh, shape)
            return {entry.target: local}
        if isinstance(entry, Wait):
            return {}
        if isinstance(entry, Recomposed):
            return entry([values[value] for value in entry.inputs], self.lowering.retargeted)
        local, tensors = self.lowering.on_rank(entry, self.rank), [values[v] for v in entry.inputs]
        axes = entry.choice.group_axes
        if not axes:
            made = local(tensors, seed)
        elif local.by_values:
            made = tuple(self._called(local, axes, tensors))
        else:
            made = run_alone(local.in_group(tensors, begin_along(self.device_mesh, axes)), arrived)
        return {value: tensor for value, tensor in zip(entry.outputs, made, strict=True) if value is not None}

    def _called(self, local: RankCompute, axes: Sequence[int], tensors: Sequence[Tensor]) -> list[Tensor]:
        """A call of a form in the program, which runs as it is when the program does."""

        begin = begin_along(self.device_mesh, axes)

        def run(*given: Tensor) -> list[Tensor]:
            return list(run_alone(local.in_group(given, begin), arrived))

        run.__name__ = f"{local.form}_of_{local.compute.node.name}"
        tracer = get_proxy_mode().tracer
        called = tracer.create_proxy("call_function", run, tuple(map(tracer.unwrap_proxy, tensors)), {})
        with disable_proxy_modes_tracing():
            infos = zip(local.outputs, local.compute.node.outputs, strict=True)
            made = [
                torch.empty(piece.local, dtype=info.dtype, device=tensors[0].device)
                for piece, info in infos
                if piece is not None and info is not None
            ]
        return track_tensor_tree(made, called, constant=None, tracer=tracer)


def _identifier(value: Value) -> str:
    """A name for a value in the text of the program."""
    name = value.ref.name + (f"_{value.ref.output}" if value.ref.output else "")
    if not value.copy:
        return name
    return name + "_moved"


def _listing(title: str, module: fx.GraphModule) -> Iterator[str]:
    yield f"def {title}({', '.join(node.name for node in module.graph.find_nodes(op='placeholder'))}):"
    last: Entry | None = None
    for node in module.graph.nodes:
        entry = node.meta.get("shardwise")
        if entry is not None and entry is not last:
            last = entry
            yield f"    # {entry}"
        if node.op == "call_function":
            name = (
                getattr(node.target, "__name__", str(node.target))
                if node.target is getitem
                else str(node.target)
            )
            args = [*map(repr, node.args), *(f"{key}={value!r}" for key, value in node.kwargs.items())]
            yield f"    {node.name} = {name}({', '.join(args)})"
    yield f"    return {module.graph.output_node().args[0]}"
