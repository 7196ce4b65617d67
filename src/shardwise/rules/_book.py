"""The book: what is known about every ATen operator, shipped as YAML and read one operator at a time.

A family of operators is one file, an operator one document in it. Looking one up reads its family's text and parses
that document alone. An index lists every operator with its verdict, and which overloads torch's functions reach.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from ..calls import Call, short_name
from ..documents import Field
from ..errors import UsageError
from ..files import named, parse_yaml, read_text
from ..placements import Row, is_partial, is_replicate
from ._cases import Case, are_alike, is_covered
from ._domain import possible
from ._partials import keeps_order, partials_fit, results_fit
from ._rule import FIELDS, Rule
from ._variants import derived

VERDICTS = (
    *("ruled", "rows only", "random", "data-dependent shape", "no valid rows", "cannot run", "crashed"),
)

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_GROUPS = ("foreach", "linalg", "fft", "special", "upsample")


@dataclass(frozen=True)
class Entry:
    """What the book says about one operator. `like` names the operator of which it is an in-place or out variant.

    The rule is known to hold for calls whose arguments in `constant` are those given there: they never varied; and
    whose tensors have one shape in each group of arguments in `alike`, as they always had. `real_partials` says that
    its partials are those of real numbers: experiments with others refuted some. A rule written by hand is code, not
    clauses: `shardwise.rules._hand`."""

    op: str
    verdict: str
    reason: str = ""
    rule: Rule | None = None
    like: str | None = None
    cases: tuple[Case, ...] = ()
    constant: Mapping[str, Any] = field(default_factory=dict)
    alike: Sequence[Sequence[str]] = ()
    real_partials: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)
    by_hand: bool = False

    def rows(self, call: Call) -> list[Row] | None:
        """Rows for a call; None where the book does not know."""
        if self.verdict == "no valid rows":
            return []
        rows = self._stated_rows(call)
        return rows and [
            row
            for row in possible(rows, call)
            if partials_fit(row.inputs, call.tensors)
            and results_fit(row, call)
            and keeps_order(row, call, rows)
            and not (self.real_partials and _adds_others(row, call))
        ]

    def _stated_rows(self, call: Call) -> list[Row] | None:
        if self.rule is None:
            return next((list(case.rows) for case in self.cases if case.matches(call.arguments)), None)
        if not is_covered(call.arguments, self.constant) or not are_alike(call.arguments, self.alike):
            return None
        numbers = _numbers(call)
        return self._without(numbers, call) if numbers else self.rule.rows_of(call)

    def _without(self, numbers: Mapping[str, Any], call: Call) -> list[Row]:
        """Rows of a call that has plain numbers for tensors: those of the call with tensors that replicate them."""
        assert self.rule is not None
        whole = Call.named(call.op, {**call.arguments, **numbers}, call.made)
        places = [i for i, t in enumerate(whole.tensors) if isinstance(t, _Number)]
        found: dict[Row, None] = {}
        for row in self.rule.rows_of(whole):
            fits = partials_fit(row.inputs, whole.tensors) and results_fit(row, whole)
            if fits and all(is_replicate(row.inputs[i]) for i in places):
                inputs = tuple(p for i, p in enumerate(row.inputs) if i not in places)
                kept = Row(inputs, row.outputs, row.shards, row.local)
                found.update({} if kept.is_replicated else {kept: None})
        return list(found)

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"op": self.op, "verdict": self.verdict}
        if self.reason:
            document["reason"] = self.reason
        if self.by_hand:
            document["rule"] = "by hand"
        if self.like is not None:
            document["like"] = self.like
        elif self.rule is not None:
            document |= {k: v for k, v in self.rule.to_document().items() if k != "evidence"}
            if self.constant:
                document["constant"] = dict(self.constant)
            if self.alike:
                document["alike"] = [list(group) for group in self.alike]
            if self.real_partials:
                document["real_partials"] = True
        if self.cases:
            document["cases"] = [case.to_document() for case in self.cases]
        if self.evidence:
            document["evidence"] = dict(self.evidence)
        return document

    @classmethod
    def from_document(cls, document: Any, entry: Callable[[str], "Entry | None"]) -> "Entry":
        """An entry as it was written; `entry` gives that of which it is a variant."""
        field = Field(document)
        optional = (
            *("reason", "rule", "like", "clauses", "constant", "alike", "real_partials", "cases"),
            *FIELDS,
        )
        fields = field.object(("op", "verdict"), optional)
        rule = Rule.read(field) if "clauses" in fields else None
        constant: Mapping[str, Any] = _constant(fields["constant"]) if "constant" in fields else {}
        alike: Sequence[Sequence[str]] = _alike(fields["alike"]) if "alike" in fields else ()
        real_partials = "real_partials" in fields and fields["real_partials"].flag()
        by_hand = "rule" in fields and fields["rule"].one_of(["by hand"]) == "by hand"
        op, like = fields["op"].text(), fields["like"].text() if "like" in fields else None
        if like is not None and not by_hand:
            original = entry(like)
            if original is None or original.rule is None:
                raise fields["like"].expected("an operator of the book that has clauses")
            rule, constant = derived(original.rule, op), original.constant
            alike, real_partials = original.alike, original.real_partials
        cases = tuple(map(Case.read, fields["cases"].items() if "cases" in fields else ()))
        verdict = fields["verdict"].one_of(VERDICTS)
        if verdict == "ruled" and rule is None and not by_hand:
            raise fields["verdict"].wrong(
                "expected clauses or a rule by hand, as 'ruled' says, found neither"
            )
        reason = fields["reason"].text() if "reason" in fields else ""
        evidence = fields["evidence"].members() if "evidence" in fields else {}
        kept = {name: value.value for name, value in evidence.items()}
        return cls(op, verdict, reason, rule, like, cases, constant, alike, real_partials, kept, by_hand)

    def __str__(self) -> str:
        """The entry as YAML, its witnesses counted."""
        document = self.to_document()
        if "witnesses" in self.evidence:
            document["evidence"] = {**self.evidence, "witnesses": len(self.evidence["witnesses"])}
        return _text(document)

    def __repr__(self) -> str:
        return f"<Entry {self.op}: {self.verdict}>"


def _constant(document: Field) -> dict[str, Any]:
    """Arguments with the value that they always had, or with those of which one must be given."""
    found = {}
    for name, value in document.members().items():
        if isinstance(value.value, dict):
            value.object(("one of",))["one of"].items()
        found[name] = value.value
    return found


def _alike(document: Field) -> list[list[str]]:
    return [[name.text() for name in group.items()] for group in document.items()]


def _adds_others(row: Row, call: Call) -> bool:
    """True if an input that is not of real numbers is partial."""
    return any(
        is_partial(p) and not t.dtype.is_floating_point
        for p, t in zip(row.inputs, call.tensors, strict=False)
    )


def family(op: str) -> str:
    """The file that an operator is in: its group where it has one, else its first letter."""
    name = op.split(".")[1].lstrip("_") if "." in op else op
    return next((group for group in _GROUPS if name.startswith(group)), name[0].lower())


class Book:
    """A folder of YAML files, each read when it is needed. With a `base`, it has only what differs from that book. It
    says nothing of operators that are `absent`."""

    def __init__(
        self, folder: Path, base: "Book | None" = None, absent: frozenset[str] = frozenset()
    ) -> None:
        self.folder = folder
        self.base = base
        self.absent = absent
        self._texts: dict[str, dict[str, str]] = {}
        self._entries: dict[str, Entry | None] = {}

    @functools.cached_property
    def index(self) -> dict[str, Any]:
        path = self.folder / "index.yaml"
        if not path.is_file():
            raise UsageError(f"there is no rule book in {self.folder}: build one with `shardwise book build`")
        with named(path):
            return _index(Field(parse_yaml(read_text(path))))

    @property
    def torch(self) -> str:
        """The version of torch that the book is about."""
        return str(self.index["torch"])

    @property
    def is_overlay(self) -> bool:
        """True for what differs from another book."""
        return "gone" in self.index

    @functools.cached_property
    def own_verdicts(self) -> dict[str, str]:
        """The operators of this folder, with their verdicts."""
        return {op: verdict for verdict, ops in self.index["operators"].items() for op in ops}

    @functools.cached_property
    def verdicts(self) -> dict[str, str]:
        """Every operator of the book, with its verdict."""
        gone = set(self.index.get("gone", ()))
        of_base = {} if self.base is None else self.base.verdicts
        known = {op: v for op, v in of_base.items() if op not in gone} | self.own_verdicts
        return {op: v for op, v in known.items() if op not in self.absent}

    @functools.cached_property
    def functions(self) -> dict[str, list[str]]:
        """Functions of torch, each with the overloads that it reaches, the usual one first."""
        of_base = {} if self.base is None else self.base.functions
        known = of_base | self.index["functions"]
        left = {f: [op for op in ops if op in self.verdicts] for f, ops in known.items()}
        return {f: ops for f, ops in left.items() if ops or not known[f]}

    def without(self, absent: Iterable[str]) -> "Book":
        """The book for a torch that lacks some operators."""
        return Book(self.folder, self.base, frozenset(absent))

    def entry(self, op: str) -> Entry | None:
        if op in self.absent:
            return None
        if self.source(op) is not self:
            return None if op not in self.verdicts else self.source(op).entry(op)
        if op not in self._entries:
            self._entries[op] = self._read(op)
        return self._entries[op]

    def source(self, op: str) -> "Book":
        """The book that has the entry of an operator: this one, or that on which it is based."""
        return self if self.base is None or op in self.own_verdicts else self.base.source(op)

    def has_tested(self, op: str) -> bool:
        """True if this book's torch ran the operator."""
        return op in self.verdicts and op not in self.index.get("untested", ())

    def _read(self, op: str) -> Entry | None:
        name = family(op)
        if name not in self._texts:
            path = self.folder / f"{name}.yaml"
            parts = read_text(path).split("\n---\n") if path.is_file() else []
            heads = (re.search(r"^op: (\S+)$", part, re.MULTILINE) for part in parts)
            self._texts[name] = {h[1]: part for h, part in zip(heads, parts, strict=True) if h}
        text, verdict = self._texts[name].get(op), self.own_verdicts.get(op)
        with named(self.folder / f"{name}.yaml"):
            if text is None and verdict is None:
                return None
            if text is None or verdict is None:
                missing = "the index" if verdict is None else "the file"
                raise UsageError(
                    f"expected {op} in the index and in the file of its family, found none in {missing}"
                )
            entry = Entry.from_document(parse_yaml(text), self.entry)
            # Evidence is written last: without it the file may have been cut short.
            if entry.rule is not None and entry.like is None and not entry.evidence:
                raise UsageError(f"evidence of {op}: expected that for its rule, found none")
            if entry.verdict != verdict:
                raise UsageError(
                    f"verdict of {op}: expected {verdict!r}, as the index says, found {entry.verdict!r}"
                )
            return entry

    def overloads(self, name: str) -> list[str]:
        """The operators of the book that a name may mean: `aten.mm.default`, `aten.mm`, `torch.softmax`, `softmax`."""
        verdicts = self.verdicts
        if name in verdicts:
            return [name]
        functions = [f for f in self.functions if f == name or f.rpartition(".")[2] == name]
        found = [op for function in sorted(functions, key=len) for op in self.functions[function]]
        bare = short_name(name).replace(".", "_")
        members = [op for op in verdicts if op.count(".") == 2 and op.split(".")[1] in (bare, f"_{bare}")]
        found += sorted(members, key=lambda op: not op.endswith(".default"))
        return list(dict.fromkeys(found))


