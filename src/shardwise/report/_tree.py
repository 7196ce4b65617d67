"""The model as a tree of modules, with equal layers folded into one line.

A module lists its contents in the order of the schedule: parameters, calls with the redistributions before them,
and submodules at the position of their first call. Consecutive numbered modules with equal calls, shapes and layouts
become a group.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Module:
    name: str
    path: str
    inputs: list[int] = field(default_factory=list)
    items: "list[int | _Module]" = field(default_factory=list)
    children: "dict[str, _Module]" = field(default_factory=dict)

    def child(self, name: str) -> "_Module":
        if name not in self.children:
            self.children[name] = _Module(name, f"{self.path}.{name}" if self.path else name)
            self.items.append(self.children[name])
        return self.children[name]


def tree(
    name: str,
    modules: Sequence[str],
    inputs: Sequence[dict[str, Any]],
    entries: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Nested `{name, path, seconds, moving, calls, inputs, items}`; an item is the index of an entry, or a module.

    A group has `alike`, the number of modules in it.
    """
    root = _Module(name, "")
    for number, entry in enumerate(entries):
        _at(root, modules[entry["module"]]).items.append(number)
    for number, given in enumerate(inputs):
        _at(root, modules[given["module"]]).inputs.append(number)
    return _Shaper(inputs, entries).shape(root)[0]


def _at(root: _Module, path: str) -> _Module:
    module = root
    for part in path.split(".") if path else ():
        module = module.child(part)
    return module


class _Shaper:
    def __init__(self, inputs: Sequence[dict[str, Any]], entries: Sequence[dict[str, Any]]) -> None:
        self.inputs, self.entries = inputs, entries
        self.kinds: dict[Hashable, int] = {}

    def shape(self, module: _Module) -> tuple[dict[str, Any], int]:
        """A module's part of the tree, and an integer that is the same for equal modules."""
        shaped: list[Any] = []
        kind: list[Hashable] = [self._input_kind(number) for number in module.inputs]
        totals = {"seconds": 0.0, "moving": 0.0, "calls": 0}
        kinds: list[int] = []
        for item in module.items:
            if isinstance(item, int):
                entry = self.entries[item]
                totals["seconds"] += entry["seconds"]
                totals["moving"] += entry["seconds"] if "moved" in entry else 0.0
                totals["calls"] += "op" in entry
                shaped.append(item)
                kinds.append(-1)
                kind.append(self._entry_kind(entry))
            else:
                part, number = self.shape(item)
                for key in totals:
                    totals[key] += part[key]
                shaped.append(part)
                kinds.append(number)
                kind.append((None if item.name.isdigit() else item.name, number))
        made = {
            "name": module.name,
            "path": module.path,
            **totals,
            "inputs": module.inputs,
            "items": _grouped(shaped, kinds),
        }
        return made, self.kinds.setdefault(tuple(kind), len(self.kinds))

    def _input_kind(self, number: int) -> Hashable:
        given = self.inputs[number]
        return given["target"].rpartition(".")[2], *given["value"][1:]

    @staticmethod
    def _entry_kind(entry: dict[str, Any]) -> Hashable:
        if "moved" in entry:
            return (*entry["moved"][1:], entry["to"])
        tensors = tuple((tensor, layout) for _, tensor, layout in (*entry["inputs"], *entry["outputs"]))
        return entry["op"], entry["phase"], entry["rows"], entry["seconds"], tensors


def _grouped(items: Sequence[Any], kinds: Sequence[int]) -> list[Any]:
    """Groups consecutive numbered modules of one kind."""
    grouped: list[Any] = []
    first = 0
    while first < len(items):
        end = first + 1
        if not isinstance(items[first], int) and items[first]["name"].isdigit():
            while end < len(items) and kinds[end] == kinds[first] and items[end]["name"].isdigit():
                end += 1
        run = items[first:end]
        grouped.append(run[0] if len(run) == 1 else _group(run))
        first = end
    return grouped


def _group(run: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": f"{run[0]['name']} … {run[-1]['name']}",
        "path": f"{run[0]['path']} … {run[-1]['name']}",
        "alike": len(run),
        **{key: sum(module[key] for module in run) for key in ("seconds", "moving", "calls")},
        "inputs": [],
        "items": list(run),
    }
