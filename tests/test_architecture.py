"""The parts stand on each other as docs/architecture.md says: imports point down, and into no part's inside."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "shardwise"
BELOW_ALL = ("cache", "documents", "errors", "files", "modules", "progress")
PARTS = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)

# What torch does not publish, apart from operators' names and three modules that no part can do without.
PRIVATE = re.compile(r"torch\.(?!ops\.)(\w+\.)*_(?!_|ops\b|pytree\b|python_dispatch\b)")
MAY_TOUCH = {"dtensor", "graph"}
FILES = {SOURCE / "calls" / "_torch.py", SOURCE / "mesh" / "_measure.py"}  # the second lets a GPU wait


def files(part: str) -> list[Path]:
    return sorted((SOURCE / part).rglob("*.py"))


def imported(file: Path) -> Iterator[list[str]]:
    """What a file imports of this package, as names from its root on."""
    here = file.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            root = list(here[: len(here) - node.level + 1])
            module = root + (node.module.split(".") if node.module else [])
            yield from ([*module, name.name] for name in node.names)


def test_every_part_is_in_the_table():
    assert sorted(PARTS) == sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())


@pytest.mark.parametrize("part", [part for part in PARTS if part != "cli"])
def test_imports_point_down(part):
    below = {*PARTS[: PARTS.index(part)], *BELOW_ALL, part}
    for file in files(part):
        for names in imported(file):
            assert names[0] in below, f"{file.relative_to(SOURCE)} imports {'.'.join(names)}"


@pytest.mark.parametrize("part", PARTS)
def test_no_part_reaches_into_another(part):
    for file in files(part):
        for names in imported(file):
            if names[0] != part:
                inside = [name for name in names[1:] if name.startswith("_")]
                assert not inside, f"{file.relative_to(SOURCE)} imports {'.'.join(names)}"


@pytest.mark.parametrize("part", [part for part in PARTS if part not in MAY_TOUCH])
def test_what_torch_does_not_publish_is_touched_in_few_places(part):
    for file in files(part):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            modules += [ast.unparse(node)] if isinstance(node, ast.Attribute) else []
            for module in modules:
                touches = PRIVATE.match(module) and file not in FILES
                assert not touches, f"{file.relative_to(SOURCE)} touches {module}"


@pytest.mark.parametrize("file", sorted((ROOT / "tests").rglob("*.py")), ids=lambda file: file.stem)
def test_tests_reach_into_no_other_room(file):
    room = file.relative_to(ROOT / "tests").parts[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise."):
            names = [*node.module.split(".")[1:], *(name.name for name in node.names)]
            private = [name for name in names if name.startswith("_")]
            assert not private or names[0] == room, f"{file.relative_to(ROOT)} imports {'.'.join(names)}"


# -- what is known about an operator stands in the table of facts: nothing else goes by an operator's name

# Where operators are named by design, and why.
BY_NAME = {
    "calls/_fact_table.py": "the table",
    "calls/_names.py": "what names look like",
    "rules/_hand": "rules by overload",
    "forms": "local forms by operator",
    "graph/_policy.py": "decompositions by overload, with reasons",
    "graph/_attention.py": "defines operators",
    "graph/_boundaries.py": "defines operators",
    "graph/_norms.py": "defines operators",
    "graph/_experts.py": "defines operators",
    "graph/_linear.py": "defines operators",
    "graph/_cross_entropy.py": "defines an operator, and what torch has for it",
    "graph/_masks.py": "rewrites patterns of operators that torch exports",
    "experiments/_values.py": "generators of inputs by operator",
}

OPERATOR = re.compile(
    r"(aten|prims|torch_nn|_c10d_functional|_dtensor)(\.|::)[\w.:*]*"
    rf"|shardwise(\.|::)(?!({'|'.join(PARTS)})\b)[\w.:*]+"
)
OBJECT = re.compile(r"(torch\.ops\.\w+|aten|prims)\.\w+(\.\w+)?")
OPERATORS = ("op", "func", "function", "operator", "overload", "target")
FX = {"placeholder", "get_attr", "call_function", "call_module", "call_method", "output"}


def name_tests(source: str) -> list[str]:
    """Where a program goes by the name of an operator: a literal that is such a name, an operator compared with one, or
    the text of an operator compared with, or searched for, parts of names."""
    tree = ast.parse(source)
    found = {node: "is the name of an operator" for node in ast.walk(tree) if _is_operator_name(node)}
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    for node in ast.walk(tree):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        listed = [*getattr(node, "elts", ())] if isinstance(node, ast.Set) else []
        listed += [key for key in node.keys if key] if isinstance(node, ast.Dict) else []
        if any(OBJECT.fullmatch(ast.unparse(n)) for part in compared for n in ast.walk(part)):
            found[node] = "compares an operator"
        if any(OBJECT.fullmatch(ast.unparse(n)) for n in listed):
            found[node] = "lists operators"
    for scope in [tree, *scopes]:
        names = _Names(tree, scope)
        for node in ast.walk(scope):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                if any(map(names.is_text, sides)) and any(map(names.is_part, sides)):
                    found[node] = "compares the name of an operator"
                if (
                    isinstance(node.ops[0], ast.In)
                    and names.is_part(sides[0])
                    and ast.unparse(sides[1]) == "name"
                ):
                    found[node] = "searches a name"
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("startswith", "endswith", "find", "count")
                and names.is_text(node.func.value)
                and not ast.unparse(node).endswith("('torch.')")  # tells functions from operators
            ):
                found[node] = "searches the name of an operator"
    return [f"line {node.lineno} {why}: {ast.unparse(node)}" for node, why in found.items()]


def _is_operator_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and bool(OPERATOR.fullmatch(str(node.value)))


class _Names:
    """What expressions in a function mean: the text of an operator, or a literal that may be part of a name."""

    def __init__(self, tree: ast.AST, scope: ast.AST) -> None:
        inside = list(ast.walk(scope)) if scope is not tree else tree.body
        assigned = [n for n in inside if isinstance(n, ast.Assign)]
        constants = [n for n in tree.body if isinstance(n, ast.Assign)]
        loops = [n for n in inside if isinstance(n, ast.comprehension | ast.For)]
        self.parts: set[str] = set()
        self.texts: set[str] = set()
        self.parts |= {ast.unparse(t) for n in constants if self.is_part(n.value) for t in n.targets}
        self.parts |= {ast.unparse(n.target) for n in loops if self.is_part(n.iter)}
        self.texts |= {ast.unparse(t) for n in assigned if self.is_text(n.value) for t in n.targets}
        self.texts |= {ast.unparse(n.target) for n in loops if self.is_text(n.iter)}

    def is_text(self, node: ast.AST) -> bool:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("str", "op_name")
        ):
            return len(node.args) == 1 and ast.unparse(node.args[0]).split(".")[-1] in OPERATORS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = ast.unparse(node.func.value).split(".")[-1]
            return (node.func.attr == "name" and inner in OPERATORS) or (
                node.func.attr == "split" and self.is_text(node.func.value)
            )
        text = ast.unparse(node)
        return text in self.texts or text.endswith((".op", "call.name", "_schema.name"))

    def is_part(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and node.value not in FX and bool(re.search(r"\w", node.value))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("set", "frozenset", "tuple"):
            return any(map(self.is_part, node.args))
        if isinstance(node, ast.Dict):
            return any(map(self.is_part, filter(None, node.keys)))
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return any(map(self.is_part, node.elts))
        return isinstance(node, ast.Name) and node.id in self.parts


@pytest.mark.parametrize(
    "source",
    [
        '"_norm" in str(op)',
        'str(op) == "aten.mm.default"',
        'node.op.startswith("aten.")',
        'op.name().startswith("_foreach")',
        "op.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy)",
        "node.target is aten.mm.default",
        "ROWS = {aten.clone.default, aten.expand.default}",
        'KINDS = ("softmax", "_norm")\ndef f(op):\n    name = str(op)\n    return any(k in name for k in KINDS)',
        'EMPTY = {"empty", "new_empty"}\ndef f(call):\n    return str(call.op) in EMPTY',
        'def f(op):\n    return any(part == "empty" for part in str(op).split("."))',
        'if "attention" in node.op: pass',
        'if "._foreach_" in name: pass',
    ],
)
def test_tests_of_names_are_seen(source):
    assert name_tests(source)


@pytest.mark.parametrize(
    "source",
    [
        "facts(op).view",
        'node.op == "call_function"',
        "found = rules.get(str(op))",
        "torch.ops.aten.reshape.default(x, [4])",
        'print(f"{op} is no operator such as aten.mm.default")',
        'name.startswith("torch.")',
        "any(str(call.op) != name for call in calls)",
    ],
)
def test_other_uses_of_names_are_not(source):
    assert not name_tests(source)


@pytest.mark.parametrize("part", PARTS)
def test_only_tables_go_by_the_names_of_operators(part):
    for file in files(part):
        place = file.relative_to(SOURCE).as_posix()
        if not any(place == named or place.startswith(f"{named}/") for named in BY_NAME):
            assert not name_tests(file.read_text()), place


@pytest.mark.parametrize("place", BY_NAME)
def test_every_exception_names_operators(place):
    path = SOURCE / place
    sources = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert any(name_tests(file.read_text()) for file in sources)


# -- one call


def nodes(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    """Every piece of the source of some kinds, with its file."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, kinds):
                yield str(file.relative_to(SOURCE)), node


