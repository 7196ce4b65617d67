"""A schedule as arrays, and the search for shifts of its collectives that make it faster, compiled.

Annealing takes shifts drawn at random, also where the step gets longer by less than a threshold, which falls to
nothing. A descent then takes every shift that makes the step shorter, until none does.

At each moment collectives may begin, in order; then moves are waited for, or an entry of the plain schedule runs. A
stage that begins waits for the one before it. Times are whole picoseconds, so that every
rank finds the same schedule. To try a shift the step is run only from the first moment that differs to where nothing
differs any more but the time.
"""

from typing import NamedTuple

import numpy as np

from ..solver import compiled

NONE = -1
CALL, CHAIN = 1, 2
_PENDING = 256  # stages that began in a trial, as far as they are compared
# How many moments a stage is shifted at most in annealing, one of these at a time.
_REACHES = np.array([24, 24, 24, 24, 24, 400, 400, 2**62])
_AROUND = 64  # moments before and after a shift, of which stages are tried again


class Track(NamedTuple):
    """What no shift changes. Lists by moment and by move are slices from `first[i]` to `first[i + 1]`."""

    slowdown: int  # of calls beside collectives, in thousandths
    kind: np.ndarray  # of each moment: a call, a chain of collectives that calls wait for, or neither
    alone: np.ndarray  # picoseconds of a call by itself
    chain_first: np.ndarray
    chain_links: np.ndarray  # the mask of links of each collective of chains
    chain_time: np.ndarray
    wait_first: np.ndarray
    waits: np.ndarray  # the moves that are waited for at each moment
    stage_first: np.ndarray  # of each move
    move: np.ndarray  # of each stage
    links: np.ndarray
    time: np.ndarray
    release: np.ndarray  # of each move, when it can begin
    need: np.ndarray  # when it is waited for
    at: np.ndarray  # when it runs in the plain schedule
    kept: np.ndarray  # bytes, as of `Slack`
    between: np.ndarray
    whole: np.ndarray
    early: np.ndarray  # bytes that count as begun early
    room: np.ndarray  # bytes that moves may hold at each moment
    ahead: np.ndarray  # bytes that may be begun early


class State(NamedTuple):
    """The schedule: where each stage begins, and when. `trial` are the ends of stages that began in trial `number`."""

    first: np.ndarray  # the first and the last stage that begin at each moment
    last: np.ndarray
    after: np.ndarray  # the stages after and before each one at its moment
    before: np.ndarray
    at: np.ndarray  # the moment of each stage
    now: np.ndarray  # the time of each moment, and of the end
    free: np.ndarray  # when each link is free then
    end: np.ndarray
    trial: np.ndarray
    number: np.ndarray
    held: np.ndarray  # bytes that moves hold at each moment
    early: np.ndarray
    passed: np.ndarray  # how many moments were run through so far, in all trials


