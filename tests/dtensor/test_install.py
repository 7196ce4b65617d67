"""The book given to DTensor: what it lacked runs, what it moved stays, and nothing is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardwise as sw
from shardwise.dtensor import (
    _install,
    extend,
    record_collectives,
    register,
    registered,
    reset,
    wrong_operators,
)
from shardwise.errors import UsageError
from shardwise.placements import Row
from shardwise.rules import Clause, Rule, book, book_rows
from tests.versions import from_torch

aten = torch.ops.aten
ROOT = Path(__file__).parents[2]
RUNNING = torch.__version__.split("+")[0]


@pytest.fixture(autouse=True)
def clean():
    yield
    reset()


@pytest.fixture
def mesh(simulated_ranks):
    with simulated_ranks(4) as mode:
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)), mode


def spread(mesh, tensor, placement):
    return distribute_tensor(tensor, mesh[0], [placement], src_data_rank=None)


def same(mesh, tensor, expected):
    full = tensor.full_tensor()
    full = full._local_tensors[0] if hasattr(full, "_local_tensors") else full
    with mesh[1].disable():
        torch.testing.assert_close(full, expected)


def reflected(x):
    """DTensor has no strategy for this."""
    return aten.reflection_pad1d.default(x, [1, 2])


def upper(x):
    """DTensor has a strategy for this, which gathers batches."""
    return torch.linalg.qr(x)[1]


def test_an_operator_without_a_strategy_gets_one(mesh):
    x = torch.randn(8, 3, 6)
    with pytest.raises(NotImplementedError, match="does not have a sharding strategy registered"):
        reflected(spread(mesh, x, Shard(0)))
    sw.install()
    with record_collectives() as recorded:
        result = reflected(spread(mesh, x, Shard(0)))
    assert result.placements == (Shard(0),) and not recorded.collectives
    same(mesh, result, reflected(x))


def test_a_backward_without_a_strategy_gets_one(mesh):
    x = torch.randn(8, 6)
    sw.install()
    a = spread(mesh, x, Shard(0)).requires_grad_()
    torch.nn.functional.hardswish(a).sum().backward()
    w = x.clone().requires_grad_()
    torch.nn.functional.hardswish(w).sum().backward()
    assert a.grad.placements == (Shard(0),)
    same(mesh, a.grad, w.grad)


def test_operators_without_a_valid_row_are_replicated(mesh):
    x = torch.rand(8, 6)
    with pytest.raises(NotImplementedError):
        torch.hash_tensor(spread(mesh, x, Shard(0)))
    sw.install()
    result = torch.hash_tensor(spread(mesh, x, Shard(0)))
    assert result.placements == (Replicate(),)
    same(mesh, result, torch.hash_tensor(x))


def test_a_sound_rule_is_extended_by_the_rows_that_it_lacks(mesh):
    x = torch.randn(8, 4, 4)
    with record_collectives() as before:
        upper(spread(mesh, x, Shard(0)))
    sw.install()
    with record_collectives() as after:
        result = upper(spread(mesh, x, Shard(0)))
    assert before.collectives and not after.collectives
    assert result.placements == (Shard(0),)
    same(mesh, result, upper(x))


def test_what_dtensor_does_without_moving_anything_stays_as_it_was(mesh):
    x, y = torch.randn(8, 6), torch.randn(6, 8)
    a, b = spread(mesh, x, Shard(1)), spread(mesh, y, Shard(0))
    before = torch.mm(a, b).placements
    sw.install()
    result = torch.mm(a, b)
    assert result.placements == before == (Partial(),)
    same(mesh, result, x @ y)


def test_arguments_that_dtensor_ignored_are_distinguished(mesh):
    """Decisions are cached by arguments: the same call with another exponent may get another decision."""
    sw.install()
    x = torch.rand(8, 6) + 1
    for order in (1.0, 3.0, float("inf"), 1.0):
        norm = torch.linalg.vector_norm(spread(mesh, x, Shard(0)), order)
        same(mesh, norm, torch.linalg.vector_norm(x, order))


def wrong_norm(mesh):
    """The largest absolute value of P(max), of which one rank has a piece far below zero."""
    local = mesh[1].rank_map(lambda rank: torch.tensor([1.0, -9.0, 0.5, 0.0])[rank].expand(4).clone())
    return torch.linalg.vector_norm(DTensor.from_local(local, mesh[0], [Partial("max")]), torch.inf)


@pytest.mark.filterwarnings("ignore:torch .* was not audited:UserWarning")
def test_wrong_rules_are_replaced_on_request(mesh):
    sw.install()
    with pytest.raises(AssertionError):
        same(mesh, wrong_norm(mesh), torch.tensor(1.0))
    sw.install(replace="wrong")
    same(mesh, wrong_norm(mesh), torch.tensor(1.0))
    x = torch.randn(8, 6)
    same(mesh, torch.linalg.vector_norm(spread(mesh, x, Shard(0)), torch.inf), x.abs().max())


def test_an_unknown_way_to_replace_is_one_sentence():
    with pytest.raises(UsageError, match="replace='all' is not known: use replace='wrong'"):
        sw.install(replace="all")


def tables():
    propagator = DTensor._op_dispatcher.sharding_propagator
    names = ("op_single_dim_strategy_funcs", "op_strategy_funcs", "op_to_rules", "op_to_schema_info")
    names += ("op_to_schema_info_for_single_dim_strategy",)
    return {name: dict(getattr(propagator, name)) for name in names}, propagator.propagate_op_sharding


def test_uninstalling_undoes_it_caches_included(mesh):
    before = tables()
    x = torch.randn(8, 4, 4)
    sw.install()
    installed = tables()
    upper(spread(mesh, x, Shard(0)))
    sw.uninstall()
    assert tables() == before != installed
    assert torch.ops.aten.unsqueeze_.default not in DTensor._op_dispatcher._custom_op_handlers
    assert "propagate_op_sharding_non_cached" not in vars(DTensor._op_dispatcher.sharding_propagator)
    with record_collectives() as recorded:
        upper(spread(mesh, x, Shard(0)))
    assert recorded.collectives
    with pytest.raises(NotImplementedError):
        reflected(spread(mesh, x, Shard(0)))
    sw.uninstall()  # nothing to undo


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize(
    "reshape",
    [lambda x: x.unsqueeze_(0), lambda x: x.transpose_(0, 1), lambda x: x.t_()],
    ids=["unsqueeze_", "transpose_", "t_"],
)
def test_a_tensor_that_gets_another_shape_in_place_knows_it(mesh, reshape, placement):
    """DTensor leaves the shape as it was where the placement stays."""
    sw.install()
    x = torch.randn(8, 4)
    sharded = spread(mesh, x, placement)
    expected = reshape(x.clone())
    assert reshape(sharded) is sharded
    assert sharded.shape == expected.shape
    same(mesh, sharded + 1, expected + 1)
    assert "aten.unsqueeze_.default" not in registered()


def test_a_rule_of_ones_own_stays_and_the_rest_is_installed(mesh):
    own = Rule("aten.reflection_pad1d.default", (Clause.parse("S(0) -> S(0)"),))
    register(own)
    sw.install()
    assert registered()["aten.reflection_pad1d.default"] == own.name
    assert len(registered()) > 1000
    x = torch.rand(4, 4, 5)
    with record_collectives() as recorded:
        result = reflected(spread(mesh, x, Shard(0)))
        upper(spread(mesh, x, Shard(0)))  # by the book
    assert not recorded.collectives
    same(mesh, result, reflected(x))
    sw.uninstall()
    assert registered() == {"aten.reflection_pad1d.default": own.name}


def test_installing_twice_is_installing_once():
    sw.install()
    once = tables()
    sw.install()
    assert tables() == once
    assert len(registered()) > 1000


def test_a_book_that_cannot_be_installed_whole_is_not_installed(monkeypatch):
    own = Rule("aten.mm.default", (Clause.parse("S(0), R -> S(0)"),))
    register(own)
    before = registered()
    operators = _install._operators(book())
    monkeypatch.setattr(_install, "_operators", lambda contents: [*operators[:20], "no operator"])
    with pytest.raises(AttributeError):
        sw.install()
    assert registered() == before


class Faulty:
    op, name = torch.ops.aten.mm.default, "a rule with a fault"

    def rows(self, *args, **kwargs):
        raise KeyError("a fault")


def test_a_fault_in_a_rule_shows(mesh):
    """What DTensor would do by itself, here moving an input, does not hide it."""
    extend(Faulty())
    with pytest.raises(Exception, match="a fault"):
        torch.mm(spread(mesh, torch.randn(8, 4), Shard(0)), spread(mesh, torch.randn(4, 8), Shard(0)))


def test_a_rule_for_an_operator_of_the_installed_book_is_an_error_that_names_both():
    rule = Rule("aten.mm.default", (Clause.parse("S(0), R -> S(0)"),))
    sw.install()
    with pytest.raises(
        UsageError, match=r"the book's rule of aten\.mm\.default.*registering rule 'aten\.mm\.default'"
    ):
        register(rule)


@from_torch("2.13", "torch.compile passes over what runs on simulated ranks")
def test_it_works_under_compile(mesh):
    x = torch.randn(8, 4, 4)
    sw.install()
    compiled = torch.compile(lambda t: upper(t) * 2, backend="aot_eager", fullgraph=True)
    same(mesh, compiled(spread(mesh, x, Shard(0))), upper(x) * 2)


RANKS = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
import shardwise as sw
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
sw.install()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2,))
x = torch.randn(6, 4, 4)
a = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
loss = torch.nn.functional.hardswish(torch.linalg.qr(a)[1]).sum()
loss.backward()
w = x.clone().requires_grad_()
expected = torch.nn.functional.hardswish(torch.linalg.qr(w)[1]).sum()
expected.backward()
torch.testing.assert_close(loss.full_tensor(), expected)
torch.testing.assert_close(a.grad.full_tensor(), w.grad)
assert a.grad.placements == (Shard(0),)
dist.destroy_process_group()
os._exit(0)  # gloo's threads may still release tensors, which aborts a process that ends as Python does
"""


