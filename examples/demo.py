"""What Shardwise does, in one minute: `make demo`."""

import torch
from rich.console import Console
from rich.table import Table

import shardwise as sw

console = Console(width=100)
torch.set_num_threads(1)

console.rule("How may torch.mm be sharded?")
found = sw.discover(torch.mm, torch.rand(4, 6), torch.rand(6, 8))
table = Table("row", "holds for shards", "experiments survived")
for row, evidence in found.evidence.items():
    table.add_row(str(row), row.shards, str(evidence.total()))
console.print(table)
console.print(
    f"{found.combinations} claims in {found.experiments} experiments, {found.seconds:.2f} CPU seconds"
)

console.rule("Why not abs of a partial sum?")
verdict = sw.check(torch.abs, "P(sum) -> P(sum)", torch.rand(4, 6))
assert verdict.counterexample is not None
console.print(verdict.counterexample.shown(), highlight=False)

console.rule("The rule of torch.sum, for every rank and argument")
rule = sw.synthesize(torch.sum)
table = Table("clause", "because")
for clause in rule.clauses:
    table.add_row(str(clause), clause.reason)
console.print(table)
console.print(f"built from {rule.evidence['calls']} calls, held against {rule.evidence['held_out']} others")
