"""Where our rows are added to what DTensor has for an operator.

DTensor decides how to run a call in one function, whatever the kind of registration. While an operator is extended that
function asks both DTensor's rule and our rows: an answer of DTensor's that moves nothing stands, and otherwise the
answer that moves less is taken, which is what the union of both sets of rows would give. It is called where DTensor's
caches miss, so dispatch of a call that was met before costs what it did.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed.tensor._sharding_prop as sharding_prop
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding

from ..calls import is_composite
from ..errors import UsageError
from ..redistribution import Prices
from ._hooks import RuleInfo, expanding
from ._redistribute import is_plain, layout_of_spec

# How propagation says that it has no way to run a call: torch by these (NotImplementedError is one), our rows where the
# call is none. Whatever else is raised is a fault of ours, and shows.
_NO_WAY = (RuntimeError, UsageError)


@contextmanager
def extending(op: OpOverload, info: RuleInfo, replaces: bool) -> Iterator[None]:
    """Inside, an operator is also sharded by our rows, and by them alone if they replace what DTensor has."""
    with expanding():
        _extensions.add(op, info, replaces)
        try:
            yield
        finally:
            _extensions.remove(op)


class _Extensions:
    """In place of DTensor's propagation, while there are extensions: the answer that moves less, its own or ours."""

    def __init__(self) -> None:
        self.infos: dict[OpOverload, RuleInfo] = {}
        self.replacing: set[OpOverload] = set()

    def add(self, op: OpOverload, info: RuleInfo, replaces: bool) -> None:
        propagator = DTensor._op_dispatcher.sharding_propagator
        if not self.infos:
            self.theirs = propagator.propagate_op_sharding_non_cached
            self.cached = propagator.propagate_op_sharding
            # The same propagator in all but this: it knows our rows, and nothing else.
            self.ours = copy.copy(propagator)
            self.ours.op_single_dim_strategy_funcs = self.infos
            propagator.propagate_op_sharding_non_cached = self.propagate
            propagator.propagate_op_sharding = sharding_prop.LocalLRUCache(self.propagate)
        self.infos[op] = info
        if replaces:
            self.replacing.add(op)

    def remove(self, op: OpOverload) -> None:
        del self.infos[op]
        self.replacing.discard(op)
        if not self.infos:
            propagator = DTensor._op_dispatcher.sharding_propagator
            del propagator.propagate_op_sharding_non_cached
            propagator.propagate_op_sharding = self.cached

    def propagate(self, schema: OpSchema) -> OutputSharding:
        if schema.op not in self.infos:
            return self.theirs(schema)
        if schema.op in self.replacing:
            return self.ours.propagate_op_sharding_non_cached(schema)
        try:
            theirs = self.theirs(schema)
        except Exception as error:
            if is_composite(schema.op):
                raise  # DTensor runs what it is made of instead
            try:
                return self.ours.propagate_op_sharding_non_cached(schema)
            except _NO_WAY:
                raise error from None
        price = _price(schema, theirs)
        if not price:
            return theirs
        try:
            ours = self.ours.propagate_op_sharding_non_cached(schema)
        except _NO_WAY:
            return theirs
        ours_price = _price(schema, ours)
        return ours if ours_price is not None and ours_price < price else theirs


_extensions = _Extensions()


def _price(schema: OpSchema, answer: OutputSharding) -> float | None:
    """What DTensor has to pay to move the inputs as an answer wants them; None where that cannot be said."""
    if not answer.needs_redistribute or answer.redistribute_schema is None:
        return 0.0
    before, after = schema.args_spec, answer.redistribute_schema.args_spec
    if len(before) != len(after) or not all(is_plain(spec) for spec in (*before, *after)):
        return None
    total = 0.0
    for source, target in zip(before, after, strict=True):
        if source.placements != target.placements:
            assert source.tensor_meta is not None
            shape, itemsize = tuple(source.tensor_meta.shape), source.tensor_meta.dtype.itemsize
            prices = Prices()
            total += prices.chain(layout_of_spec(source), layout_of_spec(target), shape, itemsize).price
    return total
