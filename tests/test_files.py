"""Files are read and written whole, and a path that cannot be is refused in one sentence."""

import gzip
from pathlib import Path

import pytest

from shardwise.errors import UsageError
from shardwise.files import read_json, require_writable, write_text


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    for text in ("first", "second"):
        write_text(target, text)
        assert target.read_text() == text
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("name", "why"), [("no/plan.json", "there is no directory"), (".", "it is a directory")]
)
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str, why: str) -> None:
    for refuse in (require_writable, lambda path: write_text(path, "text")):
        with pytest.raises(UsageError, match=why):
            refuse(tmp_path / name)


def test_no_path_is_no_mistake() -> None:
    require_writable(None)


def test_json_is_read_gzipped_or_not(tmp_path: Path) -> None:
    for name, data in (("plain", b'{"a": 1}'), ("packed", gzip.compress(b'{"a": 1}'))):
        (tmp_path / name).write_bytes(data)
        assert read_json(tmp_path / name) == {"a": 1}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, " cannot be read: No such file"),
        (b"{", ": this is not valid JSON"),
        (b'{"a": 1, "a": 2}', ": expected each field of an object once, found 'a' twice"),
        (b"[" * 100_000, ": this is not valid JSON: it is nested too deeply"),
        (b"\xff\xfe\x00", " cannot be read: 'utf-8'"),
        (gzip.compress(b"{}", mtime=0)[:-4], " cannot be read: Compressed file ended"),
        (b"\x1f\x8b\x08" + bytes(20), " cannot be read"),
    ],
)
def test_a_file_that_is_no_json_is_refused_by_name(tmp_path: Path, data: bytes | None, why: str) -> None:
    if data is not None:
        (tmp_path / "given.json").write_bytes(data)
    with pytest.raises(UsageError, match=f"given.json{why}"):
        read_json(tmp_path / "given.json")
