"""Building the book: reach every operator, study each once, confirm its variants, write what was learned.

Every operator's entry is kept as soon as it is known, so a build that was interrupted goes on where it stopped.
Operators are studied independently of each other, so every build of the same torch gives the same book, whatever the
number of workers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch

from ..calls import overload, registered
from ..errors import UsageError
from ..progress import Progress, silent
from ..rules import SHIPPED, VERDICTS, Book, Entry, require_no_others, variants_of, write
from ._by_hand import refusal
from ._learn import learn, learn_variant
from ._overlay import differences, learn_again, learn_variant_again
from ._reach import Reached, reach
from ._state import State


def build(
    out: Path,
    *,
    workers: int = 2,
    resume: bool = False,
    models: Path | None = None,
    pattern: str = "*",
    whole: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Build the book of the running torch into a folder; returns how many operators got each verdict.

    If the shipped book is about another torch, its rules are tested, and only what differs is learned and written, as
    an overlay; `whole` studies everything. `models` is a file whose functions `build_*` return a model, its arguments
    and keyword arguments: the operators of their captured graphs are reached, too. `pattern` names the OpInfos and
    models to start from.
    """
    require_no_others(out)
    torch.set_num_threads(1)
    state = State(out / "state", resume)
    reached = state.reached()
    if reached is None:
        reached = reach(models, pattern, progress)
        state.keep_reached(reached)
    originals = _originals(reached)
    studied = [name for name in reached.calls if name not in originals]
    version = torch.__version__.split("+")[0]
    base = None if whole or Book(SHIPPED).torch == version else Book(SHIPPED)
    tasks = [partial(_study, state, reached, name, base) for name in studied]
    _in_parallel("studying", tasks, workers, progress)
    tasks = [partial(_confirm, state, reached, name, original, base) for name, original in originals.items()]
    _in_parallel("variants", tasks, workers, progress)
    entries = [entry for name in (*studied, *originals) if (entry := state.entry(name)) is not None]
    if wrong := refusal(entries):
        state.drop(entry.op for entry in entries if entry.evidence.get("refuted"))
        raise UsageError(f"{wrong}; correct it, and go on with --resume")
    entries += [Entry(name, "cannot run", reason) for name, reason in reached.unreached.items()]
    if base is None:
        write(out, entries, version, reached.functions)
    else:
        exists = [op for op in base.verdicts if registered(op) is not None]
        changed, differs = differences(base, entries, exists)
        functions = {f: ops for f, ops in reached.functions.items() if base.functions.get(f) != ops}
        write(out, changed, version, functions, differs)
    counts = Counter(entry.verdict for entry in entries)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def _originals(reached: Reached) -> dict[str, str]:
    """Variants of what was reached, whether reached themselves or not, each with its original."""
    found: dict[str, str] = {}
    for name in reached.calls:
        for variant in variants_of(overload(name)):
            found.setdefault(str(variant), name)
    return dict(sorted(found.items()))


def _study(state: State, reached: Reached, name: str, base: Book | None) -> None:
    if state.has(name):
        return
    known = None if base is None else base.entry(name)
    calls = reached.calls[name]
    state.keep(learn(name, calls) if known is None else learn_again(name, known, calls))


def _confirm(state: State, reached: Reached, name: str, original: str, base: Book | None) -> None:
    if state.has(name):
        return
    entry = state.entry(original)
    assert entry is not None
    known = None if base is None else base.entry(name)
    calls = reached.calls.get(name) or reached.calls[original]
    if base is not None and known is not None and base.entry(original) == entry:
        state.keep(learn_variant_again(name, known, entry, calls))
    else:
        state.keep(learn_variant(name, entry, calls))


def _in_parallel(stage: str, tasks: Sequence[Callable[[], None]], workers: int, progress: Progress) -> None:
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(task) for task in tasks]
        for done, finished in enumerate(as_completed(running)):
            finished.result()
            progress(stage, done + 1, len(tasks))
