"""Simulated ranks for every test that needs DTensor: torch's fake process group, no sockets."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.set_num_threads(1)


@pytest.fixture
def simulated_ranks():
    """`with simulated_ranks(4): ...` runs DTensor code on four ranks inside this process."""

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
def data() -> Path:
    """The folder of public test data; tests that need it skip without it."""
    folder = Path(os.environ.get("SHARDWISE_DATA", "../shared/data"))
    if not folder.is_dir():
        pytest.skip("no test data: set SHARDWISE_DATA to the folder that holds iopddl/ and shardy/")
    return folder
