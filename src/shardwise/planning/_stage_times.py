"""The time of a pipeline: the actions of a schedule, simulated with the seconds of stages and of what goes between.

Each rank runs its actions in order. Forward of a stage needs what the stage before it sends, backward the gradients
that the stage after it returns. What goes from one rank to another occupies the link in that direction, one after
another; stages on one rank pass it on at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..dtensor import Action
from ..errors import UsageError


@dataclass(frozen=True)
class StageTime:
    """Seconds of a stage: of one micro-batch `forward` and in the two parts of backward, the gradients of its `input`
    and of its `weight`s; of what it `sends` to the next stage, and of the gradients that the next stage `returns`; and
    of what follows its last backward once a `step`: gradient reductions and the update."""

    forward: float
    input: float
    weight: float
    sends: float = 0.0
    returns: float = 0.0
    step: float = 0.0

    @property
    def backward(self) -> float:
        return self.input + self.weight

    def of(self, kind: str) -> float:
        """Seconds of an action of a kind."""
        return float(getattr(self, kind))


class ActionSpan(NamedTuple):
    """An action in time."""

    begin: float
    end: float
    action: Action


class Send(NamedTuple):
    """What goes from a stage to one on another rank: an activation (`forward`) or a gradient."""

    begin: float
    end: float
    source: int
    target: int
    micro_batch: int
    forward: bool


@dataclass(frozen=True)
class PipelineTime:
    """A simulated step: the seconds until all ranks are done, the spans of each rank, what is sent, the seconds in
    which each rank computes, and the most micro-batches of each stage between forward and the end of backward."""

    seconds: float
    spans: tuple[tuple[ActionSpan, ...], ...]
    sends: tuple[Send, ...]
    busy: tuple[float, ...]
    in_flight: tuple[int, ...]

    @cached_property
    def bubble(self) -> float:
        """The share of all ranks' time in which they do not compute."""
        whole = self.seconds * len(self.busy)
        return max(1 - sum(self.busy) / whole, 0.0) if whole else 0.0


def simulated(
    actions: Sequence[Sequence[Action]], ranks_of_stages: Sequence[int], times: Sequence[StageTime]
) -> PipelineTime:
    """A step of a pipeline, from what each rank computes in order and what that takes.

    >>> times = [StageTime(1, 1, 1)] * 2
    >>> order = [[Action(stage, kind, 0) for kind in ("forward", "backward")] for stage in range(2)]
    >>> found = simulated(order, (0, 1), times)
    >>> found.seconds, found.bubble, found.in_flight
    (6.0, 0.5, (1, 1))
    """
    ranks, last = len(actions), len(times) - 1
    arrived: dict[
        tuple[bool, int, int], float
    ] = {}  # of what a stage needs for (backward or not, itself, micro-batch)
    free: dict[tuple[int, int], float] = {}  # when links are
    clock = [0.0] * ranks
    spans: list[list[ActionSpan]] = [[] for _ in actions]
    sends: list[Send] = []
    seconds = [{kind: time.of(kind) for kind in _KINDS} for time in times]
    places = [0] * ranks
    waiting, left = list(range(ranks)), sum(map(len, actions))
    while waiting:
        rank = waiting.pop()
        while places[rank] < len(actions[rank]):
            action = actions[rank][places[rank]]
            stage, kind, number = action.stage, action.kind, action.micro_batch
            needs = kind != "weight" and stage != (0 if kind == "forward" else last)
            at = arrived.get((kind != "forward", stage, number)) if needs else 0.0
            if at is None:
                break
            begin = max(clock[rank], at)
            clock[rank] = end = begin + seconds[stage][kind]
            spans[rank].append(ActionSpan(begin, end, action))
            places[rank] += 1
            left -= 1
            target = stage + 1 if kind == "forward" else stage - 1
            if kind == "weight" or not 0 <= target <= last:
                continue
            there = ranks_of_stages[target]
            if there != rank:
                begin = max(end, free.get((rank, there), 0.0))
                end = begin + (times[stage].sends if kind == "forward" else times[target].returns)
                free[rank, there] = end
                sends.append(Send(begin, end, stage, target, number, kind == "forward"))
                waiting.append(there)
            arrived[kind != "forward", target, number] = end
    if left:
        rank = next(rank for rank in range(ranks) if places[rank] < len(actions[rank]))
        raise UsageError(
            f"a pipeline cannot run: rank {rank} never gets what {actions[rank][places[rank]]} needs"
        )
    steps = [0.0] * ranks
    for stage, time in enumerate(times):
        steps[ranks_of_stages[stage]] += time.step
    return PipelineTime(
        max((end + step for end, step in zip(clock, steps, strict=True)), default=0.0),
        tuple(map(tuple, spans)),
        tuple(sorted(sends)),
        tuple(sum(s.end - s.begin for s in done) + step for done, step in zip(spans, steps, strict=True)),
        in_flight(actions, len(times)),
    )


_KINDS = ("forward", "backward", "input", "weight")


def in_flight(actions: Iterable[Sequence[Action]], stages: int) -> tuple[int, ...]:
    """The most micro-batches of each stage between their forward and the end of their backward."""
    now, most = [0] * stages, [0] * stages
    for listed in actions:
        for action in listed:
            if action.kind == "forward":
                now[action.stage] += 1
                most[action.stage] = max(most[action.stage], now[action.stage])
            elif action.kind != "input":  # what weights need is there until then
                now[action.stage] -= 1
    return tuple(most)
