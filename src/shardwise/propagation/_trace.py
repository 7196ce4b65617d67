"""A trace of propagation: which op propagated which axes to which dim, along which factor, from which tensor; what was
refused, and why.
"""

from dataclasses import dataclass, field
from typing import Any

from ..mesh import Mesh
from ._state import Axes, Op, State
from ._step import Notes


@dataclass(frozen=True)
class Moved:
    """One dim that got axes. `sources` are the values that had them."""

    value: str
    dim: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    factor: str
    sources: tuple[str, ...]

    def __str__(self) -> str:
        source = ", ".join(self.sources) or "its other values"
        return (
            f"{self.value} dim {self.dim}: {{{', '.join(self.before)}}} -> {{{', '.join(self.after)}}}, "
            f"along factor {self.factor} from {source}"
        )


@dataclass(frozen=True)
class Refused:
    """An axis that was not propagated to a value (or, `own`, from it) along a factor, and the reason."""

    value: str
    axis: str
    factor: str
    reason: str
    own: bool

    def __str__(self) -> str:
        if self.own:
            return f"refused {self.axis} of {self.value} along factor {self.factor}: {self.reason}"
        return f"refused {self.axis} along factor {self.factor} on {self.value}: {self.reason}"


@dataclass(frozen=True)
class Step:
    """One visit of an operation in which an axis was propagated or refused."""

    priority: int | None
    stage: str
    op: str
    moved: tuple[Moved, ...]
    refused: tuple[Refused, ...]


@dataclass
class Trace:
    """The steps of one run, in order. `str` prints them; a repeated refusal is printed once."""

    mesh: Mesh
    steps: list[Step] = field(default_factory=list)
    _where: tuple[int | None, str] = (None, "")
    _told: set[tuple[str, Refused]] = field(default_factory=set)

    def begin(self, priority: int | None, stage: str) -> None:
        self._where = (priority, stage)

    def record(
        self,
        label: str,
        op: Op,
        names: tuple[str, ...],
        changes: dict[int, tuple[State, State]],
        notes: Notes,
    ) -> None:
        moved = tuple(
            move
            for tensor, (before, after) in changes.items()
            for move in self._moves(op, names, tensor, before, after, notes)
        )
        refused = []
        for refusal in notes.refusals:
            value, axis = names[refusal.tensor], refusal.axis.text(self.mesh)
            line = Refused(value, axis, refusal.factor, refusal.reason, refusal.own)
            if (label, line) not in self._told:
                self._told.add((label, line))
                refused.append(line)
        if moved or refused:
            self.steps.append(Step(*self._where, label, moved, tuple(refused)))

    def _moves(
        self, op: Op, names: tuple[str, ...], tensor: int, before: State, after: State, notes: Notes
    ) -> list[Moved]:
        moved = []
        for dim, factors in enumerate(op.tensors[tensor]):
            if before.axes[dim] == after.axes[dim]:
                continue
            along = [op.names[factor] for factor in factors]
            causes = [move for move in notes.moves if move.tensor == tensor and move.factor in along]
            sources = dict.fromkeys(names[source] for move in causes for source in move.sources)
            moved.append(
                Moved(
                    names[tensor],
                    dim,
                    self._names(before.axes[dim]),
                    self._names(after.axes[dim]),
                    ", ".join(dict.fromkeys(move.factor for move in causes)),
                    tuple(sources),
                )
            )
        return moved

    def _names(self, axes: Axes) -> tuple[str, ...]:
        return tuple(axis.text(self.mesh) for axis in axes)

    def __str__(self) -> str:
        lines: list[str] = []
        where: tuple[int | None, str] | None = None
        for step in self.steps:
            if where != (step.priority, step.stage):
                where = (step.priority, step.stage)
                lines.append(_heading(*where))
            lines.append(f"  {step.op}")
            lines += [f"    {line}" for line in (*step.moved, *step.refused)]
        return "\n".join(lines) or "nothing to propagate"

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "priority": step.priority,
                "stage": step.stage,
                "op": step.op,
                "moved": [vars(move) for move in step.moved],
                "refused": [vars(refusal) for refusal in step.refused],
            }
            for step in self.steps
        ]


def _heading(priority: int | None, stage: str) -> str:
    return f"stage: {stage}" if priority is None else f"priority {priority}, stage: {stage}"
