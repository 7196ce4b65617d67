"""`doctor`: what is left out, what has no rule and what that costs, before anything is searched for."""

import pytest
import torch
from torch import nn

import shardwise as sw
from shardwise.planning import Diagnosis


class Sampled(nn.Module):
    """It draws at random, checks what it draws, and checkpoints a part of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)
        if not torch.isfinite(y).all():
            raise ValueError("not finite")
        return y.gather(1, torch.multinomial(y.softmax(-1), 2)).sum()


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return sw.doctor(Sampled(), (torch.randn(16, 8),), cluster="laptop")


def test_what_is_left_out_is_listed(found):
    assert len(found.notes) == 2
    assert "checkpointing is left out" in str(found) and "an error check is left out" in str(found)


def test_what_is_replicated_stands_with_its_reason_and_price(found):
    [drawn] = found.replicated
    assert (drawn.op, drawn.calls) == ("aten.multinomial.default", 1)
    assert drawn.why == "its draws do not follow from positions"
    assert drawn.seconds > 0 and drawn.saved == pytest.approx(0.75 * drawn.seconds)
    assert found.rules["replicated"] == 1 and found.rules["book"] > 5
    assert "aten.multinomial.default" in str(found)


def test_planning_time_is_that_of_this_process(found):
    assert found.capturing > 0 and found.preparing > 0
    assert 0 <= found.undecided <= found.choices
    assert found.to_json()["planning"]["decisions"] == found.choices
    assert found.planning > found.to_json()["planning"]["preparing"] / 2
    assert f"about {found.planning:.1f} s of CPU time" in str(found)


def test_a_model_that_cannot_be_captured_is_refused_with_what_to_do():
    with pytest.raises(sw.UsageError, match=r"control flow depends on tensor values.*torch.where"):
        sw.doctor(lambda x: x if x.sum() > 0 else -x, (torch.randn(3, requires_grad=True),))
