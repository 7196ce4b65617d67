"""The command `shardwise`. Each module here holds the commands of one room."""

from ._app import app, main

__all__ = ["app", "main"]
