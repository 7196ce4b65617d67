"""Checkpoints that models come with: a folder of safetensors files, as Hugging Face writes them, or torch's own (DCP).

Every rank reads its pieces and nothing else: safetensors files are mapped into memory, and a slice of a tensor is read
from the bytes that hold it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..documents import Field
from ..errors import UsageError
from ..files import path_of, read_document, write_text
from ..graph import Input
from ..layout import Layout
from ..planning import Plan
from ._agree import agreed

if TYPE_CHECKING:
    from ._module import Sharded

Rename = Mapping[str, str] | Callable[[str], str]

_INDEX = "model.safetensors.index.json"
_FILE_BYTES = 5_000_000_000


class Checkpoint:
    """A folder of safetensors files, read piece by piece; `rename` has its names by those of the model.

    Where there is an index, the files that it names count, and no others: they may be left of another checkpoint.
    """

    def __init__(self, folder: str | Path, rename: Rename | None = None) -> None:
        self.folder, self.rename = path_of(folder), rename
        files = _files_of(self.folder)
        if not files:
            raise UsageError(f"{self.folder} is not a checkpoint: it has no *.safetensors files")
        self._open = {file: _opened(file) for file in files}
        self._file_of: dict[str, Path] = {}
        for file, opened in self._open.items():
            for key in opened.keys():  # noqa: SIM118
                if (other := self._file_of.setdefault(key, file)) != file:
                    raise UsageError(
                        f"{self.folder} has {key} in {other.name} and in {file.name}: remove one, or add an index"
                    )
        self.read = 0  # bytes

    def key(self, entry: Input) -> str | None:
        """The name of a tensor in the checkpoint, or None if it has none; tied ones may go by any of their names."""
        names = (renamed(name, self.rename) for name in (entry.target, *entry.aliases))
        return next((name for name in names if name in self._file_of), None)

    def piece(self, key: str, entry: Input, layout: Layout, rank: int) -> Tensor:
        """One rank's piece of a tensor, in the dtype of the model."""
        whole = self._open[self._file_of[key]].get_slice(key)
        shape = tuple(whole.get_shape())
        if shape != entry.tensor.shape:
            raise UsageError(
                f"{key} of {self.folder} has the shape {list(shape)}, but {entry.target!r} of the model "
                f"{list(entry.tensor.shape)}"
            )
        runs = [layout.runs(dim, size, rank) for dim, size in enumerate(shape)]
        made = torch.empty(layout.local_shape(shape, rank), dtype=entry.tensor.dtype)
        for source, place in zip(product(*runs), product(*map(_packed, runs)), strict=True):
            part = whole[tuple(slice(*run) for run in source)] if shape else whole[...]
            self.read += part.nbytes
            made[tuple(slice(*run) for run in place)] = part
        return made


def _files_of(folder: Path) -> list[Path]:
    if not (folder / _INDEX).exists():
        return sorted(folder.glob("*.safetensors"))
    return read_document(folder / _INDEX, lambda index: [folder / file for file in _named_in(Field(index))])


def _named_in(index: Field) -> list[str]:
    members = index.members()
    if "weight_map" not in members:
        raise index.expected("the field 'weight_map'")
    return sorted({file.text() for file in members["weight_map"].members().values()})


def renamed(name: str, rename: Rename | None) -> str:
    if rename is None:
        return name
    return rename(name) if callable(rename) else rename.get(name, name)


