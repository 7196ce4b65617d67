"""Damaged documents are refused in one sentence, or say something else that is valid; none is used silently."""

from collections import Counter

import pytest

import shardwise as sw
from tests.documents.damage import damaged

KINDS = ("plan", "graph", "cluster", "problem", "samples", "program", "rule", "index", "entry", "cache")


def outcomes(kinds, name, seeds, folder) -> Counter:
    """How many damaged documents are refused, change nothing, or say something else that is valid."""
    kind, file = kinds[name], folder / "given.json"
    others = [other.dump(other.document) for other in kinds.values() if other is not kind]
    file.write_text(kind.dump(kind.document))
    whole = kind.use(file)
    found: Counter = Counter()
    for seed in seeds:
        damage = damaged(kind.document, seed, kind.dump, others)
        file.write_bytes(damage.data)
        try:
            result = kind.use(file)
        except sw.UsageError as error:
            assert "\n" not in str(error), f"seed {seed}: {error}"
            found["refused"] += 1
            continue
        except Exception as error:
            raise AssertionError(
                f"{name} of seed {seed}, damaged at {damage.places}, is not refused"
            ) from error
        legal = damage.places and any(map(kind.may_say, damage.places))
        assert result == whole or legal, f"{name} of seed {seed}, damaged at {damage.places}, is used"
        found["unchanged" if result == whole else "legal change"] += 1
    return found


@pytest.mark.parametrize("name", KINDS)
def test_damaged_documents_are_refused_or_say_something_else(kinds, name, tmp_path):
    found = outcomes(kinds, name, range(40), tmp_path)
    assert found["refused"] > 10, found


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_five_hundred_damaged_documents(kinds, name, tmp_path):
    found = outcomes(kinds, name, range(500), tmp_path)
    print(name, dict(found))
    assert found["refused"] > 150, found
