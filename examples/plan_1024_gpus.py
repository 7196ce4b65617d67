"""A plan for 1,024 GPUs, from a laptop: no GPU, no weights in memory, no cluster.

    python examples/plan_1024_gpus.py                  # Llama 3 70B on 128 x 8 H100s, a few minutes
    python examples/plan_1024_gpus.py --layers 2

The weights are on the meta device, so the model needs no memory; the plan is computed from shapes alone and written as
an HTML page.
"""

import argparse
from pathlib import Path

from models import llama_70b

import shardwise as sw
from shardwise.report import plan_page

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=80)
parser.add_argument("--out", type=Path, default=Path("build/llama_70b.html"))
options = parser.parse_args()

model, args, kwargs = llama_70b(layers=options.layers, batch=256, positions=4096)
parameters = sum(parameter.numel() for parameter in model.parameters())
print(f"{parameters / 1e9:.1f} billion parameters, none of them in memory")

plan = sw.plan(model, args, kwargs, mesh="dp=128,tp=8", cluster="h100", time_limit=300)
print(plan.summary(most=5))

# The layouts of the weights of one layer, and their redistributions.
for name in ("self_attn.q_proj", "mlp.down_proj"):
    weight = f"model.layers.0.{name}.weight"
    print("\n".join(plan.explain(weight).splitlines()[:4]))

options.out.parent.mkdir(parents=True, exist_ok=True)
options.out.write_text(plan_page(plan, runners_up=False))
print(f"the plan as a page: {options.out}")