def _packed(runs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Where the elements of these runs lie in the piece that consists of them."""
    at = 0
    for start, stop in runs:
        yield at, at + stop - start
        at += stop - start


def _opened(file: Path) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise UsageError(
            "checkpoints of safetensors files need safetensors: pip install safetensors"
        ) from error
    try:
        return safe_open(file, "pt")
    except SafetensorError as error:
        raise UsageError(f"{file} is not a safetensors file: {error}") from error


def loaded_state(
    plan: Plan,
    rank: int,
    device: str,
    folder: str | Path | None,
    rename: Rename | None,
    *,
    may_lack: bool,
    persistent: Callable[[str], bool],
) -> dict[str, Tensor]:
    """This rank's pieces of what a checkpoint has, by the model's names; `may_lack` says whether parameters may be
    missing there. Those of a checkpoint of torch have no values yet: `load_from_torch` reads them."""
    if folder is None:
        return {}
    entries = {e.target: e for e in plan.graph.inputs if e.role in ("parameter", "buffer")}
    layouts = {name: plan.home(entry.name) for name, entry in entries.items()}
    if is_of_torch(folder):
        infos = {name: entry.tensor for name, entry in entries.items() if persistent(name)}
        shapes = {name: layouts[name].local_shape(info.shape, rank) for name, info in infos.items()}
        return {n: torch.empty(shapes[n], dtype=info.dtype, device=device) for n, info in infos.items()}
    checkpoint = Checkpoint(folder, rename)
    keys = {name: checkpoint.key(entry) for name, entry in entries.items()}
    missing = [name for name, key in keys.items() if key is None and entries[name].role == "parameter"]
    if missing and not may_lack:
        raise UsageError(
            f"{checkpoint.folder} has no {', '.join(map(repr, missing[:3]))}: give `rename`, the checkpoint's names by "
            "the model's, or `init`, which initialises what it lacks"
        )
    return {
        name: checkpoint.piece(key, entries[name], layouts[name], rank).to(device)
        for name, key in keys.items()
        if key is not None
    }


def is_of_torch(folder: str | Path) -> bool:
    """Whether a folder is a checkpoint of torch.distributed.checkpoint."""
    return (path_of(folder) / ".metadata").exists()


def load_from_torch(sharded: "Sharded", folder: str | Path, rename: Rename | None) -> None:
    """Load the pieces of a sharded model from a checkpoint of torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp

    dcp.load(
        {renamed(name, rename): tensor for name, tensor in sharded.state_dict().items()},
        checkpoint_id=path_of(folder),
    )


def save_checkpoint(
    sharded: "Sharded", folder: str | Path, *, rename: Rename | None = None, file_bytes: int = _FILE_BYTES
) -> None:
    """Write the weights of a sharded model as a folder of safetensors files with an index, as Hugging Face does.

    All ranks call it; the first one writes, the index last, and if it cannot, all ranks raise. It holds one file, of at
    most `file_bytes`, at a time. Tied weights are written once, under the first of their names. `rename` has the names
    to write, by those of the model.
    """
    from safetensors.torch import save_file

    folder, first = path_of(folder), dist.get_rank() == 0
    named = {entry.target for entry in sharded.plan.graph.inputs}  # without the other names of tied weights
    state = {name: tensor for name, tensor in sharded.state_dict().items() if name in named}
    files = list(_files(state, file_bytes))
    index: dict[str, str] = {}

    def write(tensors: dict[str, Tensor], file: str) -> None:
        if first:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / file, {"format": "pt"})

    for number, names in enumerate(files, 1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        tensors = {}
        for name in names:
            whole = state[name].full_tensor()
            if first:
                tensors[renamed(name, rename)] = whole.detach().cpu().contiguous()
        agreed("writing the checkpoint", partial(write, tensors, file))
        index |= dict.fromkeys(tensors, file)
    total = sum(_bytes(tensor) for tensor in state.values())
    document = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2) + "\n"
    agreed("writing the checkpoint", lambda: write_text(folder / _INDEX, document) if first else None)


def _files(state: Mapping[str, Tensor], limit: int) -> Iterator[list[str]]:
    """The names of the tensors of each file, in their order."""
    names: list[str] = []
    held = 0
    for name, tensor in state.items():
        if names and held + _bytes(tensor) > limit:
            yield names
            names, held = [], 0
        names.append(name)
        held += _bytes(tensor)
    yield names


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize
