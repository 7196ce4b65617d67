"""Pins: layouts that the user wants for inputs, outputs, parameters and values in between.

A pin names what it holds by a pattern (`layers.*.weight`, the name of an input or an output, the name of a node) and
says a layout, for every axis (`"S(0), R"`) or for some (`{"dp": "S(0)"}`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..graph import Graph
from ..layout import Layout
from ..mesh import Mesh
from ..placements import is_shard, parse_placement, placement_text
from ._choices import Layouts

Pin = str | Layout | Mapping[str, str | Placement] | Sequence[Placement]


@dataclass
class Pins:
    mesh: Mesh
    pins: Mapping[str, Pin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._wanted = {pattern: self._read(pattern, pin) for pattern, pin in self.pins.items()}

    @property
    def texts(self) -> dict[str, str | dict[str, str]]:
        """The pins as plain text, which says the same when read again."""
        return {pattern: self._text(pin) for pattern, pin in self.pins.items()}

    def _text(self, pin: Pin) -> str | dict[str, str]:
        if isinstance(pin, Mapping):
            return {axis: p if isinstance(p, str) else placement_text(p) for axis, p in pin.items()}
        return str(pin if isinstance(pin, str | Layout) else Layout(self.mesh, tuple(pin)))

    def _read(self, pattern: str, pin: Pin) -> dict[int, Placement]:
        """The wanted placement on each axis that the pin speaks of."""
        try:
            if isinstance(pin, Mapping):
                return {
                    self.mesh.index(axis): parse_placement(p if isinstance(p, str) else placement_text(p))
                    for axis, p in pin.items()
                }
            if isinstance(pin, Layout):
                if pin.mesh != self.mesh:
                    raise UsageError(f"it is a layout on mesh {pin.mesh}, and the plan is for {self.mesh}")
                placed = pin
            elif isinstance(pin, str):
                placed = Layout.parse(pin, self.mesh)
            else:
                placed = Layout(self.mesh, tuple(pin))
        except UsageError as error:
            raise UsageError(f"pin {pattern!r}: {error}") from None
        return dict(enumerate(placed.to_placements()))

    def require_all_used(self, graph: Graph) -> None:
        """Refuse pins that hold nothing, and those that cannot be."""
        names: dict[str, tuple[int, ...]] = {}
        for entry in graph.inputs:
            names |= dict.fromkeys((entry.target, *entry.aliases), entry.tensor.shape)
        for output in graph.outputs:
            if output.role == "user_output" and output.value is not None:
                names[output.target] = graph.tensor(output.value).shape
        for node in graph.nodes:
            if node.outputs and node.outputs[0] is not None:
                names[node.name] = node.outputs[0].shape
        for pattern, wanted in self._wanted.items():
            matched = [name for name in names if fnmatchcase(name, pattern)]
            if not matched:
                known = ", ".join(sorted(i.target for i in graph.inputs if i.role != "tangent")[:8])
                raise UsageError(
                    f"pin {pattern!r} matches no parameter, input, output or node of {graph.name}: "
                    f"there are {known}, ..."
                )
            for name in matched:
                for placement in wanted.values():
                    if is_shard(placement) and placement.dim >= len(names[name]):
                        raise UsageError(
                            f"pin {pattern!r} shards dim {placement.dim} of {name}, "
                            f"which has shape {names[name]}"
                        )

    def allowed(
        self, name: str, options: np.ndarray, layouts: Layouts, aliases: Sequence[str] = ()
    ) -> np.ndarray | None:
        """Which of these layouts the pins allow for what is called so; None if no pin speaks of it."""
        mask: np.ndarray | None = None
        for pattern, wanted in self._wanted.items():
            if any(fnmatchcase(n, pattern) for n in (name, *aliases)):
                fits = np.array(
                    [
                        all(layouts.all[number].to_placements()[axis] == p for axis, p in wanted.items())
                        for number in options.tolist()
                    ]
                )
                mask = fits if mask is None else mask & fits
        return mask
