"""Operators that were decomposed for planning run whole where a plan has nothing between their parts."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.running._emit import Parts
from shardwise.running._lower import Lowering
from shardwise.running._whole import Recomposed, with_whole_calls

LOSS = ["_log_softmax", "nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data"]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 16)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(x), labels, ignore_index=3)


def planned(model, *args, mesh="d=1", pin=None, execution="eager"):
    return sw.plan(model, args, mesh=mesh, cluster="laptop", pin=pin, compare=False, execution=execution)


def entries(plan):
    parts = Parts(plan)
    return [
        each
        for part in (parts.forward, parts.backward)
        for each in with_whole_calls(plan, part.entries, part.gives)
    ]


def whole_calls(plan):
    return [each.whole.op.split(".")[1] for each in entries(plan) if isinstance(each, Recomposed)]


def classifier(**options):
    return planned(Classifier(), torch.randn(12, 8), torch.arange(12), **options)


def test_a_loss_on_one_rank_is_four_kernels():
    assert whole_calls(classifier()) == LOSS


def test_what_is_reduced_between_the_parts_stays_in_parts():
    data_parallel = classifier(mesh="d=2", pin={"x": "S(0)", "labels": "S(0)", "head.weight": "R"})
    assert whole_calls(data_parallel) == ["_log_softmax", "nll_loss_backward", "_log_softmax_backward_data"]
    by_classes = classifier(mesh="d=2", pin={"head.weight": "S(0)", "sub_1": "S(1)"})
    assert not {"_log_softmax", "_log_softmax_backward_data"} & set(whole_calls(by_classes))


def test_a_compiler_gets_the_parts():
    assert whole_calls(classifier(execution="compiled")) == []


def test_batch_norm_by_given_statistics_on_one_rank_is_one_kernel():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.ReLU()).eval()
    plan = planned(model, torch.randn(4, 6, 5, requires_grad=True))
    assert [op for op in whole_calls(plan) if op.startswith("_native_batch_norm_legit")]
    assert_same_numbers(plan)


def test_they_compute_what_the_parts_do():
    assert_same_numbers(classifier())


def assert_same_numbers(plan):
    """Run every call whole and in parts, on the same numbers."""
    parts, lowering = Parts(plan), Lowering(plan)
    graph = plan.graph
    values = {}
    for entry in graph.inputs:
        shape, dtype = entry.tensor.shape, entry.tensor.dtype
        values[entry.name] = (
            torch.rand(shape).to(dtype)
            if dtype.is_floating_point
            else torch.arange(math.prod(shape)).reshape(shape)
        )
    known = {
        value: values[value.ref.name]
        for part in (parts.forward, parts.backward)
        for value in part.takes
        if value.ref.name in values
    }
    for part in (parts.forward, parts.backward):
        calls = [e for e in with_whole_calls(plan, part.entries, part.gives) if isinstance(e, Recomposed)]
        for entry in part.entries:
            made = lowering.on_rank(entry, 0)([known[value] for value in entry.inputs])
            known.update(
                {
                    value: tensor
                    for value, tensor in zip(entry.outputs, made, strict=True)
                    if value is not None
                }
            )
        for call in calls:
            for value, tensor in call([known[v] for v in call.inputs], lowering.retargeted).items():
                torch.testing.assert_close(tensor, known[value])
