"""Cross entropy of a linear layer, in chunks: the logits are never whole, and their gradient is made beside them.

Of a chunk of tokens the logits are computed, then the loss, then the gradient of the loss by the logits, and what
follows from that for the layer's input and weight; then they are dropped. Where the classes are sharded, ranks gather
three numbers for each token: the largest logit, the sum of exponentials and the target's logit. Those of a chunk are on
their way while the logits of the next are computed.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calls import Call
from ._group import Group, Run
from ._operator import Operator

# Tokens of a chunk, at most: products of more are no faster, and adding up gradients of the weight, whose traffic is
# that of some 10 bytes an element for every chunk, takes a few percent of the time of its products.
_MOST = 8192


def chunk_size(tokens: int, width: int, classes: int) -> int:
    """How many tokens a chunk has: its logits are about as large as all that the layer is given, unless that is more
    than products gain from, but they are not so few that adding up gradients of the weight takes longer than all
    else."""
    count = max(1, -(-classes // max(width, 1)))
    return min(tokens, _MOST, max(-(-tokens // count), -(-width // 4)))


class _Chunk:
    """Some tokens on a rank that has the classes from `first` on."""

    def __init__(self, rows: Tensor, weight: Tensor, target: Tensor, known: Tensor, first: int) -> None:
        self.rows, self.weight, self.known = rows, weight, known
        logits = F.linear(rows, weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        self.inside = (target >= first) & (target < first + weight.shape[0])
        self.place = (target - first).where(self.inside, 0).unsqueeze(1)
        if weight.shape[0]:
            self.top = logits.amax(1)
            chosen = logits.gather(1, self.place).squeeze(1).where(self.inside, 0)
        else:
            chosen = logits.sum(1)
            self.top = chosen - torch.inf
        # Where all are minus infinity, their exponentials are zero.
        self.powers = (logits - self.top.where(self.top != -torch.inf, 0).unsqueeze(1)).exp()
        self.statistics = torch.stack([self.top, self.powers.sum(1), chosen])

    def loss(self, of_all: Tensor) -> Tensor:
        """The sum over tokens, given the statistics of all ranks."""
        tops, sums, chosen = of_all.unbind(1)
        self.highest = tops.amax(0)
        self.total = (sums * (tops - self.highest).exp()).sum(0)
        return (self.highest + self.total.log() - chosen.sum(0)).where(self.known, 0).sum()

    def gradient(self) -> Tensor:
        """Of the loss by the logits that are here."""
        share = ((self.top - self.highest).exp() / self.total).where(self.known, 0)
        made = self.powers * share.unsqueeze(1)
        if self.weight.shape[0]:
            taken = (self.inside & self.known).to(made.dtype).unsqueeze(1)
            made = made.scatter_add(1, self.place, -taken)
        return made.to(self.weight.dtype)


class _Layer:
    """The loss and the gradients of a linear layer, as chunks are added."""

    def __init__(self, rows: Tensor, weight: Tensor, target: Tensor, ignored: int) -> None:
        self.rows, self.weight, self.target, self.known = rows, weight, target, target != ignored
        self.wide = torch.promote_types(weight.dtype, torch.float32)
        self.loss = rows.new_zeros((), dtype=self.wide)
        self.of_rows: list[Tensor] = []
        self.of_weight: Tensor | None = None

    def chunks(self, classes: int, first: int = 0) -> Iterator[_Chunk]:
        """In turn; `classes` are as many as the rank with most has."""
        tokens, width = self.rows.shape
        size = chunk_size(tokens, width, classes)
        for start in range(0, tokens, max(size, 1)):
            rows, target, known = (t[start : start + size] for t in (self.rows, self.target, self.known))
            yield _Chunk(rows, self.weight, target, known, first)

    def add(self, chunk: _Chunk, of_all: Tensor, of_input: bool, of_weight: bool) -> None:
        self.loss = self.loss + chunk.loss(of_all)
        if not (of_input or of_weight):
            return
        made = chunk.gradient()
        if of_input:
            self.of_rows.append(made @ self.weight)
        if of_weight:
            self.of_weight = self._with(made.t(), chunk.rows)

    def _with(self, left: Tensor, right: Tensor) -> Tensor:
        """The gradient of the weight with a further product, in a dtype with room for sums."""
        if self.of_weight is None:
            return (left @ right).to(self.wide)
        if left.dtype == self.wide:
            return torch.addmm(self.of_weight, left, right)
        return self.of_weight + left @ right

    def results(self, shape: torch.Size, of_input: bool, of_weight: bool) -> list[Tensor]:
        found = [self.loss]
        if of_input:
            rows = torch.cat(self.of_rows) if self.of_rows else torch.zeros_like(self.rows)
            found.append(rows.view(shape))
        if of_weight:
            made = torch.zeros_like(self.weight) if self.of_weight is None else self.of_weight
            found.append(made.to(self.weight.dtype))
        return found


def linear_cross_entropy(
    input: Tensor, weight: Tensor, target: Tensor, ignore_index: int, of_input: bool, of_weight: bool
) -> list[Tensor]:
    """The sum of the losses of all tokens, and its gradients by input and weight, as far as they are wanted."""
    layer = _Layer(input.reshape(-1, input.shape[-1]), weight, target.reshape(-1), ignore_index)
    for chunk in layer.chunks(weight.shape[0]):
        layer.add(chunk, chunk.statistics.unsqueeze(0), of_input, of_weight)
    return layer.results(input.shape, of_input, of_weight)


def _by_classes(call: Call, group: Group) -> Run:
    input, weight, wanted = call["input"], call["weight"], (call["of_input"], call["of_weight"])
    layer = _Layer(
        input.reshape(-1, input.shape[-1]), weight, call["target"].reshape(-1), call["ignore_index"]
    )
    before = None
    for chunk in layer.chunks(max(group.sizes("weight", 0)), group.own["weight"].offset[0]):
        moving = group.all_gather(chunk.statistics.unsqueeze(0))
        if before is not None:
            layer.add(before[0], (yield before[1]), *wanted)
        before = chunk, moving
    if before is not None:
        layer.add(before[0], (yield before[1]), *wanted)
    return layer.results(input.shape, *wanted)


CLASSES: dict[str, Operator] = {"shardwise.linear_cross_entropy": Operator(in_group=_by_classes)}
