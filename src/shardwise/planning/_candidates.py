"""The meshes among which that of a plan was chosen, and what a step takes on each."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..display import Block, Heading, Table
from ..documents import Field
from ._summary import time_text

AXIS = "pp"  # the axis of a mesh along which the stages of a model lie


@dataclass(frozen=True)
class Candidate:
    """A mesh that was considered, and the `seconds` of a step on it: of its plan, or where it was not searched an
    `estimate`; None where there is none, and `why`. Devices are `idle` for this share of the time, for want of what
    other stages compute."""

    mesh: str
    micro_batches: int
    seconds: float | None
    estimate: bool = False
    schedule: str = ""
    idle: float = 0.0
    why: str = ""

    @property
    def in_stages(self) -> bool:
        return bool(self.schedule)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, document: Field) -> "Candidate":
        fields = document.object(tuple(cls.__dataclass_fields__))
        return cls(
            fields["mesh"].text(),
            fields["micro_batches"].integer(least=1),
            fields["seconds"].optional(Field.number),
            fields["estimate"].flag(),
            fields["schedule"].text(),
            fields["idle"].number(),
            fields["why"].text(),
        )


def read_candidates(document: Field) -> tuple[Candidate, ...]:
    return tuple(Candidate.read(entry) for entry in document.items())


def candidates_blocks(candidates: Sequence[Candidate], most: int = 12) -> Iterator[Block]:
    """The meshes that were considered, the fastest first."""
    if not candidates:
        return
    yield Heading(2, "meshes")
    yield Table(
        ("mesh", ">micro-batches", "schedule", ">step", ">idle", ""),
        [
            (
                each.mesh,
                str(each.micro_batches),
                each.schedule,
                "" if each.seconds is None else time_text(each.seconds),
                f"{each.idle:.1%}" if each.in_stages and each.seconds is not None else "",
                each.why or ("estimated" if each.estimate else ""),
            )
            for each in candidates[:most]
        ],
    )
    if len(candidates) > most:
        yield f"and {len(candidates) - most} more"
