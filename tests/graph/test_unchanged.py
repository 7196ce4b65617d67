"""A model that was captured, or that could not be, is as it was before."""

import functools
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from shardwise.errors import UsageError
from shardwise.graph import capture, unchanged


@functools.cache
def kept_positions(length):
    return torch.arange(length)


class Memory:
    """An object of the program's own that no container of torch knows."""

    def __init__(self):
        self.keys = None
        self.seen = []


class Messy(nn.Module):
    """Does to itself, when it is called, everything that models do to themselves."""

    def __init__(self, fails=False):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("table", None)
        self.calls, self.history, self.caches = 0, [], {"a": [torch.ones(2)]}
        self.memory, self.names = Memory(), {"inner"}
        self.plain = torch.zeros(4)
        self.is_hooked, self.fails = False, fails

    def forward(self, x):
        self.calls += 1
        if not self.is_hooked:
            self.inner.register_forward_hook(lambda module, args, made: self.history.append(made))
            self.is_hooked = True
        y = self.norm(self.inner(x)) + kept_positions(4)
        self.table = y.detach()
        if self.fails:
            self.plain += 1
        self.late = y
        self.late_layer = nn.Identity()
        self.names.add("late")
        self.caches["a"].append(y)
        self.memory.keys = y
        self.memory.seen.append(y)
        random.random()
        np.random.rand()
        torch.set_default_dtype(torch.float64)
        if self.fails and y.sum() > 0:
            return y
        return y.sum()


def state_of(model):
    """Everything of a model that can be compared: by identity for objects, by bytes for tensors."""
    found = {}
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            found[path, name] = list(value.items()) if isinstance(value, dict) else value
        found[path, "of"] = type(part)
    values = [t.detach().clone() for t in (*model.parameters(), *model.buffers(), model.plain)]
    rest = (
        *(tuple(model.history), len(model.caches["a"]), set(model.names)),
        *(model.memory.keys, tuple(model.memory.seen)),
        *(torch.get_default_dtype(), random.getstate(), torch.is_grad_enabled()),
    )
    return found, values, rest


def assert_same(now, before):
    (found, values, rest), (old, were, others) = now, before
    assert list(found) == list(old)
    for key, value in found.items():
        for one, other in zip(tree_leaves(value), tree_leaves(old[key]), strict=True):
            assert one is other, key
    assert all(torch.equal(one, other) for one, other in zip(values, were, strict=True))
    assert rest == others


@pytest.mark.parametrize("fails", [False, True])
def test_capture_leaves_a_model_as_it_was(fails):
    model, x = Messy(fails), torch.randn(3, 4)
    before, drawn, numbers = state_of(model), torch.get_rng_state(), np.random.get_state()[1].copy()
    if fails:
        with pytest.raises(UsageError, match="depends on tensor values"):
            capture(model, (x,))
    else:
        notes = capture(model, (x,)).notes
        assert any("self.late" in note and "not kept from call to call" in note for note in notes)
    assert_same(state_of(model), before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (np.random.get_state()[1] == numbers).all()
    assert type(kept_positions(4)) is torch.Tensor


def test_hooks_that_a_model_installs_on_its_first_call_are_not_left_behind():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    pair = {"sr_ratios": [2, 1], "num_attention_heads": [2, 2], "patch_sizes": [3, 3], "strides": [2, 2]}
    config = SegformerConfig(
        num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 16], decoder_hidden_size=8, num_labels=3, **pair
    )
    model, x = SegformerForSemanticSegmentation(config), torch.randn(1, 3, 16, 16)
    capture(model, (x,), training=False)
    assert not any(part._forward_hooks for part in model.modules())
    assert model.eval()(x).logits.shape == (1, 3, 8, 8)


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_for_all_modules_are_not_left_behind(fails):
    known, model = torch.nn.modules.module, Messy(fails)

    def program(x):
        known.register_module_forward_hook(lambda *given: None)
        known.register_module_buffer_registration_hook(lambda *given: None)
        return model(x)

    with pytest.raises(UsageError) if fails else nullcontext():
        capture(program, (torch.randn(3, 4),), training=False)
    assert not known._global_forward_hooks and not known._global_buffer_registration_hooks


def test_what_a_program_closes_over_is_put_back():
    seen, counts = [], {"calls": 0}

    def program(x):
        seen.append(x)
        counts["calls"] += 1
        return x.sum()

    capture(program, (torch.randn(3, requires_grad=True),))
    assert seen == [] and counts == {"calls": 0}


def test_only_what_changed_is_written():
    class Watched(dict):
        writes = 0

        def clear(self):
            Watched.writes += 1
            super().clear()

    held = nn.Module()
    held.same, held.other = Watched(a=1), Watched(a=1)
    with unchanged(held):
        held.other["b"] = 2
    assert held.other == {"a": 1} and Watched.writes == 1
