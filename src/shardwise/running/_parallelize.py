"""`parallelize`: shards a model, inside a program that `torchrun` started on every rank."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UsageError, require_given
from ..graph import Execution, as_module, call_arguments, with_loss
from ..layout import Sharding
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..planning import AXIS, GAP, Pin, Pipeline, Plan, inner_mesh, require_plan
from ..planning import plan as make_plan
from ._agree import agreed, from_first
from ._checkpoint import Rename, is_of_torch, load_from_torch, loaded_state
from ._emit import emit
from ._init import Init, local_state
from ._live import require_no_written_arguments, with_live_graph
from ._module import Sharded
from ._parallelize_stages import parallelize_stages
from ._pipelined import Pipelined
from ._shapes import Pattern, Shapes


def parallelize(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | DeviceMesh | str | None = None,
    plan: Plan | Pipeline | None = None,
    init: Init | str | None = None,
    checkpoint: str | Path | None = None,
    rename: Rename | None = None,
    shapes: Sequence[Pattern] | None = None,
    local_outputs: bool = False,
    compile: bool | str = False,
    seed: int = 0,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    training: bool = True,
    loss_fn: Callable[..., Any] | None = None,
    execution: Execution | None = None,
    recompute: str | Mapping[str, str] = "none",
    split_products: bool = False,
    optimizer: str = "adam",
    micro_batches: int | None = None,
    zero: bool = False,
    reduce: str | None = None,
    offload: bool = False,
    schedule: str = "1F1B",
    stages: int | None = None,
    pin: Mapping[str, Pin] | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
    share_layers: bool | None = None,
    gap: float = GAP,
    time_limit: float = 60.0,
    compare: bool = True,
) -> Sharded | Pipelined:
    """The model run by a plan on the ranks of a mesh: an `nn.Module` with DTensor parameters of the same names.

    `args` and `kwargs` are example arguments, as for `capture`. Either `mesh` or `plan` is required. Without a plan the
    first rank makes one, with the options from `cluster` on, which are those of `shardwise.plan`; the first rank's plan
    is used by all. Weights are the first rank's, and the other ranks' models may be on the meta device; those that are
    on the meta device there, too, are initialised here, by `init` or by its modules, or with `init="empty"` left to a
    checkpoint. `checkpoint` is a folder of safetensors files or of `torch.distributed.checkpoint`, of which every rank
    reads its pieces alone; `rename` has the checkpoint's names by the model's. `shapes` are other shapes that arguments
    may have, with None for any size: `[{"x": (None, 16), "target": (None,)}]`. Each is planned when it is first met,
    with parameters where they are, from the model, which must not change. `loss_fn` is a function of the model's
    result, and the sharded model returns what that returns: `sharded(x, target=labels)`. `compile` compiles the local
    program, by the backend of `torch.compile` that it names; it is then planned for that (`execution="compiled"`)
    unless it is told otherwise. On a mesh with the axis `pp` the model runs in stages, by `step` of a `Pipelined`
    instead of calls. A failure on one rank raises on every rank.
    """
    if mesh is None and plan is not None:
        require_plan(plan, "parallelize")
        mesh = plan.mesh
    require_given(
        mesh, "parallelize", "a mesh or a plan", "shardwise.parallelize(model, args, mesh='dp=2,tp=2')"
    )
    assert mesh is not None
    if not dist.is_initialized():
        raise UsageError(
            "there is no process group: start the program with torchrun and call init_process_group"
        )
    options: dict[str, Any] = {
        "cluster": cluster,
        "memory": memory,
        "training": training,
        "execution": execution or ("compiled" if compile and plan is None else "eager"),
        "recompute": recompute,
        "split_products": split_products,
        "optimizer": optimizer,
        "micro_batches": micro_batches,
        "zero": zero,
        "reduce": reduce,
        "offload": offload,
        "schedule": schedule,
        "stages": stages,
        "pin": pin,
        "shardings": shardings,
        "share_layers": share_layers,
        "gap": gap,
        "time_limit": time_limit,
        "compare": compare,
    }
    if plan is not None and (given_too := _other_than_default(options)):
        raise UsageError(
            f"{', '.join(given_too)} cannot be combined with `plan`: they are options for making one"
        )
    if init is not None and init != "empty" and not callable(init):
        raise UsageError(f"init is {init!r}: give a function that initialises a module, or 'empty'")
    model = with_loss(model, loss_fn)
    require_all_processes(mesh)
    device_mesh = agreed("making the mesh", lambda: _device_mesh(mesh))
    in_stages = AXIS in (device_mesh.mesh_dim_names or ())
    module, args, given = agreed("reading the arguments", lambda: _given(model, args, kwargs, plan))
    first = dist.get_rank() == 0

    def planned() -> dict[str, Any]:
        if not first:
            return {}
        on = mesh if isinstance(mesh, str) else Mesh.of(mesh)
        made = plan or make_plan(model, args, given, mesh=on, **options)
        return made.to_json()

    persistent = _persistence(module)
    device = device_mesh.device_type

    def loaded_of(own: Plan, rank: int) -> dict[str, Tensor]:
        may_lack = init is not None
        return loaded_state(own, rank, device, checkpoint, rename, may_lack=may_lack, persistent=persistent)

    if in_stages:
        refused = [name for name, given_too in (("shapes", shapes), ("compile", compile)) if given_too]
        if refused:
            raise UsageError(
                f"{refused[0]} is not supported for models in stages: leave it out, or the axis {AXIS}"
            )
        made = parallelize_stages(
            *(model, module, args, given, planned, device_mesh),
            init=init,
            seed=seed,
            persistent=persistent,
            load=loaded_of,
        )
        if checkpoint is not None and is_of_torch(checkpoint):
            load_from_torch(made, checkpoint, rename)
        return made
    assert not isinstance(plan, Pipeline)
    shared = Plan.from_json(from_first(agreed("planning", planned)))
    own = agreed(
        "capturing the model",
        lambda: with_live_graph(shared, model, args, given, None if plan is None else plan.graph),
    )
    require_no_written_arguments(own.graph)
    if own.mesh.shape != tuple(device_mesh.shape):
        raise UsageError(f"the plan is for mesh {own.mesh}, but the model runs on {Mesh.of(device_mesh)}")
    rank = _rank_in(device_mesh)
    program = agreed("lowering", lambda: emit(own, rank, device_mesh, device))
    loaded = agreed("loading the checkpoint", lambda: loaded_of(own, rank))
    entries = {e.target: e for e in own.graph.inputs if e.role in ("parameter", "buffer")}
    homes = {name: own.home(entry.name) for name, entry in entries.items()}
    local = local_state(entries, homes, module, rank, device, init, seed, loaded)
    search = {name: options[name] for name in ("gap", "time_limit")}
    sharded = Sharded(
        program,
        device_mesh,
        local,
        persistent=persistent,
        local_outputs=local_outputs,
        compile=compile,
        seed=from_first(seed),
        shapes=None if shapes is None else Shapes(shapes, model, search),
    )
    if checkpoint is not None and is_of_torch(checkpoint):
        load_from_torch(sharded, checkpoint, rename)
    return sharded


def _other_than_default(options: Mapping[str, Any]) -> list[str]:
    known = signature(make_plan).parameters
    return [name for name, value in options.items() if value != known[name].default]


def _given(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, plan: Plan | Pipeline | None
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    if plan is not None:
        require_plan(plan, "parallelize")
    return as_module(model), *call_arguments(args, kwargs)


def require_all_processes(mesh: Mesh | DeviceMesh | str) -> None:
    """Raise before the first collective, in which processes outside the mesh might not take part."""
    if isinstance(mesh, DeviceMesh) and mesh.size() != dist.get_world_size():
        raise UsageError(
            f"the mesh has {mesh.size()} of the {dist.get_world_size()} processes: a model runs on all of them; "
            "give a mesh that has them all"
        )


def _rank_in(device_mesh: DeviceMesh) -> int:
    """This process's place in the mesh, counted row by row."""
    coordinate = device_mesh.get_coordinate()
    assert coordinate is not None
    return Mesh.of(device_mesh).rank(coordinate)


def _device_mesh(mesh: Mesh | DeviceMesh | str) -> DeviceMesh:
    if isinstance(mesh, DeviceMesh):
        return mesh
    mesh, world = Mesh.of(mesh), dist.get_world_size()
    if mesh.ranks != world:
        raise UsageError(f"mesh {mesh} has {mesh.ranks} ranks, but {world} processes were started")
    if mesh.names == (AXIS,):  # the inside of a stage is a mesh, too
        mesh = Mesh((AXIS, *inner_mesh(mesh).names), (*mesh.shape, 1))
    return mesh.to_device_mesh("cuda" if dist.get_backend() == "nccl" else "cpu")


def _persistence(module: nn.Module) -> Callable[[str], bool]:
    def persistent(name: str) -> bool:
        owner, _, last = name.rpartition(".")
        return last not in module.get_submodule(owner)._non_persistent_buffers_set

    return persistent
