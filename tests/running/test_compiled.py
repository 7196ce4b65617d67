"""Compiled programs communicate as they are written: on some ranks what arrives may be needed by nothing."""

from shutil import which

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.dtensor import record_collectives
from shardwise.graph import Compiled, backend_of

C10D = torch.ops._c10d_functional
NEEDS_CXX = pytest.mark.skipif(which("c++") is None, reason="Inductor needs a C++ compiler")


@pytest.fixture
def group():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


class Program(torch.nn.Module):
    """Of what is gathered only the shape is used, as of a summand that another rank has; of what is reduced, nothing;
    and of two that are reduced as one the first."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def forward(self, x, y):
        gathered = C10D.wait_tensor(C10D.all_gather_into_tensor(x * 2, 2, self.group))
        zeros = torch.ops.aten.full_like.default(gathered, 0.0)
        C10D.wait_tensor(C10D.all_reduce(y, "sum", self.group))
        both = C10D.all_reduce_coalesced([zeros, y + 1], "sum", self.group)
        first, _ = C10D.wait_tensor(both[0]), C10D.wait_tensor(both[1])
        return (first.sum(),)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=NEEDS_CXX)])
def test_what_nothing_needs_is_communicated_all_the_same(group, backend):
    run = Compiled(fx.symbolic_trace(Program(group)), backend_of(backend))
    with torch.no_grad():
        for _ in range(2):
            with record_collectives() as seen:
                run([torch.ones(4), torch.ones(6)])
    found = [(each.kind, each.size, each.ranks) for each in seen.collectives]
    assert found == [("all_gather", 32, 2), ("all_reduce", 24, 2), ("all_reduce", 56, 2)]
