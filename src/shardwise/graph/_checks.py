"""Error checks: what a program does with tensor values only to decide whether to raise, warn or repair.

A graph has no values to decide by. A branch that raises or warns is not part of what the program computes; neither is
one for values that are infinite or NaN, which no result survives, nor one that drops a mask that masks nothing. Such a
branch is taken as not entered, with a note
that names its line. All other branches on values are refused.
"""

import ast
import linecache
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._refusal import is_program
from ._versions import matrix_checks_without_effect

_NOT_FINITE = {"isnan": False, "isinf": False, "isfinite": True}
_TELLS = {"warn", "warning", "warning_once", "warn_once", "info", "debug", "print"}


@contextmanager
def without_error_checks(notes: list[str]) -> Iterator[None]:
    """Within, error checks of a program that is traced pass."""
    with ExitStack() as stack:
        stack.enter_context(matrix_checks_without_effect())
        stack.enter_context(_numbers_from_values(notes))
        stack.enter_context(_Values(notes))
        yield


class _Values(TorchFunctionMode):
    """Intercepts where a program turns a tensor into a Python truth value."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.__bool__ and (passed := _passed(self.notes)) is not None:
            return passed
        if function in (torch._assert, torch._assert_async):  # the second from 2.15 on
            if (frame := _frame()) is not None:
                _note(self.notes, frame.f_code.co_filename, frame.f_lineno)
            return None
        return function(*args, **(kwargs or {}))


@contextmanager
def _numbers_from_values(notes: list[str]) -> Iterator[None]:
    """Within, comparisons of numbers that were read from tensors pass too where they are error checks."""
    plain = torch.SymBool.__bool__

    def truth(self: torch.SymBool) -> bool:
        try:
            return plain(self)
        except Exception:
            if (passed := _passed(notes)) is None:
                raise
            return passed

    torch.SymBool.__bool__ = truth
    try:
        yield
    finally:
        torch.SymBool.__bool__ = plain


def _passed(notes: list[str]) -> bool | None:
    """The truth value with which an error check passes, if the line that is running is one."""
    frame = _frame()
    if frame is None:
        return None
    # A jump may have the place of its whole statement; the instruction before it has that of the value.
    file, places = frame.f_code.co_filename, list(frame.f_code.co_positions())
    line, _, column, _ = places[frame.f_lasti // 2 - 1]
    if line is None or column is None:
        return None
    for statement in _branches(file):
        if _contains(statement.test, line, column):
            passed = _passes(statement, line, column)
            if passed is not None:
                _note(notes, file, line)
            return passed
    return None


def _note(notes: list[str], file: str, line: int) -> None:
    note = f"an error check is left out: {file}:{line} (`{linecache.getline(file, line).strip()}`)"
    if note not in notes:
        notes.append(note)


def _frame() -> FrameType | None:
    """The innermost frame of the program that is traced, torch's own modules being part of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_program(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


_Branch = ast.If | ast.IfExp | ast.Assert | ast.While


@lru_cache(maxsize=64)
def _branches(file: str) -> list[_Branch]:
    """The branches of a file, the innermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    found = [node for node in ast.walk(tree) if isinstance(node, _Branch)]
    return found[::-1]


def _passes(statement: _Branch, line: int, column: int) -> bool | None:
    """What must come out at a place of a branch's test so that nothing is raised, warned of or repaired."""
    value, wanted = statement.test, _entered(statement)
    turned = False
    while True:
        if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
            value, turned = value.operand, not turned
        elif isinstance(value, ast.BoolOp):
            value = next(part for part in value.values if _contains(part, line, column))
        else:
            break
    if wanted is not None:
        return wanted != turned
    return _if_all_is_finite(value)


def _entered(statement: _Branch) -> bool | None:
    """What the test must be so that the statement does nothing, if there is such a value."""
    if isinstance(statement, ast.Assert):
        return True
    if isinstance(statement, ast.If):
        if all(map(_only_tells, statement.body)):
            return False
        if statement.orelse and all(map(_only_tells, statement.orelse)):
            return True
        if not statement.orelse and all(_drops(each, statement.test) for each in statement.body):
            return False
    return None


def _drops(statement: ast.stmt, test: ast.expr) -> bool:
    """Whether a statement sets to None what its branch tests: `if not mask.any(): mask = None`, a shortcut past a mask
    that masks nothing."""
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)):
        return False
    tested = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    names = [target.id if isinstance(target, ast.Name) else "" for target in statement.targets]
    return statement.value.value is None and all(name in tested for name in names)


def _only_tells(statement: ast.stmt) -> bool:
    """Whether a statement raises or prints, and computes nothing."""
    if isinstance(statement, ast.Raise):
        return True
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    called = statement.value.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in _TELLS


def _if_all_is_finite(value: ast.expr) -> bool | None:
    """The value of an expression such as `torch.isinf(x).any()` if everything is finite; None for others."""
    names = [
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute | ast.Name)
    ]
    found = {name for name in names if name in _NOT_FINITE}
    if len(found) != 1 or any(isinstance(node, ast.Compare | ast.BinOp) for node in ast.walk(value)):
        return None
    turned = sum(isinstance(node, ast.Invert) for node in ast.walk(value)) + names.count("logical_not")
    return _NOT_FINITE[found.pop()] != bool(turned % 2)


def _contains(node: ast.expr, line: int, column: int) -> bool:
    begin, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
    return begin <= (line, column) < end
