"""Local forms: how one rank runs an operator whose call on pieces differs from the call on the whole.

A row that needs one names it: `S(0), R -> P(sum) with local lookup`. A form knows of every tensor which piece of
the whole this rank holds, cut by all axes of the mesh together, so rows that need no form on the other axes combine
with it. Two forms combine where they are the same for the operator.

| form | what is local |
| --- | --- |
| sizes | arguments that take sizes: view, expand, zeros |
| groups | the number of groups of a convolution whose channels are sharded |
| offset | values that follow from positions: arange, tril |
| lookup | indices into a dim that is sharded: what this rank does not hold counts as zero, or is not written |
| causal | which keys the rank's queries may attend to |
| heads | which heads of keys and values serve the rank's heads of queries |
| seeds | the stream of random numbers of the rank's piece |
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..calls import Call, packet_name
from ..errors import UsageError
from ._attention import ATTENTION
from ._lookup import LOOKUP
from ._offset import OFFSET
from ._piece import Held, Operator, Piece
from ._sizes import GROUPS, by_sizes

# By operator, overloads aside; any operator with arguments that take sizes has the form `sizes`.
FORMS: dict[str, dict[str, Operator]] = {
    "sizes": {},
    "groups": GROUPS,
    "offset": OFFSET,
    "lookup": LOOKUP,
    "causal": ATTENTION,
    "heads": ATTENTION,
    "seeds": ATTENTION,
}
# Those that follow from the sizes of pieces alone, wherever these lie.
_BY_SIZE = ("sizes", "groups")


def local_call(form: str, call: Call, inputs: Sequence[Piece], outputs: Sequence[Piece | None]) -> Any:
    """Run a call for one rank by the local form `form`.

    `call` holds the rank's local tensors and, for the rest, the arguments of the whole call. `inputs` are the pieces of
    its tensors in order, `outputs` those of its outputs, None for one that is not returned.
    """
    return operator_by(form, call)(call, Held(call, inputs, outputs))


def operator_by(form: str, call: Call) -> Operator:
    """How the operator of a call runs by a local form."""
    require_form(form, call.op)
    return by_sizes(call) if form == "sizes" else FORMS[form][call.packet]


def depends_on_positions(form: str) -> bool:
    """True if a form needs to know where in the whole a piece lies: it must then be one range of each dim."""
    return form not in _BY_SIZE


def require_form(form: str, op: Callable[..., Any]) -> None:
    """Refuse a local form that is not known, or that the operator does not have."""
    if form not in FORMS:
        raise UsageError(f"unknown local form {form!r}: use one of {', '.join(FORMS)}")
    if form != "sizes" and (name := packet_name(op)) not in FORMS[form]:
        raise UsageError(f"{name} has no local form {form!r}: {', '.join(sorted(FORMS[form]))} have")