def _index(document: Field) -> dict[str, Any]:
    """The index of a book, which says every operator once and the functions that reach them."""
    fields = document.object(("torch", "counts", "operators", "functions"), ("gone", "untested"))
    fields["torch"].text()
    for listed in (fields[name] for name in ("gone", "untested") if name in fields):
        for op in listed.items():
            op.text()
    counts = {verdict: count.integer(least=0) for verdict, count in fields["counts"].members().items()}
    seen: set[str] = set()
    for verdict, listed in fields["operators"].object(VERDICTS).items():
        operators = [op.text() for op in listed.items()]
        if counts.get(verdict) != len(operators):
            raise listed.expected(f"a list of {counts.get(verdict, 0)}, as counts says")
        if twice := next((op for op in listed.items() if op.value in seen), None):
            raise twice.expected("an operator that is not listed elsewhere")
        seen.update(operators)
    for name in fields["functions"].members().values():
        for op in name.items():
            if op.text() not in seen and "gone" not in fields:  # what differs may refer to its base
                raise op.expected("an operator of the book")
    return document.value


def require_no_others(folder: Path) -> None:
    """Refuse a folder whose YAML files are not a book's: writing one replaces them all."""
    others = sorted(path.name for path in folder.glob("*.yaml"))
    if others and not (folder / "index.yaml").is_file():
        raise UsageError(f"{folder} has files of its own ({others[0]}): give a new folder, or that of a book")


