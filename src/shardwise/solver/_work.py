"""The working problem of the reductions, in flat arrays, and removal of choices, edges and items.

Choices are removed by compacting in place, edges are doubly linked half-edges (`2e` at the first node, `2e + 1` at
the second), memory is a linked list of items per node (a range of time points and one usage per choice). Three
pools grow: tables, item usages and the undo log. `np.inf` marks forbidden entries; integers below 2^53 stay exact.
"""

from typing import NamedTuple

import numpy as np

from ._compiled import compiled, copy

# Of a fixed type, since numba compiles a function again for every literal argument.
QUEUE_EDGE, QUEUE_NODE, QUEUE_DOMINANCE = np.int64(0), np.int64(1), np.int64(2)
NONE = np.int64(-1)

STEP_SEPARATE, STEP_MERGE, STEP_ELIMINATE, STEP_DOMINATE = 1, 2, 4, 8

# Slots of `Work.counts`.
TABLES_USED, USAGES_USED, LOG_USED, RECORDS = 0, 1, 2, 3
FIXED, MERGED, SEPARABLE, PARALLEL, DOMINATED, FORBIDDEN_CHOICES, FOLDED, ELIMINATED = range(4, 12)
COUNTS = 16

NODE = np.dtype(
    [
        ("k", np.int64),  # choices left
        ("start", np.int64),  # offset into `cost` and `orig`
        ("degree", np.int64),
        ("head", np.int64),  # first half-edge
        ("item", np.int64),  # first memory item
        ("mark", np.int64),  # scratch, -1 between steps
        ("alive", np.bool_),
    ],
    align=True,
)
HALF = np.dtype([("end", np.int64), ("next", np.int64), ("prev", np.int64)])
EDGE = np.dtype([("offset", np.int64), ("alive", np.bool_)], align=True)
ITEM = np.dtype([("lo", np.int64), ("hi", np.int64), ("offset", np.int64), ("next", np.int64)])


class Work(NamedTuple):
    """The working problem. Nodes and edges are those of the input problem, alive or not."""

    node: np.ndarray
    cost: np.ndarray
    orig: np.ndarray  # index of a choice in the input problem
    half: np.ndarray  # half-edges
    edge: np.ndarray
    item: np.ndarray
    base: np.ndarray  # differences over time of the constant memory
    records: np.ndarray  # undo records: node, first, second (or -1), offset into the log
    counts: np.ndarray
    queued: np.ndarray  # [queue, node or edge]
    queue: np.ndarray
    queue_ends: np.ndarray  # [queue, (first, count)]


@compiled
def push(w, which, what):
    if w.queued[which, what]:
        return
    w.queued[which, what] = True
    size = w.queue.shape[1]
    w.queue[which, (w.queue_ends[which, 0] + w.queue_ends[which, 1]) % size] = what
    w.queue_ends[which, 1] += 1


@compiled
def pop(w, which):
    first = w.queue_ends[which, 0]
    what = w.queue[which, first]
    w.queue_ends[which, 0] = (first + 1) % w.queue.shape[1]
    w.queue_ends[which, 1] -= 1
    w.queued[which, what] = False
    return what


@compiled
def touch(w, u):
    """The choices of `u` changed: queue it, its edges and its neighbours again."""
    push(w, QUEUE_NODE, u)
    push(w, QUEUE_DOMINANCE, u)
    h = w.node[u].head
    while h >= 0:
        push(w, QUEUE_EDGE, h >> 1)
        push(w, QUEUE_DOMINANCE, w.half[h ^ 1].end)
        h = w.half[h].next


@compiled
def attach(w, h, u):
    w.half[h].end = u
    w.half[h].prev = -1
    w.half[h].next = w.node[u].head
    if w.node[u].head >= 0:
        w.half[w.node[u].head].prev = h
    w.node[u].head = h
    w.node[u].degree += 1


@compiled
def detach(w, h):
    u = w.half[h].end
    if w.half[h].prev >= 0:
        w.half[w.half[h].prev].next = w.half[h].next
    else:
        w.node[u].head = w.half[h].next
    if w.half[h].next >= 0:
        w.half[w.half[h].next].prev = w.half[h].prev
    w.node[u].degree -= 1


