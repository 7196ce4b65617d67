"""Local forms: how one rank runs an operator whose call on pieces differs from the call on the whole.

A row that needs one names it: `S(0), R -> P(sum) with local lookup`. A form is told of every tensor which piece of
the whole this rank holds, cut by all axes of the mesh together, so rows that need no form on the other axes combine
with it. The forms of one operator are one function: on a mesh whose axes name different ones, either will do.

| form | what is local |
| --- | --- |
| sizes | arguments that name sizes: view, expand, zeros |
| groups | the number of groups of a convolution whose channels are sharded |
| offset | values that follow from positions: arange, tril |
| lookup | indices into a dim that is sharded: what this rank does not hold counts as zero, or is not written |
| causal | which keys the rank's queries may attend to |
| heads | which heads of keys and values serve the rank's heads of queries |
| seeds | the stream of random numbers of the rank's piece |
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import UsageError
from ._attention import ATTENTION
from ._lookup import LOOKUP
from ._offset import OFFSET
from ._piece import LocalOp, Piece, operator_name
from ._sizes import GROUPS, with_local_sizes

# By operator, overloads aside; any operator with arguments that name sizes has the form `sizes`.
FORMS: dict[str, dict[str, Callable[[LocalOp], Any]]] = {
    "sizes": {},
    "groups": GROUPS,
    "offset": OFFSET,
    "lookup": LOOKUP,
    "causal": ATTENTION,
    "heads": ATTENTION,
    "seeds": ATTENTION,
}


def local_call(
    form: str,
    op: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    inputs: Sequence[Piece],
    outputs: Sequence[Piece | None],
) -> Any:
    """Run `op` for one rank by the local form `form`.

    `args` and `kwargs` hold the rank's local tensors and, for the rest, what the whole call is given. `inputs` are the
    pieces of the call's tensors in order (positional ones first, lists one by one), `outputs` those of its outputs,
    None for one that is not returned.
    """
    here = LocalOp(op, args, kwargs, inputs, outputs)
    require_form(form, op)
    return with_local_sizes(here) if form == "sizes" else FORMS[form][here.name](here)


def require_form(form: str, op: Callable[..., Any]) -> None:
    """Refuse a local form that is not known, or that the operator does not have."""
    if form not in FORMS:
        raise UsageError(f"unknown local form {form!r}: use one of {', '.join(FORMS)}")
    if form != "sizes" and (name := operator_name(op)) not in FORMS[form]:
        raise UsageError(f"{name} has no local form {form!r}: {', '.join(sorted(FORMS[form]))} have")
