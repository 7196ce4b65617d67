"""The few time points at which memory can bind.

Load changes only where an interval starts or ends, and a point whose live set lies inside another's (with no
smaller capacity) is implied by it. Points at which even the largest choices fit are dropped too. The remaining points
are numbered from 0, and intervals become ranges of these numbers.
"""

import numpy as np


def maximal_points(intervals: np.ndarray) -> np.ndarray:
    """Times whose live sets are maximal, ascending, for half-open intervals [start, end)."""
    live = intervals[intervals[:, 0] < intervals[:, 1]]
    starts, ends = np.unique(live[:, 0]), np.unique(live[:, 1])
    if not len(starts):
        return starts
    # A start is implied by the next one unless something ends in between.
    ended = np.searchsorted(ends, starts, "right")
    return starts[np.append(ended[1:] > ended[:-1], True)]


def ranges(points: np.ndarray, intervals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Half-open ranges of point numbers that lie in each interval."""
    return np.searchsorted(points, intervals[:, 0], "left"), np.searchsorted(points, intervals[:, 1], "left")


def binding(low: np.ndarray, high: np.ndarray, most: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Which points to keep: those that can overflow and that no neighbouring point implies."""
    count = len(capacity)
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, low, most)
    np.add.at(change, high, -most)
    keep = np.cumsum(change)[:count] > capacity
    starts, ends = np.zeros(count + 1, bool), np.zeros(count + 1, bool)
    live = low < high
    starts[low[live]] = True
    ends[high[live]] = True
    for t in range(count - 1):  # implied by the next point: nothing ends between them
        if keep[t] and keep[t + 1] and not ends[t + 1] and capacity[t] >= capacity[t + 1]:
            keep[t] = False
    last = -1
    started = False
    for t in range(count):  # implied by the last kept point: nothing starts after it
        started = started or bool(starts[t])
        if keep[t]:
            if last >= 0 and not started and capacity[t] >= capacity[last]:
                keep[t] = False
            else:
                last, started = t, False
    return keep
