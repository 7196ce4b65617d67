"""Named layouts: what people already run, as text, such as `dp=2,fsdp=8,tp=2,sequence,micro_batch=1,recompute=full`.

| word | meaning |
| --- | --- |
| `pp=N` | N ranks of a pipeline, each of which has some of the layers |
| `schedule=NAME` | with `pp`: a schedule of torch's: `1F1B`, `GPipe`, `Interleaved1F1B` and others |
| `stages=N` | with `pp`: stages of each rank; 1 for `1F1B` and `GPipe`, else 2 unless said |
| `dp=N` | N replicas of the parameters, whose gradients are summed |
| `fsdp=N` | N ranks that share parameters, gradients and the optimizer's states (`zero` says which of them) |
| `tp=N` | tensor parallelism: the products of a layer are cut among N ranks |
| `sequence` | with `tp`: what lies between the products is cut along the sequence |
| `split` | with `sequence`: products are split against the collectives beside them, where that is faster |
| `overlap` | with `tp`: its collectives of backward run beside the products that make gradients of weights |
| `zero=0..3` | what the ranks of `fsdp` (else of `dp`) share: nothing, the states, gradients too, parameters too |
| `reshard=no` | with `zero=3`: parameters stay gathered from forward to backward, instead of being gathered twice |
| `micro_batch=N` | samples of one pass on a rank; a step has as many passes as the batch needs |
| `recompute` | what backward computes again: `none`, `selective`, `alternate` blocks, or `full` |
| `reduce=DTYPE` | the dtype in which gradients are accumulated and summed over ranks; by default their own |
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch

from ..dtensor import SCHEDULES, stage_ranks
from ..errors import UsageError, require
from ..mesh import Mesh

Recompute = Literal["none", "selective", "alternate", "full"]

AXES = ("pp", "dp", "fsdp", "tp")  # the outermost first
_SWITCHES = ("sequence", "split", "overlap", "reshard")
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class NamedLayout:
    """A named layout, as the words of the language say it.

    >>> NamedLayout.parse("fsdp=8, tp=2, sequence")
    NamedLayout.parse('fsdp=8,tp=2,zero=3,sequence')
    """

    pp: int = 1
    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    zero: int = 0
    micro_batch: int | None = None
    sequence: bool = False
    split: bool = False
    overlap: bool = False
    reshard: bool = True
    recompute: Recompute = "none"
    reduce: str | None = None
    schedule: str = "1F1B"
    stages: int = 1

    def __post_init__(self) -> None:
        for name in (*AXES, "micro_batch", "stages"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise UsageError(f"a layout has {name}={size}: it must be at least 1")
        self._check_pipeline()
        if not 0 <= self.zero <= 3:
            raise UsageError(f"a layout has zero={self.zero}: it must be 0, 1, 2 or 3")
        if self.fsdp > 1 and self.zero == 0:
            raise UsageError(f"fsdp={self.fsdp} with zero=0 shares nothing: write dp={self.fsdp}")
        for name in ("sequence", "overlap"):
            if getattr(self, name) and self.tp == 1:
                raise UsageError(f"{name} needs tensor parallelism: add tp=2 or more")
        if self.split and not self.sequence:
            raise UsageError("split needs what lies between products to be sharded: add sequence")
        if not self.reshard and self.zero < 3:
            raise UsageError("reshard=no is for parameters that are sharded: add zero=3")
        if self.recompute not in get_args(Recompute):
            known = ", ".join(get_args(Recompute))
            raise UsageError(f"unknown recompute {self.recompute!r}: use one of {known}")
        if self.reduce is not None and self.reduce not in _DTYPES:
            raise UsageError(f"unknown dtype of reduce {self.reduce!r}: use one of {', '.join(_DTYPES)}")

    def _check_pipeline(self) -> None:
        if self.pp == 1:
            for name, plain in (("schedule", "1F1B"), ("stages", 1)):
                if (given := getattr(self, name)) != plain:
                    raise UsageError(f"{name}={given} needs a pipeline: add pp=2 or more")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"unknown schedule {self.schedule!r}: use one of {', '.join(SCHEDULES)}")
        try:
            stage_ranks(self.schedule, self.pp, self.pp * self.stages)
        except UsageError:
            right = 2 if self.stages == 1 else 1
            raise UsageError(
                f"schedule={self.schedule} cannot have stages={self.stages} on a rank: write stages={right}"
            ) from None

    @classmethod
    def of(cls, layout: "NamedLayout | str") -> "NamedLayout":
        return layout if isinstance(layout, NamedLayout) else cls.parse(layout)

    @classmethod
    def parse(cls, text: str) -> "NamedLayout":
        require(text, str, "layout", "text such as 'fsdp=8,tp=2,micro_batch=1'")
        given: dict[str, Any] = {}
        try:
            for part in filter(None, map(str.strip, text.split(","))):
                name, equals, value = (word.strip() for word in part.partition("="))
                if name in given:
                    raise UsageError(f"{name} occurs twice: give it once")
                given[name] = _value(name, value, bool(equals))
            if given.get("fsdp", 1) > 1:
                given.setdefault("zero", 3)
            if given.get("schedule") in SCHEDULES[2:]:
                given.setdefault("stages", 2)
            return cls(**given)
        except UsageError as error:
            raise UsageError(f"layout {text!r}: {error}") from None

    @property
    def mesh(self) -> Mesh:
        """Its axes that have several ranks, the outermost first; `dp=1` if there are none."""
        sizes = {name: getattr(self, name) for name in AXES if getattr(self, name) > 1} or {"dp": 1}
        return Mesh(tuple(sizes), tuple(sizes.values()))

    @property
    def ranks(self) -> int:
        return self.pp * self.dp * self.fsdp * self.tp

    @property
    def sharding_axis(self) -> str | None:
        """The axis whose ranks share what `zero` says."""
        if self.zero == 0:
            return None
        return next((name for name in ("fsdp", "dp") if getattr(self, name) > 1), None)

    @property
    def shards(self) -> int:
        return 1 if self.sharding_axis is None else int(getattr(self, self.sharding_axis))

    @property
    def summing_axis(self) -> str | None:
        """The axis whose ranks hold replicas of what each of them has."""
        return "dp" if self.dp > 1 and self.sharding_axis != "dp" else None

    @property
    def reduce_dtype(self) -> torch.dtype | None:
        return None if self.reduce is None else getattr(torch, self.reduce)

    def __str__(self) -> str:
        plain = NamedLayout()
        words = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == getattr(plain, field.name):
                continue
            switch = field.name if value is True else f"{field.name}=no"
            words.append(switch if field.name in _SWITCHES else f"{field.name}={value}")
        return ",".join(words) or "dp=1"

    def __repr__(self) -> str:
        return f"NamedLayout.parse({str(self)!r})"


def _value(name: str, value: str, given: bool) -> Any:
    known = [field.name for field in fields(NamedLayout)]
    if name not in known:
        raise UsageError(f"unknown word {name!r}: use {', '.join(known[:-1])} or {known[-1]}")
    if name in _SWITCHES:
        if given and value not in ("yes", "no"):
            raise UsageError(f"{name}={value} is not of the form {name}, {name}=yes or {name}=no")
        return value != "no"
    examples = {"recompute": "full", "reduce": "float32", "schedule": "Interleaved1F1B"}
    if name in examples:
        if not value:
            raise UsageError(f"{name} needs a value, such as {name}={examples[name]}")
        return value
    if not value.isdecimal():
        raise UsageError(
            f"{name}={value} is not a number: write {name}=2" if given else f"{name} needs a number"
        )
    return int(value)


def mesh_of(layout: NamedLayout, mesh: Mesh | None) -> Mesh:
    """The mesh of a layout: its own, or the given one's order of axes, which are matched by name, else by position."""
    own = layout.mesh
    if mesh is None:
        return own
    long = [(name, size) for name, size in zip(mesh.names, mesh.shape, strict=True) if size > 1]
    sizes = dict(zip(own.names, own.shape, strict=True))
    if dict(long) == sizes:
        return Mesh(tuple(name for name, _ in long), tuple(size for _, size in long))
    if tuple(size for _, size in long) == tuple(size for size in own.shape if size > 1):
        return own
    raise UsageError(f"mesh {mesh} does not fit layout {layout}: give the mesh {own}, or leave it out")
