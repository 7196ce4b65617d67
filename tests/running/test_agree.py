import pytest

from shardwise.running._agree import explained


def test_a_store_that_cannot_tell_does_not_hide_an_error(simulated_ranks):
    with (
        simulated_ranks(2),
        pytest.raises(RuntimeError, match="CUDA out of memory"),
        explained("shardwise/fault/0"),
    ):
        raise RuntimeError("CUDA out of memory")
