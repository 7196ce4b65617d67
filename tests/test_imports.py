"""What importing costs: a room is loaded when it is used, and the solver's dependencies only when something is solved.

Each statement is tried in a process of its own, since this one has everything loaded.
"""

import ast
import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import shardwise as sw

SOURCE = Path(sw.__file__)
ROOMS = sorted(path.parent.name for path in SOURCE.parent.glob("*/__init__.py"))
SOLVER_NEEDS = ("numba", "llvmlite", "highspy")
COMPILER = ("torch._dynamo", "torch._inductor")


def run(code: str, *arguments: object) -> str:
    """What the code prints in a fresh process."""
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_importing_the_package_loads_nothing_but_the_standard_library():
    loaded = run(
        "import sys; before = set(sys.modules); import shardwise; "
        "print(*{name.split('.')[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names)"
    )
    assert loaded.split() == ["shardwise"]


@pytest.mark.parametrize("words", [("--help",), ("solve", "--help"), ("plan", "--help")])
def test_help_is_printed_without_torch(words):
    code = f"import sys; sys.argv = ['shardwise', *{words}]\nfrom shardwise.cli import main\n"
    code += "try:\n    main()\nfinally:\n    print({'torch', 'numba'} & sys.modules.keys())"
    *shown, loaded = run(code).splitlines()
    assert "Usage: shardwise" in "".join(shown)
    assert loaded == "set()"


def test_rooms_load_neither_the_solvers_dependencies_nor_the_compiler_nor_the_terminal():
    rooms = [room for room in ROOMS if room not in ("cli", "report")]
    unwanted = (*SOLVER_NEEDS, *COMPILER, "transformers", "rich", "typer", "playwright")
    imports = "; ".join(f"import shardwise.{room}" for room in rooms)
    loaded = run(f"import sys; {imports}; print(*set({unwanted}) & sys.modules.keys())")
    assert loaded.split() == []


def test_rules_layouts_and_running_a_plan_work_where_the_solvers_dependencies_are_missing(tmp_path):
    model, x = nn.Linear(8, 8, bias=False), torch.rand(4, 8)
    for ranks in (1, 2):
        plan = sw.plan(model, (x,), mesh=f"dp={ranks}", cluster="laptop")
        plan.save(tmp_path / f"{ranks}.json")
    printed = run(WITHOUT_SOLVER, tmp_path)
    assert printed.splitlines() == ["S(0), R", "[{dp}, {}]", "mm", "simulated", "ran"]


WITHOUT_SOLVER = f"""
import sys
for name in {SOLVER_NEEDS}:
    sys.modules[name] = None  # importing it raises

import torch
import torch.distributed as dist
from torch import nn
import shardwise as sw

folder = sys.argv[1]
mesh = sw.Mesh.parse("dp=2,tp=2")
print(sw.layout.Layout.parse("S(0), R", mesh))
print(sw.Sharding.parse("[{{dp}}, {{}}]", mesh))
if sw.Row.parse("S(1), S(0) -> P(sum)") in sw.rule(torch.mm).rows(torch.rand(4, 6), torch.rand(6, 8)):
    print("mm")
model, x = nn.Linear(8, 8, bias=False), torch.rand(4, 8)
plan = sw.Plan.load(folder + "/2.json")
if sw.verify(model, (x,), {{}}, plan=plan).ok:
    print("simulated")
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
sharded = sw.parallelize(model, mesh="dp=1", args=(x,), plan=sw.Plan.load(folder + "/1.json"))
if torch.allclose(sharded(x).full_tensor(), model(x)):
    print("ran")
dist.destroy_process_group()
"""


def test_solving_without_the_dependencies_is_what_raises():
    code = "import sys; sys.modules['numba'] = None\nimport torch, shardwise as sw\n"
    code += "try:\n    sw.plan(torch.nn.Linear(8, 8), (torch.rand(4, 8),), mesh='dp=2')\n"
    code += "except ModuleNotFoundError as error:\n    print(error.name)"
    assert run(code).split() == ["numba"]


def test_plans_are_found_without_highs():
    code = "import sys; sys.modules['highspy'] = None\nimport torch, shardwise as sw\n"
    code += "plan = sw.plan(torch.nn.Linear(8, 8), (torch.rand(4, 8),), mesh='dp=2', cluster='laptop')\n"
    code += "print(plan.bound <= plan.cost.seconds)"
    assert run(code).split() == ["True"]


@pytest.mark.parametrize("name", sw.__all__)
def test_every_public_name_is_there(name):
    assert getattr(sw, name) is not None
    assert name in dir(sw)


def test_every_room_is_an_attribute_and_no_public_name_hides_one():
    assert set(ROOMS) <= set(dir(sw))
    assert not set(ROOMS) & set(sw.__all__)
    for room in ROOMS:
        assert getattr(sw, room) is import_module(f"shardwise.{room}")


def test_type_checkers_see_every_public_name():
    [told] = [node for node in ast.parse(SOURCE.read_text()).body if ast.unparse(node).startswith("if TYPE_")]
    seen = {name.name: f"shardwise.{line.module}" for line in told.body for name in line.names}
    assert sorted([*seen, "UsageError"]) == sorted(sw.__all__)
    for name, room in seen.items():
        assert getattr(sw, name) is getattr(import_module(room), name)


def test_what_is_not_there_raises_as_usual():
    with pytest.raises(AttributeError, match="module 'shardwise' has no attribute 'plant'"):
        sw.plant  # noqa: B018


def test_help_shows_every_public_function():
    shown = pydoc.render_doc(sw, renderer=pydoc.plaintext)
    for name in ("discover", "parallelize", "plan", "solve", "verify"):
        assert f"    {name}(" in shown


def test_our_own_operators_are_found_by_name_before_anything_else_is_used():
    from_name = "from shardwise.calls import overload, resolve_op; "
    assert (
        run(from_name + "print(overload('shardwise.attention.default'))").strip()
        == "shardwise.attention.default"
    )
    assert run(from_name + "print(resolve_op('shardwise::attention'))").strip() == "shardwise.attention"
