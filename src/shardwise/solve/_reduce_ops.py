"""The compiled steps of reduction: each turns the working problem into a smaller one with the same optimum.

The working problem lives in flat arrays (`Work`): choices are removed by compacting in place, edges are
doubly linked half-edges (`2e` at the first node, `2e + 1` at the second), memory is a linked list of items
per node (a range of time points and one usage per choice). Three pools grow: tables, item usages and the
undo log. `np.inf` marks forbidden entries; integers below 2^53 stay exact.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ._loops import copy, fill

# Of a fixed type, since numba compiles a function anew for every literal that it is called with.
QUEUE_EDGE, QUEUE_NODE, QUEUE_DOMINANCE = np.int64(0), np.int64(1), np.int64(2)
NONE = np.int64(-1)

STEP_SEPARATE, STEP_MERGE, STEP_ELIMINATE, STEP_DOMINATE = 1, 2, 4, 8

# Slots of `Work.counts`.
TABLES_USED, USAGES_USED, LOG_USED, RECORDS = 0, 1, 2, 3
FIXED, MERGED, SEPARABLE, PARALLEL, DOMINATED, FORBIDDEN_CHOICES, FOLDED, ELIMINATED, PAIRS = range(4, 13)
COUNTS = 16

# Tables that a merge or an elimination may add beyond those it replaces, in entries.
MOST_GROWTH = 1 << 20
# Work beyond which the test of dominance of one node is left out, in table entries.
MOST_DOMINANCE = 400_000_000


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
    base: np.ndarray  # differences over time of the memory that is no longer a choice
    records: np.ndarray  # undo records: node, first, second (or -1), offset into the log
    counts: np.ndarray
    queued: np.ndarray  # [queue, node or edge]
    queue: np.ndarray
    queue_ends: np.ndarray  # [queue, (first, count)]


@njit(cache=True)
def push(w, which, what):
    if w.queued[which, what]:
        return
    w.queued[which, what] = True
    size = w.queue.shape[1]
    w.queue[which, (w.queue_ends[which, 0] + w.queue_ends[which, 1]) % size] = what
    w.queue_ends[which, 1] += 1


@njit(cache=True)
def pop(w, which):
    first = w.queue_ends[which, 0]
    what = w.queue[which, first]
    w.queue_ends[which, 0] = (first + 1) % w.queue.shape[1]
    w.queue_ends[which, 1] -= 1
    w.queued[which, what] = False
    return what


@njit(cache=True)
def touch(w, u):
    """The choices of `u` changed: look again at its edges, at itself and at its neighbours."""
    push(w, QUEUE_NODE, u)
    push(w, QUEUE_DOMINANCE, u)
    h = w.node[u].head
    while h >= 0:
        push(w, QUEUE_EDGE, h >> 1)
        push(w, QUEUE_DOMINANCE, w.half[h ^ 1].end)
        h = w.half[h].next


@njit(cache=True)
def attach(w, h, u):
    w.half[h].end = u
    w.half[h].prev = -1
    w.half[h].next = w.node[u].head
    if w.node[u].head >= 0:
        w.half[w.node[u].head].prev = h
    w.node[u].head = h
    w.node[u].degree += 1


@njit(cache=True)
def detach(w, h):
    u = w.half[h].end
    if w.half[h].prev >= 0:
        w.half[w.half[h].prev].next = w.half[h].next
    else:
        w.node[u].head = w.half[h].next
    if w.half[h].next >= 0:
        w.half[w.half[h].next].prev = w.half[h].prev
    w.node[u].degree -= 1


@njit(cache=True)
def drop_edge(w, e):
    detach(w, 2 * e)
    detach(w, 2 * e + 1)
    w.edge[e].alive = False


@njit(cache=True)
def strides(w, h):
    """Strides in the table of half-edge `h` of its own node's choices and of the other's."""
    if h & 1:
        return 1, w.node[w.half[h].end].k
    return w.node[w.half[h ^ 1].end].k, 1


@njit(cache=True)
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


@njit(cache=True)
def room_for(pool, used, need):
    if used + need <= len(pool):
        return pool
    grown = np.empty(2 * len(pool) + need, pool.dtype)
    copy(grown, pool, used)
    return grown


@njit(cache=True)
def remove_choices(w, tables, usages, u, keep):
    """Keep the choices of `u` where `keep`, in every array that is indexed by them."""
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


@njit(cache=True)
def settle_items(w, usages, u):
    """Move what every choice of `u` uses alike into the base load; drop items left without a difference."""
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


@njit(cache=True)
def record(w, log, node, first, second):
    """Begin an undo record: the choices that are left at `first` and `second`, to be followed by values."""
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


@njit(cache=True)
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


@njit(cache=True)
def fix(w, tables, log, u):
    """Remove `u`, which has no memory items and no edges or a single choice: its best choice is known."""
    s = w.node[u].start
    best = 0
    for x in range(w.node[u].k):
        if w.cost[s + x] < w.cost[s + best]:
            best = x
    log, at = record(w, log, u, NONE, NONE)
    log[at] = w.orig[s + best]
    while w.node[u].head >= 0:
        h = w.node[u].head
        v = w.half[h ^ 1].end
        own, others = strides(w, h)
        for z in range(w.node[v].k):
            w.cost[w.node[v].start + z] += tables[w.edge[h >> 1].offset + best * own + z * others]
        drop_edge(w, h >> 1)
        push(w, QUEUE_NODE, v)
        push(w, QUEUE_DOMINANCE, v)
    w.node[u].alive = False
    w.counts[FIXED] += 1
    w.cost[s] = w.cost[s + best]  # the constant part of the cost
    return log


@njit(cache=True)
def prune(w, tables, usages, u):
    """Remove choices of infinite cost. False when none is left."""
    keep = np.empty(w.node[u].k, np.bool_)
    left = 0
    for x in range(w.node[u].k):
        keep[x] = w.cost[w.node[u].start + x] < np.inf
        left += keep[x]
    if left == 0:
        return False
    if left < w.node[u].k:
        w.counts[FORBIDDEN_CHOICES] += w.node[u].k - left
        remove_choices(w, tables, usages, u, keep)
    return True


@njit(cache=True)
def arc_consistent(w, tables, usages, e):
    """Remove choices that no choice of the other node allows. False when none is left."""
    for side in range(2):
        h = 2 * e + side
        u = w.half[h].end
        v = w.half[h ^ 1].end
        own, others = strides(w, h)
        o = w.edge[e].offset
        keep = np.empty(w.node[u].k, np.bool_)
        left = 0
        for x in range(w.node[u].k):
            keep[x] = False
            for z in range(w.node[v].k):
                if tables[o + x * own + z * others] < np.inf:
                    keep[x] = True
                    left += 1
                    break
        if left == 0:
            return False
        if left < w.node[u].k:
            w.counts[FORBIDDEN_CHOICES] += w.node[u].k - left
            remove_choices(w, tables, usages, u, keep)
    return True


@njit(cache=True)
def separate(w, tables, e):
    """Drop an edge that is a sum of a function of either end, moving both into the nodes."""
    a, b = w.half[2 * e].end, w.half[2 * e + 1].end
    ka, kb, o = w.node[a].k, w.node[b].k, w.edge[e].offset
    if tables[o] == np.inf:
        return False
    for x in range(ka):
        row = o + x * kb
        shift = tables[row] - tables[o]
        for z in range(kb):
            if tables[row + z] - tables[o + z] != shift:  # also for nan: forbidden in both
                return False
    for x in range(ka):
        w.cost[w.node[a].start + x] += tables[o + x * kb] - tables[o]
    for z in range(kb):
        w.cost[w.node[b].start + z] += tables[o + z]
    drop_edge(w, e)
    for u in (a, b):
        push(w, QUEUE_NODE, u)
        push(w, QUEUE_DOMINANCE, u)
    w.counts[SEPARABLE] += 1
    return True


@njit(cache=True)
def is_function(w, tables, h, f):
    """Whether the choice of `h`'s node determines the other's, and if so `f`, the map."""
    u, v = w.half[h].end, w.half[h ^ 1].end
    own, others = strides(w, h)
    o = w.edge[h >> 1].offset
    for x in range(w.node[u].k):
        found = -1
        for z in range(w.node[v].k):
            if tables[o + x * own + z * others] < np.inf:
                if found >= 0:
                    return False
                found = z
        f[x] = found
    return True


@njit(cache=True)
def growth_of_merge(w, h):
    """Entries that the tables of `h`'s other node gain when it is merged into `h`'s node."""
    u, v = w.half[h].end, w.half[h ^ 1].end
    gain = 0
    g = w.node[v].head
    while g >= 0:
        gain += (w.node[u].k - w.node[v].k) * w.node[w.half[g ^ 1].end].k
        g = w.half[g].next
    return gain


@njit(cache=True)
def merge(w, tables, usages, log, h, f):
    """Merge the node `v` at the other end of `h` into `u`: its choice is `f` of the choice of `u`."""
    u, v = w.half[h].end, w.half[h ^ 1].end
    ku = w.node[u].k
    su, sv = w.node[u].start, w.node[v].start
    own, others = strides(w, h)
    o = w.edge[h >> 1].offset
    log, at = record(w, log, v, u, NONE)
    for x in range(ku):
        w.cost[su + x] += w.cost[sv + f[x]] + tables[o + x * own + f[x] * others]
        log[at + x] = w.orig[sv + f[x]]
    drop_edge(w, h >> 1)

    need = 0
    g = w.node[v].head
    while g >= 0:
        need += ku * w.node[w.half[g ^ 1].end].k
        g = w.half[g].next
    tables = room_for_tables(w, tables, need)
    g = w.node[u].head
    while g >= 0:
        w.node[w.half[g ^ 1].end].mark = g
        g = w.half[g].next
    while w.node[v].head >= 0:
        g = w.node[v].head
        t = w.half[g ^ 1].end
        kt = w.node[t].k
        own, others = strides(w, g)
        o = w.edge[g >> 1].offset
        if w.node[t].mark >= 0:
            parallel = w.node[t].mark
            own2, others2 = strides(w, parallel)
            o2 = w.edge[parallel >> 1].offset
            for x in range(ku):
                for z in range(kt):
                    tables[o2 + x * own2 + z * others2] += tables[o + f[x] * own + z * others]
            drop_edge(w, g >> 1)
            push(w, QUEUE_EDGE, parallel >> 1)
            w.counts[PARALLEL] += 1
        else:
            target = w.counts[TABLES_USED]
            w.counts[TABLES_USED] += ku * kt
            for x in range(ku):
                for z in range(kt):
                    to = target + z * ku + x if g & 1 else target + x * kt + z
                    tables[to] = tables[o + f[x] * own + z * others]
            detach(w, g)
            attach(w, g, u)
            w.edge[g >> 1].offset = target
            push(w, QUEUE_EDGE, g >> 1)
        push(w, QUEUE_NODE, t)
        push(w, QUEUE_DOMINANCE, t)
    g = w.node[u].head
    while g >= 0:
        w.node[w.half[g ^ 1].end].mark = -1
        g = w.half[g].next

    usages = move_items(w, usages, u, v, f)
    w.node[v].alive = False
    w.cost[sv] = 0.0
    w.counts[MERGED] += 1
    push(w, QUEUE_NODE, u)
    push(w, QUEUE_DOMINANCE, u)
    return tables, usages, log


@njit(cache=True)
def move_items(w, usages, u, v, f):
    i = w.node[v].item
    while i >= 0:
        after = w.item[i].next
        same = w.node[u].item
        while same >= 0 and (w.item[same].lo != w.item[i].lo or w.item[same].hi != w.item[i].hi):
            same = w.item[same].next
        if same >= 0:
            for x in range(w.node[u].k):
                usages[w.item[same].offset + x] += usages[w.item[i].offset + f[x]]
        else:
            used = w.counts[USAGES_USED]
            usages = room_for(usages, used, w.node[u].k)
            w.counts[USAGES_USED] += w.node[u].k
            for x in range(w.node[u].k):
                usages[used + x] = usages[w.item[i].offset + f[x]]
            w.item[i].offset = used
            w.item[i].next = w.node[u].item
            w.node[u].item = i
        i = after
    w.node[v].item = -1
    settle_items(w, usages, u)
    return usages


@njit(cache=True)
def fold(w, tables, log, v):
    """Eliminate `v`, which has one neighbour and no memory: the neighbour's choice decides it."""
    h = w.node[v].head ^ 1
    u = w.half[h].end
    own, others = strides(w, h)
    o = w.edge[h >> 1].offset
    log, at = record(w, log, v, u, NONE)
    for x in range(w.node[u].k):
        best, least = 0, np.inf
        for z in range(w.node[v].k):
            value = w.cost[w.node[v].start + z] + tables[o + x * own + z * others]
            if value < least:
                best, least = z, value
        w.cost[w.node[u].start + x] += least
        log[at + x] = w.orig[w.node[v].start + best]
    drop_edge(w, h >> 1)
    w.node[v].alive = False
    w.cost[w.node[v].start] = 0.0
    w.counts[FOLDED] += 1
    push(w, QUEUE_NODE, u)
    push(w, QUEUE_DOMINANCE, u)
    return log


