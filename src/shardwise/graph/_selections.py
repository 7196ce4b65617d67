"""Selections by masks and positions that are values (`x[mask]`, `nonzero`), in a form that keeps all rows.

Where a program selects rows by values, what it gets has a row for each element of the mask, and it is noted which count
(`_padded.py`). Its size, where the program reads it, is a number that follows from data (`_numbers.py`). Writing such
rows back where they came from is `torch.where`, and to other positions an addition of what changes.
"""

from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from ._autograd import NotKept, Undecided
from ._known import KnownValues
from ._numbers import Number
from ._padded import is_repeatable, name_of, padded
from ._refusal import KEEP_SHAPE
from ._rows import Rows, note_rows, rows_of


class Selections(TorchFunctionMode):
    """Within, rows that are selected by values that are not known are padded."""

    def __init__(self, known: KnownValues, notes: list[str]) -> None:
        super().__init__()
        self._known, self._notes = known, notes
        self._recipes = WeakIdKeyDictionary()  # what tells masks that are the same
        self._keys: dict[Any, int] = {}
        self._numbers = count()
        self._by_key: dict[int, Rows] = {}
        self._sizes: dict[
            int, int
        ] = {}  # of selections, by the identity of the numbers of rows that they have

    def require_none(self, results: Any) -> Any:
        """Raise if a result of the program has as many rows as a value says."""
        if any(
            isinstance(leaf, Tensor) and rows_of(leaf) is not None for leaf in pytree.tree_leaves(results)
        ):
            raise Undecided(f"the shape of a result depends on tensor values; {KEEP_SHAPE}")
        return results

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.__getitem__ and self._selects(args[1]):
            return self._selected(*args)
        if function is Tensor.__setitem__ and (self._selects(args[1]) or rows_of(args[2])):
            return self._write(*args)
        if function in _BY_MASK and self._is_unknown(_given(args, kwargs, 1, "mask")):
            source, mask = _given(args, kwargs, 0, "input"), _given(args, kwargs, 1, "mask")
            shape = torch.broadcast_shapes(source.shape, mask.shape)
            recipe = "expand", (self._recipe(mask), tuple(shape))
            mask = mask.expand(shape)
            self._recipes[mask] = recipe, mask._version
            return self._taken(source.expand(shape), mask, 0)
        if (function in _POSITIONS or (function is torch.where and len(args) == 1)) and self._is_unknown(
            args[0]
        ):
            return self._positions(function, args, kwargs)
        if function in _SHAPES:
            return self._shape(function, args, kwargs)
        if function is Tensor.masked_scatter_ or function is Tensor.masked_scatter:
            held = rows_of(_given(args, kwargs, 2, "source"))
            if held is not None:
                mask, source = _given(args, kwargs, 1, "mask"), _given(args, kwargs, 2, "source")
                return self._scattered(function, args[0], mask, source, held)
        args, kwargs, sized = self._with_sizes(args, kwargs)
        if not any(rows_of(leaf) for leaf in pytree.tree_leaves((args, kwargs))):
            made = function(*args, **kwargs)
            if sized is not None and isinstance(made, Tensor):
                note_rows(made, sized.along(list(made.shape).index(sized.size)))
            self._remember(function, args, kwargs, made)
            return made
        made, held = padded(function, args, kwargs)
        note_rows(made, held)
        self._remember(function, args, kwargs, made)
        return made

    # -- which rows count

    def _is_unknown(self, mask: Any) -> bool:
        return isinstance(mask, Tensor) and not self._known.has(mask)

    def _remember(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """What a tensor was made of: two masks that were made of the same by the same functions are the same."""
        leaves = pytree.tree_leaves((args, kwargs))
        same = is_repeatable(name_of(function)) and all(map(_is_comparable, leaves))
        if same and isinstance(made, Tensor) and made not in self._recipes:
            told = tuple(
                self._recipe(leaf) if isinstance(leaf, Tensor) else _comparable(leaf) for leaf in leaves
            )
            self._recipes[made] = (name_of(function), told), made._version

    def _recipe(self, tensor: Tensor) -> Any:
        recipe, version = self._recipes.get(tensor, (None, -1))
        if recipe is None or version != tensor._version:
            recipe = next(self._numbers)
            self._recipes[tensor] = recipe, tensor._version
        return self._keys.setdefault(recipe, len(self._keys))

    def _rows_of(self, mask: Tensor) -> Rows:
        """The rows that a mask selects, as a dim of its elements."""
        key = self._recipe(mask)
        note = "of rows that are selected by values all are kept, and those that do not count are left out"
        if note not in self._notes:
            self._notes.append(note)
        if key not in self._by_key:
            flat = mask.detach().reshape(-1) != 0
            number = Number(flat.sum())
            self._by_key[key] = Rows(flat, number, key)
            self._sizes[id(number.base)] = flat.shape[0]
        return self._by_key[key]

    # -- selecting

    def _selects(self, index: Any) -> bool:
        parts = index if isinstance(index, tuple) else (index,)
        masks = any(isinstance(part, Tensor) and _is_mask(part) and self._is_unknown(part) for part in parts)
        return masks or any(rows_of(part) for part in parts)

    def _selected(self, tensor: Tensor, index: Any) -> Tensor:
        parts = list(index) if isinstance(index, tuple) else [index]
        masks = [place for place, part in enumerate(parts) if isinstance(part, Tensor) and _is_mask(part)]
        if not masks:
            return self._at_positions(tensor, parts)
        if len(masks) > 1 or any(
            isinstance(part, Tensor) for place, part in enumerate(parts) if place != masks[0]
        ):
            raise NotKept("it indexes by a mask and by another tensor at once; index in two steps")
        parts, place = _without_ellipsis(tensor, parts, masks[0])
        mask = parts[place]
        tensor = tensor[tuple([slice(None)] * place + [slice(None)] * mask.dim() + parts[place + 1 :])]
        if parts[:place] != [slice(None)] * place:
            raise NotKept("it indexes by a mask and by numbers before it; index in two steps")
        return self._taken(tensor, mask, place)

    def _taken(self, tensor: Tensor, mask: Tensor, dim: int) -> Tensor:
        """`tensor[mask]`, the mask being of the dims from `dim` on."""
        within = rows_of(mask)
        if within is not None and (rows_of(tensor) is None or mask.dim() > 1):
            raise NotKept("it selects by a mask of rows that a mask selects; select by one mask")
        held = self._rows_of(mask if within is None else torch.logical_and(mask, within.mask)).along(dim)
        rows = tensor.flatten(dim, dim + mask.dim() - 1) if mask.dim() > 1 else tensor
        # One that counts, in place of those that do not: whatever is computed of them is defined.
        one = rows.detach().index_select(dim, held.mask.to(torch.uint8).argmax().reshape(1))
        made = torch.where(held.holds(rows), rows, one)
        note_rows(made, held)
        return made

    def _positions(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Where a tensor is not zero: the coordinates of all its elements, of which some count."""
        tensor = args[0]
        held = self._rows_of(tensor)
        first = held.mask.to(torch.uint8).argmax()
        numbers = torch.where(held.mask, torch.arange(held.size), first)
        found = []
        for dim, size in enumerate(tensor.shape):
            coordinate = numbers.div(prod(tensor.shape[dim + 1 :]), rounding_mode="floor") % size
            note_rows(coordinate, held)
            found.append(coordinate)
        if function is torch.where or kwargs.get("as_tuple") or (len(args) > 1 and args[1]):
            return tuple(found)
        made = torch.stack(found, 1)
        note_rows(made, held)
        return made

    def _at_positions(self, tensor: Tensor, parts: list[Any]) -> Tensor:
        """`tensor[positions]`, of which some count."""
        if rows_of(tensor) is not None:
            raise NotKept("it selects twice by positions that are values; select by one mask")
        parts, place = _without_ellipsis(
            tensor, parts, next(i for i, part in enumerate(parts) if rows_of(part))
        )
        held = rows_of(parts[place])
        assert held is not None
        made = tensor[tuple(parts)]
        dims = [i for i, part in enumerate(parts) if isinstance(part, Tensor)]
        together = dims == list(range(dims[0], dims[0] + len(dims)))
        before = sum(not isinstance(part, int) for part in parts[: dims[0]]) if together else 0
        note_rows(made, held.along(before + held.dim))
        return made

    # -- writing

    def _write(self, tensor: Tensor, index: Any, value: Any) -> None:
        parts = list(index) if isinstance(index, tuple) else [index]
        place = next((i for i, part in enumerate(parts) if isinstance(part, Tensor)), None)
        if place is None:
            raise NotKept(
                "it writes rows that a mask selects to places of which there are as many; write them by the mask"
            )
        if not _is_mask(parts[place]):
            self._write_at(tensor, parts, value)
            return
        parts, place = _without_ellipsis(tensor, parts, place)
        mask = parts[place]
        view = tensor[tuple(parts[:place] + [slice(None)] * mask.dim() + parts[place + 1 :])]
        dim = sum(isinstance(part, slice) or part is None for part in parts[:place])
        shape = [1] * dim + list(mask.shape) + [1] * (view.dim() - dim - mask.dim())
        value = value.tensor if isinstance(value, Number) else value
        held = rows_of(value)
        if held is not None and held.key == self._recipe(mask) and held.dim == dim:
            value = value.reshape([*view.shape[:dim], *mask.shape, *view.shape[dim + mask.dim() :]])
        elif held is not None or _has_rows_of_its_own(value, view.dim() - mask.dim(), dim):
            value = self._in_order(view, mask, dim, value, held)
        elif isinstance(value, Tensor) and value.dim() > dim and value.dim() == view.dim() - mask.dim() + 1:
            value = value.reshape([*value.shape[:dim], *[1] * mask.dim(), *value.shape[dim + 1 :]])
        value = value if isinstance(value, Tensor) else torch.full((), value, dtype=view.dtype)
        view.copy_(torch.where(mask.reshape(shape), value.to(view.dtype), view))

    def _in_order(self, view: Tensor, mask: Tensor, dim: int, value: Tensor, held: Rows | None) -> Tensor:
        """Rows for the true elements of a mask, one after another, at the places of these."""
        if dim:
            raise NotKept("it writes by a mask that is not of the first dims; move them there")
        if held is not None:
            value = value.index_select(0, torch.argsort((~held.mask).to(torch.uint8), stable=True))
        place = (mask.reshape(-1).cumsum(0) - 1).clamp(0, value.shape[0] - 1)
        return value.index_select(0, place).reshape(view.shape)

    def _scattered(self, function: Any, tensor: Tensor, mask: Tensor, source: Tensor, held: Rows) -> Tensor:
        """`masked_scatter` of rows of which some count."""
        per_row = source.numel() // held.size
        counts = held.mask.reshape(-1, 1).expand(held.size, per_row).reshape(-1)
        order = torch.argsort((~counts).to(torch.uint8), stable=True)
        made: Tensor = function(tensor, mask, source.reshape(-1).index_select(0, order))
        return made

    def _write_at(self, tensor: Tensor, parts: list[Any], value: Any) -> None:
        """`tensor[positions] = value`: what changes is added, and nothing for positions that do not count."""
        if tensor.dtype == torch.bool:
            raise NotKept("it writes truth values to positions that are values; write them by a mask")
        before = tensor[tuple(parts)]
        held = next(held for part in parts if (held := rows_of(part)) is not None)
        value = value.tensor if isinstance(value, Number) else value
        change = (value if isinstance(value, Tensor) else torch.full_like(before, value)) - before
        parts, _ = _without_ellipsis(tensor, parts, 0)
        if parts[1:] and any(not isinstance(part, Tensor) for part in parts[:1]):
            raise NotKept(
                "it writes to positions that are values in another dim than the first; move it there"
            )
        index = tuple(
            part if isinstance(part, Tensor) else None for part in parts if isinstance(part, Tensor)
        )
        if len(index) != len([part for part in parts if part != slice(None) or isinstance(part, Tensor)]):
            raise NotKept("it writes to positions that are values and others at once; write in two steps")
        tensor.index_put_(index, held.filled(change.to(tensor.dtype), 0), accumulate=True)

    # -- sizes

    def _shape(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The shape of rows: as many as a value says."""
        tensor = args[0]
        held = rows_of(tensor)
        if held is None:
            return function(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            sizes: list[Any] = list(tensor.shape)
        sizes[held.dim] = held.count
        if function in (Tensor.numel, torch.numel):
            return held.count * prod(size for dim, size in enumerate(sizes) if dim != held.dim)
        if function is Tensor.__len__:
            if held.dim:
                return sizes[0]
            raise Undecided(f"the number of rows that a mask selects is a value; {KEEP_SHAPE}")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return tuple(sizes) if function is Tensor.shape.__get__ or dim is None else sizes[dim]

    def _with_sizes(self, args: Any, kwargs: Any) -> tuple[Any, Any, Rows | None]:
        """Arguments in which a number of rows is that of all of them; and which rows these are."""
        found: list[Rows] = []

        def size(leaf: Any) -> Any:
            if not isinstance(leaf, Number) or leaf.shift or id(leaf.base) not in self._sizes:
                return leaf
            found.append(next(rows for rows in self._by_key.values() if rows.count.base is leaf.base))
            return found[0].size

        if not any(isinstance(leaf, Number) for leaf in pytree.tree_leaves((args, kwargs))):
            return args, kwargs, None
        changed, changed_kwargs = pytree.tree_map(size, (args, kwargs))
        takes_sizes = not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(args[1:]))
        return (changed, changed_kwargs, found[0]) if found and takes_sizes else (args, kwargs, None)


_BY_MASK = (torch.masked_select, Tensor.masked_select)
_POSITIONS = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere)
_SHAPES = (Tensor.shape.__get__, Tensor.size, Tensor.numel, torch.numel, Tensor.__len__)


def _given(args: Any, kwargs: Any, place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8) and tensor.dim() > 0


def _without_ellipsis(tensor: Tensor, parts: list[Any], place: int) -> tuple[list[Any], int]:
    """An index with whole dims for an ellipsis, and where one of its parts is then."""
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    if not dots:
        return parts, place
    named = sum(
        part.dim()
        if isinstance(part, Tensor) and _is_mask(part)
        else part is not None and part is not Ellipsis
        for part in parts
    )
    whole = [slice(None)] * (tensor.dim() - named)
    made = parts[: dots[0]] + whole + parts[dots[0] + 1 :]
    return made, place + len(whole) - 1 if place > dots[0] else place


def _has_rows_of_its_own(value: Any, rest: int, dim: int) -> bool:
    """Whether a value has a row for each true element of a mask, and not one for all."""
    return isinstance(value, Tensor) and value.dim() == rest + 1 and value.shape[dim] != 1


def _is_comparable(leaf: Any) -> bool:
    return isinstance(
        leaf, Tensor | int | float | str | torch.dtype | torch.device | slice | type(None) | type(Ellipsis)
    )


def _comparable(leaf: Any) -> Any:
    return (type(leaf), leaf) if not isinstance(leaf, slice) else (slice, leaf.start, leaf.stop, leaf.step)
