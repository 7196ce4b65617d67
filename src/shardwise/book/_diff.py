"""What changed between two books: operators that came, went, or have other rules."""

from dataclasses import dataclass

from ..rules import Book, Entry


@dataclass(frozen=True)
class Difference:
    """Operators that only the second book has, that only the first has, and that both have with different entries."""

    came: tuple[str, ...]
    went: tuple[str, ...]
    changed: tuple[tuple[Entry, Entry], ...]

    def __str__(self) -> str:
        lines = [f"+ {op}" for op in self.came] + [f"- {op}" for op in self.went]
        for before, after in self.changed:
            lines += [
                f"~ {before.op}",
                *(f"  - {text}" for text in _says(before) if text not in _says(after)),
            ]
            lines += [f"  + {text}" for text in _says(after) if text not in _says(before)]
        return "\n".join(lines) or "nothing differs"


def diff(first: Book, second: Book) -> Difference:
    """What the second book says differently; evidence does not count."""
    both = [
        op for op in first.verdicts if op in second.verdicts and first.source(op) is not second.source(op)
    ]
    pairs = [(first.entry(op), second.entry(op)) for op in sorted(both)]
    return Difference(
        tuple(sorted(second.verdicts.keys() - first.verdicts.keys())),
        tuple(sorted(first.verdicts.keys() - second.verdicts.keys())),
        tuple((a, b) for a, b in pairs if a is not None and b is not None and _says(a) != _says(b)),
    )


def _says(entry: Entry) -> list[str]:
    """The verdict of an entry, its clauses, and the calls that it is for."""
    if entry.rule is None:
        return [f"{entry.verdict}, by hand" if entry.by_hand else entry.verdict]
    limits = [f"{name} is always {value}" for name, value in sorted(entry.constant.items())]
    return [entry.verdict, *map(str, entry.rule.clauses), *limits]
