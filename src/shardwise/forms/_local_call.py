"""Forms: how one rank runs an operator whose call on pieces differs from the call on the whole.

A row that needs one names it: `S(0), R -> P(sum) with local lookup`. A form knows of every tensor which piece of
the whole this rank holds, cut by all axes of the mesh together, so rows that need no form on the other axes combine
with it. Two forms combine where they are the same for the operator. A communicating form (`ring`) runs on all ranks of
the row's axis together; a call has one such axis at most.

| form | what is local |
| --- | --- |
| sizes | arguments that take sizes: view, expand, zeros |
| groups | the number of groups of a convolution whose channels are sharded |
| offset | values that follow from positions: arange, tril |
| lookup | indices into a dim that is sharded: what this rank does not hold counts as zero, or is not written |
| causal | which keys the rank's queries may attend to |
| heads | which heads of keys and values serve the rank's heads of queries |
| runs | where the groups of a grouped product end, and which of them the rank has |
| seeds | the stream of random numbers of the rank's piece |
| ring | keys and values go round the ranks that hold parts of a sequence |
| parts | what ranks know of their pieces of a dim that is reduced is gathered |
| statistics | ranks put together the statistics of a norm whose dims are sharded |
| halo | ranks fetch what their windows reach of others' pieces |
| split | a product in pieces, beside the collective that brings its input or takes its result |
| classes | ranks gather what they know of the logits of their classes |
| exchange | tokens go to the ranks that have their experts, and what these return comes back |
| balanced | as ring, with queries from the beginning and the end of the sequence on every rank |
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..calls import Call, packet_name
from ..errors import UsageError
from ..rules import HandRule, more_rows
from ._attention import ATTENTION
from ._cross_entropy import CLASSES
from ._exchange import EXCHANGE
from ._group import Group, Request, run_together
from ._group import Run as GroupRun
from ._grouped import RUNS
from ._lookup import LOOKUP
from ._norms import STATISTICS
from ._offset import OFFSET
from ._operator import InGroup, Operator
from ._piece import Held, Piece
from ._reductions import PARTS
from ._ring import BALANCED, RING
from ._sizes import GROUPS, by_sizes
from ._split import SPLIT
from ._windows import HALO

# By operator, overloads aside; any operator with arguments that take sizes has the form `sizes`.
FORMS: dict[str, dict[str, Operator]] = {
    "sizes": {},
    "groups": GROUPS,
    "offset": OFFSET,
    "lookup": LOOKUP,
    "causal": ATTENTION,
    "heads": ATTENTION,
    "seeds": ATTENTION,
    "runs": RUNS,
    "ring": RING,
    "balanced": BALANCED,
    "parts": PARTS,
    "statistics": STATISTICS,
    "halo": HALO,
    "exchange": EXCHANGE,
    "classes": CLASSES,
    "split": SPLIT,
}
_SHIPPED = frozenset(FORMS)
# Those that follow from the sizes of pieces alone, wherever these lie.
_BY_SIZE = ("sizes", "groups")


def local_call(form: str, call: Call, inputs: Sequence[Piece], outputs: Sequence[Piece | None]) -> Any:
    """Run a call for one rank by the local form `form`.

    `call` holds the rank's local tensors and, for the rest, the arguments of the whole call. `inputs` are the pieces of
    its tensors in order, `outputs` those of its outputs, None for one that is not returned.
    """
    if is_communicating(form):
        raise UsageError(f"the form {form!r} communicates: it runs on all ranks of a group together")
    return operator_by(form, call)(call, Held(call, inputs, outputs))


def call_in_group(form: str, call: Call, group: Group) -> GroupRun:
    """One rank's run of a call by a communicating form, begun when it is first sent to."""
    in_group = operator_by(form, call).in_group
    assert in_group is not None
    return in_group(call, group)


def calls_together(
    form: str,
    calls: Sequence[Call],
    held: Sequence[Held],
    record: Callable[[Request], None] | None = None,
) -> list[Any]:
    """Run a call on all ranks of a group inside this process, by a communicating form: `calls` have the local tensors
    of each rank, `held` says which pieces they are."""
    runs = [call_in_group(form, call, Group(rank, held)) for rank, call in enumerate(calls)]
    return run_together(runs, record)


def operator_by(form: str, call: Call) -> Operator:
    """How the operator of a call runs by a form."""
    require_form(form, call.op)
    return by_sizes(call) if form == "sizes" else FORMS[form][call.packet]


def is_communicating(form: str | None) -> bool:
    """True if ranks communicate inside of calls that run by this form."""
    return form is not None and any(
        operator.in_group is not None for operator in FORMS.get(form, {}).values()
    )


def communicating_operators() -> Iterator[tuple[str, str]]:
    """Every shipped form in which ranks communicate, with each operator that has it."""
    for form in sorted(_SHIPPED):
        yield from ((form, name) for name, operator in FORMS[form].items() if operator.in_group is not None)


def operators_with(form: str) -> tuple[str, ...]:
    """The operators, overloads aside, that have a form."""
    return tuple(sorted(FORMS[form]))


def depends_on_positions(form: str) -> bool:
    """True if a form needs to know where in the whole a piece lies: it must then be one range of each dim."""
    return form not in _BY_SIZE


def require_form(form: str, op: Callable[..., Any]) -> None:
    """Refuse a form that is not known, or that the operator does not have."""
    if form not in FORMS:
        raise UsageError(f"unknown local form {form!r}: use one of {', '.join(FORMS)}")
    if form != "sizes" and (name := packet_name(op)) not in FORMS[form]:
        raise UsageError(f"{name} has no local form {form!r}: {', '.join(sorted(FORMS[form]))} have")


def communicating(*ops: str, rows: HandRule) -> Callable[[InGroup], InGroup]:
    """Give overloads (`aten.cumsum.default`) rows whose ranks communicate: the function is their form, named after it.

    `rows` is a function from a call to the rows that the form makes true; the operator keeps the rows that it has. The
    function gets a call with this rank's local tensors and the `Group`, and is a generator: see docs/communicating.md.
    """

    def register(function: InGroup) -> InGroup:
        form = function.__name__
        if form in _SHIPPED:
            raise UsageError(f"there is a local form {form!r} already: name the function otherwise")

        def with_form(call: Call) -> list[Any]:
            return [replace(row, local=form) for row in rows(call)]

        for op in ops:
            FORMS.setdefault(form, {})[op.rpartition(".")[0]] = Operator(in_group=function)
        more_rows(*ops, name=form)(with_form)
        return function

    return register
