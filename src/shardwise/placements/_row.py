"""`Row`: a claim about one mesh axis, `S(1), S(0) -> P(sum)`.

If the inputs are placed as on the left, running the operator on each rank's local tensors, with no
communication, gives outputs placed as on the right.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from ..documents import Field
from ..errors import UsageError, require
from ._text import (
    AnyShard,
    is_partial,
    is_replicate,
    is_shard,
    not_known,
    parse_placement,
    placement_text,
    shard,
)

_KNOWN = (Replicate, Shard, _StridedShard, AnyShard)

# The shards for which a row holds, least restrictive first: also uneven and empty ones; nonempty ones; equal ones.
Shards = Literal["any", "nonempty", "even"]
SHARDS: tuple[Shards, ...] = get_args(Shards)


def fewest_shards(each: Iterable[Shards]) -> Shards:
    """The shards for which all of several rows hold, given those of each row."""
    return max(each, key=SHARDS.index)


@dataclass(frozen=True)
class Row:
    """Inputs and outputs of one claim; tensors inside lists count one by one, in order.

    An output of `None` is one that the call does not return, written `-`. `local` names the local form
    that the row needs, if ranks must not run the operator with the original arguments.

    >>> str(Row.parse("S(1),S(0)->P(sum)"))
    'S(1), S(0) -> P(sum)'
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement | None, ...]
    shards: Shards = "any"
    local: str | None = None

    def __post_init__(self) -> None:
        for given in (self.inputs, self.outputs):
            if type(given) is not tuple:
                raise UsageError(
                    f"a row has a tuple of placements on each side, not {given!r}: use Row.parse for text"
                )
        for placement in (*self.inputs, *self.outputs):
            if type(placement) not in _KNOWN and not (placement is None or is_partial(placement)):
                raise not_known(placement)
        if self.shards not in SHARDS:
            raise UsageError(f"unknown shards {self.shards!r} of a row: use one of {', '.join(SHARDS)}")

    @classmethod
    def parse(cls, text: str, shards: Shards = "any", local: str | None = None) -> "Row":
        """Read `S(0), R -> P(sum) for even shards with local lookup`; the last two parts are optional."""
        require(text, str, "row", "text such as 'S(0), R -> S(0)'")
        rest, _, form = text.partition(" with local ")
        rest, found, kind = rest.partition(" for ")
        if found:
            kind = kind.strip().removesuffix("shards").strip()
            if kind not in SHARDS:
                raise UsageError(
                    f"row {text!r} has the condition 'for {kind}': write 'for even shards' or 'for nonempty shards'"
                )
            shards = kind
        left, arrow, right = rest.partition("->")
        if not arrow:
            raise UsageError(f"row {text!r} has no '->': write it as 'S(0), R -> S(0)'")
        try:
            inputs = tuple(parse_placement(part) for part in split_terms(left))
            outputs = tuple(
                None if part.strip() == "-" else parse_placement(part) for part in split_terms(right)
            )
        except UsageError as error:
            raise UsageError(f"row {text!r}: {error}") from None
        return cls(inputs, outputs, shards, form.strip() or local)

    def __str__(self) -> str:
        left = ", ".join(placement_text(p) for p in self.inputs)
        right = ", ".join("-" if p is None else placement_text(p) for p in self.outputs)
        return f"{left} -> {right}".strip()

    def __repr__(self) -> str:
        return f"Row.parse({self.text!r})"

    @property
    def text(self) -> str:
        """The row with its conditions, as `parse` reads it: `S(0) -> P(avg) for even shards`."""
        text = str(self) + (f" for {self.shards} shards" if self.shards != "any" else "")
        return text + (f" with local {self.local}" if self.local else "")

    @property
    def is_replicated(self) -> bool:
        """True for the fully replicated row, which holds for every operator."""
        return all(p is None or is_replicate(p) for p in (*self.inputs, *self.outputs))

    @property
    def is_impossible(self) -> bool:
        """True if an output is sharded, though every rank runs the same call on tensors as large as the whole."""
        sharded = any(p is not None and is_shard(p) for p in self.outputs)
        return sharded and self.local is None and not any(map(is_shard, self.inputs))

    @property
    def is_open(self) -> bool:
        """True if it claims shards of any kind: `S(0, sf=*)`."""
        return any(isinstance(p, AnyShard) for p in (*self.inputs, *self.outputs))

    def opened(self) -> "Row":
        """The same claim for shards of any kind."""
        return self._placed(lambda p: AnyShard(p.dim) if type(p) is Shard else p)

    def with_kind(self, split_factor: int | None) -> "Row":
        """The claim for one kind of shards where it claims all: plain ones, or strided ones with a split factor."""
        return self._placed(lambda p: shard(p.dim, split_factor) if isinstance(p, AnyShard) else p)

    def _placed(self, change: Callable[[Placement], Placement]) -> "Row":
        outputs = tuple(None if p is None else change(p) for p in self.outputs)
        return Row(tuple(map(change, self.inputs)), outputs, self.shards, self.local)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "inputs": [placement_text(p) for p in self.inputs],
            "outputs": [None if p is None else placement_text(p) for p in self.outputs],
            "shards": self.shards,
        }
        if self.local is not None:
            document["local"] = self.local
        return document

    @classmethod
    def from_json(cls, document: Any) -> "Row":
        return cls.read(Field(document))

    @classmethod
    def read(cls, document: Field) -> "Row":
        """The row in a field of a document."""
        fields = document.object(("inputs", "outputs"), ("shards", "local"))
        return cls(
            tuple(placed.parsed(parse_placement) for placed in fields["inputs"].items()),
            tuple(
                placed.optional(lambda one: one.parsed(parse_placement))
                for placed in fields["outputs"].items()
            ),
            fields["shards"].one_of(SHARDS) if "shards" in fields else "any",  # type: ignore[arg-type]
            fields["local"].text() if "local" in fields else None,
        )


def split_terms(text: str) -> list[str]:
    """Parts between commas that are outside brackets; no parts in an empty text."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return parts if text.strip() else []
