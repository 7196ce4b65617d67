"""Why a model cannot be captured, in one sentence with the line of the user's model.

torch's errors come from deep inside and address torch's developers. What the user needs is the innermost
line of the program being captured, and the first sentence of the reason.
"""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import fx

from ..errors import UsageError
from ._autograd import NotKept, Undecided

_TORCH = f"{Path(torch.__file__).parent}/"
# Torch's parts that are programs like those of users.
_TORCHS_OWN = tuple(
    f"{_TORCH}{part}" for part in ("nn/modules/", "nn/utils/", "nn/functional.py", "distributions/")
)
_NOT_THE_MODEL = ("<", _TORCH, f"{Path(__file__).parents[1]}/", f"{sysconfig.get_paths()['stdlib']}/")

_ADVICE = "write it with torch.where, masks or torch.cond, or give the value as a Python number"
KEEP_SHAPE = "keep the full shape: torch.where(mask, x, 0) for x[mask], sums divided by mask.sum() for means"
_KEEP_TENSOR = f"leave out .item() where it only scales or adds, else {_ADVICE}"

NUMBER = f"it takes a number from a tensor's values; {_KEEP_TENSOR}"
SIZE = "a size is the value of a tensor here; take sizes from shapes, and mask what is beyond"
DECIDES = f"its control flow depends on tensor values here; {_ADVICE}"

# Patterns in torch's messages, what they mean for the program, and what to do.
_MEANINGS = (
    (
        r"_ctc_loss",
        "the memory of ctc_loss depends on lengths, which are values",
        "return the log probabilities and compute the loss of their full tensor outside of the model",
    ),
    (
        r"_pack_padded_sequence",
        "the shape of a packed sequence depends on lengths, which are values",
        "give the recurrent layer the padded sequences, and mask its results",
    ),
    (
        r"FlexAttention|flex_attention",
        "flex attention has no backward on CPU tensors, with which models are captured",
        "use scaled_dot_product_attention, in models of transformers attn_implementation='sdpa'",
    ),
    (
        r"failed to unpack the object.*FakeTensor",
        "a size is the value of a tensor here, as in packed sequences",
        "take sizes from shapes; give recurrent layers the padded sequences, and mask their results",
    ),
    (
        r"Unsupported input type",
        "an argument is an object of a class that torch does not take apart",
        "register the class with torch.export.register_dataclass, or give its tensors in a dict or a tuple",
    ),
    (
        r"an uninitialized parameter",
        "it has lazy modules that have no parameters yet",
        "call the model once before, with arguments of these sizes",
    ),
    (r"_nested_tensor", "it computes with nested tensors", "use padded ones and a mask"),
    (r"_local_scalar_dense|SymFloat|SymInt", "it takes a number from a tensor's values here", _KEEP_TENSOR),
    (r"data-dependent|DataDependent|unbacked|u0", "its control flow depends on tensor values here", _ADVICE),
    (
        r"Dynamic(Output)?Shape|dynamic output shape",
        "the shape of a result depends on tensor values here",
        KEEP_SHAPE,
    ),
    (
        r"\.numpy\(\) is not supported",
        "it takes the values of a tensor to NumPy here",
        "compute with torch instead, or outside of the model",
    ),
    (
        r"entirely functional graph",
        "it writes in place to a tensor that is neither an argument nor registered",
        "register it with register_buffer",
    ),
)


def refusal(name: str, error: Exception, line: str = "") -> UsageError:
    """The error to raise for an error of torch; `line` is where, if the error itself does not say."""
    reason, advice = _reason(error)
    line = _line_of(error) or line
    where = f" at {line}" if line else ""
    return UsageError(f"{name} cannot be captured{where}: {reason}" + (f"; {advice}" if advice else ""))


def reads_values(error: BaseException | None) -> bool:
    """Whether capture ended because a number, a branch or a shape depends on the values of a tensor."""
    if isinstance(error, Undecided):
        return True
    return isinstance(error, Exception) and _reason(error)[1] in (_ADVICE, KEEP_SHAPE, _KEEP_TENSOR)


def is_final(error: BaseException | None) -> bool:
    """Whether capture ended for what the program does with values that it reads, and not because it does."""
    return isinstance(error, NotKept) and not isinstance(error, Undecided)


def frames_of(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """Files and lines of the program that is captured, and of torch's own modules, from where an error was raised
    outwards."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.lineno and is_program(frame.filename):
                yield frame.filename, frame.lineno
        error = error.__cause__ or error.__context__


def value_read_at(module: fx.GraphModule) -> str:
    """The line that first takes a number or a shape from the values of a tensor, if one does."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) for size in sizes):
            return source_line(node.meta.get("stack_trace"))
    return ""


def source_line(trace: str | None) -> str:
    """`file:line: code` of the innermost line of the user's program in a stack trace, as text."""
    if not trace:
        return ""
    found = re.findall(r'File "([^"]+)", line (\d+)', trace)
    for file, number in reversed(found):
        if is_users(file):
            return f"{file}:{number}"
    return ""


def is_users(file: str) -> bool:
    """Whether a file is part of the program being captured: not of torch, Shardwise or Python itself."""
    packages = "/site-packages/" in file or "/dist-packages/" in file
    return not file.startswith(_TORCH if packages else _NOT_THE_MODEL)


def is_program(file: str) -> bool:
    """Whether a file is the user's, or a part of torch that is a program like those of users."""
    own = file.startswith(_TORCHS_OWN) and not file.endswith("/nn/modules/module.py")
    return own or is_users(file)


def _reason(error: Exception) -> tuple[str, str]:
    text = str(error).strip()
    kind = type(error).__name__
    if isinstance(error, NotKept):
        return text, ""
    for pattern, meaning, advice in _MEANINGS:
        if re.search(pattern, kind) or re.search(pattern, text.split("\n", 1)[0]):
            return meaning, advice
    first = next((line.strip() for line in text.splitlines() if line.strip()), kind)
    return f"{kind}: {first.rstrip('.')}" if first != kind else kind, ""


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's program among the frames of the error or of what caused it."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    for link in reversed(chain):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if is_users(frame.filename) and frame.lineno:
                code = (linecache.getline(frame.filename, frame.lineno) or "").strip()
                return f"{frame.filename}:{frame.lineno} (`{code}`)"
    for link in chain:
        if line := source_line(str(link)):
            return line
    frames = [frame for link in chain for frame in traceback.extract_tb(link.__traceback__)]
    inside = [
        frame for frame in frames if f"{_TORCH}nn/modules/" in frame.filename and frame.name == "forward"
    ]
    return f"{inside[-1].filename}:{inside[-1].lineno}" if inside else ""
