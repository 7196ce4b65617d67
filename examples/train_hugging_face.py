"""Train a Hugging Face model on four processes, sharded by a plan, on CPU:

    torchrun --nproc-per-node 4 examples/train_hugging_face.py

On GPUs, change only the backend to nccl and the cluster to yours.
"""

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import shardwise as sw

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=256,
    use_cache=False,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(0, 256, (8, 32))

dist.init_process_group("gloo")
sharded = sw.parallelize(
    model, kwargs={"input_ids": tokens, "labels": tokens}, mesh="dp=2,tp=2", cluster="laptop", memory="6MB"
)
optimizer = torch.optim.AdamW(sharded.parameters(), lr=3e-3)
if dist.get_rank() == 0:
    weight = dict(sharded.named_parameters())["model.layers.0.mlp.up_proj.weight"]
    print(
        f"up_proj.weight {tuple(weight.shape)} is {weight.placements}: this rank has {tuple(weight.to_local().shape)}"
    )

for step in range(5):
    loss = sharded(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(sharded.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.full_tensor().item():.4f}")

dist.destroy_process_group()
