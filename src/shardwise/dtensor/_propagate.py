"""DTensor's decision made by our search: given a call's operands, which placements to run it with.

PyTorch passes an `OpSchema` whose tensors are strategies with one spec each, and expects an `OpStrategy`.
It is computed by `shardwise.expansion.cheapest` with the rows of a registered rule or of PyTorch's own single-dim
strategy. DTensor's own limits constrain the search: it never redistributes keyword arguments, nor tensors
that the operator writes to, and results that are written must come out as the written tensor is placed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, TupleStrategy
from torch.distributed.tensor._ops.single_dim_strategy import _SingleDimStrategyInfo
from torch.distributed.tensor._ops.utils import is_tensor_shardable
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call
from ..expansion import Choice, NoChoice, cheapest
from ..mesh import Cluster, Mesh
from ..placements import Row, is_partial, is_shard
from ..redistribution import Prices
from ._redistribute import is_plain, is_plain_placement, layout_of_spec
from ._versions import strategies_of, takes_several_meshes


def input_specs(schema: OpSchema) -> list[DTensorSpec] | None:
    """The specs of all tensors of a call, lists flattened, keyword arguments last; None if they are not for
    us: on several meshes, with symbolic sizes, or with unknown kinds of placements.
    """
    strategies = [*_leaves(schema.args_schema), *_leaves(tuple(schema.kwargs_schema.values()))]
    specs = [strategy.strategies[0].output_spec for strategy in strategies]
    for spec in specs:
        read_as_order = spec.use_strided_shard_as_shard_order
        strided = any(hasattr(p, "split_factor") for p in spec.placements)
        if not is_plain(spec) or spec.mesh != specs[0].mesh or (strided and not read_as_order):
            return None
    return specs


def _leaves(value: Any) -> Iterator[OpStrategy]:
    if isinstance(value, OpStrategy):
        yield value
    elif isinstance(value, TupleStrategy):
        yield from _leaves(tuple(value.children))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


def strategy_from_rows(
    schema: OpSchema,
    specs: Sequence[DTensorSpec],
    rows: Sequence[Row],
    output_meta: Any,
    cluster: Cluster,
    *,
    runs_chains: bool,
    accept: Callable[[Choice], bool] | None = None,
    call: Call | None = None,
    rows_of: Callable[[Call], Sequence[Row] | None] | None = None,
) -> OpStrategy | None:
    """The cheapest way to run a call, in DTensor's form; None if no row applies.

    `call` and `rows_of` are as for `cheapest`. `runs_chains` says that our code will run the redistributions;
    otherwise changes that DTensor's own redistribution refuses are left out.
    """
    if not specs:
        return None
    device_mesh = specs[0].mesh
    layouts = [layout_of_spec(spec) for spec in specs]
    placed = [layout.to_placements() for layout in layouts]
    fixed, written = _bound_tensors(schema, len(specs))

    def allow(axis: int, row: Row) -> bool:
        kept = all(row.outputs[output] == placed[number][axis] for output, number in written)
        return kept and (
            runs_chains or not any(_refused(p[axis], w) for p, w in zip(placed, row.inputs, strict=True))
        )

    try:
        best = cheapest(
            rows,
            Mesh.from_device_mesh(device_mesh),
            layouts,
            [_meta(spec).shape for spec in specs],
            outputs=[None if meta is None else meta.shape for meta in metas(output_meta)],
            price=Prices(cluster),
            dtypes=[_meta(spec).dtype for spec in specs],
            fixed=fixed,
            allow=allow,
            accept=accept,
            call=call,
            rows_of=rows_of,
        ).choice
    except NoChoice:
        return None
    inputs = [
        _spec(device_mesh, [row.inputs[i] for row in best.rows], _meta(spec)) for i, spec in enumerate(specs)
    ]
    return OpStrategy(
        [OpSpec(_output_specs(device_mesh, best.rows, output_meta), inputs, [[0.0]] * len(inputs))]
    )


def _refused(before: Placement, after: Placement) -> bool:
    return is_partial(after) and before != after and (is_shard(before) or is_partial(before))


def _spec(device_mesh: DeviceMesh, placements: Sequence[Placement], meta: TensorMeta) -> DTensorSpec:
    return DTensorSpec(device_mesh, tuple(placements), tensor_meta=meta)


def _meta(spec: DTensorSpec) -> TensorMeta:
    assert spec.tensor_meta is not None
    return spec.tensor_meta


def metas(output_meta: Any) -> list[TensorMeta | None]:
    if output_meta is None or isinstance(output_meta, TensorMeta):
        return [output_meta] if output_meta is not None else []
    return list(output_meta)


def _output_specs(device_mesh: DeviceMesh, rows: Sequence[Row], output_meta: Any) -> Any:
    """One spec, a tuple of them with None for outputs that are not returned, or None for no outputs."""
    specs = []
    for number, meta in enumerate(metas(output_meta)):
        placements = [row.outputs[number] for row in rows]
        missing = meta is None or any(p is None for p in placements)
        specs.append(None if missing else _spec(device_mesh, [p for p in placements if p is not None], meta))
    if isinstance(output_meta, TensorMeta):
        return specs[0]
    return tuple(specs) or None


def _bound_tensors(schema: OpSchema, count: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Which tensors may not move, and for which outputs (output, input) the result is an input's storage."""
    arguments = schema.op._schema.arguments
    by_name = {argument.name: argument for argument in arguments}
    given = [
        *zip(arguments, schema.args_schema, strict=False),
        *((by_name[name], value) for name, value in schema.kwargs_schema.items()),
    ]
    fixed: list[int] = []
    written: list[int] = []
    number = 0
    for position, (argument, value) in enumerate(given):
        tensors = list(range(number, number + sum(1 for _ in _leaves(value))))
        number += len(tensors)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written or position >= len(schema.args_schema):
            fixed.extend(tensors)
        if is_written:
            written.extend(tensors)
    assert number == count
    if any(argument.is_out for argument in arguments) or schema.is_inplace_op():
        returned = len(schema.op._schema.returns)
        return fixed, list(enumerate(written[:returned]))
    return fixed, []


def rows_of_torch(
    schema: OpSchema, info: _SingleDimStrategyInfo, output_meta: Any, specs: Sequence[DTensorSpec]
) -> tuple[list[Row], Callable[[Choice], bool]] | None:
    """PyTorch's single-dim strategy of a call as rows, and its own judgement of sizes; None if it says
    something that rows cannot.
    """
    if takes_several_meshes(info):
        return None
    count = len(metas(output_meta))
    strategies, allows_uneven = strategies_of(info, schema, output_meta, count)
    rows = []
    for strategy in strategies:
        outputs, inputs = strategy[:count], strategy[count:]
        if len(inputs) != len(specs) or not all(p is None or is_plain_placement(p) for p in strategy):
            return None
        if any(p is None for p in inputs):
            return None
        rows.append(Row(tuple(inputs), tuple(outputs)))

    def fits(choice: Choice) -> bool:
        for number, spec in enumerate(specs):
            placements = tuple(row.inputs[number] for row in choice.rows)
            wanted = _spec(spec.mesh, placements, _meta(spec))
            unchanged = allows_uneven and placements == spec.placements
            if not unchanged and not is_tensor_shardable(_meta(spec).shape, wanted):
                return False
        return True

    return rows, fits
