"""Operators that DTensor runs on pieces by a local form: grouped products, whose groups end elsewhere in every piece.

DTensor runs an operator itself on local tensors, with the arguments of the whole call, so no strategy can say that a
rank has some of the rows, or some of the groups. Here such an operator chooses among its rows as a plan does for one
call, redistributes its inputs by the cheapest chains of steps, and runs its form.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed._local_tensor import maybe_run_for_local_tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from ..calls import Call, is_tensor, leaves, registered, with_leaves
from ..errors import UsageError
from ..expansion import Choice, cheapest
from ..forms import local_call, operators_with
from ..layout import Layout
from ..mesh import DEFAULT_CLUSTER, Cluster
from ..placements import Row, parse_placement
from ..redistribution import Prices
from ..rules import offered_rows
from ._redistribute import is_plain, layout_of, run_chain
from ._state import bridge
from ._steps import coordinate

_FORMS = ("runs",)
_R = parse_placement("R")


def handle_by_form() -> None:
    """Make DTensor run these operators so, but for those with a rule of the user's own."""
    for name in (name for form in _FORMS for name in operators_with(form)):
        packet = registered(name)
        ops = [getattr(packet, which) for which in packet.overloads()] if packet is not None else []
        for op in ops:
            if op not in bridge.rules and op not in DTensor._op_dispatcher._custom_op_handlers:
                DTensor._op_dispatcher._custom_op_handlers[op] = _run
                bridge.handlers.append(op)


def _run(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> DTensor:
    given = [leaf for leaf in leaves((*args, *kwargs.values())) if is_tensor(leaf)]
    first = next(tensor for tensor in given if isinstance(tensor, DTensor))
    if any(not isinstance(t, DTensor) or t.device_mesh != first.device_mesh for t in given):
        raise UsageError(
            f"{op} gets DTensors of one mesh and other tensors: distribute all of them on that mesh"
        )
    if not all(is_plain(tensor._spec) for tensor in given):
        raise UsageError(f"{op} gets tensors whose placements are other than R, S and P")
    call = Call.of(op, *with_leaves(list(args), _on_meta), **with_leaves(dict(kwargs), _on_meta))
    layouts = [layout_of(tensor) for tensor in given]
    prices = Prices(Cluster.of(DEFAULT_CLUSTER) if bridge.search is None else bridge.search.cluster)
    choice = _choice(call, layouts, prices)
    mesh, local = first.device_mesh, []
    for tensor, before, after in zip(given, layouts, choice.input_layouts, strict=True):
        chain = prices.chain(before, after, tuple(tensor.shape), tensor.dtype.itemsize)
        local.append(run_chain(tensor._local_tensor, chain, mesh, tensor.shape))
    made = _run_local(local, call, choice, coordinate(mesh))
    (output,), (layout,) = call.outputs, choice.output_layouts
    assert output is not None and layout is not None
    whole = torch.empty(output, dtype=made.dtype, device="meta")
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    spec = DTensorSpec(mesh, tuple(layout.to_placements()), tensor_meta=meta)
    return DTensor(made, spec, requires_grad=False)


def _on_meta(leaf: Any) -> Any:
    if not isinstance(leaf, DTensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")


def _choice(call: Call, layouts: Sequence[Layout], prices: Prices) -> Choice:
    whole = Row((_R,) * len(layouts), (_R,) * len(call.outputs))
    confirms = bridge.confirms
    return cheapest(
        [whole, *(offered_rows(call) or [])],
        layouts[0].mesh,
        layouts,
        call.shapes,
        outputs=call.outputs,
        price=prices,
        dtypes=[tensor.dtype for tensor in call.tensors],
        accept=None if confirms is None else lambda choice: confirms(call, choice),
        call=call,
        rows_of=offered_rows,
    ).choice


@maybe_run_for_local_tensor
def _run_local(local: Sequence[Tensor], call: Call, choice: Choice, place: tuple[int, ...]) -> Tensor:
    """This rank's part of the result, given its pieces of the inputs."""
    own = call.with_tensors(list(local))
    if choice.local is None:
        made: Tensor = own()
    else:
        held = choice.held(call, call.shapes, call.outputs, choice.mesh.rank(place))
        made = local_call(choice.local, own, held.inputs, held.outputs)
    return made.contiguous()
