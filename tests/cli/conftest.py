"""The command as it is typed, in this process, on a terminal of 80 columns."""

import pytest

from shardwise.cli import run


@pytest.fixture
def shardwise(monkeypatch, capsys):
    """Run the command; gives its exit status, what it printed and what it complained of."""

    def call(*arguments):
        monkeypatch.setenv("COLUMNS", "80")
        status = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call
