"""`doctor`: what there is to know about a model before it is planned.

It is captured and its choices are worked out as for a plan, but nothing is searched for: what was left out of the
graph, which operators have no rule, what replicating them costs, and how long planning takes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from ..display import Block, Heading, Shown, Table
from ..graph import Execution, Graph, Node, autocast_to, capture
from ..mesh import DEFAULT_CLUSTER, Cluster, Mesh
from ..progress import Progress, silent
from ..solver import prepare
from ._baselines import baselines
from ._fold import fold
from ._items import Items
from ._offers import Source
from ._pins import Pins
from ._planner import MANY, Planner
from ._prices import compute_seconds, kernel_kind
from ._summary import time_text


@dataclass(frozen=True)
class Replicated:
    """An operator of which some calls run on whole tensors on every device: how many, why, and for how long in a step.
    `saved` are the seconds that sharding over all devices would save at most."""

    op: str
    calls: int
    why: str
    seconds: float
    saved: float


@dataclass(frozen=True)
class Diagnosis(Shown):
    """What `doctor` found. `rules` counts the distinct calls by where their rules come from; `undecided` are the nodes
    of the search that remain once everything that follows is decided: without any the first look is the last.
    `planning` is a forecast of the CPU seconds of `plan` after capture."""

    graph: Graph
    mesh: Mesh
    cluster: Cluster
    rules: Mapping[Source, int]
    replicated: tuple[Replicated, ...]
    capturing: float
    preparing: float
    choices: int
    undecided: int
    planning: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What the program does besides, and the graph does not."""
        return self.graph.notes

    def blocks(self) -> Iterator[Block]:
        operators = len({node.op for node in self.graph.nodes})
        yield Heading(1, f"{self.graph.name} on {self.mesh} of {self.cluster.name}")
        yield f"captured: {len(self.graph.nodes)} calls of {operators} operators"
        yield Heading(2, "Left out or replaced")
        yield Table(("",), [(note,) for note in self.notes]) if self.notes else "nothing"
        yield Heading(2, "Rules")
        known = ", ".join(f"{self.rules.get(source, 0)} {text}" for source, text in _SOURCES.items())
        yield f"{sum(self.rules.values())} distinct calls: {known}"
        if self.replicated:
            yield Table(
                ("operator", ">calls", ">in a step", ">sharding saves", "why it is replicated"),
                [
                    (each.op, str(each.calls), time_text(each.seconds), time_text(each.saved), each.why)
                    for each in self.replicated
                ],
            )
        yield Heading(2, "Planning")
        search = (
            "nothing is left to search"
            if not self.undecided
            else f"{self.undecided} decisions are left to search, which ends within the gap or the time limit"
        )
        yield (
            f"capturing {self.capturing:.1f} s, working out choices and prices {self.preparing:.1f} s; "
            f"{self.choices} decisions, of which {search}; a plan will take about {self.planning:.1f} s of CPU time "
            "after capture"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.graph.name,
            "mesh": str(self.mesh),
            "cluster": self.cluster.name,
            "calls": len(self.graph.nodes),
            "notes": list(self.notes),
            "rules": dict(self.rules),
            "replicated": [vars(each) for each in self.replicated],
            "planning": {
                "capturing": self.capturing,
                "preparing": self.preparing,
                "decisions": self.choices,
                "undecided": self.undecided,
                "forecast": self.planning,
            },
        }


# A search takes so many times as long as reducing its problem, and the cost of what it finds so many seconds for each
# call: estimated from plans of small models; benchmarks/forecast.py measures how far off it is.
_SEARCH, _CALL = 3.0, 1e-4

_SOURCES: dict[Source, str] = {
    "book": "by the book",
    "discovered": "by experiments on the spot",
    "replicated": "replicated for want of a rule",
}


def doctor(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mesh | DeviceMesh | str = "dp=2,tp=2",
    cluster: Cluster | str = DEFAULT_CLUSTER,
    training: bool = True,
    loss_fn: Callable[..., Any] | None = None,
    execution: Execution = "eager",
    progress: Progress | None = None,
) -> Diagnosis:
    """What a plan of a model is going to meet: parts that capture leaves out or replaces, operators without a rule and
    what replicating them costs in a step, and how long planning takes. A model that cannot be captured raises, with the
    line and what to do. Options are those of `plan`.

    >>> import torch
    >>> print(doctor(torch.nn.Linear(8, 8), (torch.rand(4, 8),), cluster="laptop").rules["book"] > 0)
    True
    """
    note = progress or silent
    note("capturing")
    begun = time.process_time()
    graph = capture(model, args, kwargs, training=training, loss_fn=loss_fn, execution=execution)
    return diagnosis(graph, Mesh.of(mesh), Cluster.of(cluster), time.process_time() - begun, note)


@autocast_to(None)
def diagnosis(graph: Graph, mesh: Mesh, cluster: Cluster, capturing: float, progress: Progress) -> Diagnosis:
    planner = Planner(graph, mesh, cluster, progress=progress)
    prepare()  # once per process, and not part of any plan
    begun = time.process_time()
    made = graph, planner.layouts, cluster, planner.offers, planner.optimizer
    items = Items(*made, Pins(mesh), kinds=planner.kinds)
    folded = fold(items, None, share_layers=len(items.all) > MANY, name=graph.name)
    from ..solver import reduce  # it brings the compiled code with it

    ready = time.process_time()
    kernel = reduce(folded.problem).kernel
    assert kernel is not None  # nothing is pinned
    ended = time.process_time()
    preparing, undecided = ended - begun, kernel.nodes
    searches = 1 + len(baselines(mesh))
    planning = ready - begun + searches * (_SEARCH * (ended - ready) + _CALL * len(graph.nodes))
    kinds = {graph.call(node).signature: node for node in graph.nodes}
    rules = Counter(planner.offers.of(node).source for node in kinds.values())
    replicated = _replicated(planner)
    return Diagnosis(
        *(graph, mesh, cluster, rules, replicated, capturing, preparing, folded.problem.nodes, undecided),
        planning,
    )


def _replicated(planner: Planner) -> tuple[Replicated, ...]:
    """The operators whose calls are replicated for want of rules, the most expensive first."""
    found: dict[tuple[str, str], list[float]] = {}
    for node in planner.graph.nodes:
        offer = planner.offers.of(node)
        if offer.source == "replicated" and not node.facts.view:
            found.setdefault((node.op, offer.note), []).append(_seconds(planner, node))
    ranks = planner.mesh.ranks
    listed = [
        Replicated(op, len(times), why, sum(times), sum(times) * (1 - 1 / ranks))
        for (op, why), times in found.items()
    ]
    return tuple(sorted(listed, key=lambda each: -each.seconds))


def _seconds(planner: Planner, node: Node) -> float:
    """A call on whole tensors."""
    graph, call = planner.graph, planner.graph.call(node)
    inputs = [graph.tensor(ref) for ref in node.inputs]
    kind = kernel_kind(node.overload, inputs, node.outputs)
    border = graph.kernels.borders.get(node.name)
    return compute_seconds(planner.cluster.device, kind, call.with_tensors(inputs), node.outputs, border)
