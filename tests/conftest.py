"""What tests of several rooms share: a cache of rows, simulated ranks, the example models and the public data."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.experiments import own_generators
from shardwise.modules import module_of
from shardwise.rules import own_rules

torch.set_num_threads(1)
# The first backward starts a thread for every device, and children of a process with such threads can run none. Fake
# tensors have a torch with CUDA assume devices where there are none: here is the first, before them.
torch.ones(1, requires_grad=True).sum().backward()


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    """Rows discovered on the spot are kept for the session, not for the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWISE_CACHE", str(tmp_path_factory.mktemp("rows")))
        yield


@pytest.fixture(autouse=True)
def registered():
    """Adversarial inputs and rules that a test or a page registers are its own."""
    with own_generators(), own_rules():
        yield


@pytest.fixture
def simulated_ranks():
    """`with simulated_ranks(4): ...` runs DTensor code on four ranks inside this process: torch's fake process group,
    no sockets."""

    @contextmanager
    def start(ranks: int) -> Iterator[LocalTensorMode]:
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
        try:
            with LocalTensorMode(ranks) as mode:
                yield mode
        finally:
            dist.destroy_process_group()

    return start


@pytest.fixture(scope="session")
def models():
    """The module examples/models.py."""
    return module_of(Path(__file__).parents[1] / "examples" / "models.py")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public test data; tests that need it skip without it."""
    folder = Path(os.environ.get("SHARDWISE_DATA", "../shared/data"))
    if not folder.is_dir():
        pytest.skip("no test data: set SHARDWISE_DATA to the folder that holds iopddl/ and shardy/")
    return folder
