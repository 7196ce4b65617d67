"""A schedule made faster: collectives begin elsewhere in their windows, where that makes the step shorter.

What is begun where is first decided by looking ahead a little (`_overlap`). Here the step that comes of it is run through
again and again, each time with one collective begun earlier or later, or before or after others; what makes it shorter
stays. The limits on bytes hold as they did. Where moves are waited for stays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..redistribution import Step
from ._beside import Beside
from ._descent import CALL, CHAIN, NONE, State, Track, descend, hold, put_in, run
from ._prices import SLOWDOWN
from ._schedule import Compute, Entry, Move, Wait
from ._slack import Slack

_SECOND = 10**12
_SWEEPS = 4
# By how many slots a stage is shifted, either way.
_STEPS = (1, 2, 3, 5, 8, 13, 21, 34, 60, 100, 200, 400)


@dataclass(frozen=True)
class Begun:
    """A move of a schedule: the moments at which its stages begin, and at which the last one is waited for."""

    slack: Slack
    begins: list[int]
    need: int


class Shifts:
    """Moves that are begun in some order, `(number of the move, its stage)`, to be shifted."""

    def __init__(self, of: Beside, moves: Sequence[Begun], order: Sequence[tuple[int, int]], ahead: int) -> None:
        self.of, self.moves = of, moves
        self.names = list(dict.fromkeys(of.links))
        self.standing = {place for move in moves for place in move.slack.places}
        self.track = self._track(ahead)
        self.state = self._state(order)
        for number in range(len(moves)):
            hold(self.track, self.state, number, 1)
        t, s = self.track, self.state
        self.fit = bool((s.held <= t.room).all() and (s.early <= t.ahead).all())  # so that they do after shifts, too

    def entries(self) -> Iterator[Entry]:
        """Those of the schedule in which nothing more can be gained by shifts like these."""
        steps = np.array([0, *(sign * step for step in _STEPS for sign in (1, -1))])
        total = run(self.track, self.state, 0, len(self.track.kind), True, 0, 0)
        descend(self.track, self.state, total, _SWEEPS, steps)
        for place in range(self.of.end + 1):
            yield from self._begun(2 * place)
            yield from self._begun(2 * place + 1)
            if place < self.of.end and place not in self.standing:
                yield self.of.plain.entries[place]

    def _begun(self, moment: int) -> Iterator[Entry]:
        """What begins at a moment, and what is waited for."""
        t = self.track
        waited = t.waits[t.wait_first[moment] : t.wait_first[moment + 1]].tolist()
        g = int(self.state.first[moment])
        while g != NONE:
            number, after = int(t.move[g]), int(self.state.after[g])
            slack, stage = self.moves[number].slack, g - int(t.stage_first[number])
            if stage:
                yield from self._waits(slack.stages[stage - 1])
            alone = len(slack.moves) == len(slack.stages) == 1
            if alone and after == NONE and waited[:1] == [number]:
                yield from slack.moves
                waited = waited[1:]
            else:
                yield from (replace(move, begun=True) for move in slack.stages[stage])
            g = after
        for number in waited:
            yield from self._waits(self.moves[number].slack.stages[-1])

    def _waits(self, stage: Sequence[Move]) -> Iterator[Wait]:
        yield from (Wait(replace(move, begun=True)) for move in stage)

    def _mask(self, step: Step) -> int:
        return sum({1 << self.names.index(self.of.links[axis]) for axis in step.axes})

    def _track(self, ahead: int) -> Track:
        of, moves = self.of, self.moves
        moments = 2 * (of.end + 1)
        kind, alone, chains = np.zeros(moments, np.int64), np.zeros(moments, np.int64), [list[Step]()] * moments
        for place, entry in enumerate(of.plain.entries):
            at = 2 * place + 1
            if isinstance(entry, Compute):
                kind[at], alone[at] = CALL, round(of.taken[place] * _SECOND)
            elif isinstance(entry, Move) and entry.change.collectives and place not in self.standing:
                kind[at], chains[at] = CHAIN, list(entry.change.collectives)
        waits: list[list[int]] = [[] for _ in range(moments)]
        for number, move in enumerate(moves):
            waits[move.need].append(number)
        matters = [bool(alone[at] or kind[at] == CHAIN or waits[at]) for at in range(moments)]
        slots = np.flatnonzero(np.array(matters))
        stages = [(number, stage) for number, move in enumerate(moves) for stage in range(len(move.slack.stages))]
        collectives = [self._mask(moves[m].slack.stages[k][0].change.collectives[0]) for m, k in stages]
        seconds = [moves[m].slack.seconds[k] for m, k in stages]
        slacks = [move.slack for move in moves]
        early = [0 if slack.is_late else slack.size for slack in slacks]
        room = np.stack([of.before_it, of.free], axis=1).reshape(-1)
        steps = [step for chain in chains for step in chain]
        return Track(
            round(SLOWDOWN * 1000),
            kind,
            alone,
            _firsts(chains),
            _whole(map(self._mask, steps)),
            _whole(round(step.seconds * _SECOND) for step in steps),
            _firsts(waits),
            _whole(number for some in waits for number in some),
            _firsts([slack.stages for slack in slacks]),
            _whole(number for number, _ in stages),
            _whole(collectives),
            _whole(round(each * _SECOND) for each in seconds),
            _whole(2 * slack.release for slack in slacks),
            _whole(move.need for move in moves),
            _whole(2 * slack.at + 1 for slack in slacks),
            _whole(slack.kept for slack in slacks),
            _whole(slack.between for slack in slacks),
            _whole(slack.whole for slack in slacks),
            _whole(early),
            slots,
            np.searchsorted(slots, np.arange(moments)),
            room,
            np.full(moments, ahead),
        )

    def _state(self, order: Sequence[tuple[int, int]]) -> State:
        t = self.track
        moments, stages = len(t.kind), len(t.move)
        first, last = np.full(moments, NONE), np.full(moments, NONE)
        after, before, begin, end, trial = (np.zeros(stages, np.int64) for _ in range(5))
        now, held, early = (np.zeros(n, np.int64) for n in (moments + 1, moments, moments))
        free = np.zeros((moments, len(self.names)), np.int64)
        state = State(first, last, after, before, begin, now, free, end, trial, np.full(stages, NONE), held, early)
        for number, stage in order:
            at = self.moves[number].begins[stage]
            put_in(state, int(t.stage_first[number]) + stage, at, last[at])
        return state


def _whole(values: "Iterator[int] | Sequence[int] | map[int]") -> np.ndarray:
    return np.array(list(values), np.int64)


def _firsts(parts: Sequence[Sequence[object]]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(list(map(len, parts)))]).astype(np.int64)
