"""A tour of Shardwise in one minute: `make demo`.

It discovers how an operator may be sharded, refutes a claim, plans a small transformer on a 2 x 2 mesh, compares a run
of the plan on simulated ranks with the unsharded model, and writes the plan as an HTML page.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import shardwise as sw
from shardwise.report import plan_page

console = Console(width=100, highlight=False)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.after, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int = 3, width: int = 256, words: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def build() -> tuple[nn.Module, tuple[Tensor, Tensor], dict[str, Any]]:
    """The model and a batch, for `shardwise plan examples/demo.py:build`."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 512, (8, 64))
    return Transformer(), (tokens, tokens.roll(-1, 1)), {}


def main(folder: Path) -> None:
    console.rule("1. How may torch.mm be sharded?")
    found = sw.discover(torch.mm, torch.rand(4, 6), torch.rand(6, 8))
    table = Table("row", "holds for shards", "experiments passed")
    for row, evidence in found.evidence.items():
        table.add_row(str(row), row.shards, str(evidence.total()))
    console.print(table)
    console.print(
        f"{found.combinations} claims in {found.experiments} experiments, {found.seconds:.2f} CPU seconds"
    )

    console.rule("2. Why not abs of a partial sum?")
    verdict = sw.check(torch.abs, "P(sum) -> P(sum)", torch.rand(4, 6))
    assert verdict.counterexample is not None
    console.print(verdict.counterexample.shown())

    console.rule("3. How should this transformer be trained on 2 x 2 devices of 26 MB?")
    model, batch, _ = build()
    plan = sw.plan(model, batch, mesh="dp=2,tp=2", cluster="laptop", memory="26MB", time_limit=300)
    console.print(plan.summary(most=3))

    console.rule("4. Does the plan compute what the model computes?")
    console.print(str(sw.verify(model, batch, plan=plan, steps=2)))

    console.rule("5. What does it look like?")
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "demo.html"
    page.write_text(plan_page(plan))
    plan.save(folder / "demo.json")
    console.print(f"the plan as a page: {page.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build"))
