"""The public functions have one shape: a model's call, an operator's call, and options by keyword alone."""

import ast
import importlib
import inspect
import operator
import re
from pathlib import Path

import pytest
import torch
import typer

import shardwise as sw
from shardwise.cli import app
from shardwise.mesh import DEFAULT_CLUSTER

ROOMS = [path.name for path in Path(sw.__file__).parent.iterdir() if (path / "__init__.py").exists()]


def parameters(function):
    return inspect.signature(function).parameters


@pytest.mark.parametrize("name", ["capture", "plan", "parallelize", "verify", "simulate", "propagate"])
def test_a_model_is_called_the_same_way_everywhere(name):
    call, options = (
        list(parameters(getattr(sw, name)).values())[:3],
        list(parameters(getattr(sw, name)).values())[3:],
    )
    assert [(p.name, p.default) for p in call] == [
        ("model", inspect.Parameter.empty),
        ("args", ()),
        ("kwargs", None),
    ]
    for option in options:
        assert option.kind is option.KEYWORD_ONLY and option.annotation is not option.empty, option


@pytest.mark.parametrize(
    "function", [sw.discover, sw.rows, sw.synthesize, sw.check], ids=lambda f: f.__name__
)
def test_an_operator_is_called_the_same_way_everywhere(function):
    *own, args, kwargs = parameters(function).values()
    assert [p.name for p in own] == (["op", "row"] if function is sw.check else ["op"])
    assert all(p.kind is p.POSITIONAL_ONLY for p in own)
    assert args.kind is args.VAR_POSITIONAL and kwargs.kind is kwargs.VAR_KEYWORD


@pytest.mark.parametrize("function", [sw.shard_map, sw.solve, sw.audit, sw.install, sw.redistribute])
def test_options_are_given_by_keyword(function):
    for parameter in list(parameters(function).values())[1:]:
        assert parameter.kind is parameter.KEYWORD_ONLY or parameter.default is parameter.empty, parameter


@pytest.mark.parametrize("name", [name for name in sw.__all__ if inspect.isfunction(getattr(sw, name))])
def test_every_option_stands_in_the_signature(name):
    operator_calls = ("discover", "check", "rows", "synthesize")
    for parameter in parameters(getattr(sw, name)).values():
        assert parameter.annotation is not parameter.empty, parameter
        if name not in operator_calls:
            assert parameter.kind is not parameter.VAR_KEYWORD, parameter


def test_an_operator_keeps_its_own_keywords():
    def scale(x, /, *, op=1.0, row=1.0, policy=1.0, self=0.0):
        return x * (op * row * policy) + self

    x, given = torch.rand(4, 6), {"op": 2.0, "row": 3.0, "policy": 5.0, "self": 1.0}
    assert "S(0) -> S(0)" in map(str, sw.discover(scale, x, **given).rows)
    assert sw.check(scale, "S(1) -> S(1)", x, **given)
    # Adding `self` on every rank is what makes this fail: the keyword reached the operator.
    assert not sw.check(scale, "P(sum) -> P(sum)", x, **given)
    assert sw.Policy(partials=("sum",)).check(scale, "P(sum) -> P(sum)", x, **{**given, "self": 0.0})


def test_the_default_cluster_is_the_same_everywhere():
    found = {}
    for room in ROOMS:
        module = importlib.import_module(f"shardwise.{room}")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                try:
                    cluster = parameters(value).get("cluster")
                except ValueError:  # a class of torch's without a signature
                    continue
                if cluster is not None and cluster.default is not cluster.empty:
                    found[f"{room}.{name}"] = cluster.default
    assert len(found) > 8 and set(found.values()) == {DEFAULT_CLUSTER}, found


def messages():
    """The texts of errors and warnings, with the file that each is in."""
    for file in sorted(Path(sw.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in MESSAGES:
                texts = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                yield from ((file.name, text) for text in texts if isinstance(text, str))


MESSAGES = ("UsageError", "require", "require_given", "warn", "NoChoice")


def test_every_name_that_a_message_recommends_is_there():
    commands = typer.main.get_command(app).commands
    names, words = set(), set()
    for _, text in messages():
        names |= set(re.findall(r"\bshardwise\.(\w+(?:\.\w+)*)", text))
        words |= set(re.findall(r"`shardwise (\w+)", text))
    assert {"plan", "synthesize", "propagation.Program", "solver.read_problem"} <= names
    assert "book" in words and words <= set(commands)
    for name in names:
        assert operator.attrgetter(name)(sw), name
