"""Functions rewritten so that a branch on a tensor's value can be computed both ways.

Python reads the truth of a value by itself, and nobody can answer "both". So the source of a function that branches on
values is compiled again with calls in the places where Python decides: `if`, `and`, `or`, `not`, `a if b else c`, and
where it makes a number of a tensor, `int(x)`. Blocks become functions of the names that they read and bind. What the
calls do is up to `HELPER`, an object that whoever runs the code puts into the globals; lines and columns stay.

Where a branch leaves a loop or returns, a name says so (`_jumps.py`), and what follows is a branch on that name.
Branches that delete names or yield stay as they are.
"""

import ast
import copy
import gc
import linecache
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from ._jumps import without_jumps

HELPER = "_shardwise_values"
_NUMBERS = ("int", "float", "bool")
_CHANGES = {"append", "extend", "insert", "pop", "remove", "clear", "update", "add", "discard", "setdefault"}


def functions_at(file: str, line: int) -> list[FunctionType]:
    """The functions of the innermost definition around a line of which there are any: those of a function that is
    defined in each call of another are gone after it."""
    around = [each for each in _definitions(file) if _first(each) <= line <= (each.end_lineno or 0)]
    living = [each for each in gc.get_objects() if type(each) is FunctionType]
    for definition in sorted(around, key=_first, reverse=True):
        found = [
            each
            for each in living
            if each.__code__.co_filename == file
            and each.__code__.co_firstlineno == _first(definition)
            and each.__code__.co_name == definition.name
        ]
        if found:
            return found
    return []


def rewritten(code: CodeType) -> CodeType | None:
    """The code of a function with calls of `HELPER` where it decides; None if its source cannot be had."""
    definitions = [each for each in _definitions(code.co_filename) if _first(each) == code.co_firstlineno]
    if not definitions:
        return None
    definition = copy.deepcopy(definitions[0])
    file = code.co_filename
    body = _Statements(file, definition).made()
    changed = ast.FunctionDef(definition.name, definition.args, body, [], None, **_place(definition))
    outer = _around(changed, code.co_freevars)
    for node in ast.walk(outer):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not hasattr(node, "type_params"):
            setattr(node, "type_params", [])  # noqa: B010  # which Python 3.12 requires
    made = _inner(compile(ast.fix_missing_locations(outer), file, "exec", dont_inherit=True), code)
    if made is None or made.co_freevars != code.co_freevars:
        return None
    return made.replace(co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno)


def _around(function: ast.FunctionDef, free: Sequence[str]) -> ast.Module:
    """A module in which the function has these free variables."""
    held = [name for name in free if name != "__class__"]
    inner: ast.stmt = function
    if "__class__" in free:
        inner = ast.ClassDef("_", [], [], [function], [])
    bound = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in held]
    nothing = ast.arguments([], [], None, [], [], None, [])
    outer = ast.FunctionDef("_", nothing, [*bound, inner], [], None)
    return ast.Module([outer], [])


def _inner(code: CodeType, like: CodeType) -> CodeType | None:
    """The code of a function of that name and place, among those inside."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_name == like.co_name and each.co_name != "_":
                return each
            if (found := _inner(each, like)) is not None:
                return found
    return None


def _first(definition: ast.FunctionDef) -> int:
    """The line where a function begins for Python: that of its first decorator."""
    return min([definition.lineno, *(each.lineno for each in definition.decorator_list)])


@lru_cache(maxsize=64)
def _definitions(file: str) -> list[ast.FunctionDef]:
    """The functions that a file defines."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


# -- names


def _names_of(function: ast.FunctionDef) -> set[str]:
    """The local names of a function."""
    taken = function.args
    given = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
    return {each.arg for each in given if each is not None} | _bound(function.body)


