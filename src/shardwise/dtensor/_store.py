"""The key-value store that the processes of a group share from its beginning."""

from torch.distributed import Store
from torch.distributed.distributed_c10d import _get_default_store


def default_store() -> Store:
    return _get_default_store()
