"""Histograms: counts add up where all ranks count in the same bins."""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, partials_of, shard
from ._register import hand
from ._rows import dims, row_of


@hand("aten.histc.default")
def histc(call: Call) -> Iterator[Row]:
    if call["min"] == call["max"]:
        return  # bins are then between the least and the greatest value
    for dim in dims(call, "self"):
        for p in partials_of(call["self"].dtype, ("sum",)):
            yield row_of(call, {"self": shard(dim)}, p)