def _own(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes of some statements, without those inside of functions and classes."""
    for each in statements:
        yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _own(list(ast.iter_child_nodes(each)))


def _bound(statements: Sequence[ast.AST]) -> set[str]:
    """The names that statements bind, without those of comprehensions."""
    found: set[str] = set()
    inner: set[int] = set()
    for node in _own(statements):
        if isinstance(node, ast.comprehension):
            inner.update(id(each) for each in ast.walk(node.target))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ExceptHandler):
            found.add(node.name or "")
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    found |= {
        node.id
        for node in _own(statements)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inner
    }
    return found


def _read(statements: Sequence[ast.AST]) -> set[str]:
    """The names that statements read, also in functions inside."""
    return {
        node.id
        for each in statements
        for node in ast.walk(each)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _changed(statements: Sequence[ast.AST], fixed: set[str]) -> tuple[set[str], list[ast.Attribute], str]:
    """What statements write into (`x[i] = y`, `x.append(y)`): names; attributes of what the `fixed` names lead to,
    whether they are assigned or written into; and the text of what is neither, or ""."""
    names: set[str] = set()
    attributes: list[ast.Attribute] = []
    text = ""
    for node in _own(statements):
        into: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            into = node.value
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            into = node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func.attr
            inplace = called.endswith("_") and not called.endswith("__")
            into = node.func.value if called in _CHANGES or inplace else None
        if isinstance(into, ast.Name):
            names.add(into.id)
        elif isinstance(into, ast.Attribute) and _root(into) in fixed:
            attributes.append(into)
        elif into is not None:
            text = ast.unparse(node)
    return names, attributes, text


def _root(value: ast.expr) -> str:
    """`a` of `a.b.c`; "" where it is no name."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""


# -- statements


_STAYS = (
    *(ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await),
    *(ast.Delete, ast.Global, ast.Nonlocal),
)


class _Statements:
    """Rewrites the statements of one function."""

    def __init__(self, file: str, function: ast.FunctionDef) -> None:
        self.file = file
        given = function.args.posonlyargs + function.args.args
        self.owner = given[0].arg if given else ""
        self.body = without_jumps(function.body)
        self.names = _names_of(function) | _bound(self.body)
        for node in _own(self.body):
            if isinstance(node, ast.Global | ast.Nonlocal):
                self.names -= set(node.names)
        self.expressions = _Expressions(self)

    def made(self) -> list[ast.stmt]:
        return self.block(self.body)

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            made += self.branch(statement) if isinstance(statement, ast.If) else [self.statement(statement)]
        return made

    def statement(self, statement: ast.stmt) -> ast.stmt:
        if isinstance(statement, ast.FunctionDef):
            statement.body = _Statements(self.file, statement).made()
            return statement
        if isinstance(statement, ast.ClassDef | ast.AsyncFunctionDef):
            return statement
        for part in ("body", "orelse", "finalbody"):
            if hasattr(statement, part):
                setattr(statement, part, self.block(getattr(statement, part)))
        for handler in getattr(statement, "handlers", ()):
            handler.body = self.block(handler.body)
        return self.expressions.in_statement(statement)

    def branch(self, statement: ast.If) -> list[ast.stmt]:
        """One `if` as a call with two functions, unless it has to stay."""
        bodies = [statement.body, statement.orelse]
        if any(isinstance(node, _STAYS) for body in bodies for node in _own(body)):
            return [self.statement(statement)]
        bound = (_bound(bodies[0]) | _bound(bodies[1])) & self.names
        into, attributes, text = _changed([*bodies[0], *bodies[1]], self.names - bound)
        written = into & self.names
        binds = sorted(bound | written)
        reads = sorted(((_read(bodies[0]) | _read(bodies[1])) & self.names) - set(binds) - {self.owner})
        names = [*binds, *reads]
        yes, no = (f"{HELPER}_{kind}_{statement.lineno}_{statement.col_offset}" for kind in ("yes", "no"))
        functions = []
        for name, body in ((yes, bodies[0]), (no, bodies[1])):
            returned = ast.Return(ast.Tuple([_held(name) for name in binds], ast.Load()))
            functions.append(_function(name, names, [*self.block(body), returned]))
        call = _call(
            "branch",
            *(self.expressions.visit(statement.test), _load(yes), _load(no)),
            *(ast.Tuple([_held(name) for name in names], ast.Load()), _constants(binds), _constants(written)),
            ast.Tuple([_attribute(each) for each in _distinct(attributes)], ast.Load()),
            *(ast.Constant(text), ast.Constant(self.place(statement.test))),
            _held(self.owner) if self.owner else ast.Constant(None),
        )
        ast.copy_location(call, statement.test)
        target = ast.Tuple([ast.Name(name, ast.Store()) for name in binds], ast.Store())
        made: list[ast.stmt] = [ast.Assign([target], call) if binds else ast.Expr(call)]
        for name in binds:
            undefined = _call("is_undefined", _load(name))
            made.append(ast.If(undefined, [ast.Delete([ast.Name(name, ast.Del())])], []))
        return [ast.fix_missing_locations(ast.copy_location(each, statement)) for each in (*functions, *made)]

    def place(self, node: ast.expr) -> str:
        return f"{self.file}:{node.lineno}:{node.col_offset}"


# -- expressions


class _Expressions(ast.NodeTransformer):
    """Rewrites where an expression decides, or makes a number."""

    def __init__(self, statements: _Statements) -> None:
        self.statements = statements

    def in_statement(self, statement: ast.stmt) -> ast.stmt:
        """The expressions of a statement, not those of the statements inside of it."""
        for name, value in ast.iter_fields(statement):
            if isinstance(value, ast.expr):
                setattr(statement, name, self.visit(value))
            elif isinstance(value, list):
                setattr(statement, name, [self.visit(v) if isinstance(v, ast.expr) else v for v in value])
                for item in value:
                    if isinstance(item, ast.withitem):
                        item.context_expr = self.visit(item.context_expr)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            value = _call("changed", ast.Constant(type(statement.op).__name__), _load(name), statement.value)
            assign = ast.Assign([ast.Name(name, ast.Store())], value)
            return ast.fix_missing_locations(ast.copy_location(assign, statement))
        return statement

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _comprehension(self, node: Any) -> ast.AST:
        # Class scopes aside, names in it are seen by the functions inside of it too.
        return self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if _binds_within(node):
            return node
        parts = [
            ast.Tuple([ast.Lambda(_arguments([]), self.visit(value)), self._decision(value)], ast.Load())
            for value in node.values
        ]
        return self._made("all_of" if isinstance(node.op, ast.And) else "any_of", node, *parts)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if not isinstance(node.op, ast.Not):
            return self.generic_visit(node)
        return self._made("negated", node, self.visit(node.operand), self._decision(node.operand))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if _binds_within(node):
            return node
        branches = [ast.Lambda(_arguments([]), self.visit(value)) for value in (node.body, node.orelse)]
        place = ast.Constant(self.statements.place(node.test))
        call = self._made("either", node, self.visit(node.test), *branches, place)
        return ast.copy_location(call, node.test)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node = self.generic_visit(node)  # type: ignore[assignment]
        if not isinstance(node.func, ast.Name):
            return node
        if node.func.id in _NUMBERS and len(node.args) == 1 and not node.keywords:
            return self._made("number", node, node.func, node.args[0])
        if node.func.id == "super" and not node.args and self.statements.owner:
            node.args = [_load("__class__"), _load(self.statements.owner)]
            return ast.fix_missing_locations(node)
        return node

    def _decision(self, node: ast.expr) -> ast.Lambda:
        """What finds the truth of a value at the place of an expression."""
        call = _call("decided", _load("value"), ast.Constant(self.statements.place(node)))
        ast.copy_location(call, node)
        return ast.fix_missing_locations(ast.copy_location(ast.Lambda(_arguments(["value"]), call), node))

    def _made(self, name: str, node: ast.expr, *args: ast.expr) -> ast.expr:
        return ast.fix_missing_locations(ast.copy_location(_call(name, *args), node))


def _binds_within(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom) for each in ast.walk(node)
    )


def _place(node: Any) -> dict[str, Any]:
    return {name: getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _constants(values: Iterable[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(each) for each in sorted(values)], ast.Load())


def _held(value: str | ast.expr) -> ast.expr:
    """The value of a name, if it is bound, or of an expression."""
    value = _load(value) if isinstance(value, str) else copy.deepcopy(value)
    return _call("held", ast.Lambda(_arguments([]), value))


def _distinct(attributes: Iterable[ast.Attribute]) -> list[ast.Attribute]:
    return list({ast.unparse(each): each for each in attributes}.values())


def _attribute(node: ast.Attribute) -> ast.expr:
    """Whose attribute it is, its name and its text."""
    owner = _held(node.value)
    return ast.Tuple([owner, ast.Constant(node.attr), ast.Constant(ast.unparse(node))], ast.Load())


def _function(name: str, names: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    return ast.FunctionDef(name, _arguments(names), body, [], None)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_load(HELPER), name, ast.Load()), list(args), [])


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
