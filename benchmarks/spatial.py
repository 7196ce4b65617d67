"""Images sharded by rows of pixels: plans of a U-Net and of ConvNeXt whose convolutions exchange halos.

    python benchmarks/spatial.py [--size 2048] [--cluster h100] [--json FILE]

One image, training, on 1 to 8 ranks: a step, what it holds at most on a rank, and how many of the convolutions (forward
and backward) exchange halos. Then tiny models with random plans in which convolutions, norms and pooling communicate
wherever they are sharded, each verified on simulated ranks.
"""

import argparse
from itertools import pairwise

import torch
from record import Record, takes_json
from torch import Tensor, nn

import shardwise as sw
from shardwise.calls import Call
from shardwise.forms import is_communicating
from shardwise.graph import capture
from shardwise.placements import Row
from shardwise.planning import Offers, plan_graph, random_plan
from shardwise.rules import offered_rows


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.silu(self.first(nn.functional.silu(self.norm(x)))))


class UNet(nn.Module):
    """Halved three times by convolutions, doubled again by transposed ones, with what was kept beside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(4)]
        pairs = list(pairwise(widths))
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(Block(one, one) for one, _ in pairs)
        self.halve = nn.ModuleList(nn.Conv2d(one, two, 3, stride=2, padding=1) for one, two in pairs)
        self.middle = Block(widths[-1], widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(two, one, 2, stride=2) for one, two in reversed(pairs))
        self.up = nn.ModuleList(Block(2 * one, one) for one, _ in reversed(pairs))
        self.end = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x, kept = self.begin(image), []
        for block, halve in zip(self.down, self.halve, strict=True):
            x = x + block(x)
            kept.append(x)
            x = halve(x)
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), kept.pop()], 1))
        return (self.end(x) - target).square().mean()


def unet(size: int, tiny: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    image = torch.randn(1, 3, size, size)
    return UNet(4 if tiny else 64), {"image": image, "target": torch.randn_like(image)}


def convnext(size: int, tiny: bool) -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = {"hidden_sizes": [4, 8, 8, 8], "depths": [1, 1, 1, 1]} if tiny else {}
    model = ConvNextForImageClassification(ConvNextConfig(image_size=size, num_labels=4, **sizes))
    labels = torch.zeros(1, dtype=torch.int64)
    return model, {"pixel_values": torch.randn(1, 3, size, size), "labels": labels}


MODELS = {"U-Net": unet, "ConvNeXt-T": convnext}
ALONG = ("convolution", "group_norm", "pool2d")


def communicating(call: Call) -> list[Row] | None:
    rows = offered_rows(call)
    if rows is None or not any(name in call.name for name in ALONG):
        return rows
    return [row for row in rows if is_communicating(row.local)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--plans", type=int, default=2, help="random plans on each mesh")
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    columns = {
        "model": "",
        "ranks": "{}",
        "step": "{:.1f} ms",
        "peak": "{:.2f} GB",
        "halos": "",
        "sent": "{:.1f} MB",
    }
    table = record.sheet(f"One image of {options.size} x {options.size}, {options.cluster}", columns)
    for name, build in MODELS.items():
        with torch.device("meta"):
            model, kwargs = build(options.size, tiny=False)
        graph = capture(model, (), kwargs)
        convolutions = [node for node in graph.nodes if "convolution" in node.op]
        for ranks in (1, 2, 4, 8):
            plan = plan_graph(
                graph, mesh=f"sp={ranks}", cluster=options.cluster, compare=False, confirm=False
            )
            halos = sum(plan.choices[node.name].local == "halo" for node in convolutions)
            sent = sum(plan.cost.bytes_per_axis.values()) / 1e6
            table.add(
                *(name, ranks, plan.cost.seconds * 1e3, plan.cost.peak / 1e9),
                *(f"{halos} of {len(convolutions)}", sent),
            )
    columns = {"model": "", "mesh": "`{}`", "plans": "{}", "verified": "{}", "communicating": "{}"}
    table = record.sheet("Random plans of tiny models", columns)
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model, kwargs = build(32, tiny=True)
        graph = capture(model, (), kwargs)
        for mesh in ("sp=2", "sp=3", "sp=4", "dp=2,sp=2"):
            offers = Offers(graph, known=communicating)
            plans = [random_plan(graph, mesh=mesh, seed=seed, offers=offers) for seed in range(options.plans)]
            right = sum(sw.verify(model, (), kwargs, plan=plan, only_plan=True).ok for plan in plans)
            talking = sum(
                is_communicating(choice.local) for plan in plans for choice in plan.choices.values()
            )
            table.add(name, mesh, len(plans), right, talking)


if __name__ == "__main__":
    main()
