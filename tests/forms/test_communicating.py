"""Communicating forms: ranks that exchange tensors inside of a call."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import shardwise as sw
from shardwise.calls import Call
from shardwise.errors import UsageError
from shardwise.forms import Group, Held, Piece, calls_together, communicating, is_communicating, local_call
from shardwise.graph import attention
from shardwise.placements import Row, shard, shard_sizes
from shardwise.rules import offered_rows, own_rules, row_of

aten = torch.ops.aten
CUMSUM = aten.cumsum.default


@pytest.fixture(autouse=True)
def forget():
    with own_rules():
        yield


def along_its_dim(call: Call):
    placed = shard(call["dim"] % len(call.shape("self")))
    yield row_of(call, {"self": placed}, placed)


def pieces(x: Tensor, dim: int, ranks: int) -> tuple[list[Tensor], list[Piece]]:
    parts, found, start = list(x.split(shard_sizes(x.shape[dim], ranks), dim)), [], 0
    for part in parts:
        offset = [0] * x.ndim
        offset[dim] = start
        start += part.shape[dim]
        found.append(Piece(tuple(x.shape), tuple(part.shape), tuple(offset)))
    return parts, found


def run(function, x: Tensor, dim: int, ranks: int, record=None) -> list[Tensor]:
    """What each rank returns, given its part of x along a dim."""
    communicating("aten.cumsum.default", rows=along_its_dim)(function)
    parts, held = pieces(x, dim, ranks)
    calls = [Call.of(CUMSUM, part, dim) for part in parts]
    places = [Held(call, [piece], [piece]) for call, piece in zip(calls, held, strict=True)]
    return calls_together(function.__name__, calls, places, record)


X = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
RANKS = pytest.mark.parametrize("ranks", [2, 3, 4, 7])


@RANKS
def test_pieces_of_different_sizes_are_gathered(ranks):
    def gathering(call, group):
        return (yield group.all_gather(call["self"], 1, group.sizes("self", 1)))

    assert all(torch.equal(found, X) for found in run(gathering, X, 1, ranks))


@RANKS
def test_sums_are_scattered_to_pieces_of_different_sizes(ranks):
    def scattering(call, group):
        whole = yield group.all_gather(call["self"], 1, group.sizes("self", 1))
        return (yield group.reduce_scatter(whole * (group.rank + 1), 1, group.sizes("self", 1)))

    times = ranks * (ranks + 1) / 2
    torch.testing.assert_close(torch.cat(run(scattering, X, 1, ranks), 1), X * times)


@RANKS
def test_a_ring_brings_every_piece_to_every_rank(ranks):
    def going(call, group):
        held, own = [call["self"]], call["self"]
        for step in range(1, group.size):
            shape = (5, group.sizes("self", 1)[(group.rank - step) % group.size])
            own = yield group.permute(own, shape=shape)
            held.append(own)
        return torch.cat([held[(group.rank - number) % group.size] for number in range(group.size)], 1)

    assert all(torch.equal(found, X) for found in run(going, X, 1, ranks))


@RANKS
def test_an_exchange_is_a_transpose(ranks):
    def exchanging(call, group):
        rows = shard_sizes(5, group.size)
        parts = call["self"].split(rows)
        shapes = [(rows[group.rank], size) for size in group.sizes("self", 1)]
        return torch.cat((yield group.all_to_all(parts, shapes)), 1)

    assert torch.equal(torch.cat(run(exchanging, X, 1, ranks)), X)


def test_a_reduction_is_named():
    def largest(call, group):
        return (yield group.all_reduce(call["self"].amax(1), "max"))

    assert all(torch.equal(found, X.amax(1)) for found in run(largest, X, 1, 3))


def test_what_was_begun_is_waited_for_later():
    def late(call, group):
        moving = group.all_gather(call["self"], 1, group.sizes("self", 1))
        largest = yield group.all_reduce(call["self"].amax(1), "max")
        return (yield moving) + largest.unsqueeze(1)

    seen = []
    found = run(late, X, 1, 2, seen.append)
    assert torch.equal(found[0], X + X.amax(1, keepdim=True))
    assert [request.kind for request in seen] == ["all_reduce", "all_gather"]
    assert seen[1].size == 2 * 5 * 5 * 8  # the pieces of both ranks, each padded to the longer one


def test_ranks_that_do_not_communicate_alike_are_refused():
    def apart(call, group):
        if group.rank:
            return (yield group.all_reduce(call["self"].sum(1)))
        return (yield group.all_gather(call["self"], 1))

    with pytest.raises(UsageError, match="wait for different things: all_gather, all_reduce"):
        run(apart, X, 1, 2)

    def ending(call, group):
        return call["self"] if group.rank else (yield group.all_reduce(call["self"].sum(1)))

    with pytest.raises(UsageError, match="wait for different things: all_reduce, nothing"):
        run(ending, X, 1, 2)

    def misshapen(call, group):
        return (yield group.all_reduce(call["self"]))

    with pytest.raises(UsageError, match="different shapes into one all_reduce"):
        run(misshapen, X, 1, 2)

    def misled(call, group):
        return (yield group.permute(call["self"]))

    with pytest.raises(UsageError, match=r"gets .* elements and expects"):
        run(misled, X, 1, 2)


def test_a_form_of_ones_own_is_a_row_like_others():
    @communicating("aten.cumsum.default", rows=along_its_dim)
    def scan(call: Call, group: Group):
        dim = call["dim"]
        totals = yield group.all_gather(call["self"].sum(dim, keepdim=True), dim)
        return call() + totals.narrow(dim, 0, group.rank).sum(dim, keepdim=True)

    row = Row.parse("S(1) -> S(1) with local scan")
    assert {row, Row.parse("S(0) -> S(0)")} <= set(offered_rows(Call.of(CUMSUM, X, -1)))
    assert row not in sw.rows(CUMSUM, X, -1)  # which need no communication
    assert sw.check(CUMSUM, row, X, -1)
    assert is_communicating("scan") and not is_communicating("lookup") and not is_communicating(None)
    with pytest.raises(UsageError, match="on all ranks of a group together"):
        local_call("scan", Call.of(CUMSUM, X, 1), [Piece.whole(X.shape)], [Piece.whole(X.shape)])

    @communicating("aten.cumsum.default", rows=along_its_dim)
    def scan_and_own(call: Call, group: Group):
        dim = call["dim"]
        totals = yield group.all_gather(call["self"].sum(dim, keepdim=True), dim)
        return call() + totals.narrow(dim, 0, group.rank + 1).sum(dim, keepdim=True)

    wrong = sw.check(CUMSUM, Row.parse("S(1) -> S(1) with local scan_and_own"), X, -1)
    assert not wrong and "values differ" in str(wrong)


def test_names_of_shipped_forms_are_taken():
    def ring(call, group):
        yield

    with pytest.raises(UsageError, match="there is a local form 'ring' already"):
        communicating("aten.cumsum.default", rows=along_its_dim)(ring)


# -- attention over a sharded sequence


def r(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


FORWARD = "S(2), S(2), S(2) -> S(2), S(2) with local {}"


def test_a_ring_that_does_not_rescale_is_refuted():
    def rows(call: Call):
        yield row_of(call, dict.fromkeys(("query", "key", "value"), shard(2)), shard(2))

    @communicating("shardwise.attention.default", rows=rows)
    def without_rescale(call: Call, group: Group):
        outputs, sums, (key, value) = [], [], (call["key"], call["value"])
        for step in range(group.size):
            shape = list(key.shape)
            output, logsumexp = call(key=key, value=value)
            outputs.append(output)
            sums.append(logsumexp)
            if step + 1 < group.size:
                shape[2] = group.sizes("key", 2)[(group.rank - step - 1) % group.size]
                key = yield group.permute(key, shape=shape)
                value = yield group.permute(value, shape=(*shape[:3], value.shape[3]))
        return torch.stack(outputs).mean(0), torch.stack(sums).logsumexp(0)

    given = (r(2, 2, 8, 6), r(2, 2, 8, 6), r(2, 2, 8, 5), None, None, False, 0.4, 0.0)
    verdict = sw.check(attention, FORWARD.format("without_rescale"), *given)
    assert not verdict and "values differ" in str(verdict)


def test_of_many_ranks_only_those_that_send_are_looked_at():
    """A ring has as many steps as ranks: each takes as long whatever their number."""

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    whole = torch.arange(6.0)
    with Counting() as counting:
        request = Group(3, [Held(Call(CUMSUM, (whole, 0)), (), ())] * 500).permute(whole, shape=(2, 3))
        arrived = request.finish(request.sent)
    assert torch.equal(arrived, whole.view(2, 3)) and counting.count < 10
    assert [counts.index(6) for counts in request.counts] == [4, 2] and len(request.counts[0]) == 500
