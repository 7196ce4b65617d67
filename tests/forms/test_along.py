"""Forms that communicate along the dim which is reduced, normalised or slid over."""

import torch

import shardwise as sw
from shardwise.forms import communicating
from shardwise.placements import Row, shard
from shardwise.rules import own_rules, row_of
from tests.forms.cases import r

aten = torch.ops.aten


def test_a_halo_that_is_too_narrow_is_refuted():
    def rows(call):
        yield row_of(call, {"input": shard(2)}, shard(2))

    with own_rules():

        @communicating("aten.convolution.default", rows=rows)
        def one_side(call, group):
            """Fetches the last row of the piece before, but not the first of the next."""
            x = call["input"]
            edge = yield group.permute(x[:, :, -1:])
            edge = edge if group.rank else torch.zeros_like(edge)
            return call(input=torch.cat([edge, x], 2), padding=[0, 1], weight=call["weight"][:, :, :2])

        weight = r(6, 4, 3, 3)
        given = (r(2, 4, 8, 6), weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        verdict = sw.check(aten.convolution.default, Row.parse("S(2), R -> S(2) with local one_side"), *given)
        assert not verdict and "values differ" in str(verdict)
