"""The communicating form `exchange` of mixtures of experts: tokens go to the ranks that have their experts, and what
these return comes back.

How many go from one rank to another depends on values, so the ranks first tell each other. On tensors without values,
by which a form is priced, every expert is chosen equally often.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..calls import Call
from ._group import Group, Request, Run
from ._operator import Operator


@dataclass(frozen=True)
class _Routes:
    """The pairs of a token and one of its experts, by the rank that has the expert.

    `order` are this rank's pairs in the order of where they go; it sends `leaving` of them to each rank and gets
    `arriving`.
    """

    group: Group
    slots: int
    order: Tensor
    leaving: list[int]
    arriving: list[int]

    @property
    def tokens(self) -> Tensor:
        return self.order // max(self.slots, 1)

    def send(self, rows: Tensor) -> Request:
        """Rows of this rank's pairs to where their experts are; what arrives is by the rank that sent it."""
        return self._exchange(rows, self.leaving, self.arriving)

    def give_back(self, rows: Tensor) -> Request:
        """The way back."""
        return self._exchange(rows, self.arriving, self.leaving)

    def _exchange(self, rows: Tensor, leaving: list[int], arriving: list[int]) -> Request:
        shapes = [(count, *rows.shape[1:]) for count in arriving]
        return self.group.all_to_all(rows.split(leaving), shapes)

    def by_token(self, rows: Tensor, tokens: int) -> Tensor:
        """What came back for pairs, by token and slot; zero for pairs of no expert."""
        whole = rows.new_zeros(tokens * self.slots, *rows.shape[1:])
        return whole.index_copy(0, self.order, rows).view(tokens, self.slots, *rows.shape[1:])


def _routes(call: Call, group: Group) -> Run:
    index, sizes = call["index"], group.sizes("up", 0)
    slots = index.shape[1]
    if index.is_meta:
        leaving = _shared(index.numel(), sizes)
        pairs = [held["index"].local[0] * slots for held in group.held]
        arriving = [_shared(count, sizes)[group.rank] for count in pairs]
        yield group.all_to_all(index.new_empty(group.size, 1).unbind(), [(1,)] * group.size)
        return _Routes(group, slots, index.new_empty(sum(leaving)), leaving, arriving)
    ends = torch.tensor(list(itertools.accumulate(sizes)), device=index.device)
    wanted = index.reshape(-1)
    rank = torch.bucketize(wanted, ends, right=True).where(wanted >= 0, group.size)
    leaving_by_rank = torch.bincount(rank, minlength=group.size + 1)[: group.size]
    told = yield group.all_to_all(leaving_by_rank.unsqueeze(1).unbind(), [(1,)] * group.size)
    leaving = leaving_by_rank.tolist()
    order = torch.argsort(rank, stable=True)[: sum(leaving)]
    return _Routes(group, slots, order, leaving, torch.cat(told).tolist())


def _shared(count: int, sizes: list[int]) -> list[int]:
    """So many pairs, shared between ranks with so many experts each."""
    ends = [count * end // max(sum(sizes), 1) for end in itertools.accumulate(sizes)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _local_index(call: Call, routes: _Routes) -> Tensor:
    """Which of its experts the rank that gets a pair is to use."""
    sizes = routes.group.sizes("up", 0)
    starts = [end - size for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]
    index = call["index"].reshape(-1, 1)[routes.order]
    parts = zip(index.split(routes.leaving), starts, strict=True)
    return torch.cat([part - start for part, start in parts])


def _experts(call: Call, group: Group) -> Run:
    routes = yield from _routes(call, group)
    choosing = routes.send(_local_index(call, routes))
    moving = routes.send(call["input"][routes.tokens])
    index, rows = torch.cat((yield choosing)), torch.cat((yield moving))
    weight = call["weight"].new_ones(rows.shape[0], 1)
    made = call(input=rows, index=index, weight=weight, experts=call["up"].shape[0])
    made = routes.by_token(torch.cat((yield routes.give_back(made))), call["input"].shape[0])
    return (made * call["weight"].unsqueeze(2)).sum(1).to(call["input"].dtype)


def _experts_backward(call: Call, group: Group) -> Run:
    routes = yield from _routes(call, group)
    moving = [
        routes.send(rows)
        for rows in (
            _local_index(call, routes),
            call["weight"].reshape(-1, 1)[routes.order],
            call["input"][routes.tokens],
            call["grad"][routes.tokens],
        )
    ]
    index, weight = torch.cat((yield moving[0])), torch.cat((yield moving[1]))
    rows, grad = torch.cat((yield moving[2])), torch.cat((yield moving[3]))
    of_rows, of_weight, *of_experts = call(
        grad=grad, input=rows, index=index, weight=weight, experts=call["up"].shape[0]
    )
    tokens = call["input"].shape[0]
    returning = routes.give_back(of_rows), routes.give_back(of_weight)
    of_input = routes.by_token(torch.cat((yield returning[0])), tokens).sum(1)
    of_weight = routes.by_token(torch.cat((yield returning[1])), tokens).squeeze(2)
    return of_input, of_weight, *of_experts


EXCHANGE = {
    "shardwise.experts": Operator(in_group=_experts, by_values=True),
    "shardwise.experts_backward": Operator(in_group=_experts_backward, by_values=True),
}
