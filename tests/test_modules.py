"""Users' files as modules: each is run once in a process."""

import sys

import pytest
import torch

from shardwise.modules import module_of

OPERATOR = """
import torch

@torch.library.custom_op("test_modules::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x + x
"""


def test_a_file_is_run_once_however_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "ops.py").write_text(OPERATOR)
    first = module_of(tmp_path / "ops.py")
    held = torch.ops.test_modules.twice.default
    monkeypatch.chdir(tmp_path)
    assert module_of("ops.py") is first
    assert module_of("./ops.py", "another_name") is first is sys.modules["another_name"]
    assert torch.equal(held(torch.ones(2)), torch.full((2,), 2.0))


def test_files_of_one_name_are_two_modules(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"where = {folder!r}")
    made = [module_of(tmp_path / folder / "same.py") for folder in "ab"]
    assert [module.where for module in made] == ["a", "b"]
    assert made[0].__name__ != made[1].__name__


def test_a_file_that_fails_is_run_again(tmp_path):
    (tmp_path / "failing.py").write_text("raise ValueError('wrong')")
    with pytest.raises(ValueError, match="wrong"):
        module_of(tmp_path / "failing.py")
    (tmp_path / "failing.py").write_text("right = True")
    assert module_of(tmp_path / "failing.py").right
