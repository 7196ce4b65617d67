"""What an operator takes: the names of its parameters and their defaults, from its schema or its signature."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Parameters:
    """`positional` can be given by position; `more` takes all further positional arguments; `names` are all that is
    not written to, in order; `outs` are those written to. `is_exact` says that nothing else can be given."""

    positional: tuple[str, ...] = ()
    more: str | None = None
    names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    outs: frozenset[str] = frozenset(("out",))
    is_exact: bool = False

    def place(self, position: int) -> tuple[str, int | slice]:
        """The name of a positional argument, and all positions that have it."""
        if position < len(self.positional):
            return self.positional[position], position
        if self.more is not None:
            return self.more, slice(len(self.positional), None)
        return f"arg{position}", position


def parameters(op: Callable[..., Any]) -> Parameters:
    """The parameters of an operator or function; nothing is known of a function that is written in C."""
    if getattr(op, "_schema", None) is not None:
        return _of_operator(op)
    try:
        return _of_signature(inspect.signature(op))
    except (TypeError, ValueError):
        return Parameters()


@functools.lru_cache(maxsize=4096)
def _of_operator(op: Any) -> Parameters:
    arguments = op._schema.arguments
    return Parameters(
        positional=tuple(a.name for a in arguments if not a.kwarg_only),
        names=tuple(a.name for a in arguments if not a.is_out),
        defaults={a.name: a.default_value for a in arguments if a.has_default_value() and not a.is_out},
        outs=frozenset(a.name for a in arguments if a.is_out),
        is_exact=True,
    )


def _of_signature(signature: inspect.Signature) -> Parameters:
    found = list(signature.parameters.values())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p for p in found if p.kind != inspect.Parameter.VAR_KEYWORD]
    return Parameters(
        positional=tuple(p.name for p in found if p.kind in by_position),
        more=next((p.name for p in found if p.kind == inspect.Parameter.VAR_POSITIONAL), None),
        names=tuple(p.name for p in named if p.name != "out"),
        defaults={p.name: p.default for p in named if p.default is not p.empty and p.name != "out"},
    )
