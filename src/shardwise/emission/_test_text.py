"""The text of an emitted test module around its cases. Parts that no case needs are left out."""


def test_module(
    name: str,
    strategy_module: str,
    cases: str,
    two_meshes: bool,
    outs: bool,
    seed: int,
) -> str:
    """The module: `two_meshes` says that some row runs on two ranks, `outs` that some operator writes to `out=`
    tensors."""
    parts = [
        f'"""Tests of {strategy_module}: every row of its strategies, on four ranks."""\n\n',
        _imports(strategy_module, "Replicate(" in cases),
        "\n\naten = torch.ops.aten\n" if " aten." in cases else "\n",
        _CLASSES.replace("    # RANKS\n", "    ranks: int = 4\n" if two_meshes else ""),
        f"\n\nCASES = [\n{cases}]\n",
        _MADE,
        _WITHOUT_OUTS if outs else "",
        _STRATEGY_ROWS,
        _PIECE,
        _ROWS_TEST,
        _RANKS_TEST.replace("        # MESHES\n", _TWO_MESHES if two_meshes else _ONE_MESH)
        .replace("        # OUTS\n", _OUTS if outs else "")
        .replace("# ON_FOUR", " and row.ranks == 4" if two_meshes else ""),
        '\n\nif __name__ == "__main__":\n    run_tests()\n',
    ]
    text = "".join(parts)
    words = {
        "NAME": name,
        "SEED": str(seed),
        "MESH": "meshes[row.ranks]" if two_meshes else "mesh",
        "MADE": "without_outs(case)" if outs else "made(case)",
    }
    for word, meaning in words.items():
        text = text.replace(word, meaning)
    return text


def _imports(strategy_module: str, replicates: bool) -> str:
    names = ["DeviceMesh", "DTensor", "Partial", *(["Replicate"] if replicates else [])]
    names += ["Shard", "distribute_tensor", "init_device_mesh"]
    lines = [
        "from collections.abc import Callable",
        "from typing import Any, NamedTuple",
        "",
        "import torch",
        "from torch._ops import OpOverload",
        "from torch.distributed.tensor import (",
        *(f"    {name}," for name in names),
        ")",
        "from torch.distributed.tensor._dtensor_spec import TensorMeta",
        "from torch.distributed.tensor._ops.single_dim_strategy import _ShardingPlaceholder",
        "from torch.distributed.tensor.debug import CommDebugMode",
        "from torch.distributed.tensor.placement_types import Placement, _StridedShard",
        "from torch.testing._internal.common_utils import TestCase, run_tests",
        "from torch.testing._internal.distributed._tensor.common_dtensor import (",
        "    DTensorTestBase,",
        "    with_comms,",
        ")",
        "from torch.utils._pytree import tree_leaves, tree_map_only",
        "",
        f"import {strategy_module}",
    ]
    return "\n".join(lines) + "\n"


_CLASSES = '''
Call = tuple[tuple[Any, ...], dict[str, Any]]


class Row(NamedTuple):
    """Placements of the inputs, and those of the outputs that follow from them."""

    inputs: list[Placement]
    outputs: list[Placement | None]
    # RANKS


class Case(NamedTuple):
    """A call, and all of its rows but for the replicated one."""

    op: OpOverload
    strategy: Callable[..., list[list[Any]]]
    make: Callable[[], Call]
    rows: list[Row]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs
'''

_MADE = '''

def made(case: Case) -> Call:
    """The arguments of a case: the same on every rank, and new ones every time."""
    torch.manual_seed(SEED)
    return case.make()
'''

_WITHOUT_OUTS = """

def out_names(case: Case) -> list[str]:
    return [a.name for a in case.op._schema.arguments if a.is_out]


def without_outs(case: Case) -> Call:
    args, kwargs = made(case)
    return args, {k: v for k, v in kwargs.items() if k not in out_names(case)}
"""

_STRATEGY_ROWS = '''

def strategy_rows(case: Case) -> list[Row]:
    """The rows that the strategy yields; as listed, where they are."""
    tensors = [t for t in tree_leaves(made(case)) if isinstance(t, torch.Tensor)]
    args, kwargs = tree_map_only(
        torch.Tensor,
        lambda t: TensorMeta(t.shape, t.stride(), t.dtype),
        made(case),
    )
    count = len(case.rows[0].outputs)
    listed = {str(row[:2]): row for row in case.rows}
    rows = []
    for placements in case.strategy(case.op, args, kwargs):
        inputs = placements[count : count + len(case.rows[0].inputs)]
        # A dim of size 1 is not sharded.
        if all(cuts(p, t.shape) for p, t in zip(inputs, tensors)):
            outputs = [filled(p) for p in placements[:count]]
            row = Row([filled(p) for p in inputs], outputs)
            rows.append(listed.get(str(row[:2]), row))
    return rows


def cuts(placement: Any, shape: torch.Size) -> bool:
    if not isinstance(placement, _ShardingPlaceholder):
        return True
    return placement.dim < len(shape) and shape[placement.dim] > 1


def filled(placement: Any) -> Any:
    if isinstance(placement, _ShardingPlaceholder):
        return Shard(placement.dim)
    return placement
'''

