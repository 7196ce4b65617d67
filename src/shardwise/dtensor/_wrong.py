"""The operators whose rules in DTensor the audit refuted, as shipped: one list for every torch that was audited."""

import functools
import warnings
from pathlib import Path

import torch

from ..documents import Field
from ..files import named, parse_yaml, read_text
from ..rules import is_beyond, next_to

REFUTED = Path(__file__).parent / "refuted"


@functools.cache
def wrong_operators(folder: Path = REFUTED) -> frozenset[str]:
    """Overloads for which DTensor claims a row that computes wrong numbers.

    For a torch that was not audited they are those of the audited ones before and after it: the rules that replace them
    were tested there, so replacing one that is right does no harm. For one that is not between audited ones there is a
    warning."""
    running = torch.__version__.split("+")[0]
    audited = {path.stem: path for path in folder.glob("*.yaml")}
    if not audited:
        warnings.warn(f"no audit of torch is in {folder}, so no rule is replaced: {_REMEDY}", stacklevel=2)
        return frozenset()
    nearest = next_to(audited, running)
    if is_beyond(running, *nearest):
        warnings.warn(
            f"torch {running} was not audited: the rules that are replaced are those that the audit of torch "
            f"{nearest[0]} refuted; {_REMEDY}",
            stacklevel=2,
        )
    return frozenset[str]().union(*(_refuted(audited[version]) for version in nearest))


_REMEDY = "`shardwise audit --refuted DIR` finds which rules of this torch are wrong"


def _refuted(findings: Path) -> frozenset[str]:
    with named(findings):
        fields = Field(parse_yaml(read_text(findings))).object(("torch", "wrong"))
        fields["torch"].one_of([findings.stem])
        return frozenset(fields["wrong"].members())
