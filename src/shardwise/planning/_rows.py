"""The rows of every node of a graph: from the book, else discovered on the spot, else replication alone.

A node that the book does not know is discovered on a call like its own with small sizes: sizes that are equal stay
equal, those that differ stay different. What was found is kept on disk, so the next plan does not ask again. No row
is offered that an experiment has not confirmed; no operator is unsupported, because every one can be replicated.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from ..calls import call_text
from ..errors import UsageError
from ..experiments import Crash, Found, discover, run_isolated
from ..files import read_json, write_text
from ..forms import draws_whole
from ..graph import Graph, Node, Ref, TensorInfo
from ..placements import Row, is_partial, parse_placement
from ..rules import book_rows

Source = Literal["book", "discovered", "replicated"]


@dataclass(frozen=True)
class Offer:
    """The rows of one call, all replicated first, and where they come from; `note` says why there are no others."""

    rows: tuple[Row, ...]
    source: Source
    note: str = ""


class Offers:
    """The rows of the nodes of one graph, each kind of call looked up once; on a device `alone` there is one row."""

    def __init__(self, graph: Graph, cache: Path | None = None, *, alone: bool = False) -> None:
        self.graph = graph
        self.alone = alone
        self.found = _Cache(cache or _default_cache())
        self._known: dict[Any, Offer] = {}

    def of(self, node: Node) -> Offer:
        key = signature(self.graph, node)
        if key not in self._known:
            self._known[key] = self._look_up(node)
        return self._known[key]

    def _look_up(self, node: Node) -> Offer:
        args, kwargs = described(self.graph, node)
        replicated = _replicated(node)
        if self.alone:
            return Offer((replicated,), "book")
        if draws_whole(node.overload, args, kwargs):
            return Offer((replicated,), "replicated", "its draws do not follow from positions")
        outputs = [None if info is None else info.shape for info in node.outputs]
        rows = book_rows(node.op, args, kwargs, outputs)
        if rows is not None:
            return Offer((replicated, *_useful(rows)), "book")
        if not node.inputs:
            return Offer((replicated,), "replicated", "it makes its result from nothing")
        note = "no small call like it runs"
        for call_args, call_kwargs in scaled_down(node, args, kwargs):
            rows, note = self.found.rows(node, call_args, call_kwargs)
            if rows:
                return Offer((replicated, *_useful(rows)), "discovered")
            if rows is not None:  # what was refuted at these sizes is not asked at others
                break
        return Offer((replicated,), "replicated", note)


def signature(graph: Graph, node: Node) -> Any:
    """What the rows and the price of a node depend on: its operator, and shapes and dtypes in place of tensors."""
    return node.op, _frozen(described(graph, node))


def described(graph: Graph, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a node with `TensorInfo`s in the place of tensors."""

    def describe(value: Any) -> Any:
        if isinstance(value, Ref):
            return graph.tensor(value)
        if isinstance(value, tuple | list):
            return tuple(map(describe, value))
        return value

    return describe(node.args), {key: describe(value) for key, value in node.kwargs.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_frozen, value))
    if isinstance(value, Mapping):
        return tuple((key, _frozen(item)) for key, item in value.items())
    return (type(value).__name__, value) if isinstance(value, bool | int | float) else value


def _replicated(node: Node) -> Row:
    replicate = parse_placement("R")
    outputs = tuple(None if info is None else replicate for info in node.outputs)
    return Row((replicate,) * len(node.inputs), outputs)


