"""Compiled code: cached on disk after the first use on a machine, and run without the GIL, so that the thread that
keeps the time limit is never blocked. Arrays are filled and copied by plain loops, since slice assignment takes seconds
to compile.
"""

from numba import njit

compiled = njit(cache=True, nogil=True)


@compiled
def fill(array, value):
    for i in range(len(array)):
        array[i] = value


@compiled
def copy(target, source, count):
    """`target[:count] = source[:count]`."""
    for i in range(count):
        target[i] = source[i]
