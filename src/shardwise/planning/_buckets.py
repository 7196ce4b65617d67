"""Small collectives of one kind, joined so that their latency is paid once: buckets.

Gathers of parameters and reductions of gradients whose time is latency more than bytes are joined in the order of their
use, as long as the bucket has room (`BUCKET`), fits beside the calls between the last of the sources and the first use,
and what it holds longer than its moves would alone fits in memory. Each move keeps its place among the entries and a
share of the time, by its bytes; the collectives run as one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph import Input
from ..redistribution import BUCKET, bucket_seconds, is_small
from ._schedule import Move, Schedule, Value
from ._slack import Slack

if TYPE_CHECKING:
    from ._plan import Plan


@dataclass(frozen=True, eq=False)
class Buckets:
    """The buckets of a plan's schedule. `passed` are the seconds of calls before each place, `large` how many of these
    are large; `free` are the bytes that are left at each, of which buckets take what they need."""

    plan: "Plan"
    plain: Schedule
    turn: int  # the place after forward
    passed: np.ndarray
    large: np.ndarray
    free: np.ndarray

    def joined(self, found: Iterable[Slack]) -> Iterator[Slack]:
        """All that may run beside calls, with buckets in the place of what they join."""
        alike: dict[object, list[Slack]] = {}
        gradients = self._gradients()
        for slack in found:
            (move,) = slack.moves
            given = isinstance(self.plan.graph[self.plan.graph.base(move.source.ref).name], Input)
            reduced = move.target in gradients
            gathered = given and move.target not in self.plain.outputs
            if slack.limited and (reduced or gathered) and all(map(self._is_small, slack.stages)):
                alike.setdefault((reduced, slack.at >= self.turn, *self._kind(slack)), []).append(slack)
            else:
                yield slack
        for (reduced, *_), some in alike.items():  # type: ignore[misc]
            yield from self._buckets(sorted(some, key=lambda slack: slack.at), reduced)

    def _gradients(self) -> set[Value]:
        pairs = zip(self.plan.graph.outputs, self.plain.outputs, strict=True)
        return {value for output, value in pairs if value is not None and output.role == "gradient"}

    def _kind(self, slack: Slack) -> Iterator[object]:
        """Equal for what may be joined: the same collectives, along the same axes, of numbers of the same kind."""
        yield self.plan.graph.tensor(slack.moves[0].source.ref).dtype
        for (move,) in slack.stages:
            (step,) = move.change.collectives
            reduction = getattr(step.before.placements[step.axes[0]], "reduce_op", None)
            yield step.kind, step.axes, reduction

    def _is_small(self, stage: Sequence[Move]) -> bool:
        (move,), mesh = stage, self.plan.mesh
        (step,) = move.change.collectives
        axis, *others = step.axes
        link = self.plan.cluster.link(mesh, axis)
        return not others and is_small(link, step.kind, step.size, mesh.shape[axis], self._itemsize(move))

    def _itemsize(self, move: Move) -> int:
        return self.plan.graph.tensor(move.source.ref).dtype.itemsize

    def _buckets(self, some: Sequence[Slack], late: bool) -> Iterator[Slack]:
        bucket = _Bucket(late)
        for slack in some:
            if bucket.members and not self._takes(bucket, slack):
                yield self._of(bucket)
                bucket = _Bucket(late)
            bucket.add(slack)
        yield self._of(bucket)

    def _takes(self, bucket: "_Bucket", slack: Slack) -> bool:
        """Whether a bucket takes one more, which stands after it. What it then holds longer is taken."""
        release, need = max(bucket.release, slack.release), min(bucket.need, slack.need)
        if release >= need or self.large[release] == self.large[need]:
            return False
        sizes = [total + size for total, size in zip(bucket.sizes, _sizes(slack), strict=True)]
        if max(sizes) > BUCKET:
            return False
        seconds = sum(map(self._seconds, (stage for (stage,) in slack.stages), sizes))
        if seconds > min(self.passed[need] - self.passed[release], bucket.seconds + sum(slack.seconds)):
            return False
        longer = slice(bucket.at, slack.at + bucket.late)
        held = bucket.kept if bucket.late else slack.whole
        if (self.free[longer] < held).any():
            return False
        self.free[longer] -= held
        return True

    def _seconds(self, move: Move, size: int) -> float:
        """Those of a collective of so many bytes, like that of a move."""
        (step,), mesh = move.change.collectives, self.plan.mesh
        (axis,) = step.axes
        link, itemsize = self.plan.cluster.link(mesh, axis), self._itemsize(move)
        sizes = np.array([float(size)])
        return float(bucket_seconds(link, step.kind, sizes, mesh.shape[axis], itemsize)[0])

    def _of(self, bucket: "_Bucket") -> Slack:
        if len(bucket.members) == 1:
            return bucket.members[0]
        stages = zip(*(slack.stages for slack in bucket.members), strict=True)
        return Slack(
            bucket.at,
            bucket.release,
            bucket.need,
            tuple(slack.moves[0] for slack in bucket.members),
            tuple(
                tuple(self._shares([move for (move,) in stage], size))
                for stage, size in zip(stages, bucket.sizes, strict=True)
            ),
            bucket.kept,
            sum(slack.between for slack in bucket.members),
            sum(slack.whole for slack in bucket.members),
            limited=True,
            places=tuple(slack.at for slack in bucket.members),
        )

    def _shares(self, moves: Sequence[Move], size: int) -> Iterator[Move]:
        """Moves that run as one collective of so many bytes, each with its share of the time."""
        seconds = self._seconds(moves[0], size)
        for number, move in enumerate(moves):
            share = seconds * move.change.collectives[0].size / size
            steps = tuple(
                step if step.is_local else replace(step, seconds=share) for step in move.change.steps
            )
            yield replace(move, change=replace(move.change, steps=steps, price=share), joined=number > 0)


@dataclass(eq=False)
class _Bucket:
    """A bucket that is being filled, in the order of places. It begins where its first move stands; a `late` one, of
    reductions, where its last does."""

    late: bool
    members: list[Slack] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # bytes of each stage
    at: int = 0
    release: int = 0
    need: int = 0
    kept: int = 0
    seconds: float = 0.0  # those of its moves alone

    def add(self, slack: Slack) -> None:
        if not self.members:
            self.at, self.need, self.sizes = slack.at, slack.need, [0] * len(slack.stages)
        self.members.append(slack)
        self.at = slack.at if self.late else self.at
        self.release, self.need = max(self.release, slack.release), min(self.need, slack.need)
        self.sizes = [total + size for total, size in zip(self.sizes, _sizes(slack), strict=True)]
        self.kept += slack.kept
        self.seconds += sum(slack.seconds)


def _sizes(slack: Slack) -> list[int]:
    """Bytes of each collective."""
    return [move.change.collectives[0].size for (move,) in slack.stages]
