"""What small collectives that run as one save: baselines of models with many small parameters, overlapped.

    python benchmarks/buckets.py

Predicted steps of training on H100s: every collective by itself, and the small ones in buckets.
"""

import argparse
from collections.abc import Iterator
from unittest.mock import patch

import torch
import transformers
from record import Record, takes_json

from shardwise.graph import capture
from shardwise.mesh import Cluster, Mesh
from shardwise.planning import Planner
from shardwise.planning._buckets import Buckets
from shardwise.planning._overlap import with_overlap
from shardwise.planning._pins import Pins


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mesh", action="append", help="may be repeated; d=8 and dp=2,fsdp=8 by default")
    takes_json(parser)
    options = parser.parse_args()
    record = Record(__doc__, options.json)
    columns = {"model": "", "mesh": "", "plan": "", "alone": "{:.2f} ms", "in buckets": "{:.2f} ms"}
    columns |= {"less": "{:.1%}", "collectives": "{:,}", "of these joined": "{:,}"}
    sheet = record.sheet("Steps with small collectives alone, and in buckets", columns, wide=6)
    for name, model, kwargs in models():
        graph = capture(model, (), kwargs)
        for mesh in options.mesh or ["d=8", "dp=2,fsdp=8"]:
            planner = Planner(graph, Mesh.parse(mesh), Cluster.of("h100"))
            for kind, plan in planner.baselines(Pins(planner.mesh)).items():
                if plan is None:
                    continue
                with patch.object(Buckets, "joined", lambda self, found: iter(found)):
                    alone = with_overlap(plan).cost
                made = with_overlap(plan)
                before, after = alone.seconds, made.cost.seconds
                moves = [move for move in made.schedule.moves if move.change.collectives]
                joined = sum(len(made.schedule.bucket(p)) > 1 for p in range(len(made.schedule.entries)))
                sheet.add(name, mesh, kind, before * 1e3, after * 1e3, 1 - after / before, len(moves), joined)


def models() -> Iterator[tuple[str, torch.nn.Module, dict]]:
    """The models as their papers have them, in bfloat16, with a batch for 8 or 16 devices."""
    with torch.device("meta"):
        ids = torch.zeros(64, 512, dtype=torch.long)
        bert = transformers.BertForMaskedLM(transformers.BertConfig())
        yield "BERT", bert.bfloat16(), {"input_ids": ids, "labels": ids}
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        yield "GPT-2", gpt2.bfloat16(), {"input_ids": ids[:32], "labels": ids[:32]}
        vit = transformers.ViTForImageClassification(transformers.ViTConfig())
        pixels = torch.zeros(128, 3, 224, 224, dtype=torch.bfloat16)
        yield "ViT-B", vit.bfloat16(), {"pixel_values": pixels, "labels": torch.zeros(128, dtype=torch.long)}


if __name__ == "__main__":
    main()
