"""What a build has learned so far, on disk: the reached calls in one file, every operator's entry in its own."""

import json
import pickle
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch

from ..errors import UsageError, first_line
from ..files import read_document
from ..rules import Entry
from ._reach import Reached


class State:
    def __init__(self, folder: Path, resume: bool) -> None:
        self.folder = folder
        if folder.exists() and not resume:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        version, running = folder / "torch", torch.__version__
        if version.exists() and version.read_text() != running:
            raise UsageError(
                f"the build in {folder.parent} was begun with torch {version.read_text()}, but this is {running}: "
                "build without --resume"
            )
        version.write_text(running)

    def reached(self) -> Reached | None:
        path = self.folder / "calls.pt"
        if not path.exists():
            return None
        try:
            calls, functions, unreached = torch.load(path, weights_only=False)
        except (RuntimeError, EOFError, ValueError, TypeError, pickle.UnpicklingError) as error:
            raise UsageError(f"{path} cannot be read: {first_line(error)}; build without --resume") from None
        return Reached(calls, functions, unreached)

    def keep_reached(self, reached: Reached) -> None:
        torch.save((reached.calls, reached.functions, reached.unreached), self.folder / "calls.pt.new")
        (self.folder / "calls.pt.new").replace(self.folder / "calls.pt")

    def has(self, name: str) -> bool:
        return self._path(name).exists()

    def keep(self, entry: Entry) -> None:
        """Keep an entry; one that is half written when the build is interrupted is not taken for a whole one."""
        new = self._path(entry.op).with_suffix(".new")
        new.write_text(json.dumps(entry.to_document()))
        new.replace(self._path(entry.op))

    def drop(self, names: Iterable[str]) -> None:
        """Forget entries, so that a build that goes on makes them again."""
        for name in names:
            self._path(name).unlink()

    def entry(self, name: str) -> Entry | None:
        if not self.has(name):
            return None
        return read_document(self._path(name), lambda document: Entry.from_document(document, self.entry))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"
