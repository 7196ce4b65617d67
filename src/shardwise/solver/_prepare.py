"""Loading the compiled code from disk, or compiling it (about 20 s) on the first call on a machine."""

from functools import cache

import numpy as np

from ._problem import Problem

_ROUNDS = 12  # after which one worker has called all compiled functions


@cache
def prepare() -> bool:
    """Compile or load all code of the search; done once per process. Returns True."""
    from ._exchange import View
    from ._passes import Passes
    from ._reduce import reduce
    from ._worker import Worker

    reduction = reduce(_small())
    assert reduction.kernel is not None
    stop = np.zeros(1, np.int64)
    passes = Passes(reduction.kernel, 0.0, stop)
    worker = Worker(reduction, passes, 0, 1, 0, stop, lambda: 1.0, True)
    view = View()
    for _ in range(_ROUNDS):
        view = view.better(worker.round(view))
    assert view.choice is not None
    reduction.expand(view.choice)
    return True


def _small() -> Problem:
    """A problem that the reductions do not solve and that needs every step of the search."""
    k, n, steps = 3, 20, (1, 2, 5)
    edges = [[i, i + step] for step in steps for i in range(n - step)]
    return Problem.build(
        costs=[[(7 * i + 5 * c) % 11 for c in range(k)] for i in range(n)],
        usages=[[(3 * i + 4 * c) % 7 for c in range(k)] for i in range(n)],
        intervals=[[i, i + 6] for i in range(n)],
        edges=edges,
        tables=[
            [(i * c * d + c + 2 * d) % 13 for c in range(k) for d in range(k)] for i in range(len(edges))
        ],
        usage_limit=16,
    )
