"""What the README says of the audit is what the audit's page says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _numbers(text: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"(?<![.\d])\d[\d,]*(?![.\d])", text)]


def test_the_numbers_of_the_audit_are_those_of_its_page():
    page = (ROOT / "docs" / "audit.md").read_text()
    overloads, samples, designed = _numbers(re.search(r"\n(\d+ overloads were .*?designed)", page)[1])
    wrong = _numbers(re.search(r"\| wrong: .*", page)[0])
    (hidden,) = _numbers(re.search(r"No sample of torch shows \d+", page)[0])
    both, corrected, _, new, _ = _numbers(
        re.search(r"Wrong in both are .*?are new", page)[0].replace("2.13.0", "")
    )
    readme = (ROOT / "README.md").read_text()
    said = readme[readme.index("The audit of torch") : readme.index("## Further")]
    found = _numbers(said)
    assert found == [overloads, samples + designed, wrong[1], wrong[0], hidden, both, corrected, new]
