"""One call of an operator: its arguments, what it dispatches to, samples of it, the same call at other sizes."""

from ._argument_kinds import OF_RESULTS, STORAGE, UNIMPORTANT, WORDS
from ._arguments import (
    Shape,
    flat_outputs,
    is_tensor,
    leaves,
    must_run,
    with_leaves,
)
from ._call import Call
from ._dispatch import Dispatched, dispatched, reached, reaches_dispatch
from ._diverse import diverse_calls, most_diverse, overload_calls, with_negative_dims
from ._facts import Draw, Facts, declare, facts
from ._names import (
    op_name,
    op_source,
    overload,
    packet_name,
    registered,
    registered_as,
    resolve_op,
    short_name,
)
from ._parameters import parameters
from ._samples import best_sample, find_opinfos, foreach_samples, samples
from ._saved import with_saved
from ._sizes import Resizer, resized
from ._small import small_calls, small_sizings
from ._torch import foreach_opinfos, is_composite, opinfos

__all__ = [
    "OF_RESULTS",
    "STORAGE",
    "UNIMPORTANT",
    "WORDS",
    "Call",
    "Dispatched",
    "Draw",
    "Facts",
    "Resizer",
    "Shape",
    "best_sample",
    "declare",
    "dispatched",
    "diverse_calls",
    "facts",
    "find_opinfos",
    "flat_outputs",
    "foreach_opinfos",
    "foreach_samples",
    "is_composite",
    "is_tensor",
    "leaves",
    "most_diverse",
    "must_run",
    "op_name",
    "op_source",
    "opinfos",
    "overload",
    "overload_calls",
    "packet_name",
    "parameters",
    "reached",
    "reaches_dispatch",
    "registered",
    "registered_as",
    "resized",
    "resolve_op",
    "samples",
    "short_name",
    "small_calls",
    "small_sizings",
    "with_leaves",
    "with_negative_dims",
    "with_saved",
]
