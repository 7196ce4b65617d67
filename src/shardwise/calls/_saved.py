"""Arguments that another operator made: the places that a pooling found are what its backward is given.

Values drawn for such an argument would be none that the operator ever sees, and kernels trust them.
"""

from ._arguments import flat_outputs
from ._call import Call
from ._facts import facts
from ._names import overload


def with_saved(call: Call) -> Call:
    """The call with each such argument as the other operator makes it from the rest."""
    saved = facts(call.op).saved
    if not saved:
        return call
    tensors = list(call.tensors)
    for name, (maker, output) in saved.items():
        op = overload(maker)
        given = {a.name: call[a.name] for a in op._schema.arguments if a.name in call}
        tensors[call.tensor_names.index(name)] = flat_outputs(op(**given))[output]
    return call.with_tensors(tensors, call.made)