@njit(cache=True)
def eliminate_pair(w, tables, log, v):
    """Eliminate `v`, which has two neighbours and no memory, by a table over both (or in theirs if any)."""
    ha = w.node[v].head ^ 1
    hb = w.half[w.node[v].head].next ^ 1
    a, b = w.half[ha].end, w.half[hb].end
    ka, kb, kv = w.node[a].k, w.node[b].k, w.node[v].k
    log, at = record(w, log, v, a, b)
    tables = room_for_tables(w, tables, ka * kb)
    target = w.counts[TABLES_USED]
    w.counts[TABLES_USED] += ka * kb
    own_a, v_a = strides(w, ha)
    own_b, v_b = strides(w, hb)
    oa, ob, sv = w.edge[ha >> 1].offset, w.edge[hb >> 1].offset, w.node[v].start
    for x in range(ka):
        for y in range(kb):
            best, least = 0, np.inf
            for z in range(kv):
                value = w.cost[sv + z] + tables[oa + x * own_a + z * v_a] + tables[ob + y * own_b + z * v_b]
                if value < least:
                    best, least = z, value
            tables[target + x * kb + y] = least
            log[at + x * kb + y] = w.orig[sv + best]
    drop_edge(w, ha >> 1)
    drop_edge(w, hb >> 1)
    shorter, far = (a, b) if w.node[a].degree <= w.node[b].degree else (b, a)
    g = w.node[shorter].head
    while g >= 0 and w.half[g ^ 1].end != far:
        g = w.half[g].next
    if g >= 0:
        if shorter == b:
            g ^= 1
        own, others = strides(w, g)
        o = w.edge[g >> 1].offset
        for x in range(ka):
            for y in range(kb):
                tables[o + x * own + y * others] += tables[target + x * kb + y]
        push(w, QUEUE_EDGE, g >> 1)
        w.counts[PARALLEL] += 1
    else:
        e = ha >> 1
        w.edge[e].alive = True
        attach(w, 2 * e, a)
        attach(w, 2 * e + 1, b)
        w.edge[e].offset = target
        push(w, QUEUE_EDGE, e)
    w.node[v].alive = False
    w.cost[sv] = 0.0
    w.counts[ELIMINATED] += 1
    for u in (a, b):
        push(w, QUEUE_NODE, u)
        push(w, QUEUE_DOMINANCE, u)
    return tables, log


