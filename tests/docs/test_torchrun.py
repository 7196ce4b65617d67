"""What pages show for torchrun: one program, told in parts on two pages, on four ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = [
    part
    for page in ("running.md", "meshes.md")
    for part in re.findall(
        r'^```python title="train.py[^\n]*"\n(.*?)^```$', (ROOT / "docs" / page).read_text(), re.M | re.S
    )
]
KEEP = "\nserved = state\n"
SHOW = """
if dist.get_rank() == 0:
    weight = served["up.weight"]
    print(loss.full_tensor().item() > 0, weight.device_mesh.shape, tuple(weight.to_local().shape))
wholes = [{n: t.full_tensor() for n, t in m.state_dict().items()} for m in (sharded, after)]
assert all(torch.equal(whole, wholes[1][name]) for name, whole in wholes[0].items())
assert any(not torch.equal(whole, model.state_dict()[name]) for name, whole in wholes[0].items())
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_model_is_trained_served_and_loaded_on_another_mesh(tmp_path):
    train, transfer, load = PARTS
    (tmp_path / "train.py").write_text(train + transfer + KEEP + load + SHOW)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    found = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": found, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*torchrun, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "True (2,) (128, 64)\n"
