from dataclasses import replace

import pytest
from torch import Tensor

from shardwise.calls import Call, overload
from shardwise.experiments import check_as_is
from shardwise.rules import hand_rows


@pytest.fixture(scope="session")
def assert_rows_hold():
    return rows_hold


def rows_hold(op, args, kwargs, ranks, way) -> int:
    """Run every row on this number of ranks with the values given; how many rows that were."""
    call = Call(overload(op), args, kwargs)
    shapes = [tuple(o.shape) if isinstance(o, Tensor) else None for o in call.run()]
    rows = hand_rows(replace(call, made=tuple(shapes)))
    assert rows is not None, f"{op} has no rule for this call"
    held = check_as_is(call, rows, ranks, way)
    assert [f"{row} with local {row.local}" for row in held if not held[row]] == []
    return len(held)
