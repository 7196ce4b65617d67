"""Statements without `continue`, `break` and `return` in branches: names say that they happened instead.

`if a: continue` becomes `if a: skips = True`, and what follows it `if not skips: ...`. So a branch goes to its end, and
can be a function of the names that it binds.
"""

import ast
from collections.abc import Sequence
from typing import Any

_SKIPS, _BREAKS, _RETURNS, _RESULT = (
    f"_shardwise_{name}" for name in ("skips", "breaks", "returns", "result")
)
_LOOPS = (ast.For, ast.While)
_JUMPS = (ast.Continue, ast.Break, ast.Return)


def without_jumps(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The body of a function without jumps in branches; as it is if they are where names cannot say so."""
    nodes = [node for each in body for node in _own(each)]
    if not any(isinstance(node, _JUMPS) and node is not body[-1] for node in nodes):
        return list(body)
    if any(isinstance(node, ast.Try | ast.Yield | ast.YieldFrom | ast.Match) for node in nodes):
        return list(body)
    first, last = body[0], body[-1]
    if not any(isinstance(node, ast.Return) for node in nodes):
        return _block(body)
    if not isinstance(last, ast.Return):
        body = [*body, _at(last, ast.Return())]
    return [
        _assign(_RETURNS, False, first),
        *_block(body),
        _at(last, ast.Return(ast.Name(_RESULT, ast.Load()))),
    ]


def _block(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    for place, statement in enumerate(statements):
        jumped = _jumped(statement)
        if jumped is not None:
            return [*made, *jumped]
        kinds = _jumps(statement)
        made += _without(statement)
        if kinds:
            rest = _block(statements[place + 1 :])
            return [*made, _unless(kinds, rest, statement)] if rest else made
    return made


def _jumped(statement: ast.stmt) -> list[ast.stmt] | None:
    """What says that a jump happened."""
    if isinstance(statement, ast.Return):
        value = statement.value or _at(statement, ast.Constant(None))
        result = _at(statement, ast.Assign([ast.Name(_RESULT, ast.Store())], value))
        return [result, _assign(_RETURNS, True, statement)]
    if isinstance(statement, ast.Continue):
        return [_assign(_SKIPS, True, statement)]
    return [_assign(_BREAKS, True, statement)] if isinstance(statement, ast.Break) else None


def _without(statement: ast.stmt) -> list[ast.stmt]:
    """A statement without the jumps inside of it."""
    if isinstance(statement, ast.If):
        statement.body, statement.orelse = _block(statement.body), _block(statement.orelse)
    elif isinstance(statement, ast.With):
        statement.body = _block(statement.body)
    elif isinstance(statement, _LOOPS):
        return _loop(statement)
    return [statement]


def _loop(loop: ast.For | ast.While) -> list[ast.stmt]:
    kinds = {kind for each in loop.body for kind in _jumps(each)}
    ends = kinds & {_BREAKS, _RETURNS}
    body, after = _block(loop.body), _block(loop.orelse)
    if _SKIPS in kinds:
        body = [_assign(_SKIPS, False, loop), *body]
    before = [_assign(_BREAKS, False, loop)] if _BREAKS in kinds else []
    if ends and isinstance(loop, ast.While):
        loop.test = _at(loop.test, ast.BoolOp(ast.And(), [_none_of(ends, loop.test), loop.test]))
    elif ends:
        # A loop that is known to be over is left; one that may be goes on, and changes nothing if it is.
        over = [
            _at(loop, ast.If(_is_true(kind, loop), [_at(loop, ast.Break())], [])) for kind in sorted(ends)
        ]
        body = [*over, _unless(ends, body, loop)]
    loop.body, loop.orelse = body, []
    return [*before, loop, *([_unless(ends, after, loop)] if after and ends else after)]


def _jumps(statement: ast.stmt) -> set[str]:
    """The names of the jumps out of a statement."""
    if isinstance(statement, ast.Return):
        return {_RETURNS}
    if isinstance(statement, ast.Continue | ast.Break):
        return {_SKIPS if isinstance(statement, ast.Continue) else _BREAKS}
    found = _jumps_inside(statement)
    return found & {_RETURNS} if isinstance(statement, _LOOPS) else found


def _jumps_inside(statement: ast.stmt) -> set[str]:
    if not isinstance(statement, ast.If | ast.With | ast.For | ast.While):
        return set()
    inner = [*statement.body, *getattr(statement, "orelse", ())]
    return {kind for each in inner for kind in _jumps(each)}


def _own(node: ast.AST) -> list[ast.AST]:
    """A statement and all nodes inside of it, without those of functions and classes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return []
    return [node, *(each for child in ast.iter_child_nodes(node) for each in _own(child))]


def _unless(kinds: set[str], statements: list[ast.stmt], like: ast.stmt) -> ast.stmt:
    return _at(like, ast.If(_none_of(kinds, like), statements, []))


def _none_of(kinds: set[str], like: ast.AST) -> ast.expr:
    parts = [ast.UnaryOp(ast.Not(), ast.Name(kind, ast.Load())) for kind in sorted(kinds)]
    return _at(like, parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), list[ast.expr](parts)))


def _is_true(kind: str, like: ast.AST) -> ast.expr:
    return _at(like, ast.Compare(ast.Name(kind, ast.Load()), [ast.Is()], [ast.Constant(True)]))


def _assign(name: str, value: bool | None, like: ast.stmt) -> ast.stmt:
    return _at(like, ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)))


def _at(like: ast.AST, node: Any) -> Any:
    """A new node at the place of another."""
    return ast.fix_missing_locations(ast.copy_location(node, like))