def write(
    folder: Path,
    entries: Iterable[Entry],
    torch_version: str,
    functions: Mapping[str, Any],
    differs: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write a book: one file per family, and the index; the files of an older book there are removed. If it has only
    what `differs` from another, that says which operators of the other are gone, and which untested."""
    require_no_others(folder)
    by_family: dict[str, list[Entry]] = {}
    by_verdict: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for entry in sorted(entries, key=lambda e: e.op):
        by_family.setdefault(family(entry.op), []).append(entry)
        by_verdict[entry.verdict].append(entry.op)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.yaml"):
        old.unlink()
    for name, members in by_family.items():
        (folder / f"{name}.yaml").write_text("".join(f"---\n{_text(e.to_document())}\n" for e in members))
    index = {
        "torch": torch_version,
        **{name: sorted(ops) for name, ops in (differs or {}).items()},
        "counts": {verdict: len(ops) for verdict, ops in by_verdict.items()},
        "operators": by_verdict,
        "functions": {name: functions[name] for name in sorted(functions)},
    }
    text = yaml.dump(index, Dumper=_DUMPER, sort_keys=False, width=110, default_flow_style=None)
    (folder / "index.yaml").write_text(text)


def _text(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_DUMPER, sort_keys=False, width=110, allow_unicode=True).strip()


@dataclass(frozen=True)
class _Number:
    """A plain number as the tensor without dims that it stands for."""

    dtype: torch.dtype
    shape: tuple[int, ...] = ()


def _numbers(call: Call) -> dict[str, _Number]:
    """Plain numbers among the arguments that the schema calls tensors."""
    dtypes = {bool: torch.bool, int: torch.int64, float: torch.float32, complex: torch.complex64}
    return {
        a.name: _Number(dtypes[type(call[a.name])])
        for a in call.schema.arguments
        if a.name in call and type(call[a.name]) in dtypes and "Tensor" in str(a.type)
    }