@compiled
def run(t, s, start, changed, keep, number, total):
    """The time of a step that is run from moment `start` on, where moments up to `changed` differ from what was run
    before, which took `total`. What is found is kept, or only tried."""
    moments, links = len(t.kind), s.free.shape[1]
    now = s.now[start]
    busy_until = now
    free = np.empty(links, np.int64)
    for link in range(links):
        free[link] = s.free[start, link]
        busy_until = max(busy_until, free[link])
    pending = np.empty(_PENDING, np.int64)
    count = 0
    for p in range(start, moments):
        if p > changed and count < _PENDING:
            delay = now - s.now[p]
            same = delay == 0 or now >= busy_until
            for link in range(links):
                same = same and max(free[link] - now, 0) == max(s.free[p, link] - s.now[p], 0)
            if same:
                left = 0
                for i in range(count):
                    g = pending[i]
                    if t.need[t.move[g]] >= p and (s.trial[g] > now or s.end[g] > s.now[p]):
                        pending[left] = g
                        left += 1
                        same = same and s.trial[g] - s.end[g] == delay
                count = left
            if same:
                if keep:
                    _delay(s, p, delay, number)
                s.passed[0] += p - start
                return total + delay
        if keep:
            s.now[p] = now
            for link in range(links):
                s.free[p, link] = free[link]
        g = s.first[p]
        while g != NONE:
            if g > t.stage_first[t.move[g]]:
                now = max(now, s.trial[g - 1] if s.number[g - 1] == number else s.end[g - 1])
            s.trial[g] = _collective(t.links[g], t.time[g], now, free)
            s.number[g] = number
            if count < _PENDING:
                pending[count] = g
                count += 1
            g = s.after[g]
        for i in range(t.wait_first[p], t.wait_first[p + 1]):
            g = t.stage_first[t.waits[i] + 1] - 1
            now = max(now, s.trial[g] if s.number[g] == number else s.end[g])
        if t.kind[p] == CALL:
            beside = 0
            for link in range(links):
                beside = max(beside, free[link] - now)
            slow = min(t.alone[p], beside * 1000 // (1000 + t.slowdown))
            now += t.alone[p] + slow * t.slowdown // 1000
        elif t.kind[p] == CHAIN:
            for i in range(t.chain_first[p], t.chain_first[p + 1]):
                now = _collective(t.chain_links[i], t.chain_time[i], now, free)
    if keep:
        s.now[moments] = now
        _delay(s, moments, 0, number)
    s.passed[0] += moments - start
    return now


@compiled
def _collective(used, time, now, free):
    """When a collective ends that begins now, or when its links are free."""
    start = now
    for link in range(len(free)):
        if used >> link & 1:
            start = max(start, free[link])
    for link in range(len(free)):
        if used >> link & 1:
            free[link] = start + time
    return start + time


@compiled
def _delay(s, start, delay, number):
    """Keep the ends found in a trial, and let all from a moment on be later."""
    if delay != 0:
        for p in range(start, len(s.now)):
            s.now[p] += delay
        for p in range(start, len(s.free)):
            for link in range(s.free.shape[1]):
                s.free[p, link] += delay
    for g in range(len(s.end)):
        if s.number[g] == number:
            s.end[g] = s.trial[g]
        elif s.at[g] >= start:
            s.end[g] += delay


@compiled
def take_out(s, g):
    p, before, after = s.at[g], s.before[g], s.after[g]
    if before == NONE:
        s.first[p] = after
    else:
        s.after[before] = after
    if after == NONE:
        s.last[p] = before
    else:
        s.before[after] = before


@compiled
def put_in(s, g, p, before):
    """Let a stage begin at a moment after another one there, or first."""
    after = s.first[p] if before == NONE else s.after[before]
    s.at[g], s.before[g], s.after[g] = p, before, after
    if before == NONE:
        s.first[p] = g
    else:
        s.after[before] = g
    if after == NONE:
        s.last[p] = g
    else:
        s.before[after] = g


@compiled
def hold(t, s, m, sign):
    """Count the bytes that a move holds, or with a sign of -1 no longer."""
    g, at, need = t.stage_first[m], t.at[m], t.need[m]
    begin = s.at[g]
    second = s.at[g + 1] if g + 1 < t.stage_first[m + 1] else need
    for p in range(begin, at):
        s.held[p] += sign * t.whole[m]
    for p in range(at, second + 1):
        s.held[p] += sign * t.kept[m]
    if begin < need:  # otherwise it runs as one move
        for p in range(max(at, begin), need + 1):
            s.held[p] += sign * t.between[m]
    for p in range(begin, need + 1):
        s.early[p] += sign * t.early[m]


@compiled
def fits(t, s, m):
    for p in range(min(s.at[t.stage_first[m]], t.at[m]), t.need[m] + 1):
        if s.held[p] > t.room[p] or s.early[p] > t.ahead[p]:
            return False
    return True


@compiled
def descend(t, s, total, sweeps, steps, number):
    """The time of the step after stages were shifted by so many moments, last ones first and then in turns, as long as
    that made it shorter. After the first sweep only those are tried around which something has changed since. `number`
    is that of the last trial before."""
    open_ = np.ones(len(t.move), np.bool_)
    for sweep in range(sweeps):
        before_sweep = total
        for k in range(len(t.move)):
            g = k if sweep % 2 else len(t.move) - 1 - k
            if not open_[g]:
                continue
            open_[g] = False
            for step in steps:
                for at_end in range(2 if abs(step) <= 1 else 1):
                    moment = s.at[g] + step
                    earliest, latest = _window(t, s, g)
                    if not earliest <= moment <= latest:
                        continue
                    if at_end and s.first[moment] == s.last[moment] and s.first[moment] in (NONE, g):
                        continue  # there is but one order
                    number += 2
                    old, sooner = s.at[g], total
                    total = _shifted(t, s, g, moment, at_end or step < -1, number, total, total)
                    if total < sooner:
                        _open_around(s, old, open_)
                        _open_around(s, moment, open_)
        if total == before_sweep:
            break
    return total


@compiled
def anneal(t, s, total, moments, threshold, number):
    """The time of the step after shifts of stages at random, mostly not far, until so many moments were run through,
    and the number of the last trial. A step that is longer by less than the threshold will do."""
    random = np.uint64(88172645463325252)
    s.passed[0] = 0
    for _ in range(moments):
        left = moments - s.passed[0]
        if left <= 0:
            break
        s.passed[0] += 1
        random = _next(random)
        g = np.int64(random % np.uint64(len(t.move)))
        random = _next(random)
        reach = _REACHES[np.int64(random % np.uint64(len(_REACHES)))]
        earliest, latest = _window(t, s, g)
        earliest, latest = max(earliest, s.at[g] - reach), min(latest, s.at[g] + reach)
        if earliest == latest:
            continue
        random = _next(random)
        moment = earliest + np.int64(random % np.uint64(latest - earliest + 1))
        number += 2
        worst = total + np.int64(threshold * (left / moments))
        total = _shifted(t, s, g, moment, random >> np.uint64(63), number, total, worst)
    return total, number


@compiled
def _next(random):
    """The next of a sequence of random numbers, the same on every machine (xorshift)."""
    random ^= random << np.uint64(13)
    random ^= random >> np.uint64(7)
    return random ^ (random << np.uint64(17))


@compiled
def _window(t, s, g):
    """The first and the last moment at which a stage can begin."""
    m = t.move[g]
    earliest = t.release[m] if g == t.stage_first[m] else s.at[g - 1]
    latest = t.need[m] if g + 1 == t.stage_first[m + 1] else s.at[g + 1]
    return earliest, latest


@compiled
def _shifted(t, s, g, moment, at_end, number, total, worst):
    """The time of the step with a stage shifted to a moment, if it is another one and less than the worst that will do;
    otherwise all stays as it is: what makes no difference to the step could make one on the device."""
    m, old, before = t.move[g], s.at[g], s.before[g]
    take_out(s, g)
    if g + 1 < t.stage_first[m + 1] and s.at[g + 1] == moment:
        put_in(s, g, moment, s.before[g + 1])
    elif g > t.stage_first[m] and s.at[g - 1] == moment:
        put_in(s, g, moment, g - 1)
    else:
        put_in(s, g, moment, s.last[moment] if at_end else NONE)
    first, last = min(old, moment), max(old, moment)
    # Few shifts do, so what they hold is counted last.
    found = run(t, s, first, last, False, number, total)
    if found != total and found < worst and _holds(t, s, g, old):
        return run(t, s, first, last, True, number + 1, total)
    take_out(s, g)
    put_in(s, g, old, before)
    return total


@compiled
def _holds(t, s, g, old):
    """Count what a stage's move holds since the stage was shifted, if that is within the limits."""
    m, moment = t.move[g], s.at[g]
    if g > t.stage_first[m] + 1:
        return True  # only the first two stages matter
    s.at[g] = old
    hold(t, s, m, -1)
    s.at[g] = moment
    hold(t, s, m, 1)
    if fits(t, s, m):
        return True
    hold(t, s, m, -1)
    s.at[g] = old
    hold(t, s, m, 1)
    s.at[g] = moment
    return False


@compiled
def _open_around(s, moment, open_):
    for p in range(max(0, moment - _AROUND), min(len(s.first), moment + _AROUND)):
        g = s.first[p]
        while g != NONE:
            open_[g] = True
            g = s.after[g]
