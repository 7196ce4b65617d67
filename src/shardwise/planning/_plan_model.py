"""`plan` and `plan_graph`: from a model or a captured graph to its cheapest plan, on a mesh or on some devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch.distributed.device_mesh import DeviceMesh

from ..errors import require_given
from ..graph import Execution, Graph, capture
from ..layout import Sharding
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..progress import Progress
from ._amounts import memory_of
from ._best import best_plan
from ._elsewhere import Elsewhere
from ._explain import all_considered
from ._front import graphs
from ._pins import Pin
from ._pipeline import Pipeline
from ._plan import Plan
from ._planner import GAP, Planner, require_runnable


def plan(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | DeviceMesh | str | None = None,
    devices: int | None = None,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    training: bool = True,
    loss_fn: Callable[..., Any] | None = None,
    execution: Execution = "eager",
    recompute: str | Mapping[str, str] = "none",
    split_products: bool = False,
    optimizer: str = "adam",
    micro_batches: int | Literal["auto"] | None = None,
    global_batch: int | None = None,
    zero: bool = False,
    reduce: str | None = None,
    offload: bool = False,
    schedule: str = "1F1B",
    stages: int | None = None,
    pin: Mapping[str, Pin] | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
    elsewhere: Mapping[str, Elsewhere] | None = None,
    share_layers: bool | None = None,
    overlap: bool = False,
    gap: float = GAP,
    time_limit: float = 60.0,
    compare: bool = True,
    confirm: bool = True,
    debug: bool = False,
    progress: Progress | None = None,
) -> Plan | Pipeline:
    """The cheapest way to run a model, an `nn.Module` or a function, on a mesh.

    `mesh` has to be given: named axes, such as `"dp=2,tp=2"`; or the number of `devices`, of which every mesh of one or
    two axes is a candidate, and in `micro_batches` those with the axis `pp`, too. On a mesh with that axis the model
    runs in stages, a `Pipeline`: `schedule` is one of torch's, or `auto`, and there are so many `stages` at each place
    along `pp`, by default one or two; it is trained in `micro_batches`. Prices are those of `cluster`: a preset, a JSON
    file or a `Cluster`. The model is captured with its backward if `training`, and `optimizer` is then one of none,
    sgd, momentum and adam, with `+master` for a
    copy of the weights in float32. With `micro_batches` a step is so many calls with such arguments, each with its
    backward: gradients are added up, and the optimizer runs once. With `global_batch`, the samples of a step, the
    arguments of a pass are rows of those given, repeated or left out, and `micro_batches` is chosen with the plan,
    unless it is given. With `zero`, states of the optimizer may be sharded where parameters are not: the plan decides
    for each parameter whether it is gathered in every pass or once per step, and its gradients reduced in every pass or
    once. With `reduce="float32"`, gradients of parameters in a narrower dtype are cast to it before they are added up
    over ranks and over passes, and cast back afterwards. With `offload`, parameters and their states may be in the
    memory of the host, as far as others do not fit: the host's processors run their update, and passes begin from a
    copy. `loss_fn` is a function of the model's result where the loss is computed outside of the model, as for
    `capture`. `execution` is how every device runs its program: `eager`, or `compiled` by torch.compile, which fuses
    calls into kernels. `recompute` names the blocks of which backward computes again what it needs: `full`,
    `selective`, or by pattern `{"layers.[0-9]": "full"}`; with `auto` the plan decides that call by call, together with
    the layouts, so that it fits in memory. With `split_products`, products of linear layers may be split against the
    collectives that bring what they read or take what they make. `memory` is what each device may hold (`"80GB"`; by
    default all that the cluster's device has). `pin` fixes layouts of parameters, inputs, outputs and nodes by name
    pattern: `{"x": "S(0), R", "*.weight": {"tp": "R"}}`. `shardings` are
    given in the same way, as `{"x": "[{dp}, {}]", "*.up.weight": "[{tp}, {?}]"}`, and propagated to all other tensors:
    the plan follows them, and where they conflict prices decide. `elsewhere` says which arguments come from other
    meshes, and which results go to them: `{"x": Elsewhere("loader=2", "S(0)")}`. With `share_layers`, equal layers
    share their choices, as they do by default in large graphs. With `overlap`, collectives run beside calls where they
    can: parameters are gathered before they are needed, gradients reduced while backward goes on, within the memory
    that is left; plans are compared, and bounded, by the time of such a step. The search stops once the plan is known
    to lie within `gap` of the best, or, unless `gap` is 0, once a better one could save less in 20,000 steps than the
    search takes; all searches together (within memory, of baselines) have `time_limit` seconds. With `compare` the
    baselines are worked out too, and the plan costs no more than any of them that fits. With `confirm`, each distinct
    call is run at a small size with the rows chosen for it; what that refutes is not used, and shown. With `debug`,
    every node is printed with what was considered for it. `progress` is called as each stage goes on.

    >>> import torch
    >>> best = plan(torch.nn.Linear(64, 64), (torch.rand(32, 64),), mesh="dp=2,tp=2", cluster="laptop")
    >>> print(best.mesh, len(best.choices) == len(best.graph.nodes))
    dp=2,tp=2 True
    """
    if devices is None:
        require_given(mesh, "plan", "a mesh", "shardwise.plan(model, args, mesh='dp=2,tp=2')")
    prices = Cluster.of(cluster)
    alone = {"training=False": not training, "shardings": shardings, "elsewhere": elsewhere}
    made = best_plan(
        lambda boundaries: graphs(
            *(model, args, kwargs, global_batch, micro_batches),
            lambda *given: capture(
                *given,
                training=training,
                loss_fn=loss_fn,
                execution=execution,
                recompute=recompute,
                boundaries=boundaries,
                split_products=split_products,
            ),
        ),
        mesh=mesh,
        devices=devices,
        memory=memory_of(memory, prices),
        execution=execution,
        alone={**alone, "overlap": overlap, "offload": offload},
        of_planner={
            "cluster": prices,
            "optimizer": optimizer,
            "zero": zero,
            "reduce": reduce,
            "offload": offload,
            "elsewhere": elsewhere,
            "overlap": overlap,
            "progress": progress,
        },
        of_search={
            "pins": pin or {},
            "shardings": shardings,
            "share_layers": share_layers,
            "gap": gap,
            "time_limit": time_limit,
        },
        schedule=schedule,
        stages=stages,
        compare=compare,
        confirm=confirm,
    )
    if debug and isinstance(made, Plan):
        print(all_considered(made))
    return made


def plan_graph(
    graph: Graph,
    *,
    mesh: Mesh | DeviceMesh | str,
    cluster: Cluster | str = DEFAULT_CLUSTER,
    memory: int | float | str | None = None,
    optimizer: str = "adam",
    micro_batches: int = 1,
    zero: bool = False,
    reduce: str | None = None,
    offload: bool = False,
    pin: Mapping[str, Pin] | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
    elsewhere: Mapping[str, Elsewhere] | None = None,
    share_layers: bool | None = None,
    overlap: bool = False,
    gap: float = GAP,
    time_limit: float = 60.0,
    compare: bool = True,
    confirm: bool = True,
    debug: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """The cheapest plan of a captured graph on a mesh; options as for `shardwise.plan`."""
    require_runnable(graph)
    planner = Planner(
        *(graph, Mesh.of(mesh), Cluster.of(cluster)),
        memory=memory,
        optimizer=optimizer,
        micro_batches=micro_batches,
        zero=zero,
        reduce=reduce,
        offload=offload,
        progress=progress,
        elsewhere=elsewhere,
        overlap=overlap,
    )
    made = planner.plan(
        pin or {},
        shardings=shardings,
        share_layers=share_layers,
        gap=gap,
        time_limit=time_limit,
        compare=compare,
        confirm=confirm,
    )
    if debug:
        print(all_considered(made))
    return made