@njit(cache=True)
def uses_no_more(w, usages, u, y, x):
    i = w.node[u].item
    while i >= 0:
        if usages[w.item[i].offset + y] > usages[w.item[i].offset + x]:
            return False
        i = w.item[i].next
    return True


@njit(cache=True)
def excess(tables, o, own, others, k, y, x):
    """The most that choice `y` costs above choice `x` on one edge, over the other node's choices."""
    most = -np.inf
    for z in range(k):
        ex = tables[o + x * own + z * others]
        if ex < np.inf:
            difference = tables[o + y * own + z * others] - ex
            if difference > most:
                most = difference
                if most == np.inf:
                    break
    return most


@njit(cache=True)
def dominate(w, tables, usages, u):
    """Remove choices that another can replace at no more cost and memory, whatever else is chosen."""
    k = w.node[u].k
    s = w.node[u].start
    width = 0
    h = w.node[u].head
    while h >= 0:
        width += w.node[w.half[h ^ 1].end].k
        h = w.half[h].next
    if k * k * (width + 1) > MOST_DOMINANCE:
        return
    keep = np.empty(k, np.bool_)
    fill(keep, True)
    left = k
    for x in range(k):
        for y in range(k):
            if x == y or not keep[y] or not uses_no_more(w, usages, u, y, x):
                continue
            total = w.cost[s + y] - w.cost[s + x]
            h = w.node[u].head
            while h >= 0 and total < np.inf:
                own, others = strides(w, h)
                total += excess(tables, w.edge[h >> 1].offset, own, others, w.node[w.half[h ^ 1].end].k, y, x)
                h = w.half[h].next
            if total <= 0:
                keep[x] = False
                left -= 1
                break
    if left < k:
        w.counts[DOMINATED] += k - left
        remove_choices(w, tables, usages, u, keep)


