"""The command `shardwise`. Each module has the commands of one room."""

from importlib import import_module

from ._app import app, main, run

__all__ = ["app", "main", "run"]

_COMMANDS = (
    *(
        "_discover",
        "_book",
        "_audit",
        "_propagate",
        "_solve",
        "_capture",
        "_doctor",
        "_plan",
        "_price",
        "_verify",
    ),
    *("_report", "_calibrate", "_show"),
)
for _module in _COMMANDS:
    import_module(f".{_module}", __name__)  # registers its commands with `app`
