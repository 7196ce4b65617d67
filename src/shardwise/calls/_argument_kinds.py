"""What arguments mean by their names, where a schema says no more than `int[]`.

The names are those of torch's operators. An operator with other names declares them (`_facts`).
"""

from collections.abc import Mapping
from typing import Any

# Dims of a tensor.
DIMS = ("dim", "dims", "dim0", "dim1", "dim2", "dimension", "axis", "axis0", "axis1")

# Sizes of dims, each alone; lists whose names hold one of these words; those of them that are sizes of something else.
SIZES = ("N", "C", "HxW", "num_weights", "num_embeddings")
SIZE_WORDS = ("size", "shape")
NOT_SIZES = ("kernel_size", "split_size", "split_sizes", "block_size", "chunk_size")

# Lists that spell out the shape of the output.
SHAPES = ("size", "shape")

# Lists with one number per dim of a window; most often all equal, and rules do not depend on which.
WINDOWS = ("kernel_size", "stride", "padding", "dilation", "output_padding", "output_size")

# Only operators that slide a window over the last dims have these.
SLIDING = ("dilation",)

# Numbers that change what an operator does, like a flag.
COUNTS = ("groups",)

# Integers that choose what an operator does and count nothing, with their values where those are few.
CHOICES: Mapping[str, tuple[int, ...]] = {
    "reduction": (0, 1, 2),
    "interpolation_mode": (),
    "padding_mode": (),
    "mode": (),
    "ord": (),
    "p": (),
}

# Other values worth trying for arguments that are not dims.
VALUES: Mapping[str, tuple[Any, ...]] = {
    "k": (1, 2),
    "diagonal": (-1, 0, 1),
    "offset": (-1, 0, 1),
    "shifts": ([1], [2], [-1]),
    "repeats": (2, 3),
    "length": (1, 2),
    "start": (0, 1),
    "correction": (0, 1),
    "groups": (1, 2),
    "upscale_factor": (1, 2, 3),
    "downscale_factor": (1, 2, 3),
}

# Words worth trying for arguments that take a word.
WORDS: Mapping[str, tuple[str, ...]] = {"reduction": ("none", "mean", "sum")}

# The dropout probability of attention: where it is 0 no random numbers are used.
DROPOUT = "dropout_p"

# Where a result is kept.
STORAGE = frozenset({"layout", "device", "pin_memory"})

# What rows do not depend on.
UNIMPORTANT = STORAGE | {"memory_format", "non_blocking", "generator"}

# Properties of a new result, which a variant that writes into a tensor takes from that tensor.
OF_RESULTS = STORAGE | {"memory_format", "dtype"}


def is_size(argument: str, numbers: int) -> bool:
    """True for an argument that is a size or a list of sizes, of so many numbers. A single number called a size is as a
    rule that of a window."""
    if argument in SIZES:
        return True
    return argument not in NOT_SIZES and numbers > 1 and any(word in argument for word in SIZE_WORDS)
