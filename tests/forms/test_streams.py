"""Random numbers by position: a piece holds what the whole tensor has in its place."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from shardwise.calls import Call, Draw, declare, facts, overload
from shardwise.forms import draw, draws_whole
from shardwise.forms._streams import _DRAWS

SEED = torch.tensor(7)


@torch.library.custom_op("streams::noise", mutates_args=())
def noise(self: Tensor) -> Tensor:
    return torch.rand_like(self)


def test_every_kind_of_draw_has_a_stream():
    assert set(_DRAWS) == set(get_args(Draw))


@pytest.mark.parametrize("name", ["rand_like", "randn_like", "bernoulli"])
def test_a_piece_is_drawn_as_in_the_whole(name):
    op = overload(f"aten.{name}.default")
    x = torch.rand(6, 4)
    whole = draw(Call.of(op, x), SEED, 3, x.shape, [[(0, 6)], [(0, 4)]])
    piece = draw(Call.of(op, x[2:5]), SEED, 3, x.shape, [[(2, 5)], [(0, 4)]])
    assert torch.equal(piece, whole[2:5])


def test_an_operator_declares_how_it_draws():
    op, x = torch.ops.streams.noise.default, torch.rand(6, 4)
    declare(op, random=True)
    assert draws_whole(Call.of(op, x))
    declare(op, draws="rand")
    assert not draws_whole(Call.of(op, x))
    same = draw(Call.of(overload("aten.rand_like.default"), x), SEED, 0, x.shape, [[(0, 6)], [(0, 4)]])
    assert torch.equal(draw(Call.of(op, x), SEED, 0, x.shape, [[(0, 6)], [(0, 4)]]), same)


def test_attention_draws_nothing_without_dropout():
    op, x = overload("aten._scaled_dot_product_flash_attention.default"), torch.rand(1, 2, 4, 8)
    assert facts(op).random
    assert not draws_whole(Call.of(op, x, x, x, 0.0))
    assert draws_whole(Call.of(op, x, x, x, 0.1))
