"""An overload's arguments as an emitted strategy reads them: where each one is, its variable's name, its default.

DTensor hands a strategy the positional arguments that were given (trailing defaults are left out) and the keyword
arguments, with a `TensorMeta` for every tensor. A row counts the outputs, then every tensor that was given, in order.
"""

import builtins
import json
import keyword
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..calls import STORAGE, facts
from ..errors import UsageError

# Names that the emitted function uses for itself.
_TAKEN = {
    "d",
    "op",
    "aten",
    "cast",
    "math",
    "torch",
    "strategies",
    "args_schema",
    "kwargs_schema",
    "reduce_op",
    "ndim",
}

# Arguments that change neither the outputs' shapes and dtypes nor how the call may be sharded.
_IRRELEVANT_TYPES = ("float", "number", "Generator", "Device")
_IRRELEVANT_NAMES = STORAGE | {"generator"}

Kind = Literal["plain", "tensor", "optional", "list"]


@dataclass(frozen=True)
class Argument:
    """One argument of the schema; `position` is None for a keyword argument, `is_dim` says whether it names dims."""

    name: str
    kind: Kind
    type: str
    position: int | None
    default: Any = None
    has_default: bool = False
    is_dim: bool = False

    @property
    def variable(self) -> str:
        if self.kind == "list":
            return f"{self.name.removesuffix('s')}_metas"
        if self.kind != "plain":
            return f"{self.name}_meta"
        clashes = self.name in _TAKEN or keyword.iskeyword(self.name) or hasattr(builtins, self.name)
        return f"{self.name}_" if clashes else self.name

    @property
    def normal(self) -> str:
        """The variable that clauses mean: dims are counted from 0, and one or none of them is a list too."""
        return self.variable if not self.is_several else f"{self.variable.rstrip('_').removesuffix('s')}s"

    @property
    def is_several(self) -> bool:
        """True for an argument that may name several dims, or none."""
        return self.is_dim and (self.is_list or self.is_optional)

    @property
    def is_optional(self) -> bool:
        return self.type.startswith("Optional")

    @property
    def is_list(self) -> bool:
        return "List" in self.type

    @property
    def is_relevant(self) -> bool:
        """True if shapes, dtypes or the number of tensors may depend on its value."""
        if self.kind == "tensor":
            return self.position is None
        if self.kind == "list":
            return False
        return not any(t in self.type for t in _IRRELEVANT_TYPES) and self.name not in _IRRELEVANT_NAMES

    @property
    def value(self) -> str:
        """The expression that reads it, its default where the call leaves it out."""
        if self.position is None:
            default = f", {self.default!r}" if self.has_default and self.default is not None else ""
            return f'kwargs_schema.get("{self.name}"{default})'
        return f"args_schema[{self.position}]"


@dataclass(frozen=True)
class Signature:
    """The arguments of an overload, its out arguments and how many tensors it returns."""

    op: str
    arguments: tuple[Argument, ...]
    outs: tuple[Argument, ...]
    returns: int

    @classmethod
    def of(cls, op: str, function: Callable[..., Any]) -> "Signature":
        schema = function._schema  # type: ignore[attr-defined]
        if any(str(r.type).startswith("List") for r in schema.returns):
            raise UsageError(
                f"{op} returns a list of tensors, which single-dim strategies of torch cannot place; "
                "no strategy can be emitted for it"
            )
        dims = facts(function).dims
        found = [_argument(a, i, a.name in dims) for i, a in enumerate(schema.arguments)]
        outs = [a for a, s in zip(found, schema.arguments, strict=True) if s.is_out]
        plain = [a for a in found if a not in outs]
        returns = sum("Tensor" in str(r.type) for r in schema.returns)
        return cls(op, tuple(plain), tuple(outs), returns)

    @property
    def tensors(self) -> tuple[Argument, ...]:
        """The arguments that clauses have terms for."""
        return tuple(a for a in self.arguments if a.kind != "plain")

    def plain(self, name: str) -> Argument | None:
        return next((a for a in self.arguments if a.kind == "plain" and a.name == name), None)

    @property
    def output_mask(self) -> Argument | None:
        """The argument that says which outputs are wanted, if there is one."""
        return self.plain("output_mask")

    def schema_info(self, used: set[str]) -> str | None:
        """The `RuntimeSchemaInfo` of a strategy that reads the plain arguments named in `used`."""
        positions = [
            a.position for a in self.arguments if a.position is not None and (a.is_relevant or a.name in used)
        ]
        keys = [a.name for a in self.arguments if a.position is None and (a.is_relevant or a.name in used)]
        keys += [a.name for a in self.outs]
        parts = [str(min(positions))] if positions else []
        if keys:
            parts.append(f"static_kwargkey={json.dumps(keys)}")
        if any(a.kind == "list" for a in self.arguments):
            parts.append("needs_pytree=True")
        return f"RuntimeSchemaInfo({', '.join(parts)})" if parts else None


def _argument(argument: Any, position: int, names_dims: bool) -> Argument:
    text = str(argument.type)
    kind: Kind = "plain"
    if "Tensor" in text:
        kind = "list" if "List" in text else "optional" if text.startswith("Optional") else "tensor"
    has_default = argument.has_default_value()
    return Argument(
        argument.name,
        kind,
        text,
        None if argument.kwarg_only else position,
        argument.default_value if has_default else None,
        has_default,
        names_dims and kind == "plain",
    )
