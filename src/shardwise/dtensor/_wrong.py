"""The operators whose rules in DTensor the audit refuted, as shipped: one list for every torch that was audited."""

import functools
import warnings
from pathlib import Path

import torch

from ..documents import Field
from ..files import named, parse_yaml, read_text

REFUTED = Path(__file__).parent / "refuted"


@functools.cache
def wrong_operators(folder: Path = REFUTED) -> frozenset[str]:
    """Overloads for which DTensor claims a row that computes wrong numbers; empty, with one warning, for a torch that
    was not audited."""
    running = torch.__version__.split("+")[0]
    findings = folder / f"{running}.yaml"
    if not findings.is_file():
        audited = ", ".join(sorted(path.stem for path in folder.glob("*.yaml"))) or "none"
        warnings.warn(
            f"torch {running} was not audited (audited are: {audited}), so no rule is replaced: "
            "`shardwise audit --refuted DIR` finds which of its rules are wrong",
            stacklevel=2,
        )
        return frozenset()
    with named(findings):
        fields = Field(parse_yaml(read_text(findings))).object(("torch", "wrong"))
        fields["torch"].one_of([running])
        return frozenset(fields["wrong"].members())
