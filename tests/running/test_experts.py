"""Programs of plans whose ranks exchange tokens."""

import pytest
import torch

import shardwise as sw
from shardwise.errors import UsageError
from shardwise.running._step import require_compilable
from tests.verification.test_experts import Mixture, planned


def test_a_plan_that_exchanges_tokens_is_not_compiled():
    graph = sw.capture(Mixture(), (torch.randn(9, 6),))
    require_compilable(planned(graph, "ep=2", "lookup"))
    with pytest.raises(UsageError, match=r"cannot be compiled: .* depends on values"):
        require_compilable(planned(graph, "ep=2", "exchange"))