def _useful(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows worth planning with: partials other than sums are results, never given on."""
    for row in rows:
        if not row.is_replicated and all(not is_partial(p) or p.reduce_op == "sum" for p in row.inputs):
            yield row


# -- small calls


def scaled_down(
    node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Calls like the node's with small sizes, as real tensors, that run and give outputs of those sizes.

    Numbers among the arguments are first left as they are, then changed with the sizes that they are equal to.
    """
    leaves, tree = pytree.tree_flatten(
        (list(args), dict(kwargs)), is_leaf=lambda v: isinstance(v, TensorInfo)
    )
    tensors = [leaf for leaf in (*leaves, *node.outputs) if isinstance(leaf, TensorInfo)]
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    for mapping in _mappings(sizes):
        wanted = [None if t is None else tuple(mapping.get(s, s) for s in t.shape) for t in node.outputs]
        tried: list[list[Any]] = []
        for numbers in ({}, mapping, _with_parts(mapping)):
            small = [_resized(leaf, mapping, numbers) for leaf in leaves]
            if small not in tried and _gives(node, small, tree, wanted):
                made = [_example(leaf) if isinstance(leaf, TensorInfo) else leaf for leaf in small]
                yield pytree.tree_unflatten(made, tree)
            tried.append(small)


def _mappings(sizes: Sequence[int]) -> Iterator[dict[int, int]]:
    """Ways to make sizes small: each another one; all by the same factor; as they are, if they are small."""
    yield {size: 4 + 2 * i for i, size in enumerate(sizes)}
    yield {size: 2 ** (i + 2) for i, size in enumerate(sizes)}
    factor = 2
    while sizes and all(size % factor == 0 and size // factor > 1 for size in sizes):
        factor *= 2
    yield {size: size // (factor // 2) for size in sizes}
    if not sizes or max(sizes) <= 64:
        yield {}


def _with_parts(mapping: Mapping[int, int]) -> dict[int, int]:
    """What becomes of numbers that are sizes or parts of sizes: parts change in proportion."""
    numbers = dict(mapping)
    for size, small in mapping.items():
        for parts in range(2, small + 1):
            if size % parts == 0 and small % parts == 0:
                numbers.setdefault(size // parts, small // parts)
    return numbers


def _resized(leaf: Any, mapping: Mapping[int, int], numbers: Mapping[int, int]) -> Any:
    if isinstance(leaf, TensorInfo):
        return TensorInfo(tuple(mapping.get(size, size) for size in leaf.shape), leaf.dtype)
    if type(leaf) is int:
        return numbers.get(leaf, leaf)
    return leaf


def _gives(node: Node, leaves: Sequence[Any], tree: Any, wanted: Sequence[Any]) -> bool:
    """True if the call runs on meta tensors and gives outputs of the wanted shapes."""
    on_meta = [
        torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") if isinstance(leaf, TensorInfo) else leaf
        for leaf in leaves
    ]
    args, kwargs = pytree.tree_unflatten(on_meta, tree)
    if "device" in kwargs:
        kwargs["device"] = torch.device("meta")
    op = node.overload
    try:
        results = op(*args, **kwargs)
    except Exception:  # whatever an operator raises, it does not take these sizes
        return False
    flat = results if isinstance(results, tuple | list) else (results,)
    return [tuple(r.shape) if isinstance(r, torch.Tensor) else None for r in flat] == list(wanted)


def _example(info: TensorInfo) -> torch.Tensor:
    if info.dtype.is_floating_point or info.dtype.is_complex:
        return torch.rand(info.shape, dtype=info.dtype)
    return torch.randint(0, 2, info.shape).to(info.dtype)


# -- what was discovered before

# Of discovery: what an older one found is not asked.
_GENERATION = 2

# Rows by overload and call, found by this process.
_found_here: dict[tuple[Any, str], dict[str, Any]] = {}


class _Cache:
    """Rows by call, in one JSON file per version of torch that several processes may add to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"rows-{torch.__version__}-{_GENERATION}.json"
        self._kept: dict[str, Any] | None = None

    def rows(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Row] | None, str]:
        """The rows of a call, or None if it could not be judged; and the verdict."""
        text = f"{node.op}{call_text(args, kwargs)}"
        entry = _found_here.get((node.overload, text)) or self._load().get(text)
        if entry is None:
            found = _discover(node, args, kwargs)
            rows, note = (None, f"discovery ended with {found}") if isinstance(found, Crash) else found
            entry = {"rows": rows and [row.to_json() for row in rows], "note": note}
            _found_here[node.overload, text] = entry
            # An operator that is not torch's may be changed by its author between two plans, so what was found about it
            # is forgotten when the process ends. A process that was slow or was stopped says nothing about the next.
            if node.facts.builtin and not isinstance(found, Crash):
                self._keep(text, entry)
        return entry["rows"] and [Row.from_json(row) for row in entry["rows"]], entry["note"]

    def _load(self) -> dict[str, Any]:
        if self._kept is None:
            self._kept = self._read()
        return self._kept

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        document = read_json(self.path)
        if not isinstance(document, dict):
            raise UsageError(f"the cache of discovered rows {self.path} holds none: remove it")
        return document

    def _keep(self, text: str, entry: dict[str, Any]) -> None:
        self._kept = {**self._read(), text: entry}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"no folder {self.path.parent} can be made for discovered rows: {error.strerror}; set SHARDWISE_CACHE "
                "to one that can be written"
            ) from None
        write_text(self.path, json.dumps(self._kept))


def _default_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SHARDWISE_CACHE") or Path(home) / "shardwise")


def _discover(node: Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Row] | None, str] | Crash:
    return run_isolated(partial(_rows_found, node, args, kwargs), timeout=120)


def _rows_found(node: Node, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Row] | None, str]:
    try:
        found: Found = discover(node.overload, *args, **kwargs)
    except UsageError as error:  # the operator itself refuses the call
        return None, str(error)
    judged = found.verdict in ("rows", "no valid rows")
    return list(found.rows) if judged else None, found.reason or found.verdict
