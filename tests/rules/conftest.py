import pytest

from shardwise.discover import Call, Expected, example_sizes
from shardwise.discover._experiment import Experiment
from shardwise.rules import hand_rows, overload


@pytest.fixture(scope="session")
def assert_rows_hold():
    return rows_hold


def rows_hold(op, args, kwargs, ranks, way) -> int:
    """Run every row on this number of ranks with the values given; how many rows that were."""
    call = Call.of(overload(op), args, kwargs)
    experiment = Experiment(example_sizes(call), ranks, "given", call.tensors, way)
    shapes = [o.shape if isinstance(o, Expected) else None for o in experiment.outputs]
    count = 0
    for row in hand_rows(op, args, kwargs, shapes) or ():
        case = experiment.input_case(row.inputs)
        for i, placement in enumerate(row.outputs):
            case = case if placement is None else experiment.row_case(case, i, placement)
        if case in {"any": (), "nonempty": ("empty",), "even": ("uneven", "empty")}[row.shards]:
            continue
        local = experiment.run(row.inputs, row.local, row.outputs)
        for expected, pieces, placement in zip(experiment.outputs, local, row.outputs, strict=True):
            if placement is not None:
                assert expected.agrees(pieces, placement), f"{op}: {row} with local {row.local}"
        count += 1
    return count
