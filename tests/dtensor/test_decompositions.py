"""Decompositions that DTensor decides by are traced once for each placement of their inputs."""

from inspect import getattr_static

import torch

from shardwise.calls import Call
from shardwise.dtensor import decide, traced_once
from shardwise.dtensor._versions import traced
from shardwise.placements import parse_placement
from tests.versions import from_torch

aten = torch.ops.aten


@from_torch("2.12", "DTensor does not decompose attention of CPUs")
def test_a_decomposition_is_traced_once_for_each_placement(monkeypatch):
    from torch.distributed.tensor._decompositions import DecompShardingStrategy

    name = "_propagate_through_decomp"
    seen, trace = [], getattr_static(DecompShardingStrategy, name)

    def counted(*given):
        schema, placements, _ = traced(given)
        seen.append((schema.op, str(schema.args_meta), placements))
        return getattr(trace, "__func__", trace)(*given)

    is_static = isinstance(trace, staticmethod)
    monkeypatch.setattr(DecompShardingStrategy, name, staticmethod(counted) if is_static else counted)
    # Sizes that DTensor has not yet decided about.
    query, key = torch.rand(2, 4, 3, 2), torch.rand(2, 4, 7, 2)
    call = Call.of(aten._scaled_dot_product_flash_attention_for_cpu.default, query, key, key.clone())
    inputs = [parse_placement("S(0)")] * 3
    with traced_once():
        first = decide(call, inputs)
        before = len(seen)
        assert decide(call, inputs) == first
    assert len(set(seen)) == len(seen) == before > 200
    assert {op.name() for op, *_ in seen} > {"aten::_scaled_dot_product_attention_math"}
