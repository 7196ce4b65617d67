"""What an audit found is kept as it goes, read again, and compared with other versions of torch."""

import json

import pytest
import torch

from shardwise.auditing import Audit, Wrong, _audit, audit, audit_call, read_audit
from shardwise.auditing._findings import CallFindings
from shardwise.auditing._kept import Kept
from shardwise.auditing._reproduce import reproduce_again
from shardwise.calls import Call
from shardwise.errors import UsageError

aten = torch.ops.aten
NORM = "aten.linalg_vector_norm.default"


@pytest.fixture(scope="module")
def norm():
    return audit_call(Call.of(aten.linalg_vector_norm.default, torch.rand(4, 6), float("inf")))


def test_findings_are_read_as_they_were_kept(norm, tmp_path):
    unsupported = audit_call(Call.of(aten.searchsorted.Tensor, torch.arange(6.0), torch.rand(4, 5)))
    missing = audit_call(
        Call.of(aten.linalg_solve_triangular.default, torch.rand(2, 3, 3), torch.rand(2, 3, 3), upper=True)
    )
    kept = Kept(tmp_path / "kept", "2.13.0", 4, 0)
    for findings in (norm, unsupported, missing):
        kept.keep(findings.op, [findings])
    again = Kept(tmp_path / "kept", "2.13.0", 4, 0)
    assert again.found == kept.found
    assert read_audit(tmp_path / "kept") == Audit.of("2.13.0", [norm, unsupported, missing])


def called(monkeypatch, *ops):
    """Within, these are the operators to audit, in this process."""
    calls = {op: [Call.of(op, torch.rand(4))] for op in ops}
    monkeypatch.setattr(_audit, "diverse_calls", lambda *_: calls)
    monkeypatch.setattr(_audit, "_warm_up", lambda: None)


def test_an_audit_that_was_stopped_goes_on(tmp_path, monkeypatch):
    path, audited = tmp_path / "kept", []

    def findings(calls, designed):
        audited.append(str(calls[0].op))
        return [CallFindings(audited[-1], "a call", "none", "rows")]

    called(monkeypatch, aten.neg.default, aten.abs.default)
    monkeypatch.setattr(_audit, "_overload", findings)
    whole = audit(samples=1, designed=0, keep=path)
    assert len(audited) == len(set(audited)) > 1
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines)[:-9])  # the last line is half written
    last = audited.pop()
    audited.clear()
    assert audit(samples=1, designed=0, keep=path) == whole
    assert audited == [last] and len(path.read_text().splitlines()) == len(lines)


def test_an_audit_with_other_settings_does_not_go_on(tmp_path):
    Kept(tmp_path / "kept", "2.13.0", 4, 0)
    with pytest.raises(UsageError, match="has another audit"):
        Kept(tmp_path / "kept", "2.13.0", 4, 12)


def test_a_file_that_is_not_an_audit_is_refused(tmp_path):
    (tmp_path / "kept").write_text(
        '{"torch": "2.13.0", "samples": 4, "designed": 0}\n{"op": "aten.neg.default"}\n'
    )
    with pytest.raises(UsageError, match="line 2: expected the field 'calls'"):
        read_audit(tmp_path / "kept")


def test_a_script_of_another_torch_shows_what_is_wrong_in_this_one(norm):
    (wrong,) = norm.wrong
    again = reproduce_again(wrong.script)
    assert (again.script, again.output) == (wrong.script, wrong.output)
    right = wrong.script.replace(
        "0: torch.where(mine, a, worse), 1: torch.where(mine, worse, a)", "0: a, 1: a"
    )
    assert right != wrong.script and reproduce_again(right) is None
    assert reproduce_again(wrong.script.replace("linalg_vector_norm", "no_such_operator")) is None


def test_findings_of_another_torch_are_tested_here(norm, tmp_path, monkeypatch):
    (wrong,) = norm.wrong
    script = wrong.script.replace("a, worse)", "a, a)").replace("worse, a)", "a, a)")
    corrected = Wrong(NORM, "a call", "none", "S(9) -> S(9)", script, "")
    other = Audit.of("2.0.0", [CallFindings(NORM, "a call", "none", "rows", wrong=[wrong, corrected])])
    called(monkeypatch, aten.linalg_vector_norm.default)
    monkeypatch.setattr(
        _audit, "_overload", lambda calls, designed: [CallFindings(NORM, "a call", "none", "rows")]
    )
    found = audit(samples=1, designed=0, keep=tmp_path / "kept", beside=other)
    assert [(w.row, w.output, w.designed) for w in found.wrong] == [(wrong.row, wrong.output, True)]
    assert (
        json.loads((tmp_path / "kept").read_text().splitlines()[-1])["calls"][0]["wrong"][0]["row"]
        == wrong.row
    )
