"""Files are written whole or not at all, and a path that cannot be written is refused in one sentence."""

from pathlib import Path

import pytest

from shardwise import UsageError
from shardwise.files import require_writable, write_text


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    for text in ("first", "second"):
        write_text(target, text)
        assert target.read_text() == text
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("name", "why"), [("no/plan.json", "there is no folder"), (".", "it is a folder, and a file is needed")]
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str, why: str) -> None:
    for refuse in (require_writable, lambda path: write_text(path, "text")):
        with pytest.raises(UsageError, match=why):
            refuse(tmp_path / name)


def test_no_path_is_no_mistake() -> None:
    require_writable(None)
