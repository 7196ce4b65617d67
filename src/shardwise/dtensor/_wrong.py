"""The operators whose rules in DTensor the audit refuted, as shipped."""

import functools
import warnings
from pathlib import Path

import torch
import yaml

FINDINGS = Path(__file__).parent / "refuted.yaml"


@functools.cache
def wrong_operators(findings: Path = FINDINGS) -> frozenset[str]:
    """Overloads for which DTensor claims a row that computes wrong numbers; empty, with one warning, for another
    torch than the audited one."""
    found = yaml.safe_load(findings.read_text())
    audited, running = str(found["torch"]), torch.__version__.split("+")[0]
    if audited != running:
        warnings.warn(
            f"the audit's findings are about torch {audited}, but this is torch {running}, so no rule is replaced: "
            f"`shardwise audit` finds which are wrong in it",
            stacklevel=2,
        )
        return frozenset()
    return frozenset(found["wrong"])
