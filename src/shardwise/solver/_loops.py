"""Filling and copying arrays in compiled code: plain loops, since slice assignment takes seconds to compile."""

from numba import njit


@njit(cache=True)
def fill(array, value):
    for i in range(len(array)):
        array[i] = value


@njit(cache=True)
def copy(target, source, count):
    """`target[:count] = source[:count]`."""
    for i in range(count):
        target[i] = source[i]
