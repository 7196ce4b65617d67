"""Arguments whose values follow from others: the places that a pooling found are what its backward is given, and the
ends of groups are in order.

Values drawn for such an argument would be none that the operator ever sees, and kernels trust them.
"""

from ._arguments import flat_outputs
from ._call import Call
from ._facts import facts
from ._names import overload


def with_saved(call: Call) -> Call:
    """The call with each such argument as another operator makes it from the rest, or as it follows from them."""
    known = facts(call.op)
    saved = known.saved
    if not (saved or known.follows):
        return call
    tensors = list(call.tensors)
    for name, (maker, output) in saved.items():
        op = overload(maker)
        given = {a.name: call[a.name] for a in op._schema.arguments if a.name in call}
        tensors[call.tensor_names.index(name)] = flat_outputs(op(**given))[output]
    for name, values in known.follows.items():
        if call.has(name):
            tensors[call.tensor_names.index(name)] = values(**call.arguments)
    return call.with_tensors(tensors, call.made)