def test_it_works_between_processes(tmp_path):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(rank), str(tmp_path / "store")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)[-3000:]


def findings(folder, version, *wrong):
    listed = "".join(f"\n  {op}:\n  - P(sum) -> P(sum)" for op in wrong)
    (folder / f"{version}.yaml").write_text(f"torch: {version}\nwrong:{listed or ' {}'}\n")


def test_findings_of_the_running_torch_alone_are_used_where_there_are_some(tmp_path):
    findings(tmp_path, "1.0.0", "aten.any.default")
    findings(tmp_path, RUNNING, "aten.sum.default")
    findings(tmp_path, "9.0.0", "aten.mean.default")
    assert wrong_operators(tmp_path) == {"aten.sum.default"}


def test_findings_before_and_after_a_torch_are_used_for_one_that_was_not_audited(tmp_path):
    for version, op in [("0.9.0", "abs"), ("1.0.0", "any"), ("9.0.0", "mean"), ("9.1.0", "neg")]:
        findings(tmp_path, version, f"aten.{op}.default")
    assert wrong_operators(tmp_path) == {"aten.any.default", "aten.mean.default"}


def test_a_torch_beyond_audited_ones_is_warned_about_once(tmp_path):
    findings(tmp_path, "1.0.0", "aten.any.default")
    with pytest.warns(
        UserWarning, match=r"was not audited: .* that the audit of torch 1\.0\.0 refuted"
    ) as said:
        assert wrong_operators(tmp_path) == wrong_operators(tmp_path) == {"aten.any.default"}
    assert len(said) == 1


def test_without_findings_nothing_is_replaced(tmp_path):
    with pytest.warns(UserWarning, match=r"so no rule is replaced: `shardwise audit --refuted DIR`"):
        assert wrong_operators(tmp_path) == frozenset()


def test_findings_in_the_file_of_another_torch_are_refused(tmp_path):
    (tmp_path / f"{RUNNING}.yaml").write_text("torch: 1.0.0\nwrong: {}\n")
    with pytest.raises(UsageError, match="torch"):
        wrong_operators(tmp_path)


def test_a_choice_that_an_experiment_refutes_is_not_used(mesh, monkeypatch):
    x = torch.randn(8, 3, 16)
    wrong = {"aten.reflection_pad1d.default": [Row.parse("S(2) -> S(2)")]}
    monkeypatch.setattr(_install, "book_rows", lambda call: wrong.get(call.name) or book_rows(call))
    sw.install(confirm=True)
    with pytest.warns(UserWarning, match="is not run by tp: S.2. -> S.2.: an experiment refutes it"):
        same(mesh, reflected(spread(mesh, x, Shard(2))), reflected(x))
    sw.install()
    with pytest.raises((AssertionError, RuntimeError)):
        same(mesh, reflected(spread(mesh, x, Shard(2))), reflected(x))