_PIECE = '''

def on(mesh: DeviceMesh, placement: Placement) -> tuple[Placement, ...]:
    """The placements on a mesh of one dim, or of two, over which a shard is strided."""
    if mesh.ndim == 2 and isinstance(placement, Shard):
        strided = _StridedShard(placement.dim, split_factor=mesh.size(1))
        return (strided, placement)
    return (placement,) * mesh.ndim


def piece(tensor: torch.Tensor, reduce_op: str, rank: int, ranks: int) -> torch.Tensor:
    """What a rank holds of a partial tensor: the pieces differ, and reduce to it."""
    random = torch.Generator().manual_seed(1)
    noise = torch.randint(-4, 5, (ranks, *tensor.shape), generator=random)
    noise = noise.to(tensor.dtype)
    noise[0] = -noise[1:].sum(0)
    owned = torch.randint(ranks, tensor.shape, generator=random) == rank
    if reduce_op == "sum":
        return noise[rank] + (tensor if rank == 0 else 0)
    if reduce_op == "avg":
        return tensor + noise[rank]
    if reduce_op == "max":
        below = torch.minimum(noise[rank].abs(), tensor - tensor.min())
        return torch.where(owned, tensor, tensor - below)
    if reduce_op == "min":
        above = torch.minimum(noise[rank].abs(), tensor.max() - tensor)
        return torch.where(owned, tensor, tensor + above)
    if reduce_op == "product":
        return torch.where(owned, tensor, torch.ones_like(tensor))
    raise ValueError(f"unknown reduction {reduce_op}")
'''

_ROWS_TEST = """

class NAMERowsTest(TestCase):
    def test_strategies_yield_these_rows(self) -> None:
        for case in CASES:
            listed = {str(row) for row in case.rows}
            found = {str(row) for row in strategy_rows(case)}
            self.assertEqual(found, listed, msg=str(case.op))
"""

_ONE_MESH = """        mesh = self.build_device_mesh()
"""

_TWO_MESHES = """        halves = init_device_mesh(
            self.device_type,
            (2, 2),
            mesh_dim_names=("half", "rank"),
        )
        # A dim that is too short for four ranks is sharded on two.
        meshes = {4: self.build_device_mesh(), 2: halves["rank"]}
"""

_OUTS = """        for name, placement, full in zip(out_names(case), row.outputs, expected):
            kwargs[name] = self.placed(torch.zeros_like(full), placement, mesh)
"""

_RANKS_TEST = """

class NAMETest(DTensorTestBase):
    @property
    def world_size(self) -> int:
        return 4

    @with_comms
    def test_rows_run_without_communication(self) -> None:
        # MESHES
        for case in CASES:
            args, kwargs = made(case)
            expected = tree_leaves(case.op(*args, **kwargs))
            for row in strategy_rows(case):
                self.check_row(case, row, expected, MESH)

    @with_comms
    def test_rows_run_on_strided_shards(self) -> None:
        mesh = init_device_mesh(self.device_type, (2, 2))
        for case in CASES:
            args, kwargs = made(case)
            expected = tree_leaves(case.op(*args, **kwargs))
            for row in strategy_rows(case):
                kinds = {type(placement) for placement in row.inputs}
                if Shard in kinds and Partial not in kinds# ON_FOUR:
                    self.check_row(case, row, expected, mesh)

    def check_row(
        self,
        case: Case,
        row: Row,
        expected: list[Any],
        mesh: DeviceMesh,
    ) -> None:
        def message(problem: str) -> str:
            return f"{case.op}: {row.inputs} -> {row.outputs}: {problem}"

        placements = iter(row.inputs)
        args, kwargs = tree_map_only(
            torch.Tensor,
            lambda tensor: self.placed(tensor, next(placements), mesh),
            MADE,
        )
        # OUTS
        with CommDebugMode() as comm_mode:
            outputs = tree_leaves(case.op(*args, **kwargs))
        self.assertEqual(comm_mode.get_total_counts(), 0, msg=message)
        self.assertEqual(len(outputs), len(row.outputs), msg=message)
        for output, placement, full in zip(outputs, row.outputs, expected):
            if placement is None:
                self.assertIsNone(output)
                continue
            self.assertEqual(output.placements, on(mesh, placement), msg=message)
            self.assertEqual(
                output.full_tensor().cpu(),
                full,
                atol=1e-4,
                rtol=1e-4,
                msg=message,
            )

    def placed(
        self,
        tensor: torch.Tensor,
        placement: Placement,
        mesh: DeviceMesh,
    ) -> DTensor:
        if isinstance(placement, Partial):
            rank, ranks = mesh.get_local_rank(), mesh.size()
            local = piece(tensor, placement.reduce_op, rank, ranks)
            local = local.to(self.device_type)
            return DTensor.from_local(local, mesh, [placement], run_check=False)
        tensor = tensor.to(self.device_type)
        return distribute_tensor(tensor, mesh, on(mesh, placement), src_data_rank=None)
"""