@njit(cache=True, nogil=True)
def reduce_to_fixpoint(w, tables, usages, log, steps, most_eliminated):
    """Apply the steps (a sum of `STEP_...`) until none applies.

    Forbidden pairs and single choices are always seen to. Returns the pools and the node without choices, or -1.
    """
    most = 1
    for u in range(len(w.node)):
        most = max(most, w.node[u].k)
    f = np.empty(most, np.int64)
    g = np.empty(most, np.int64)
    while True:
        if w.queue_ends[QUEUE_EDGE, 1] > 0:
            e = pop(w, QUEUE_EDGE)
            if not w.edge[e].alive:
                continue
            if not arc_consistent(w, tables, usages, e):
                return tables, usages, log, w.half[2 * e].end
            a, b = w.half[2 * e].end, w.half[2 * e + 1].end
            if w.node[a].k == 1 or w.node[b].k == 1:
                push(w, QUEUE_NODE, a)
                push(w, QUEUE_NODE, b)
                continue
            if steps & STEP_SEPARATE and separate(w, tables, e):
                continue
            if not steps & STEP_MERGE:
                continue
            forward = is_function(w, tables, 2 * e, f)
            backward = is_function(w, tables, 2 * e + 1, g)
            if forward and backward:
                forward = w.node[a].degree >= w.node[b].degree
                backward = not forward
            if forward and growth_of_merge(w, 2 * e) <= MOST_GROWTH:
                tables, usages, log = merge(w, tables, usages, log, 2 * e, f)
            elif backward and growth_of_merge(w, 2 * e + 1) <= MOST_GROWTH:
                tables, usages, log = merge(w, tables, usages, log, 2 * e + 1, g)
        elif w.queue_ends[QUEUE_NODE, 1] > 0:
            u = pop(w, QUEUE_NODE)
            if not w.node[u].alive:
                continue
            if not prune(w, tables, usages, u):
                return tables, usages, log, u
            if w.node[u].k == 1:
                log = fix(w, tables, log, u)
            elif steps & STEP_ELIMINATE and w.node[u].item < 0:
                if w.node[u].degree == 0:
                    log = fix(w, tables, log, u)
                elif w.node[u].degree == 1:
                    log = fold(w, tables, log, u)
                elif w.node[u].degree == 2:
                    a = w.half[w.node[u].head ^ 1].end
                    b = w.half[w.half[w.node[u].head].next ^ 1].end
                    if w.node[a].k * w.node[b].k <= max(
                        most_eliminated, w.node[u].k * (w.node[a].k + w.node[b].k)
                    ):
                        tables, log = eliminate_pair(w, tables, log, u)
        elif steps & STEP_DOMINATE and w.queue_ends[QUEUE_DOMINANCE, 1] > 0:
            u = pop(w, QUEUE_DOMINANCE)
            if w.node[u].alive:
                dominate(w, tables, usages, u)
        else:
            return tables, usages, log, -1


@njit(cache=True)
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


@njit(cache=True)
def queue_all(w):
    for e in range(len(w.edge)):
        if w.edge[e].alive:
            push(w, QUEUE_EDGE, e)
    for u in range(len(w.node)):
        if w.node[u].alive:
            push(w, QUEUE_NODE, u)
            push(w, QUEUE_DOMINANCE, u)


@njit(cache=True)
def settle_all(w, usages):
    for u in range(len(w.node)):
        if w.node[u].alive and w.node[u].item >= 0:
            settle_items(w, usages, u)
            push(w, QUEUE_NODE, u)
            push(w, QUEUE_DOMINANCE, u)


@njit(cache=True)
def largest_usages(w, usages, most):
    """The largest usage of each item that is still in use; zero for the others."""
    for u in range(len(w.node)):
        if w.node[u].alive:
            i = w.node[u].item
            while i >= 0:
                for x in range(w.node[u].k):
                    most[i] = max(most[i], usages[w.item[i].offset + x])
                i = w.item[i].next


@njit(cache=True)
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
