"""Every row whose ranks communicate is confirmed by experiment, and refuted where its ranks mishear each other.

That they run on real ranks is tested in tests/running/test_ranks.py.
"""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import shardwise as sw
from shardwise.calls import Call
from shardwise.expansion import Choice, is_valid_for
from shardwise.experiments import check_choice, refuted
from shardwise.forms import Group, call_in_group, communicating, communicating_operators
from shardwise.mesh import Mesh
from shardwise.placements import Row
from shardwise.rules import offered_rows, own_rules, rows_besides
from tests.forms.cases import CALLS, call_of


def test_every_operator_is_in_the_table():
    tested = {
        (row.local, call.packet) for name in CALLS for call in [call_of(name)] for row in rows_besides(call)
    }
    assert tested == set(communicating_operators())


@pytest.mark.parametrize("name", CALLS)
def test_it_holds_for_any_shards(name):
    call = call_of(name)
    rows = rows_besides(call)
    assert rows and all(row.shards == "any" for row in rows)
    assert not refuted(call, rows)
    assert sw.check(call.op, rows[0], *call.args)


@pytest.mark.parametrize("name", CALLS)
def test_ranks_of_several_axes_communicate_as_one_group(name):
    """Every pair of rows that may be chosen together; of most forms these are equal ones."""
    call = call_of(name)
    rows, tried = rows_besides(call), set()
    for mesh, pair in product(("a=2,b=2", "a=2,b=3"), product(rows, rows)):
        choice = Choice(Mesh.parse(mesh), pair)
        if is_valid_for(choice, call, offered_rows):
            tried.add(pair)
            assert check_choice(call, choice), choice
    same = {(row, row) for row in rows}
    assert same <= tried or rows[0].local == "split", "pieces of a split product are of one axis"
    if rows[0].local != "statistics":
        assert tried <= same


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refuted_where_ranks_mishear_each_other(name):
    """All numbers that a rank is sent arrive negated: where that changes nothing, they need not have been sent."""
    op, *args = CALLS[name]
    true = rows_besides(call_of(name))[0]

    def misheard(call: Call, group: Group):
        run, value = call_in_group(true.local, call, group), None
        while True:
            try:
                request = run.send(value)
            except StopIteration as end:
                return end.value
            value = pytree.tree_map_only(Tensor, torch.neg, (yield request))

    with own_rules():
        communicating(str(op), rows=lambda call: [true])(misheard)
        assert not sw.check(op, Row(true.inputs, true.outputs, true.shards, "misheard"), *args)
