"""Whatever the bridge changes in DTensor is undone by its counterpart, and all of it by `reset`."""

import itertools

import pytest
import torch
import torch.distributed.tensor._api as api
import torch.distributed.tensor._dispatch as dispatch
import torch.distributed.tensor._redistribute as redistribute
import torch.distributed.tensor._sharding_prop as sharding_prop
from torch.distributed.tensor import DTensor

import shardwise as sw
from shardwise.dtensor import extend, register, registered, reset, unregister, use_search
from shardwise.dtensor._state import Bridge, bridge
from shardwise.rules import Clause, Rule

KNOWN = Rule("aten.mm.default", (Clause.parse("S(0), R -> S(0)"),))
UNKNOWN = Rule("aten.reflection_pad1d.default", (Clause.parse("S(0) -> S(0)"),))


def dtensor():
    """All of DTensor that the bridge touches."""
    dispatcher = DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    tables = {name: dict(table) for name, table in vars(propagator).items() if isinstance(table, dict)}
    functions = [
        sharding_prop._expand_single_dim_strategy_to_mesh,
        *(module.redistribute_local_tensor for module in (redistribute, dispatch, api)),
    ]
    own = {name: value for name, value in vars(propagator).items() if name.startswith("propagate_")}
    return tables, functions, own, dict(dispatcher._custom_op_handlers)


@pytest.fixture(autouse=True)
def untouched():
    """Every test leaves DTensor as it found it."""
    before = dtensor()
    yield
    after = dtensor()
    reset()
    assert after == before
    assert bridge == Bridge()


def registering():
    register(UNKNOWN)
    return lambda: unregister(UNKNOWN)


def extending():
    extend(KNOWN)
    return lambda: unregister("aten.mm.default")


def searching():
    return use_search().close


def installing():
    sw.install()
    return sw.uninstall


# The book has rules for the same operators.
TOGETHER = [
    order
    for chosen in ((registering, extending, searching), (installing, searching))
    for order in itertools.permutations(chosen)
]


@pytest.mark.parametrize("order", TOGETHER, ids=lambda order: " ".join(f.__name__ for f in order))
def test_what_is_undone_leaves_nothing(order):
    undo = [start() for start in order]
    assert registered()
    for end in undo:  # in the order in which they began, not the other way round
        end()


@pytest.mark.parametrize("start", [registering, extending, searching, installing])
def test_reset_undoes_it(start):
    before = dtensor()
    end = start()
    assert dtensor() != before
    reset()
    if start is searching:
        end()  # which then does nothing


def test_a_rule_of_the_book_may_be_unregistered_before_the_book_is():
    sw.install()
    unregister(torch.ops.aten.mm.default)
    register(KNOWN)
    sw.uninstall()
    assert list(registered()) == ["aten.mm.default"]
    unregister(KNOWN)


@pytest.mark.filterwarnings("ignore:torch .* was not audited:UserWarning")
def test_installing_in_another_way_replaces_the_first():
    sw.install()
    first = len(registered())
    sw.install(replace="wrong")
    assert bridge.book == "replacing" and len(registered()) == first
    sw.uninstall()
