"""A schedule made faster: collectives begin elsewhere in their windows, where that makes the step shorter.

What is begun where is first decided by looking ahead a little (`_overlap`). Here the step that comes of it is run
through again and again, each time with one collective begun earlier or later, or before or after others; what makes
it shorter stays, and for a while also what makes it little longer (`_descent`). The limits on bytes hold as they did.
Where moves are waited for stays.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..redistribution import Step
from ._beside import Beside
from ._descent import CALL, CHAIN, NONE, State, Track, anneal, descend, hold, put_in, run
from ._prices import SLOWDOWN
from ._schedule import Compute, Entry, Move, Wait
from ._slack import Slack

_SECOND = 10**12
_SWEEPS = 4
_MOMENTS = 8_000  # that are run through to try random shifts, for each stage
_THRESHOLD = 0.02  # of the time that a stage has on average: by which the step may be longer at first
# By how many moments a stage is shifted, either way.
_STEPS = (1, 2, 3, 5, 8, 13, 21, 34, 60, 100, 200, 400)


@dataclass(frozen=True)
class Begun:
    """A move of a schedule: when its stages begin, and when the last one is waited for. An entry of the plain schedule
    has two times: before what is needed there is waited for, and after."""

    slack: Slack
    begins: list[int]
    need: int


class Shifts:
    """Moves that are begun in some order, `(number of the move, its stage)`, to be shifted.

    Of all times only `moments` matter: those at which a call or a collective runs that takes time, or a move is waited
    for. What begins at another begins at the next of them.
    """

    def __init__(
        self, of: Beside, moves: Sequence[Begun], order: Sequence[tuple[int, int]], ahead: int
    ) -> None:
        self.of, self.moves = of, moves
        self.names = list(dict.fromkeys(of.links))
        self.standing = {place for move in moves for place in move.slack.places}
        self.waits: dict[int, list[int]] = {}
        for number, move in enumerate(moves):
            self.waits.setdefault(move.need, []).append(number)
        self.moments = np.array([time for time in range(2 * of.end + 2) if self._matters(time)], np.int64)
        self.track = self._track(ahead)
        self.state = self._state(order)
        for number in range(len(moves)):
            hold(self.track, self.state, number, 1)
        t, s = self.track, self.state
        self.seconds = 0.0  # of the step, once its entries are known
        # Whether the limits on bytes hold, as they then do after shifts.
        self.fit = bool((s.held <= t.room).all() and (s.early <= t.ahead).all())

    @property
    def certain(self) -> bool:
        """Whether all fits even if what runs at once where it is needed holds all that it has in between."""
        between = self.track.between.max(initial=0)
        return bool((self.track.room - self.state.held).min() >= between)

    def entries(self) -> Iterator[Entry]:
        """Those of the schedule in which nothing more can be gained by shifts like these."""
        self._search()
        begun = {int(time): list(self._begun(at, int(time))) for at, time in enumerate(self.moments)}
        for place in range(self.of.end + 1):
            yield from begun.get(2 * place, ())
            yield from begun.get(2 * place + 1, ())
            if place < self.of.end and place not in self.standing:
                yield self.of.plain.entries[place]

    def _search(self) -> None:
        """Anneal, then descend to where no shift like these makes the step shorter. If that is no gain, all stays."""
        track, state, stages = self.track, State(*map(np.copy, self.state)), len(self.track.move)
        steps = np.array([0, *(sign * step for step in _STEPS for sign in (1, -1))])
        before = total = run(track, state, 0, len(self.moments), True, 0, 0)
        number = 1
        if stages:
            threshold = round(_THRESHOLD * total / stages)
            total, number = anneal(track, state, total, _MOMENTS * stages, threshold, number)
        total = descend(track, state, total, _SWEEPS, steps, number)
        if total <= before:
            self.state = state
        self.seconds = float(min(total, before) / _SECOND)

    def _begun(self, moment: int, time: int) -> Iterator[Entry]:
        """What begins at a moment, and what is waited for."""
        t, waited = self.track, self.waits.get(time, [])
        g = int(self.state.first[moment])
        while g != NONE:
            number, after = int(t.move[g]), int(self.state.after[g])
            slack, stage = self.moves[number].slack, g - int(t.stage_first[number])
            if stage == 0 and waited[:1] == [number] and self._is_last(g):
                yield from slack.moves
                waited = waited[1:]
                break
            if stage:
                yield from _waits(slack.stages[stage - 1])
            yield from (replace(move, begun=True) for move in slack.stages[stage])
            g = after
        for number in waited:
            yield from _waits(self.moves[number].slack.stages[-1])

    def _is_last(self, g: int) -> bool:
        """Whether what begins with a stage, the first of its move, is that move alone."""
        end = int(self.track.stage_first[self.track.move[g] + 1])
        if len(self.moves[self.track.move[g]].slack.moves) > 1:
            return False
        return all(self.state.after[at] == (at + 1 if at + 1 < end else NONE) for at in range(g, end))

    def _matters(self, time: int) -> bool:
        place, waited = time // 2, time % 2 == 0
        if waited or place in self.standing or place == self.of.end:
            return time in self.waits
        return bool(self._alone(place) or self._chain(place))

    def _alone(self, place: int) -> int:
        """The time of a call."""
        is_call = isinstance(self.of.plain.entries[place], Compute)
        return round(self.of.taken[place] * _SECOND) if is_call else 0

    def _chain(self, place: int) -> tuple[Step, ...]:
        """The collectives for which calls wait at a place."""
        entry = self.of.plain.entries[place]
        return entry.change.collectives if isinstance(entry, Move) else ()

    def _mask(self, step: Step) -> int:
        return sum({1 << self.names.index(self.of.links[axis]) for axis in step.axes})

    def _track(self, ahead: int) -> Track:
        slacks = [move.slack for move in self.moves]
        runs = [None if time in self.waits else int(time) // 2 for time in self.moments]
        chains = [() if place is None else self._chain(place) for place in runs]
        alone = [0 if place is None else self._alone(place) for place in runs]
        kind = [
            CHAIN if chain else CALL if seconds else 0 for chain, seconds in zip(chains, alone, strict=True)
        ]
        waits = [self.waits.get(int(time), []) for time in self.moments]
        stages = [
            (number, stage) for number, slack in enumerate(slacks) for stage in range(len(slack.stages))
        ]
        collectives = [slacks[number].stages[stage][0].change.collectives[0] for number, stage in stages]
        seconds = [slacks[number].seconds[stage] for number, stage in stages]
        room = np.stack([self.of.free_before, self.of.free], axis=1).reshape(-1)
        steps = [step for chain in chains for step in chain]
        return Track(
            round(SLOWDOWN * 1000),
            _whole(kind),
            _whole(alone),
            _firsts(chains),
            _whole(map(self._mask, steps)),
            _whole(round(step.seconds * _SECOND) for step in steps),
            _firsts(waits),
            _whole(number for some in waits for number in some),
            _firsts([slack.stages for slack in slacks]),
            _whole(number for number, _ in stages),
            _whole(map(self._mask, collectives)),
            _whole(round(each * _SECOND) for each in seconds),
            self._at(2 * slack.release + slack.follows for slack in slacks),
            self._at(move.need for move in self.moves),
            self._at(2 * slack.at + 1 for slack in slacks),
            _whole(slack.kept for slack in slacks),
            _whole(slack.between for slack in slacks),
            _whole(slack.whole for slack in slacks),
            _whole(0 if slack.is_late else slack.size for slack in slacks),
            np.minimum.reduceat(room, np.append(0, self.moments[:-1] + 1)),
            np.full(len(self.moments), ahead),
        )

    def _at(self, times: Iterable[int]) -> np.ndarray:
        """The moments of times."""
        return np.searchsorted(self.moments, list(times))

    def _state(self, order: Sequence[tuple[int, int]]) -> State:
        first, moments, stages = self.track.stage_first, len(self.moments), len(self.track.move)
        nothing, never = np.full(stages, NONE), np.full(moments, NONE)
        zeros = np.zeros(stages, np.int64), np.zeros(moments, np.int64)
        state = State(
            first=never,
            last=never.copy(),
            after=nothing,
            before=nothing.copy(),
            at=nothing.copy(),
            now=np.zeros(moments + 1, np.int64),
            free=np.zeros((moments, len(self.names)), np.int64),
            end=zeros[0],
            trial=zeros[0].copy(),
            number=nothing.copy(),
            held=zeros[1],
            early=zeros[1].copy(),
            passed=np.zeros(1, np.int64),
        )
        for number, stage in order:
            (at,) = self._at([self.moves[number].begins[stage]])
            put_in(state, int(first[number]) + stage, int(at), int(state.last[at]))
        return state


def _waits(stage: Sequence[Move]) -> Iterator[Wait]:
    yield from (Wait(replace(move, begun=True)) for move in stage)


def _whole(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)


def _firsts(parts: Sequence[Sequence[object]]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(list(map(len, parts)))]).astype(np.int64)
