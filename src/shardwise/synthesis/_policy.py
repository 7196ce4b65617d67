"""`synthesize` and `Policy`, the options of discovery and synthesis."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError, require
from ..experiments import ExperimentPolicy
from ..rules import Rule
from ._study import Example, studies, why_no_rule


@dataclass(frozen=True)
class Policy(ExperimentPolicy):
    """The options of `discover`, `check` and `synthesize`, which are its methods.

    >>> import torch
    >>> sums = Policy(partials=("sum",), values={"dim": [0, 1, -1]})
    >>> [str(row) for row in sums.discover(torch.neg, torch.rand(4)).rows]
    ['S(0) -> S(0)', 'P(sum) -> P(sum)']

    `partials` are the reductions that are tested, `ranks` the numbers of ranks. `narrowing` accepts partial sums
    through a cast to a narrower float, which rounds every piece before they are added. `empty` lets ranks run on empty
    pieces, which crashes the process in a few native kernels.

    For `synthesize`, `values` are those to try for arguments by name, beside the examples' own, and `examples` are
    further calls to start from: each a tuple of arguments and a dict of keyword arguments.
    """

    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    examples: Sequence[Example] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.values, Mapping, "values", "a dict such as {'dim': [0, 1, -1]}")
        for name, given in self.values.items():
            require(given, (list, tuple), f"what to try for {name!r}", "a list such as [0, 1, -1]")
        require(self.examples, (list, tuple), "examples", "a list of calls such as ((x, 0), {})")
        for example in self.examples:
            _require_call(example)

    def synthesize(self, op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Rule:
        """As `shardwise.synthesize`, under this policy."""
        given = [(args, kwargs)] if args or kwargs else []
        study = studies(op, [*given, *self.examples], values=self.values, policy=self)[0]
        if study.rule is None:
            raise UsageError(why_no_rule(study))
        return study.rule


def synthesize(op: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Rule:
    """The rule of an operator, from calls of many ranks, sizes and arguments.

    `op(*args, **kwargs)` is a call to start from; `synthesize(op)` alone starts from torch's own samples.

    >>> import torch
    >>> rule = synthesize(torch.softmax)
    >>> [str(clause) for clause in rule.clauses]
    ['S(d) -> S(d) when d != dim']
    """
    return Policy().synthesize(op, *args, **kwargs)


def _require_call(example: Any) -> None:
    match example:
        case [list() | tuple(), dict()]:
            return
    raise UsageError(
        "an example is not a call: give a tuple of its arguments and a dict, such as ((x, 0), {})"
    )
