"""Counterexamples as JSON and back, values and all, so that they can be run again."""

from typing import Any

import torch
from torch import Tensor

from .calls import Call, operator
from .checking import Finding, Outcome, Whole, check
from .lookup import rows_of


def finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "row": finding.row,
        "ranks": finding.ranks,
        "seed": finding.seed,
        "why": finding.text,
        "called": str(finding.call),
        "call": call_document(finding.call),
    }


def replayed(document: dict[str, Any]) -> Outcome:
    """Run a counterexample again, on the same pieces."""
    call = call_of(document["call"])
    return check(call, [document["row"]], document["seed"], (document["ranks"],), redraw=False)


def is_claimed(document: dict[str, Any]) -> bool:
    """True if the book still gives the row for the call."""
    call = call_of(document["call"])
    return document["row"] in (rows_of(call, Whole(call, call.tensors).shapes) or ())


def call_document(call: Call) -> dict[str, Any]:
    return {
        "op": call.name,
        "arguments": {n: _encoded(v) for n, v in call.arguments.items()},
        "source": call.source,
    }


def call_of(document: dict[str, Any]) -> Call:
    op = operator(document["op"])
    return Call(op, {n: _decoded(v) for n, v in document["arguments"].items()}, document["source"])


def _encoded(value: Any) -> Any:
    if isinstance(value, Tensor):
        flat = torch.view_as_real(value) if value.is_complex() else value
        return {
            "tensor": flat.contiguous().flatten().tolist(),
            "dtype": str(value.dtype)[6:],
            "shape": list(value.shape),
            "strides": list(value.stride()),
        }
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value)[6:]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return [_encoded(v) for v in value] if isinstance(value, list) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "torch" in value:
        return getattr(torch, value["torch"])
    if "device" in value:
        return torch.device(value["device"])
    if "complex" in value:
        return complex(*value["complex"])
    dtype, shape = getattr(torch, value["dtype"]), value["shape"]
    if dtype.is_complex:
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        flat = torch.view_as_complex(torch.tensor(value["tensor"], dtype=real).reshape(-1, 2))
    else:
        flat = torch.tensor(value["tensor"], dtype=dtype)
    return torch.empty_strided(shape, value["strides"], dtype=dtype).copy_(flat.reshape(shape))
