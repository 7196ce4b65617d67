"""What loading a checkpoint of 8B parameters takes on each of 8 ranks: bytes read, and host memory at its peak.

The checkpoint is made up: sparse safetensors files of the size of Llama 3.1 8B in bfloat16, with an index, which take
no space on disk. Every rank is a process that reads its pieces as `parallelize(..., checkpoint=)` does, one rank after
the other.

    python benchmarks/checkpoint.py
"""

import argparse
import json
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from record import Record, takes_json
from torch import nn

from shardwise.graph import capture
from shardwise.layout import Layout
from shardwise.mesh import Mesh
from shardwise.planning import Plan, random_plan
from shardwise.running import Checkpoint, loaded_state

LAYERS, WIDTH, HIDDEN, HEADS, GROUPS, VOCABULARY = 32, 4096, 14336, 32, 8, 128256
MESH = "fsdp=2,tp=4"
FILES = 4


class Weights(nn.Module):
    """The parameters of Llama 3.1 8B under their names; it computes no more than what makes all of them part of it."""

    def __init__(self) -> None:
        super().__init__()
        rows = WIDTH // HEADS * GROUPS
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.model.layers = nn.ModuleList()
        for _ in range(LAYERS):
            layer = nn.Module()
            layer.self_attn, layer.mlp = nn.Module(), nn.Module()
            for name, out in (("q_proj", WIDTH), ("k_proj", rows), ("v_proj", rows), ("o_proj", WIDTH)):
                setattr(layer.self_attn, name, nn.Linear(WIDTH, out, bias=False))
            layer.mlp.gate_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
            layer.mlp.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False)
            layer.mlp.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)
            layer.input_layernorm = nn.RMSNorm(WIDTH)
            layer.post_attention_layernorm = nn.RMSNorm(WIDTH)
            self.model.layers.append(layer)
        self.model.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + sum(parameter.reshape(-1)[0] for parameter in self.parameters())


def planned() -> Plan:
    """A plan of the weights: sharded over both axes, along the dims by which Megatron-LM cuts them."""
    with torch.device("meta"):
        model = Weights().bfloat16()
    graph = capture(model, (torch.empty((), dtype=torch.bfloat16),), training=False)
    plan, mesh = random_plan(graph, mesh=MESH, replicated=1.0), Mesh.parse(MESH)
    layouts = {
        entry.name: Layout.parse(_layout(entry.target), mesh)
        if entry.role == "parameter"
        else plan.inputs[entry.name]
        for entry in graph.inputs
    }
    return replace(plan, inputs=layouts)


def _layout(name: str) -> str:
    if "norm" in name:
        return "S(0), R"
    return "S(0), S(1)" if "o_proj" in name or "down_proj" in name else "S(1), S(0)"


def write_sparse(plan: Plan, folder: Path) -> int:
    """Files of the right sizes, without values; their bytes."""
    entries = [entry for entry in plan.graph.inputs if entry.role == "parameter"]
    total, where = 0, {}
    for number in range(FILES):
        header: dict[str, Any] = {}
        at = 0
        for entry in entries[number::FILES]:
            size = entry.tensor.numel * 2
            header[entry.target] = {
                "dtype": "BF16",
                "shape": list(entry.tensor.shape),
                "data_offsets": [at, at + size],
            }
            at += size
            where[entry.target] = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / f"model-{number + 1:05}-of-{FILES:05}.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + at)
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return total


def load(plan: Plan, rank: int, folder: Path) -> dict[str, float]:
    """One rank's load, in a process of its own: bytes of its pieces, bytes read, and its memory at the peak."""
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        checkpoints: list[Checkpoint] = []
        plain = Checkpoint.piece

        def piece(checkpoint: Checkpoint, *args: Any) -> torch.Tensor:
            checkpoints[:] = [checkpoint]
            return plain(checkpoint, *args)

        Checkpoint.piece = piece  # type: ignore[method-assign, assignment]
        begun, before, peaks = time.process_time(), _memory(), [0, 0]

        def watch() -> None:
            while True:
                peaks[:] = map(max, peaks, _memory())
                time.sleep(0.002)

        threading.Thread(target=watch, daemon=True).start()
        state = loaded_state(*(plan, rank, "cpu", folder, None), may_lack=False, persistent=lambda name: True)
        told = {
            "pieces": sum(tensor.nbytes for tensor in state.values()),
            "read": checkpoints[0].read,
            "own": max(peaks[0], _memory()[0]) - before[0],
            "mapped": peaks[1] - before[1],
            "cpu": time.process_time() - begun,
        }
        os.write(sending, json.dumps(told).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        told = json.loads(pipe.read())
    os.waitpid(process, 0)
    return told


def _memory() -> tuple[int, int]:
    """Bytes that the process itself holds, and those of files that are mapped, which the system may drop."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return int(found["RssAnon"]) * 1024, int(found["RssFile"]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    plan = planned()
    columns = dict.fromkeys(("pieces GB", "read GB", "own peak GB", "mapped GB"), "{:.3f}")
    sheet = record.sheet("", {"rank": "", **columns, "CPU s": "{:.1f}"})
    with tempfile.TemporaryDirectory() as folder:
        total = write_sparse(plan, Path(folder))
        for rank in range(plan.mesh.ranks):
            told = load(plan, rank, Path(folder))
            sizes = (told[name] / 1e9 for name in ("pieces", "read", "own", "mapped"))
            sheet.add(str(rank), *sizes, told["cpu"])
    count = sum(entry.tensor.numel for entry in plan.graph.with_role("parameter"))
    record.say(f"The checkpoint has {count / 1e9:.2f}B parameters, {total / 1e9:.2f} GB; the mesh is {MESH}.")
    largest = max(entry.tensor.numel for entry in plan.graph.with_role("parameter")) * 2
    record.say(
        "The own peak is what a process holds itself, seen every 2 ms. Mapped are pages of the files, which the system "
        f"may drop and ranks of one machine share. The largest tensor has {largest / 1e9:.2f} GB."
    )


if __name__ == "__main__":
    main()
