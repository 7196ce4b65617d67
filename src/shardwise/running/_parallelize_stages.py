"""A model in stages on the ranks of a mesh with the axis `pp`: planned, captured and lowered, each rank its stages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UsageError
from ..graph import (
    Graph,
    Segments,
    autocast_to,
    capture,
    chosen_again,
    has_layers,
    with_reduced_gradients,
)
from ..mesh import Mesh
from ..planning import AXIS, Pipeline, Plan
from ._agree import agreed, from_first
from ._emit import emit
from ._init import Init, local_state
from ._live import require_no_written_arguments, require_same_graph
from ._pipelined import Pipelined, inner_device_mesh


def parallelize_stages(
    model: Callable[..., Any],
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    planned: Callable[[], dict[str, Any]],
    device_mesh: DeviceMesh,
    *,
    init: Init | str | None,
    seed: int,
    persistent: Callable[[str], bool],
    load: Callable[[Plan, int], dict[str, Tensor]],
) -> Pipelined:
    """The stages of this rank, as the first rank planned them; `load` reads a stage's pieces from a checkpoint."""
    shared = Pipeline.from_json(from_first(agreed("planning", planned)))
    pipeline, whole = agreed("capturing the model", lambda: with_live_stages(shared, model, args, kwargs))
    require_no_written_arguments(whole)
    inner = inner_device_mesh(device_mesh)
    coordinate = inner.get_coordinate()
    assert coordinate is not None
    rank, device = Mesh.of(inner).rank(coordinate), device_mesh.device_type
    place = device_mesh.get_local_rank(AXIS)

    def lowered() -> dict[int, Any]:
        return {
            number: emit(pipeline.stages[number], rank, inner, device, split=pipeline.splits_backward)
            for number in pipeline.stages_at(place)
        }

    programs = agreed("lowering", lowered)
    plans = [program.plan for program in programs.values()]
    loaded = agreed(
        "loading the checkpoint", lambda: {k: v for plan in plans for k, v in load(plan, rank).items()}
    )
    entries = {
        entry.target: entry
        for plan in pipeline.stages
        for entry in plan.graph.inputs
        if entry.role in ("parameter", "buffer")
    }
    homes = {
        entry.target: plan.home(entry.name)
        for plan in plans
        for entry in plan.graph.inputs
        if entry.role in ("parameter", "buffer")
    }
    state = local_state(entries, homes, module, rank, device, init, seed, loaded)
    return Pipelined(
        pipeline, whole, programs, device_mesh, state, persistent=persistent, seed=from_first(seed)
    )


def with_live_stages(
    pipeline: Pipeline, model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Pipeline, Graph]:
    """The pipeline with graphs that can be run, from a capture of the model, and the graph of the whole."""
    first = pipeline.stages[0].graph
    losses = [entry.target for entry in pipeline.stages[-1].graph.with_role("tangent")]
    with autocast_to(first.autocast):
        graph = capture(
            *(model, args, dict(kwargs)),
            training=True,
            loss=losses,
            execution=first.execution,
            recompute=dict(first.recompute) or "none",
            split_products=has_layers(first),
            boundaries=True,
        )
    segments = Segments(graph)
    if len(segments) != pipeline.cuts[-1]:
        raise UsageError(
            f"the plan is for another model: it has {pipeline.cuts[-1]} parts, the model has {len(segments)}"
        )
    stages = []
    for plan, (begin, end) in zip(pipeline.stages, pairwise(pipeline.cuts), strict=True):
        live = with_reduced_gradients(
            segments.stage(begin, end), plan.graph.reduce, summed=pipeline.micro_batches > 1
        )
        live = chosen_again(live, plan.graph.again)
        require_same_graph(plan.graph, live)
        stages.append(replace(plan, graph=live))
    return replace(pipeline, stages=tuple(stages)), segments.whole
