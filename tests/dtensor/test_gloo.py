"""The bridge on four real ranks: processes that talk through gloo on the loopback interface."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What rank 0 reports; every process is gone when this returns, however it returns."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    script, store = Path(__file__).parent / "gloo_ranks.py", tmp_path_factory.mktemp("gloo") / "store"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(store)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(ranks, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(outputs[0][0])


def test_redistribution_runs_the_priced_collectives(seen):
    assert seen["redistribute"]["changes"] > 150
    assert seen["redistribute"]["shard to shard"] == ["all_to_all"]  # DTensor itself gathers here


@pytest.mark.parametrize("name", ["mm", "bmm", "pointwise", "cat"])
def test_operators_give_the_same_for_no_more_communication(seen, name):
    (count, size), (their_count, their_size) = seen["ours"][name], seen["theirs"][name]
    assert 0 < count <= their_count
    assert 0 < size <= their_size


def test_grouped_products_send_nothing_where_one_of_rows_and_groups_is_whole_on_an_axis(seen):
    *alone, both = seen["grouped"].values()
    assert alone == [0, 0, 0] and both > 0
