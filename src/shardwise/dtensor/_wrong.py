"""The operators whose rules in DTensor the audit refuted, as shipped."""

import functools
import warnings
from pathlib import Path

import torch

from ..documents import Field
from ..files import named, parse_yaml, read_text

FINDINGS = Path(__file__).parent / "refuted.yaml"


@functools.cache
def wrong_operators(findings: Path = FINDINGS) -> frozenset[str]:
    """Overloads for which DTensor claims a row that computes wrong numbers; empty, with one warning, for another
    torch than the audited one."""
    with named(findings):
        fields = Field(parse_yaml(read_text(findings))).object(("torch", "wrong"))
        audited, wrong = fields["torch"].text(), fields["wrong"].members()
    running = torch.__version__.split("+")[0]
    if audited != running:
        warnings.warn(
            f"the audit's findings are about torch {audited}, but this is torch {running}, so no rule is replaced: "
            f"`shardwise audit` finds which are wrong in it",
            stacklevel=2,
        )
        return frozenset()
    return frozenset(wrong)
