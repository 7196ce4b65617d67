"""`FILE.py:build` on the command line: the function that returns the model and the arguments to capture it with; and
what is said about its tensors by name."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..errors import UsageError
from ._function import function_of

Build = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:BUILD", help="A function without arguments that returns (model, args, kwargs)."
    ),
]

ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="h100 (the default), h200, a100, l40s, tpu, laptop, or a JSON file.",
        show_default=False,
    ),
]

Execution = Annotated[
    str | None,
    typer.Option(
        "--execution",
        help="How devices run the program: eager (the default), compiled, or regional (each block compiled).",
        show_default=False,
    ),
]


Recompute = Annotated[
    list[str] | None,
    typer.Option(
        "--recompute",
        help="What backward computes again: full, selective, auto (as the plan decides), or of some blocks "
        "'layers.[0-9]=full'. May be repeated.",
        show_default=False,
    ),
]


SplitProducts = Annotated[
    bool,
    typer.Option(
        "--split-products",
        help="Products of linear layers may be split against the collectives beside them.",
    ),
]


MicroBatches = Annotated[
    int,
    typer.Option(
        "--micro-batches",
        min=1,
        help="Passes of a step: each with arguments like those given, and gradients added up.",
    ),
]


Zero = Annotated[
    bool,
    typer.Option(
        "--zero",
        help="States of the optimizer may be sharded where parameters are not: each parameter is gathered, and its "
        "gradients reduced, in every pass or once per step, as the plan decides.",
    ),
]


Reduce = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        help="The dtype in which gradients are added up over ranks and passes: float32; by default their own.",
        show_default=False,
    ),
]


Offload = Annotated[
    bool,
    typer.Option(
        "--offload",
        help="Parameters and their states may be in the memory of the host, where the optimizer then runs.",
    ),
]


Schedule = Annotated[
    str,
    typer.Option(help="On a mesh with the axis pp, one of torch's pipeline schedules, or auto."),
]

NumberOfStages = Annotated[
    int | None,
    typer.Option(
        "--stages",
        min=1,
        help="Stages at each place along pp; by default one, or two where the schedule has several.",
        show_default=False,
    ),
]


LossFn = Annotated[
    str | None,
    typer.Option(
        "--loss-fn",
        metavar="FILE.py:LOSS",
        help="A function of the model's result, for a loss outside of the model: torch.nn.functional:cross_entropy.",
        show_default=False,
    ),
]


def built(text: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The result of the function: a model, its positional arguments and its keyword arguments."""
    result = builder(text)()
    match result:
        case (model, tuple() | list() as args, dict() as kwargs) if callable(model):
            return model, tuple(args), kwargs
    kind = type(result).__name__
    if isinstance(result, tuple):
        kind = f"({', '.join(type(part).__name__ for part in result)})"
    raise UsageError(
        f"{text} returns {kind}: it must return (model, args, kwargs), a callable, a tuple and a dict"
    )


def builder(text: str) -> Callable[[], Any]:
    """The function itself."""
    return function_of(text, "model.py:build")


def loss_function(text: str | None) -> Callable[..., Any] | None:
    return None if text is None else function_of(text, "model.py:loss")


def named_sharding(text: str) -> tuple[str, str]:
    """A sharding given by name: `x=[{dp}, {}]`."""
    name, equals, sharding = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"sharding {text!r} is not of the form 'x=[{{dp}}, {{}}]'")
    return name.strip(), sharding.strip()


def policies(recompute: list[str] | None) -> dict[str, str]:
    """By pattern of blocks what is computed again; a policy without a pattern is for all that are left."""
    found = [("*", text) if "=" not in text else tuple(text.split("=", 1)) for text in recompute or ()]
    return {
        pattern.strip(): policy.strip() for pattern, policy in sorted(found, key=lambda pair: pair[0] == "*")
    }
