"""Published training runs as the planner can express them: models, layouts, what was measured and what is predicted.

A run is predicted from its model, its layout and its cluster; nothing is fitted to it. Models are priced with a few
layers and with one more: what that adds, every further one adds, exactly. For memory, the first and the last layer must
be two; where every second layer is treated differently, two are added.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwise import Cluster
from shardwise.graph import Execution, Graph, capture
from shardwise.mesh import Device
from shardwise.planning import (
    NamedLayout,
    Part,
    Pass,
    Plan,
    Price,
    StepMemory,
    StepTime,
    parts_of,
    pipeline_held,
    pipeline_time,
    pipelined,
    price_plan,
    reserved_bytes,
    tensor_parallel_plans,
)

GIB = 2**30


# -- models


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder: Llama's (gated, rotary positions, RMS norms) or MPT's."""

    hidden: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    layers: int
    llama: bool = True
    tied: bool = False


LLAMA = {
    "llama3-8b": Shape(4096, 32, 8, 14336, 128256, 32),
    "llama3-70b": Shape(8192, 64, 8, 28672, 128256, 80),
    "llama3-405b": Shape(16384, 128, 8, 53248, 128256, 126),
    "llama2-7b": Shape(4096, 32, 32, 11008, 32000, 32),
    "llama2-13b": Shape(5120, 40, 40, 13824, 32000, 40),
}


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.hidden // shape.heads
        self.shape = shape
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key, self.value = (
            nn.Linear(shape.hidden, shape.groups * self.size, bias=False) for _ in range(2)
        )
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if turn is not None:
            query, key = rotated(query, *turn), rotated(key, *turn)
        grouped = self.shape.groups < self.shape.heads
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.out(found.transpose(1, 2).flatten(2))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.gate = nn.Linear(shape.hidden, shape.inner, bias=False) if shape.llama else None
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(inner)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = _norm(shape), _norm(shape)
        self.attention, self.mlp = Attention(shape), MLP(shape)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.mlp(self.mlp_norm(x))


def _norm(shape: Shape) -> nn.Module:
    return nn.RMSNorm(shape.hidden) if shape.llama else nn.LayerNorm(shape.hidden, bias=False)


