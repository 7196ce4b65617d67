"""`Rule`: everything known about one operator. Given a call it yields rows; it reads and prints as YAML."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import yaml

from ..calls import Call, facts, must_run, overload, reached, resolve_op
from ..display import Block, Heading, Shown, Table
from ..documents import Field
from ..errors import UsageError, require
from ..files import parse_yaml
from ..placements import Row
from ._bind import Reading, bind
from ._clause import Clause
from ._expression import SIZE_WORDS, WORDS

# What a document may say about the reading of arguments, and the other fields that it may have.
_READINGS = {"dims_of": ("input", "output"), "no_dims": ("all", "none")}
FIELDS = (*_READINGS, "broadcast", "front", "evidence")


@dataclass(frozen=True)
class Rule(Shown):
    """The clauses of one operator, and the evidence for them.

    >>> rule = Rule.from_yaml("op: aten._softmax.default\\nclauses: [{rows: S(d) -> S(d) when d != dim}]")
    >>> [str(row) for row in rule.rows(torch.rand(4, 6, 8), 1, False)]
    ['S(0) -> S(0)', 'S(2) -> S(2)']
    """

    op: str
    clauses: tuple[Clause, ...]
    reading: Reading = field(default_factory=Reading)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    front: str | None = None

    @property
    def name(self) -> str:
        return self.op

    @property
    def function(self) -> Callable[..., Any]:
        """The overload that the rule is about."""
        return overload(self.op)

    @property
    def single_clauses(self) -> tuple[Clause, ...]:
        """Its clauses, each once for every reduction that it is about."""
        return tuple(single for clause in self.clauses for single in clause.split())

    @cached_property
    def _speaks_of_arguments(self) -> bool:
        """True, or an error: a condition on an argument that the operator does not have would never hold, and a clause
        of other tensors than the operator's would yield no rows."""
        schema = overload(self.op)._schema
        arguments = [argument.name for argument in schema.arguments]
        tensors = sum("Tensor" in str(a.type) and not a.is_out for a in schema.arguments)
        for clause in self.clauses:
            for name in sorted(clause.names - WORDS - set(arguments)):
                raise UsageError(
                    f"clause '{clause}' of {self.op} speaks of {name!r}: the operator's arguments are "
                    f"{', '.join(arguments)}"
                )
            if len(clause.inputs) != tensors:
                raise UsageError(
                    f"clause '{clause}' of {self.op} has {len(clause.inputs)} inputs: the operator takes "
                    f"{tensors} tensors"
                )
        return True

    @cached_property
    def reads_sizes(self) -> bool:
        """True if rows depend on sizes: those of tensors, or arguments that take some."""
        known = facts(self.function)
        sized = {a.name for a in overload(self.op)._schema.arguments if known.is_size(a.name, 2)}
        return any(clause.names & (SIZE_WORDS | sized) for clause in self.clauses)

    def rows(self, *args: Any, **kwargs: Any) -> list[Row]:
        """The rows for a call of the operator, or of the function (`front`) that it was found through; tensors may be
        meta tensors or anything with a shape and a dtype."""
        call = Call(self.function, args, kwargs)
        if self.front is not None and not call.is_complete:
            call = self._reached_by(Call(resolve_op(self.front), args, kwargs))
        return self.rows_of(call)

    def _reached_by(self, front: Call) -> Call:
        """The call of this overload that a call of the front reaches."""
        with must_run(str(front)):
            inner = next((call for call in reached(front.on_meta()) if call.name == self.op), None)
        if inner is None:
            raise UsageError(f"{self.front} does not reach {self.op} with these arguments")
        return inner

    def rows_of(self, call: Call) -> list[Row]:
        """The rows for a call of the operator."""
        assert self._speaks_of_arguments
        bound = bind(call, self.reading)
        found: dict[Row, None] = {}
        for clause in self.clauses:
            found |= dict.fromkeys(clause.rows(bound.scope, bound.groups, bound.output_groups))
        return list(found)

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"op": self.op}
        default = asdict(Reading())
        document |= {name: value for name, value in asdict(self.reading).items() if value != default[name]}
        document["clauses"] = [
            {"rows": str(c), **({"reason": c.reason} if c.reason else {})} for c in self.clauses
        ]
        if self.front is not None:
            document["front"] = self.front
        if self.evidence:
            document["evidence"] = dict(self.evidence)
        return document

    @classmethod
    def from_document(cls, document: Any) -> "Rule":
        field = Field(document)
        field.object(("op", "clauses"), FIELDS)
        return cls.read(field)

    @classmethod
    def read(cls, document: Field) -> "Rule":
        """The rule in a document that may have other fields."""
        fields = document.members()
        clauses = tuple(map(_clause, fields["clauses"].items()))
        given: dict[str, Any] = {
            name: fields[name].one_of(options) for name, options in _READINGS.items() if name in fields
        }
        if "broadcast" in fields:
            given["broadcast"] = fields["broadcast"].flag()
        evidence = fields["evidence"].members() if "evidence" in fields else {}
        return cls(
            fields["op"].text(),
            clauses,
            Reading(**given),
            {name: entry.value for name, entry in evidence.items()},
            fields["front"].text() if "front" in fields else None,
        )

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_document(), sort_keys=False, width=120, allow_unicode=True)

    @classmethod
    def from_yaml(cls, text: str) -> "Rule":
        require(text, str, "rule", "the text of its YAML")
        return cls.from_document(parse_yaml(text))

    def blocks(self) -> Iterator[Block]:
        yield Heading(1, self.op)
        if "calls" in self.evidence:
            yield _calls_text(self.evidence)
        yield Table(("clause", "because"), [(f"`{clause}`", clause.reason) for clause in self.clauses])

    def __str__(self) -> str:
        return "\n".join([self.op, *(f"  {clause}" for clause in self.clauses)])

    def __repr__(self) -> str:
        return f"<Rule {self.op}: {len(self.clauses)} clause{'' if len(self.clauses) == 1 else 's'}>"


def _clause(document: Field) -> Clause:
    fields = document.object(("rows",), ("reason",))
    reason = fields["reason"].text() if "reason" in fields else ""
    return fields["rows"].parsed(lambda text: Clause.parse(text, reason))


def _calls_text(evidence: Mapping[str, Any]) -> str:
    """The calls behind a rule, as a sentence."""
    text = f"Built from {evidence['calls']} calls"
    if "held_out" in evidence:
        text += f", validated on {evidence['held_out']} held-out calls"
    if "refutations_tried" in evidence:
        text += f" and {evidence['refutations_tried']} made to refute it"
    return f"{text}."
