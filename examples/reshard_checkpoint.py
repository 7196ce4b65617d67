"""Save a checkpoint on one mesh and load it on another:

    torchrun --nproc-per-node 4 examples/reshard_checkpoint.py

Parameters are DTensors, so PyTorch's distributed checkpoints can reshard them. The second model starts without weights
and gets all of them from the checkpoint.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

import shardwise as sw


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x))).square().mean()


torch.manual_seed(0)
dist.init_process_group("gloo")
first, x = dist.get_rank() == 0, torch.randn(16, 64)
folder = [tempfile.mkdtemp() if first else ""]
dist.broadcast_object_list(folder)

before = sw.parallelize(Model(), (x,), mesh="dp=2,tp=2", cluster="laptop", pin={"up.weight": "R, S(0)"})
optimizer = torch.optim.AdamW(before.parameters(), lr=1e-2)
for _ in range(3):
    before(x).backward()
    optimizer.step()
    optimizer.zero_grad()
dcp.save(before.state_dict(), checkpoint_id=folder[0])

with torch.device("meta"):
    empty = Model()
after = sw.parallelize(
    empty, (x,), mesh="tp=4", cluster="laptop", pin={"up.weight": "S(0)", "down.weight": "S(1)"}, init="empty"
)
state = after.state_dict()
dcp.load(state, checkpoint_id=folder[0])
after.load_state_dict(state)

losses = [model(x).full_tensor().item() for model in (before, after)]
if first:
    for name, model in (("saved on dp=2,tp=2", before), ("loaded on tp=4", after)):
        weight = dict(model.named_parameters())["up.weight"]
        print(f"{name}: up.weight is {weight.placements}, this rank has {tuple(weight.to_local().shape)}")
    print(f"losses {losses[0]:.6f} and {losses[1]:.6f}")
    assert abs(losses[0] - losses[1]) < 1e-6
    print("the same model on another mesh")
dist.destroy_process_group()
