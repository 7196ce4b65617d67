"""`Plan`: for each node of a graph the chosen row on every mesh axis, and the copies between nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..display import Block, Shown
from ..errors import require, require_given
from ..expansion import Choice
from ..files import path_of
from ..graph import Graph, Ref
from ..layout import Layout
from ..mesh import Cluster, Mesh
from ._candidates import Candidate
from ._confirm import Confirmation
from ._elsewhere import Elsewhere
from ._evaluate import Cost, evaluate
from ._homes import Homes
from ._overlap import overlapped, with_overlap
from ._schedule import Schedule, schedule
from ._timeline import Timeline, timeline

PinText = str | Mapping[str, str]  # a layout, or placements by axis

if TYPE_CHECKING:
    from ._explain import Considered
    from ._proposal import Proposal


# What follows from the choices of a plan alone, and is kept once it is worked out.
_WORKED_OUT = ("schedule", "cost", "timeline")


_OF_STAGES = ("parallelize", "verify")  # functions that take pipelines too


def require_plan(plan: object, function: str) -> None:
    """Refuse anything but a plan as the `plan` that a public function needs."""
    made = "shardwise.plan(model, args, mesh='dp=2,tp=2')"
    require_given(plan, function, "a plan", f"shardwise.{function}(model, args, plan={made})")
    from ._pipeline import Pipeline

    kinds = (Plan, Pipeline) if function in _OF_STAGES else Plan
    require(plan, kinds, "plan", "a Plan, such as shardwise.plan makes or Plan.load reads")


@dataclass(frozen=True)
class Copy:
    """A tensor brought into another layout once, for the users that are named."""

    ref: Ref
    layout: Layout
    users: tuple[str, ...]


@dataclass(frozen=True)
class BaselineCost:
    """What the best plan of a baseline's kind costs: seconds of a step, and bytes held at its peak."""

    compute: float
    update: float
    communication: Mapping[str, float]
    peak: int
    waiting: float = 0.0
    hidden: float = 0.0

    @property
    def seconds(self) -> float:
        return self.compute + self.update + sum(self.communication.values()) + self.waiting - self.hidden


@dataclass(frozen=True)
class Plan(Shown):
    """A graph with a choice for every node.

    `inputs` are the layouts of the graph's inputs by name, `outputs` those of its outputs in order (None where
    there is no value). A gradient has the layout of its parameter, unless that has a home (below).

    What it was planned for: the `optimizer`, the `memory` that each device may use, in bytes, the `pins`, and the
    `shardings` from which the others were propagated, as text. What came of it: `bound`, the seconds below which no
    plan that fits in the memory can be (with `share_layers`, none whose equal layers share their choices; with
    `shardings`, none that follows them), and the `baselines` that it was compared with, by name (None for one that the
    pins rule out). `confirmation` says what experiments found about its calls; None if there were none. `elsewhere` are
    the arguments and results that come from other meshes or go to them. `ahead` are the bytes of collectives that may
    be under way beside calls, begun before they are needed or waited for later; None if every collective is waited for
    where it is begun. A step is `micro_batches` passes of the graph, whose gradients are added up; there are at most
    `in_flight` passes of which forward has run and backward has not. `homes` are the layouts of parameters, by name in
    the graph, for the optimizer and checkpoints, where these are not those in which every pass begins from them and
    ends with their gradients (`once` says how the one comes from the other); those `on_host` are in the memory of the
    host, with the states of the optimizer. `candidates` are the meshes among which
    this one was chosen.
    """

    graph: Graph
    mesh: Mesh
    cluster: Cluster
    inputs: Mapping[str, Layout]
    choices: Mapping[str, Choice]
    copies: tuple[Copy, ...]
    outputs: tuple[Layout | None, ...]
    optimizer: str = "none"
    memory: int | None = None
    pins: Mapping[str, PinText] = field(default_factory=dict)
    shardings: Mapping[str, str] = field(default_factory=dict)
    bound: float | None = None
    share_layers: bool = False
    baselines: Mapping[str, BaselineCost | None] = field(default_factory=dict)
    confirmation: Confirmation | None = None
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)
    ahead: int | None = None
    micro_batches: int = 1
    in_flight: int = 1
    homes: Mapping[str, Layout] = field(default_factory=dict)
    on_host: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @cached_property
    def schedule(self) -> Schedule:
        plain = schedule(self)
        return plain if self.ahead is None else overlapped(self, plain, self.ahead)

    @cached_property
    def cost(self) -> Cost:
        """Time and memory of a step, worked out from the schedule."""
        return evaluate(self)

    @cached_property
    def once(self) -> Homes:
        """What happens once per step: gathers of parameters, and reductions of gradients that were added up."""
        return Homes(self)

    def home(self, name: str) -> Layout:
        """The layout in which the optimizer and checkpoints see a parameter or buffer, by its name in the graph."""
        return self.homes.get(name, self.inputs[name])

    @cached_property
    def timeline(self) -> Timeline:
        """When the entries of the schedule run, beside each other."""
        return timeline(self.schedule, self.cost.entries, self.mesh, self.cluster)

    @cached_property
    def proposal(self) -> "Proposal | None":
        """What propagation from the shardings and pins proposes; None if there are none."""
        from ._proposal import proposal_of

        return proposal_of(self)

    def noted(self, **notes: Any) -> "Plan":
        """The same plan with other notes on how it was found (`bound`, `baselines`, ...): its cost is not worked out
        again."""
        made = replace(self, **notes)
        made.__dict__.update({name: self.__dict__[name] for name in _WORKED_OUT if name in self.__dict__})
        return made

    def layout(self, ref: Ref) -> Layout:
        """The layout in which a tensor is made."""
        if ref.name in self.inputs:
            return self.inputs[ref.name]
        layout = self.choices[ref.name].output_layouts[ref.output]
        assert layout is not None
        return layout

    def blocks(self) -> Iterator[Block]:
        from ._summary import blocks

        return blocks(self)

    def __repr__(self) -> str:
        return f"<Plan of {self.graph.name} on {self.mesh} of {self.cluster.name}: {len(self.choices)} calls>"

    def summary(self, most: int = 10) -> str:
        """Where the time goes, what is held, what costs most, and the baselines beside it."""
        from ._summary import summary

        return summary(self, most)

    def explain(self, place: str) -> str:
        """The choice for a node, a module, a parameter or an input, and its runner-up; of `pp`, why the model does not
        run in stages."""
        from ._explain import explain

        return explain(self, place)

    def considered(self, node: str) -> "list[Considered]":
        """Every choice for a node with its costs, the cheapest first."""
        from ._explain import considered

        return considered(self, node)

    def diff(self, other: "Plan", most: int = 20) -> str:
        """What another plan of the same graph does differently."""
        from ._explain import diff

        return diff(self, other, most)

    def overlapped(self) -> "Plan":
        """This plan with collectives beside calls, as much under way as makes it fastest. It has no bound: that of a
        plan without overlap is none of one with it."""
        return with_overlap(replace(self, ahead=None, bound=None))

    def trace(self, path: str | Path) -> None:
        """Write the timeline as a trace that chrome://tracing and Perfetto show."""
        from ._trace import save_trace

        save_trace(self, path_of(path))

    def to_json(self) -> dict[str, Any]:
        from ._json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, document: Any) -> "Plan":
        from ._json import from_json

        return from_json(document)

    def save(self, path: str | Path) -> None:
        from ._json import save

        save(self, path_of(path))

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        from ._json import load

        return load(path_of(path))
