"""What experiments found, kept on disk between processes: one JSON file for each kind of finding and version of torch.

Several processes may add to a file; the folder is `~/.cache/shardwise`, or the one that SHARDWISE_CACHE names.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .documents import Field
from .errors import UsageError
from .files import read_json, write_text


class Cache:
    """Findings by text. `kind` names the file, `what` the findings in messages."""

    def __init__(self, kind: str, what: str, folder: Path | None = None) -> None:
        import torch

        self.path = (folder or _default_folder()) / f"{kind.format(torch=torch.__version__)}.json"
        self.what = what
        self._kept: dict[str, Any] | None = None

    def get(self, text: str) -> Any:
        """What was found for a text; None if nothing was."""
        if self._kept is None:
            self._kept = self._read()
        return self._kept.get(text)

    def keep(self, found: Mapping[str, Any]) -> None:
        """Add findings."""
        self._kept = {**self._read(), **found}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"no folder {self.path.parent} can be made for {self.what}: {error.strerror}; set SHARDWISE_CACHE "
                "to one that can be written"
            ) from None
        write_text(self.path, json.dumps({"digest": _digest(self._kept), "found": self._kept}))

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        again = f"remove this file, the {self.what} in it will be found again"
        try:
            document = read_json(self.path)
        except UsageError as error:
            raise UsageError(f"{error}; {again}") from None
        try:
            fields = Field(document).object(("digest", "found"))
            found = {text: one.value for text, one in fields["found"].members().items()}
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}; {again}") from None
        if fields["digest"].value != _digest(found):
            raise UsageError(f"{self.path}: digest: expected that of 'found', found another; {again}")
        return found


def _digest(found: Mapping[str, Any]) -> str:
    """By which a file is known that was changed by something else: what is in it is used without being tested again."""
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _default_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SHARDWISE_CACHE") or Path(home) / "shardwise")
