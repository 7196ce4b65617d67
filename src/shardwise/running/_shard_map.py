"""`shard_map`: a function on whole tensors becomes one on sharded tensors, traced once and replayed.

The specs pin the layouts of arguments and results; the planner finds the layouts of everything in between.
In a program of several processes the function runs on DTensors; without one it runs on simulated ranks.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement
from torch.utils import _pytree as pytree

from ..errors import UsageError, require_given
from ..graph import Graph, arguments, capture
from ..layout import Layout, Sharding
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..planning import Pin, Plan, plan_graph, ways
from ._agree import agreed
from ._live import require_no_written_arguments
from ._parallelize import parallelize, require_all_processes
from ._simulate import simulate

Spec = str | Layout | Sharding | Sequence[Placement] | Mapping[str, Any] | None


class ShardMapped:
    """A function that runs sharded. `plan_for(*args)` is the plan that a call with such arguments runs by."""

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: Mesh | DeviceMesh | str,
        in_specs: Sequence[Spec] | None,
        out_specs: Any,
        auto: bool,
        debug: bool,
        options: Mapping[str, Any],
        pin: Mapping[str, Pin],
    ) -> None:
        self.function, self.mesh, self.auto, self.debug = function, mesh, auto, debug
        self.in_specs, self.out_specs, self.pin = in_specs, out_specs, pin
        self.options = options
        self._plans: dict[Any, Plan] = {}
        self._programs: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not dist.is_initialized():
            return _simulated(self.plan_for(*args, **kwargs), self.function, args, kwargs)
        key = _key(args, kwargs)
        if key not in self._programs:
            require_all_processes(self.mesh)
            first = dist.get_rank() == 0
            plan = agreed("planning", lambda: self.plan_for(*args, **kwargs) if first else None)
            self._programs[key] = parallelize(
                self.function, _whole(args), _whole(kwargs), mesh=self.mesh, plan=plan
            )
        return self._programs[key](*args, **kwargs)

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        key = _key(args, kwargs)
        if key not in self._plans:
            self._plans[key] = self._planned(_whole(args), _whole(kwargs))
        return self._plans[key]

    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        leaves = pytree.tree_leaves((args, kwargs))
        training = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
        graph = capture(self.function, args, kwargs, training=training)
        require_no_written_arguments(graph)
        pins = {
            **self._pinned("in_specs", self.in_specs, graph),
            **self._pinned("out_specs", self.out_specs, graph),
            **self.pin,
        }
        plan = plan_graph(
            graph, mesh=Mesh.of(self.mesh), pin=pins, optimizer="none", compare=False, **self.options
        )
        if self.debug:
            _print_debug(plan)
        return plan

    def _pinned(self, which: str, specs: Any, graph: Graph) -> dict[str, Any]:
        """Specs by name; without `auto` or shardings to follow, those left open mean replicated."""
        if which == "in_specs":
            names = [entry.target for entry in graph.with_role("user_input")]
        else:
            names = [o.target for o in graph.outputs if o.role == "user_output" and o.value is not None]
        if specs is None:
            given: list[Spec] = [None] * len(names)
        elif isinstance(specs, tuple | list) and not _is_placements(specs):
            given = list(specs)
        else:
            given = [specs]
        if len(given) != len(names):
            raise UsageError(
                f"{which} has {len(given)} entries, but {graph.name} has {len(names)} tensors there: {', '.join(names)}"
            )
        everywhere = Layout.replicated(Mesh.of(self.mesh))
        open_ = None if self.auto or self.options["shardings"] else everywhere
        kind = "input" if which == "in_specs" else "output"
        chosen = {
            f"{kind}:{n}": open_ if spec is None else spec for n, spec in zip(names, given, strict=True)
        }
        return {name: spec for name, spec in chosen.items() if spec is not None}


def shard_map(
    function: Callable[..., Any],
    *,
    mesh: Mesh | DeviceMesh | str | None = None,
    in_specs: Sequence[Spec] | None = None,
    out_specs: Spec | Sequence[Spec] = None,
    auto: bool = False,
    debug: bool = False,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    pin: Mapping[str, Pin] | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
) -> ShardMapped:
    """A function on whole tensors, run sharded over a mesh such as `"dp=2,tp=2"`, which is required.

    `in_specs` has a layout for each tensor among the arguments, `out_specs` one for each result: `"S(0), R"`,
    `"[{dp}, {}]"`, placements, a `Layout` or `Sharding`, or `{"dp": "S(0)"}` for some axes; axes may be in any order,
    shards strided and values partial. Missing specs and None mean replicated, or with `auto` planned. `cluster`,
    `memory`, `pin` and `shardings` are those of `shardwise.plan`; specs that are missing are propagated from shardings.
    `debug` prints every node with its choice, what that is called, and the costs of the alternatives.

    >>> import torch
    >>> mapped = shard_map(torch.matmul, mesh="d=4", in_specs=["S(1)", "S(0)"], out_specs="R")
    >>> a, b = torch.rand(6, 8), torch.rand(8, 5)
    >>> bool((mapped(a, b) - a @ b).abs().max() < 1e-5)
    True
    >>> [step.kind for move in mapped.plan_for(a, b).schedule.moves for step in move.change.collectives]
    ['all_reduce']
    """
    if not callable(function):
        raise UsageError(
            f"{function!r} cannot be run: give a function on whole tensors, such as torch.matmul"
        )
    require_given(mesh, "shard_map", "a mesh", "shardwise.shard_map(function, mesh='dp=2,tp=2')")
    assert mesh is not None
    Mesh.of(mesh)  # raises for an invalid mesh here, not at the first call
    options = {"cluster": cluster, "memory": memory, "shardings": shardings}
    return ShardMapped(function, mesh, in_specs, out_specs, auto, debug, options, pin or {})


def _simulated(
    plan: Plan, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    leaves, form = pytree.tree_flatten((args, kwargs))
    made = iter(_Simulated.apply(plan, function, form, *leaves))
    outputs = [output for output in plan.graph.outputs if output.role == "user_output"]
    results = [output.constant if output.value is None else next(made) for output in outputs]
    assert plan.graph.live is not None
    return pytree.tree_unflatten(results, plan.graph.live.out_spec)


class _Simulated(torch.autograd.Function):
    """A simulated call that can be differentiated: its backward runs the plan again, with the incoming gradients."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, function: Callable[..., Any], form: pytree.TreeSpec, *leaves: Any
    ) -> tuple[Tensor, ...]:
        ctx.plan, ctx.function, ctx.form, ctx.leaves = plan, function, form, leaves
        args, kwargs = pytree.tree_unflatten(leaves, form)
        ran = simulate(function, args, kwargs, plan=plan)
        made = {name: pieces.whole() for name, pieces in ran.outputs.items() if pieces is not None}
        ctx.names = list(made)
        trained = {entry.target for entry in plan.graph.with_role("tangent")}
        ctx.mark_non_differentiable(*(tensor for name, tensor in made.items() if name not in trained))
        return tuple(made.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        graph, leaves = ctx.plan.graph, ctx.leaves
        tangents = dict(zip(ctx.names, grads, strict=True))
        args, kwargs = pytree.tree_unflatten(leaves, ctx.form)
        ran = simulate(ctx.function, args, kwargs, plan=ctx.plan, tangents=tangents)
        places = arguments(graph, *pytree.tree_unflatten(range(len(leaves)), ctx.form))
        found: list[Tensor | None] = [None] * len(leaves)
        for entry in graph.with_role("user_input"):
            if (pieces := ran.gradients.get(entry.target)) is not None:
                found[places[entry.name]] = pieces.whole()
        return None, None, None, *found


def _whole(tree: Any) -> Any:
    """The arguments as what they stand for: a DTensor as a tensor of its whole shape, without values."""

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        meta = torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        return meta.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(whole, tree)


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    described = [
        (tuple(leaf.shape), leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    return str(spec), tuple(map(repr, described))


def _is_placements(specs: Sequence[Any]) -> bool:
    return bool(specs) and all(isinstance(spec, Placement) for spec in specs)


def _print_debug(plan: Plan, alternatives: int = 3) -> None:
    """Per node its choice and the cheapest others, on the standard error."""
    for node in plan.graph.nodes:
        called = ways(plan.graph, node, plan.choices[node.name])
        print(f"{node}" + (f"  # {called}" if called else ""), file=sys.stderr)
        for considered in plan.considered(node.name)[: alternatives + 1]:
            mark = "*" if considered.chosen else " "
            own, moved = considered.compute * 1e6, considered.redistribution * 1e6
            costs = f"compute {own:.2f} us, redistribution {moved:.2f} us, {considered.bytes:,} bytes"
            print(f"  {mark} {considered.rows}  # {costs}", file=sys.stderr)
    for move in plan.schedule.moves:
        print(f"{move}", file=sys.stderr)
