"""The best plan on a mesh, or on a number of devices: in stages where the mesh says so, or where they may pay."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from ..errors import UsageError
from ..graph import Graph
from ..mesh import Mesh
from ._devices import in_order, of_front, plan_devices
from ._front import chosen, meshes_of
from ._pipeline import AXIS, Pipeline
from ._pipelining import of_pipeline, plan_pipeline
from ._plan import Plan


def best_plan(
    graphs_with: Callable[[bool], tuple[Sequence[int], Callable[[int], Graph]]],
    *,
    mesh: Mesh | DeviceMesh | str | None,
    devices: int | None,
    memory: int,
    execution: str,
    alone: Mapping[str, Any],
    of_planner: Mapping[str, Any],
    of_search: Mapping[str, Any],
    schedule: str = "1F1B",
    stages: int | None = None,
    compare: bool = True,
    confirm: bool = True,
) -> Plan | Pipeline:
    """The best plan on a mesh or on so many devices, with options as for `chosen`.

    `graphs_with` gives the numbers of passes and the graph of a pass by their number, with boundaries between stages or
    without. Options that are for plans without stages `alone` come by name.
    """
    meshes = meshes_of(devices, mesh)
    options: dict[str, Any] = {"of_planner": of_planner, "of_search": of_search, "confirm": confirm}
    in_stages: dict[str, Any] = {"memory": memory, "schedule": schedule, "stages": stages}
    if AXIS in meshes[0]:
        require_stages(alone)
        passes, graph_of = graphs_with(True)
        given = {**in_stages, **of_pipeline(of_planner, of_search), "confirm": confirm}
        return plan_pipeline(graph_of(passes[-1]), mesh=meshes[0], micro_batches=passes[-1], **given)
    passes, graph_of = graphs_with(False)
    if devices is None or execution != "eager" or any(alone.values()):
        front = chosen(graph_of, meshes, passes, [memory], compare=compare, **options)
        return front.best.noted(candidates=in_order(of_front(front)) if len(front.tried) > 1 else ())
    staged_of = graphs_with(True)[1]
    return plan_devices(graph_of, staged_of, devices, passes, compare=compare, **in_stages, **options)


def require_stages(alone: Mapping[str, Any]) -> None:
    """Refuse options that are for plans without stages `alone` on a mesh that asks for stages."""
    for name, given in alone.items():
        if given:
            raise UsageError(f"{name} cannot be combined with the axis {AXIS}: leave out one of them")