class Decoder(nn.Module):
    """A language model with its loss in float32. Its caller may hold the logits, too, until the step is done."""

    def __init__(self, shape: Shape, positions: int, gives_logits: bool = False) -> None:
        super().__init__()
        self.gives_logits = gives_logits
        self.embed = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = None if shape.llama else nn.Embedding(positions, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight
        size = shape.hidden // shape.heads
        if shape.llama:
            for name in ("cosine", "sine"):
                self.register_buffer(name, torch.empty(positions, size))

    def forward(self, tokens: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.embed(tokens)
        turn = (self.cosine, self.sine) if self.places is None else None
        if self.places is not None:
            x = x + self.places.weight
        for layer in self.layers:
            x = layer(x, turn)
        logits = self.head(self.norm(x)).float()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        return (loss, logits.detach()) if self.gives_logits else loss


@cache
def graph_of(
    shape: Shape, samples: int, positions: int, execution: Execution, gives_logits: bool, split: bool
) -> Graph:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = Decoder(shape, positions, gives_logits)
            tokens = torch.empty(samples, positions, dtype=torch.int64)
    finally:
        torch.set_default_dtype(before)
    return capture(model, (tokens,), execution=execution, split_products=split)


@cache
def plans_of(
    shape: Shape,
    samples: int,
    positions: int,
    execution: Execution,
    layout: NamedLayout,
    cluster: Cluster,
    gives_logits: bool = False,
) -> list[Plan]:
    graph = graph_of(shape, samples, positions, execution, gives_logits, layout.split)
    return tensor_parallel_plans(graph, layout, layout.mesh, cluster, "adam+master")


# -- runs


@dataclass(frozen=True)
class Run:
    """A published run: how it was done, and the seconds of a step and bytes that were measured."""

    source: str
    name: str
    shape: Shape
    positions: int
    samples: int
    passes: int
    layout: NamedLayout
    cluster: Cluster
    execution: Execution
    seconds: float
    memory: float | None = None
    cell: str = ""  # runs of one model on as many devices, among which a layout is chosen
    cuts: tuple[int, ...] | None = None  # of a pipeline, where it is known how layers are divided
    gives_logits: bool = False

    @property
    def recomputes(self) -> bool:
        return self.layout.recompute != "none"

    @property
    def tokens(self) -> int:
        """Of a step, on all ranks of data parallelism."""
        return self.layout.dp * self.layout.fsdp * self.samples * self.passes * self.positions


@dataclass(frozen=True)
class Predicted:
    """Seconds by part of a step, and where memory was measured the bytes that torch's allocator reserves, and the
    `least`: what parameters, states and activations are when they are most."""

    time: StepTime
    bytes: float | None
    least: float = 0.0

    @property
    def seconds(self) -> float:
        return self.time.seconds

    def exceeds(self, memory: float) -> bool:
        """Whether so many bytes cannot be what this run took: they are clearly below the least."""
        return memory < 0.9 * self.least


def predict(run: Run) -> Predicted:
    """By the plan that is the fastest for all layers."""
    if run.layout.pp > 1:
        return _pipeline(run)
    made = [_predicted(run, number) for number in range(len(_plans(run, 2)))]
    return min(made, key=lambda each: each.seconds)


def _predicted(run: Run, number: int) -> Predicted:
    less, more = (1, 2) if run.memory is None else (2, 3)
    if run.layout.recompute == "alternate":
        less, more = 2, 4
    few, many = (_price(run, layers, number) for layers in (less, more))
    further = (run.shape.layers - less) / (more - less)

    def extended(one: object, other: object) -> dict[str, float]:
        first, second = vars(one), vars(other)
        return {name: first[name] + further * (second[name] - first[name]) for name in first}

    time = StepTime(**extended(few.time, many.time))
    if run.memory is None:
        return Predicted(time, None)
    pairs = zip(_ends(few), _ends(many), strict=True)
    memory = [StepMemory(**{name: round(part) for name, part in extended(*pair).items()}) for pair in pairs]
    least = max(each.parameters + each.states + each.activations for each in memory)
    return Predicted(time, reserved_bytes(run.layout, memory), least)


def _pipeline(run: Run) -> Predicted:
    (plan,) = _plans(run, 3)
    parts = parts_of(Pass(plan, overlap=run.layout.overlap), run.layout)
    return pipeline_of(run, parts, plan.cost.update, plan.optimizer)


def pipeline_of(run: Run, parts: tuple[Part, ...], update: float, optimizer: str) -> Predicted:
    """From the parts of a model with three blocks: those between the first and the last are as the second."""
    numbered = (
        tuple((f"{name} {number}", tensor) for name, tensor in parts[2].parameters)
        for number in range(run.shape.layers - 3)
    )
    whole = (*parts[:3], *(replace(parts[2], parameters=named) for named in numbered), *parts[3:])
    update *= _numel(whole) / _numel(parts)
    layout = run.layout
    line = pipelined(whole, layout, layout.mesh, run.cluster, run.passes, update, optimizer, run.cuts)
    # The memory that was published is that of the first rank: runs of one micro-batch have less than the logits take.
    first = pipeline_held(line)[0].memory
    least = first.parameters + first.states + first.activations
    known = run.memory is not None and run.cuts is not None
    reserved = reserved_bytes(layout, [first]) if known else None
    return Predicted(pipeline_time(line), reserved, least)


def _numel(parts: Iterable[Part]) -> int:
    return sum(tensor.numel for tensor in {name: t for part in parts for name, t in part.parameters}.values())


def _ends(price: Price) -> list[StepMemory]:
    """What is held outside of blocks, and in the first and the last block, forward and backward."""
    blocks = list(dict.fromkeys(each.block for each in price.held if each.block))
    places = ((block, backward) for block in (blocks[0], blocks[-1]) for backward in (False, True))
    inside = (each.memory for place in places for each in price.held if (each.block, each.backward) == place)
    return [*(each.memory for each in price.held if not each.block), *inside]


def _price(run: Run, layers: int, number: int) -> Price:
    return price_plan(
        _plans(run, layers)[number],
        layout=run.layout,
        cluster=run.cluster,
        samples=run.samples,
        passes=run.passes,
    )


def _plans(run: Run, layers: int) -> list[Plan]:
    alone = NamedLayout(tp=run.layout.tp, sequence=run.layout.sequence, split=run.layout.split)
    shape = replace(run.shape, layers=layers)
    given = run.samples, run.positions, run.execution, alone, run.cluster, run.gives_logits
    return plans_of(shape, *given)


# -- where they are from


def named_runs(folder: Path) -> Iterator[Run]:
    """Runs of torchtitan on one pipeline stage, in bfloat16."""
    recompute = {"selective-op": "selective", "selective-layer": "alternate"}
    compiled: dict[bool, Execution] = {True: "regional", False: "compiled"}  # until 2025, the loss was eager
    clusters = {"h100-meta": "h100-meta", "a100-80": "a100"}
    for row in _rows(folder / "named_runs.csv"):
        if row["pp"] != "1" or row["cp"] != "1" or "float8" in row["source"]:
            continue
        fsdp, tp, seq, local = (int(row[name]) for name in ("fsdp", "tp", "seq", "local_batch"))
        layout = NamedLayout(
            fsdp=fsdp,
            tp=tp,
            zero=3,
            sequence=tp > 1,
            reshard="kept gathered" not in row["source"],
            recompute=recompute.get(row["recompute"], row["recompute"]),  # type: ignore[arg-type]
            reduce="float32",
        )
        tokens = int(row["global_batch"]) * seq
        yield Run(
            row["source"].split(" (")[0],
            row["id"],
            LLAMA[row["model"]],
            seq,
            local,
            1,
            layout,
            Cluster.preset(clusters[row["gpu"]]),
            compiled["torchtitan 2024" in row["source"]] if row["execution"] == "compile" else "eager",
            tokens / (float(row["tok_s_gpu"]) * int(row["gpus"])),
            float(row["mem_gib"]) * GIB if row["mem_gib"] else None,
            # Until June 2024 (torchtitan's pull request 391) its loop held the logits, in float32, through backward.
            gives_logits="2024-03" in row["source"],
        )


def schedule_runs(folder: Path) -> Iterator[Run]:
    """Runs of torchtitan in pipelines, which differ in the schedule alone.

    By default there are as many micro-batches as ranks in the pipeline, and two stages a rank if they are interleaved.
    Parameters stay gathered and gradients are accumulated for the whole step, as with `zero=1`. Products in float8 are
    priced as in bfloat16: all parts of a step are longer alike.
    """
    for row in _rows(folder / "named_runs.csv"):
        pp, fsdp, tp, seq, local = (int(row[name]) for name in ("pp", "fsdp", "tp", "seq", "local_batch"))
        if pp == 1:
            continue
        interleaved = "interleaved" in row["source"]
        layout = NamedLayout(
            pp=pp,
            fsdp=fsdp,
            tp=tp,
            zero=1,
            sequence=tp > 1,
            recompute=row["recompute"],  # type: ignore[arg-type]
            reduce="float32",
            schedule="Interleaved1F1B" if interleaved else "1F1B",
            stages=2 if interleaved else 1,
        )
        shape, count = LLAMA[row["model"]], pp * layout.stages
        each, more = divmod(shape.layers + 2, count)  # the embedding and the head count as a layer each
        yield Run(
            row["source"].split(" (")[0],
            row["id"],
            shape,
            seq,
            local // pp,
            pp,
            layout,
            Cluster.preset("h100-meta"),
            "regional",
            int(row["global_batch"]) * seq / (float(row["tok_s_gpu"]) * int(row["gpus"])),
            float(row["mem_gib"]) * GIB if row["mem_gib"] else None,
            cuts=tuple(number * each + min(number, more) for number in range(count + 1)),
        )


def fsdp_runs(folder: Path) -> Iterator[Run]:
    """Runs of MPT under FSDP in bfloat16."""
    for row in _rows(folder / "fsdp_mpt.csv"):
        if "fp8" in row["precision"]:
            continue
        hidden, heads = int(row["d_model"]), int(row["n_heads"])
        shape = Shape(hidden, heads, heads, 4 * hidden, 50368, int(row["n_layers"]), llama=False)
        layout = NamedLayout(
            fsdp=int(row["gpus"]),
            zero=3,
            reshard=row["sharding"] != "SHARD_GRAD_OP",
            recompute="full" if row["act_ckpt"] == "True" else "none",
            reduce="float32" if row["mp_mode"] == "DEFAULT" else None,
        )
        tokens = int(row["global_bs"]) * int(row["seq_len"])
        yield Run(
            f"llm-foundry, {row['gpu'].split('_')[0].upper()} {row['gpu'].split('_')[1][:2]} GB",
            f"{row['model']} {row['seq_len']} x {row['micro_bs']} on {row['gpus']}",
            shape,
            int(row["seq_len"]),
            int(row["micro_bs"]),
            int(row["grad_accum"]),
            layout,
            _mpt_cluster(row["gpu"]),
            "eager",
            tokens / (float(row["tok_s_gpu"]) * int(row["gpus"])),
        )


# FlashAttention of 2023 did not use the instructions that Hopper added: on an H100 it takes so many times as long as
# the kernels of today, which the preset has. Found from the runs with recomputing, and used for those without.
OLD_ATTENTION = 3.2


@cache
def _mpt_cluster(gpu: str) -> Cluster:
    """The A100 of 40 GB has slower memory than that of 80 GB: 1,555 of 2,039 GB/s."""
    cluster = Cluster.preset(gpu.split("_")[0])
    device = cluster.device
    if gpu == "a100_40gb":
        device = replace(device, memory=40e9, memory_bandwidth=1555e9)
    elif gpu == "h100_80gb":
        device = _with_old_attention(device)
    return replace(cluster, name=gpu, device=device)


def _with_old_attention(device: Device) -> Device:
    def slower(shares: Mapping[str, float]) -> dict[str, float]:
        return {
            kind: share / OLD_ATTENTION if "attention" in kind else share for kind, share in shares.items()
        }

    return replace(device, efficiency=slower(device.efficiency), exposed=slower(device.exposed))


def grid_runs(folder: Path) -> Iterator[Run]:
    """Layouts of two models in nanotron; those far below the best of their cell are unreliable."""
    rows = [row for row in _rows(folder / "layouts_h100.csv") if row["tok_s_gpu"]]
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        cell = row["model"], row["gpus"]
        best[cell] = max(best.get(cell, 0.0), float(row["tok_s_gpu"]))
    for row in rows:
        if float(row["tok_s_gpu"]) < best[row["model"], row["gpus"]] / 2:
            continue
        names = ("hidden", "heads", "heads", "ffn", "vocab", "layers")
        shape = Shape(*(int(row[name]) for name in names), tied=row["variant"] == "tied")
        pp, dp, tp, passes = (int(row[name]) for name in ("pp", "dp", "tp", "grad_acc"))
        zero, many = int(row["zero"]) if dp > 1 else 0, tp > 1
        layout = NamedLayout(
            pp=pp,
            dp=dp,
            tp=tp,
            zero=zero,
            sequence=many,
            overlap=many,
            reduce="float32",
            schedule="1F1B" if passes >= pp else "GPipe",  # the same order, if one micro-batch is all
        )
        batch = dp * int(row["mbs"]) * passes  # a few rows have less than the 256 of the others
        tokens = batch * int(row["seq_len"])
        yield Run(
            "nanotron",
            f"{row['model']} {f'pp={pp},' if pp > 1 else ''}dp={dp},tp={tp},zero={row['zero']} x {row['mbs']}",
            shape,
            int(row["seq_len"]),
            int(row["mbs"]),
            passes,
            layout,
            Cluster.preset("h100-efa"),
            "eager",
            tokens / (float(row["tok_s_gpu"]) * int(row["gpus"])),
            float(row["mem_gb"]) * GIB if row["mem_gb"] else None,
            f"{row['model']} on {row['gpus']}",
            nanotron_cuts(shape, pp) if pp > 1 else None,
        )


def nanotron_cuts(shape: Shape, ranks: int) -> tuple[int, ...] | None:
    """Layers as nanotron divides them: a block goes to the next rank where the products so far are more than the
    rank's share of all. The embedding counts nothing, the head as a product. None where the loss alone would be left
    for the last rank."""
    layer = (4 * shape.hidden + 3 * shape.inner) * shape.hidden
    costs = [0, *[layer] * shape.layers, shape.vocabulary * shape.hidden]
    cuts, done = [0], 0
    for place, cost in enumerate(costs):
        done += cost
        if len(cuts) < ranks and done > sum(costs) * len(cuts) / ranks:
            cuts.append(place)
    return (*cuts, len(costs)) if len(cuts) == ranks else None


READERS = {"named": named_runs, "fsdp": fsdp_runs, "grid": grid_runs}


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))