@compiled
def drop_edge(w, e):
    detach(w, 2 * e)
    detach(w, 2 * e + 1)
    w.edge[e].alive = False


@compiled
def strides(w, h):
    """Strides in the table of half-edge `h` of its own node's choices and of the other's."""
    if h & 1:
        return 1, w.node[w.half[h].end].k
    return w.node[w.half[h ^ 1].end].k, 1


@compiled
def room_for_tables(w, tables, need):
    """`tables` with room for `need` more entries; live tables move to a larger pool when it is full."""
    used = w.counts[TABLES_USED]
    if used + need <= len(tables):
        return tables
    live = 0
    for e in range(len(w.edge)):
        if w.edge[e].alive:
            live += w.node[w.half[2 * e].end].k * w.node[w.half[2 * e + 1].end].k
    grown = np.empty(live + live // 2 + need + 1024, tables.dtype)
    position = 0
    for e in range(len(w.edge)):
        if w.edge[e].alive:
            size = w.node[w.half[2 * e].end].k * w.node[w.half[2 * e + 1].end].k
            for i in range(size):
                grown[position + i] = tables[w.edge[e].offset + i]
            w.edge[e].offset = position
            position += size
    w.counts[TABLES_USED] = position
    return grown


@compiled
def room_for(pool, used, need):
    if used + need <= len(pool):
        return pool
    grown = np.empty(2 * len(pool) + need, pool.dtype)
    copy(grown, pool, used)
    return grown


@compiled
def remove_choices(w, tables, usages, u, keep):
    """Keep the choices of `u` with `keep`, in every array that is indexed by them."""
    k = w.node[u].k
    left = 0
    for x in range(k):
        left += keep[x]
    h = w.node[u].head
    while h >= 0:
        offset = w.edge[h >> 1].offset
        other = w.node[w.half[h ^ 1].end].k
        if h & 1:
            position = offset
            for z in range(other):
                for x in range(k):
                    if keep[x]:
                        tables[position] = tables[offset + z * k + x]
                        position += 1
        else:
            row = 0
            for x in range(k):
                if keep[x]:
                    if row != x:
                        for z in range(other):
                            tables[offset + row * other + z] = tables[offset + x * other + z]
                    row += 1
        h = w.half[h].next
    i = w.node[u].item
    while i >= 0:
        position = w.item[i].offset
        for x in range(k):
            if keep[x]:
                usages[position] = usages[w.item[i].offset + x]
                position += 1
        i = w.item[i].next
    s = w.node[u].start
    position = s
    for x in range(k):
        if keep[x]:
            w.cost[position] = w.cost[s + x]
            w.orig[position] = w.orig[s + x]
            position += 1
    w.node[u].k = left
    settle_items(w, usages, u)
    touch(w, u)


@compiled
def settle_items(w, usages, u):
    """Move the memory that all choices of `u` use into the base load; drop items that are zero then."""
    before = -1
    i = w.node[u].item
    while i >= 0:
        after = w.item[i].next
        o = w.item[i].offset
        least = usages[o]
        most = usages[o]
        for x in range(1, w.node[u].k):
            least = min(least, usages[o + x])
            most = max(most, usages[o + x])
        if w.item[i].lo < w.item[i].hi and least != 0:
            w.base[w.item[i].lo] += least
            w.base[w.item[i].hi] -= least
            for x in range(w.node[u].k):
                usages[o + x] -= least
        if most == least or w.item[i].lo >= w.item[i].hi:
            if before >= 0:
                w.item[before].next = after
            else:
                w.node[u].item = after
        else:
            before = i
        i = after


@compiled
def record(w, log, node, first, second):
    """Begin an undo record: the remaining choices of `first` and `second`, to be followed by values."""
    ka = w.node[first].k if first >= 0 else 1
    kb = w.node[second].k if second >= 0 else 1
    used = w.counts[LOG_USED]
    log = room_for(log, used, 2 + ka + kb + ka * kb)
    r = w.counts[RECORDS]
    w.counts[RECORDS] += 1
    w.records[r, 0] = node
    w.records[r, 1] = first
    w.records[r, 2] = second
    w.records[r, 3] = used
    log[used] = ka
    log[used + 1] = kb
    for x in range(ka):
        log[used + 2 + x] = w.orig[w.node[first].start + x] if first >= 0 else 0
    for x in range(kb):
        log[used + 2 + ka + x] = w.orig[w.node[second].start + x] if second >= 0 else 0
    w.counts[LOG_USED] = used + 2 + ka + kb + ka * kb
    return log, used + 2 + ka + kb


@compiled
def undo(records, count, log, choice):
    """Fill in the choices of removed nodes, latest removal first."""
    for r in range(count - 1, -1, -1):
        node, first, second, o = records[r, 0], records[r, 1], records[r, 2], records[r, 3]
        ka, kb = log[o], log[o + 1]
        x = 0
        if first >= 0:
            while log[o + 2 + x] != choice[first]:
                x += 1
        y = 0
        if second >= 0:
            while log[o + 2 + ka + y] != choice[second]:
                y += 1
        choice[node] = log[o + 2 + ka + kb + x * kb + y]


@compiled
def begin(w, tables, usages):
    """Link the edges, merge parallel ones, put loops into node costs, queue everything."""
    for e in range(len(w.edge)):
        a, b = w.half[2 * e].end, w.half[2 * e + 1].end
        if a == b:
            for x in range(w.node[a].k):
                w.cost[w.node[a].start + x] += tables[w.edge[e].offset + x * w.node[a].k + x]
            w.edge[e].alive = False
        else:
            attach(w, 2 * e, a)
            attach(w, 2 * e + 1, b)
            push(w, QUEUE_EDGE, e)
    for u in range(len(w.node)):
        h = w.node[u].head
        while h >= 0:
            after = w.half[h].next
            v = w.half[h ^ 1].end
            if w.node[v].mark >= 0:
                g = w.node[v].mark
                own, others = strides(w, h)
                own2, others2 = strides(w, g)
                o, o2 = w.edge[h >> 1].offset, w.edge[g >> 1].offset
                for x in range(w.node[u].k):
                    for z in range(w.node[v].k):
                        tables[o2 + x * own2 + z * others2] += tables[o + x * own + z * others]
                drop_edge(w, h >> 1)
                w.counts[PARALLEL] += 1
            else:
                w.node[v].mark = h
            h = after
        h = w.node[u].head
        while h >= 0:
            w.node[w.half[h ^ 1].end].mark = -1
            h = w.half[h].next
        settle_items(w, usages, u)
        push(w, QUEUE_NODE, u)
        push(w, QUEUE_DOMINANCE, u)


@compiled
def queue_all(w):
    for e in range(len(w.edge)):
        if w.edge[e].alive:
            push(w, QUEUE_EDGE, e)
    for u in range(len(w.node)):
        if w.node[u].alive:
            push(w, QUEUE_NODE, u)
            push(w, QUEUE_DOMINANCE, u)


@compiled
def settle_all(w, usages):
    for u in range(len(w.node)):
        if w.node[u].alive and w.node[u].item >= 0:
            settle_items(w, usages, u)
            push(w, QUEUE_NODE, u)
            push(w, QUEUE_DOMINANCE, u)


@compiled
def largest_usages(w, usages, most):
    """The largest usage of each live item; zero for the others."""
    for u in range(len(w.node)):
        if w.node[u].alive:
            i = w.node[u].item
            while i >= 0:
                for x in range(w.node[u].k):
                    most[i] = max(most[i], usages[w.item[i].offset + x])
                i = w.item[i].next


@compiled
def items_of(w, usages, nodes):
    """Memory items of `nodes` in compact form."""
    count = 0
    total = 0
    for u in nodes:
        i = w.node[u].item
        while i >= 0:
            count += 1
            total += w.node[u].k
            i = w.item[i].next
    first = np.empty(len(nodes) + 1, np.int64)
    first[0] = 0
    lo, hi, offset = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    usage = np.empty(total, np.int64)
    at = 0
    used = 0
    for n in range(len(nodes)):
        i = w.node[nodes[n]].item
        while i >= 0:
            lo[at], hi[at], offset[at] = w.item[i].lo, w.item[i].hi, used
            for x in range(w.node[nodes[n]].k):
                usage[used] = usages[w.item[i].offset + x]
                used += 1
            at += 1
            i = w.item[i].next
        first[n + 1] = at
    return first, lo, hi, offset, usage