def test_there_is_one_type_of_call():
    """An operator with its arguments is a `Call`: a class beside it that holds both would be a second one."""
    found = set()
    for file, node in nodes(ast.ClassDef):
        fields = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
        parameters = {
            argument.arg
            for part in node.body
            if isinstance(part, ast.FunctionDef) and part.name == "__init__"
            for argument in part.args.args
        }
        if node.name.endswith("Call") or {"op", "args", "kwargs"} <= fields | parameters:
            found.add((file, node.name))
    # A node of a graph has the names of tensors for its arguments; `Graph.call` gives its call.
    assert found == {("calls/_call.py", "Call"), ("graph/_graph.py", "Node")}


def test_arguments_are_named_in_one_place():
    """Who reads the kinds and defaults of parameters from a schema or a signature names arguments for itself."""
    read = ("default_value", "kwarg_only", "POSITIONAL_OR_KEYWORD", "apply_defaults")
    reading = {file for file, node in nodes(ast.Attribute) if node.attr in read}
    # The second writes them as source; the third tells DTensor's caches which arguments are no tensors.
    assert reading == {"calls/_parameters.py", "emission/_signature.py", "dtensor/_register.py"}


def test_operators_are_looked_up_in_one_place():
    looking = {
        file
        for file, node in nodes(ast.Call)
        if ast.unparse(node.func) == "getattr"
        and ast.unparse(node.args[0]).startswith(("torch.ops", "getattr(torch.ops"))
    }
    assert looking == {"calls/_names.py"}


def test_calls_are_recorded_in_one_place():
    """A mode that keeps what reaches dispatch records; one that only looks does not."""
    recording = {
        file
        for file, node in nodes(ast.ClassDef)
        if any("DispatchMode" in ast.unparse(base) for base in node.bases) and ".append(" in ast.unparse(node)
    }
    # The other records collectives, which have sizes and no arguments.
    assert recording == {"calls/_recorder.py", "dtensor/_record.py"}
