"""The command as it is typed, in this process, on a terminal of 80 columns."""

import pytest

from shardwise.cli import main


@pytest.fixture
def shardwise(monkeypatch, capsys):
    """Run the command; gives its exit status, what it printed and what it complained of."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["shardwise", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run
