"""`propagate`: shardings through a program, a captured graph, a function or a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from ..errors import UsageError, require_given
from ..graph import Graph, capture
from ..layout import Sharding
from ..mesh import Mesh
from ._annotations import Annotations
from ._captured import GraphPropagation, Rules, captured_program
from ._levels import Level
from ._program import Program
from ._run import Propagation, run

_EXAMPLE = "shardwise.propagate(model, args, mesh='dp=2,tp=2', shardings={'x': '[{dp}, {}]'})"


def propagate(
    model: Callable[..., Any] | Graph | Program,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | DeviceMesh | str | None = None,
    shardings: Mapping[str, Sharding | str] | None = None,
    training: bool = True,
    level: Level = "user-priority",
    debug: bool = False,
    sweeps: int | None = None,
) -> Propagation:
    """Propagate the shardings of a few tensors to all others, to a fixed point.

    `model` is a module or a function, captured with these arguments and, if `training`, its backward; a captured
    `Graph`; or a `Program`, which has its mesh and its shardings already. `shardings` are given by name pattern, as in
    `{"x": "[{dp}, {}]", "layers.*.up.weight": "[{tp}, {}]"}`. The factors of every call are derived from the rows that
    the book has for it; nothing passes a call that it does not know.

    `level` is `basic`, `aggressive`, `op-priority` or `user-priority`. With `debug` the result has a trace that
    prints, step by step, which op propagated which axis to which dim and why, and what was refused. `sweeps` limits
    how often a stage visits every operation: Shardy does so once, which is almost always enough (operations next to
    a change are visited again within a sweep).

    >>> import torch
    >>> model, x = torch.nn.Linear(8, 6, bias=False), torch.rand(4, 8)
    >>> print(propagate(model, (x,), mesh="dp=2,tp=2", shardings={"input": "[{dp}, {}]", "weight": "[{tp}, {}]"})["mm"])
    [{dp, ?}, {tp, ?}]
    """
    if isinstance(model, Program):
        if args or kwargs or mesh is not None or shardings is not None:
            raise UsageError("a Program has its mesh and its shardings: give no others")
        return run(model, level=level, debug=debug, sweeps=sweeps)
    if not isinstance(model, Graph) and not callable(model):
        raise UsageError(
            f"{model!r} cannot be propagated through: give a function, a model, a captured Graph, or a "
            "shardwise.propagation.Program"
        )
    require_given(mesh, "propagate", "a mesh", _EXAMPLE)
    assert mesh is not None
    annotations = Annotations(Mesh.of(mesh), shardings)
    graph = model if isinstance(model, Graph) else capture(model, args, kwargs, training=training)
    return propagate_graph(graph, annotations, level=level, debug=debug, sweeps=sweeps)


def propagate_graph(
    graph: Graph,
    annotations: Annotations,
    *,
    rules: Rules | None = None,
    level: Level = "user-priority",
    debug: bool = False,
    sweeps: int | None = None,
) -> GraphPropagation:
    """Propagate annotations through a captured graph; `rules` gives the factors of a call, by default the book's."""
    captured = captured_program(graph, annotations, rules)
    outcome = run(captured.program, level=level, debug=debug, sweeps=sweeps)
    return GraphPropagation(**vars(outcome), captured=captured)
