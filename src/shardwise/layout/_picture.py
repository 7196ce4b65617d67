"""A sharding as text: the tensor as a grid of blocks, each with the ranks that hold it.

>>> from shardwise import Sharding
>>> print(picture(Sharding.parse("[{dp}, {tp}]", "dp=2,tp=2")))
+---+---+
| 0 | 1 |
+---+---+
| 2 | 3 |
+---+---+
"""

from ..errors import UsageError
from ._sharding import Sharding


def picture(sharding: Sharding, dims: tuple[int, int] | None = None) -> str:
    """Two dims of a tensor (by default the last two), split into blocks; a block lists its ranks."""
    if sharding.rank == 0:
        rows, columns, down, across = 1, 1, None, None
    else:
        down, across = dims or ((0, None) if sharding.rank == 1 else (sharding.rank - 2, sharding.rank - 1))
        for dim in (down, across):
            if dim is not None and not 0 <= dim < sharding.rank:
                raise UsageError(f"{sharding} has no dim {dim}: it has {sharding.rank} dims")
        rows = sharding.shards(down)
        columns = 1 if across is None else sharding.shards(across)
    # With one element per block, the offset of a rank is the index of its block.
    blocks: dict[tuple[int, int], list[int]] = {}
    shape = [sharding.shards(dim) for dim in range(sharding.rank)]
    for rank in range(sharding.mesh.ranks):
        offset = sharding.offset(shape, rank)
        place = (offset[down] if down is not None else 0, offset[across] if across is not None else 0)
        blocks.setdefault(place, []).append(rank)
    texts = [[" ".join(map(str, blocks[row, column])) for column in range(columns)] for row in range(rows)]
    width = max(len(text) for line in texts for text in line)
    rule = "+" + ("-" * (width + 2) + "+") * columns
    lines = [rule]
    for line in texts:
        lines += ["|" + "".join(f" {text:<{width}} |" for text in line), rule]
    return "\n".join(lines)
