"""One call of an operator: its arguments, what it dispatches to, samples of it, the same call at other sizes."""

from ._argument_kinds import OF_RESULTS, STORAGE, UNIMPORTANT
from ._arguments import (
    Shape,
    call_text,
    flat_outputs,
    is_tensor,
    must_run,
    named_arguments,
    on_meta,
    output_shapes,
)
from ._call import Call
from ._dispatch import Dispatched, dispatched, reaches_dispatch, recorded
from ._diverse import OverloadCall, most_telling, overload_calls, telling_calls, with_negative_dims
from ._facts import Draw, Facts, declare, facts
from ._names import op_name, op_source, resolve_op, short_name
from ._overloads import overload
from ._recorder import Recorder
from ._samples import find_opinfos, foreach_samples, samples, telling_sample
from ._sizes import Resizer, Sized, example_sizes, size_leaves
from ._torch import foreach_opinfos, is_composite, opinfos

__all__ = [
    "OF_RESULTS",
    "STORAGE",
    "UNIMPORTANT",
    "Call",
    "Dispatched",
    "Draw",
    "Facts",
    "OverloadCall",
    "Recorder",
    "Resizer",
    "Shape",
    "Sized",
    "call_text",
    "declare",
    "dispatched",
    "example_sizes",
    "facts",
    "find_opinfos",
    "flat_outputs",
    "foreach_opinfos",
    "foreach_samples",
    "is_composite",
    "is_tensor",
    "most_telling",
    "must_run",
    "named_arguments",
    "on_meta",
    "op_name",
    "op_source",
    "opinfos",
    "output_shapes",
    "overload",
    "overload_calls",
    "reaches_dispatch",
    "recorded",
    "resolve_op",
    "samples",
    "short_name",
    "size_leaves",
    "telling_calls",
    "telling_sample",
    "with_negative_dims",
]
