"""The compiled steps of reduction: each turns the working problem into a smaller one with the same optimum.

The working problem lives in flat arrays (`Work`): choices are removed by compacting in place, edges are
doubly linked half-edges (`2e` at the first node, `2e + 1` at the second), memory is a linked list of items
per node (a range of time points and one usage per choice). Three pools grow: tables, item usages and the
undo log. `np.inf` marks forbidden entries; integers below 2^53 stay exact.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

QUEUE_EDGE, QUEUE_NODE, QUEUE_DOMINANCE = 0, 1, 2

# Slots of `Work.counts`.
TABLES_USED, USAGES_USED, LOG_USED, RECORDS = 0, 1, 2, 3
FIXED, MERGED, SEPARABLE, PARALLEL, DOMINATED, FORBIDDEN_CHOICES, FOLDED, ELIMINATED, PAIRS = range(4, 13)
COUNTS = 16

# Tables that a merge or an elimination may add beyond those it replaces, in entries.
MOST_GROWTH = 1 << 20
# Work beyond which the test of dominance of one node is left out, in table entries.
MOST_DOMINANCE = 400_000_000


class Work(NamedTuple):
    """The working problem. Node arrays have one entry per node of the input problem, alive or not."""

    k: np.ndarray  # number of choices left
    start: np.ndarray  # offset into `cost` and `orig`
    cost: np.ndarray
    orig: np.ndarray  # index of a choice in the input problem
    alive: np.ndarray
    degree: np.ndarray
    head: np.ndarray  # first half-edge
    item: np.ndarray  # first item
    end: np.ndarray  # node of a half-edge
    next: np.ndarray
    prev: np.ndarray
    offset: np.ndarray  # of an edge's table
    edge_alive: np.ndarray
    item_lo: np.ndarray
    item_hi: np.ndarray
    item_offset: np.ndarray
    item_next: np.ndarray
    base: np.ndarray  # differences over time of the memory that is no longer a choice
    records: np.ndarray  # undo records: node, first, second (or -1), offset into the log
    counts: np.ndarray
    queued: np.ndarray  # [queue, node or edge]
    queue: np.ndarray
    queue_ends: np.ndarray  # [queue, (first, count)]
    mark: np.ndarray  # scratch, -1 everywhere between steps


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
    h = w.head[u]
    while h >= 0:
        push(w, QUEUE_EDGE, h >> 1)
        push(w, QUEUE_DOMINANCE, w.end[h ^ 1])
        h = w.next[h]


@njit(cache=True)
def attach(w, h, u):
    w.end[h] = u
    w.prev[h] = -1
    w.next[h] = w.head[u]
    if w.head[u] >= 0:
        w.prev[w.head[u]] = h
    w.head[u] = h
    w.degree[u] += 1


@njit(cache=True)
def detach(w, h):
    u = w.end[h]
    if w.prev[h] >= 0:
        w.next[w.prev[h]] = w.next[h]
    else:
        w.head[u] = w.next[h]
    if w.next[h] >= 0:
        w.prev[w.next[h]] = w.prev[h]
    w.degree[u] -= 1


@njit(cache=True)
def drop_edge(w, e):
    detach(w, 2 * e)
    detach(w, 2 * e + 1)
    w.edge_alive[e] = False


@njit(cache=True)
def strides(w, h):
    """Strides in the table of half-edge `h` of its own node's choices and of the other's."""
    if h & 1:
        return 1, w.k[w.end[h]]
    return w.k[w.end[h ^ 1]], 1


@njit(cache=True)
def room_for_tables(w, tables, need):
    """`tables` with room for `need` more entries; live tables move to a larger pool when it is full."""
    used = w.counts[TABLES_USED]
    if used + need <= len(tables):
        return tables
    live = 0
    for e in range(len(w.offset)):
        if w.edge_alive[e]:
            live += w.k[w.end[2 * e]] * w.k[w.end[2 * e + 1]]
    grown = np.empty(live + live // 2 + need + 1024, tables.dtype)
    position = 0
    for e in range(len(w.offset)):
        if w.edge_alive[e]:
            size = w.k[w.end[2 * e]] * w.k[w.end[2 * e + 1]]
            grown[position : position + size] = tables[w.offset[e] : w.offset[e] + size]
            w.offset[e] = position
            position += size
    w.counts[TABLES_USED] = position
    return grown


@njit(cache=True)
def room_for(pool, used, need):
    if used + need <= len(pool):
        return pool
    grown = np.empty(2 * len(pool) + need, pool.dtype)
    grown[:used] = pool[:used]
    return grown


@njit(cache=True)
def remove_choices(w, tables, usages, u, keep):
    """Keep the choices of `u` where `keep`, in every array that is indexed by them."""
    k = w.k[u]
    left = 0
    for x in range(k):
        left += keep[x]
    h = w.head[u]
    while h >= 0:
        offset = w.offset[h >> 1]
        other = w.k[w.end[h ^ 1]]
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
        h = w.next[h]
    i = w.item[u]
    while i >= 0:
        position = w.item_offset[i]
        for x in range(k):
            if keep[x]:
                usages[position] = usages[w.item_offset[i] + x]
                position += 1
        i = w.item_next[i]
    s = w.start[u]
    position = s
    for x in range(k):
        if keep[x]:
            w.cost[position] = w.cost[s + x]
            w.orig[position] = w.orig[s + x]
            position += 1
    w.k[u] = left
    settle_items(w, usages, u)
    touch(w, u)


@njit(cache=True)
def settle_items(w, usages, u):
    """Move what every choice of `u` uses alike into the base load; drop items left without a difference."""
    before = -1
    i = w.item[u]
    while i >= 0:
        after = w.item_next[i]
        o = w.item_offset[i]
        least = usages[o]
        most = usages[o]
        for x in range(1, w.k[u]):
            least = min(least, usages[o + x])
            most = max(most, usages[o + x])
        if w.item_lo[i] < w.item_hi[i] and least != 0:
            w.base[w.item_lo[i]] += least
            w.base[w.item_hi[i]] -= least
            for x in range(w.k[u]):
                usages[o + x] -= least
        if most == least or w.item_lo[i] >= w.item_hi[i]:
            if before >= 0:
                w.item_next[before] = after
            else:
                w.item[u] = after
        else:
            before = i
        i = after


@njit(cache=True)
def record(w, log, node, first, second):
    """Begin an undo record: the choices that are left at `first` and `second`, to be followed by values."""
    ka = w.k[first] if first >= 0 else 1
    kb = w.k[second] if second >= 0 else 1
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
        log[used + 2 + x] = w.orig[w.start[first] + x] if first >= 0 else 0
    for x in range(kb):
        log[used + 2 + ka + x] = w.orig[w.start[second] + x] if second >= 0 else 0
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
    s = w.start[u]
    best = 0
    for x in range(w.k[u]):
        if w.cost[s + x] < w.cost[s + best]:
            best = x
    log, at = record(w, log, u, -1, -1)
    log[at] = w.orig[s + best]
    while w.head[u] >= 0:
        h = w.head[u]
        v = w.end[h ^ 1]
        own, others = strides(w, h)
        for z in range(w.k[v]):
            w.cost[w.start[v] + z] += tables[w.offset[h >> 1] + best * own + z * others]
        drop_edge(w, h >> 1)
        push(w, QUEUE_NODE, v)
        push(w, QUEUE_DOMINANCE, v)
    w.alive[u] = False
    w.counts[FIXED] += 1
    w.cost[s] = w.cost[s + best]  # the constant part of the cost
    return log


@njit(cache=True)
def prune(w, tables, usages, u):
    """Remove choices of infinite cost. False when none is left."""
    keep = np.isfinite(w.cost[w.start[u] : w.start[u] + w.k[u]])
    left = keep.sum()
    if left == 0:
        return False
    if left < w.k[u]:
        w.counts[FORBIDDEN_CHOICES] += w.k[u] - left
        remove_choices(w, tables, usages, u, keep)
    return True


@njit(cache=True)
def arc_consistent(w, tables, usages, e):
    """Remove choices that no choice of the other node allows. False when none is left."""
    for side in range(2):
        h = 2 * e + side
        u = w.end[h]
        v = w.end[h ^ 1]
        own, others = strides(w, h)
        o = w.offset[e]
        keep = np.zeros(w.k[u], np.bool_)
        left = 0
        for x in range(w.k[u]):
            for z in range(w.k[v]):
                if tables[o + x * own + z * others] < np.inf:
                    keep[x] = True
                    left += 1
                    break
        if left == 0:
            return False
        if left < w.k[u]:
            w.counts[FORBIDDEN_CHOICES] += w.k[u] - left
            remove_choices(w, tables, usages, u, keep)
    return True


@njit(cache=True)
def separate(w, tables, e):
    """Drop an edge that is a sum of a function of either end, moving both into the nodes."""
    a, b = w.end[2 * e], w.end[2 * e + 1]
    ka, kb, o = w.k[a], w.k[b], w.offset[e]
    if not np.isfinite(tables[o]):
        return False
    for x in range(ka):
        row = o + x * kb
        shift = tables[row] - tables[o]
        for z in range(kb):
            if tables[row + z] - tables[o + z] != shift:  # also for nan: forbidden in both
                return False
    for x in range(ka):
        w.cost[w.start[a] + x] += tables[o + x * kb] - tables[o]
    for z in range(kb):
        w.cost[w.start[b] + z] += tables[o + z]
    drop_edge(w, e)
    for u in (a, b):
        push(w, QUEUE_NODE, u)
        push(w, QUEUE_DOMINANCE, u)
    w.counts[SEPARABLE] += 1
    return True


@njit(cache=True)
def is_function(w, tables, h, f):
    """Whether the choice of `h`'s node determines the other's, and if so `f`, the map."""
    u, v = w.end[h], w.end[h ^ 1]
    own, others = strides(w, h)
    o = w.offset[h >> 1]
    for x in range(w.k[u]):
        found = -1
        for z in range(w.k[v]):
            if tables[o + x * own + z * others] < np.inf:
                if found >= 0:
                    return False
                found = z
        f[x] = found
    return True


@njit(cache=True)
def growth_of_merge(w, h):
    """Entries that the tables of `h`'s other node gain when it is merged into `h`'s node."""
    u, v = w.end[h], w.end[h ^ 1]
    gain = 0
    g = w.head[v]
    while g >= 0:
        gain += (w.k[u] - w.k[v]) * w.k[w.end[g ^ 1]]
        g = w.next[g]
    return gain


@njit(cache=True)
def merge(w, tables, usages, log, h, f):
    """Merge the node `v` at the other end of `h` into `u`: its choice is `f` of the choice of `u`."""
    u, v = w.end[h], w.end[h ^ 1]
    ku = w.k[u]
    su, sv = w.start[u], w.start[v]
    own, others = strides(w, h)
    o = w.offset[h >> 1]
    log, at = record(w, log, v, u, -1)
    for x in range(ku):
        w.cost[su + x] += w.cost[sv + f[x]] + tables[o + x * own + f[x] * others]
        log[at + x] = w.orig[sv + f[x]]
    drop_edge(w, h >> 1)

    need = 0
    g = w.head[v]
    while g >= 0:
        need += ku * w.k[w.end[g ^ 1]]
        g = w.next[g]
    tables = room_for_tables(w, tables, need)
    g = w.head[u]
    while g >= 0:
        w.mark[w.end[g ^ 1]] = g
        g = w.next[g]
    while w.head[v] >= 0:
        g = w.head[v]
        t = w.end[g ^ 1]
        kt = w.k[t]
        own, others = strides(w, g)
        o = w.offset[g >> 1]
        if w.mark[t] >= 0:
            parallel = w.mark[t]
            own2, others2 = strides(w, parallel)
            o2 = w.offset[parallel >> 1]
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
            w.offset[g >> 1] = target
            push(w, QUEUE_EDGE, g >> 1)
        push(w, QUEUE_NODE, t)
        push(w, QUEUE_DOMINANCE, t)
    g = w.head[u]
    while g >= 0:
        w.mark[w.end[g ^ 1]] = -1
        g = w.next[g]

    usages = move_items(w, usages, u, v, f)
    w.alive[v] = False
    w.cost[sv] = 0.0
    w.counts[MERGED] += 1
    push(w, QUEUE_NODE, u)
    push(w, QUEUE_DOMINANCE, u)
    return tables, usages, log


@njit(cache=True)
def move_items(w, usages, u, v, f):
    i = w.item[v]
    while i >= 0:
        after = w.item_next[i]
        same = w.item[u]
        while same >= 0 and (w.item_lo[same] != w.item_lo[i] or w.item_hi[same] != w.item_hi[i]):
            same = w.item_next[same]
        if same >= 0:
            for x in range(w.k[u]):
                usages[w.item_offset[same] + x] += usages[w.item_offset[i] + f[x]]
        else:
            used = w.counts[USAGES_USED]
            usages = room_for(usages, used, w.k[u])
            w.counts[USAGES_USED] += w.k[u]
            for x in range(w.k[u]):
                usages[used + x] = usages[w.item_offset[i] + f[x]]
            w.item_offset[i] = used
            w.item_next[i] = w.item[u]
            w.item[u] = i
        i = after
    w.item[v] = -1
    settle_items(w, usages, u)
    return usages


@njit(cache=True)
def fold(w, tables, log, v):
    """Eliminate `v`, which has one neighbour and no memory: the neighbour's choice decides it."""
    h = w.head[v] ^ 1
    u = w.end[h]
    own, others = strides(w, h)
    o = w.offset[h >> 1]
    log, at = record(w, log, v, u, -1)
    for x in range(w.k[u]):
        best, least = 0, np.inf
        for z in range(w.k[v]):
            value = w.cost[w.start[v] + z] + tables[o + x * own + z * others]
            if value < least:
                best, least = z, value
        w.cost[w.start[u] + x] += least
        log[at + x] = w.orig[w.start[v] + best]
    drop_edge(w, h >> 1)
    w.alive[v] = False
    w.cost[w.start[v]] = 0.0
    w.counts[FOLDED] += 1
    push(w, QUEUE_NODE, u)
    push(w, QUEUE_DOMINANCE, u)
    return log


@njit(cache=True)
def eliminate_pair(w, tables, log, v):
    """Eliminate `v`, which has two neighbours and no memory, by a table over both (or in theirs if any)."""
    ha = w.head[v] ^ 1
    hb = w.next[w.head[v]] ^ 1
    a, b = w.end[ha], w.end[hb]
    ka, kb, kv = w.k[a], w.k[b], w.k[v]
    log, at = record(w, log, v, a, b)
    tables = room_for_tables(w, tables, ka * kb)
    target = w.counts[TABLES_USED]
    w.counts[TABLES_USED] += ka * kb
    own_a, v_a = strides(w, ha)
    own_b, v_b = strides(w, hb)
    oa, ob, sv = w.offset[ha >> 1], w.offset[hb >> 1], w.start[v]
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
    shorter, far = (a, b) if w.degree[a] <= w.degree[b] else (b, a)
    g = w.head[shorter]
    while g >= 0 and w.end[g ^ 1] != far:
        g = w.next[g]
    if g >= 0:
        if shorter == b:
            g ^= 1
        own, others = strides(w, g)
        o = w.offset[g >> 1]
        for x in range(ka):
            for y in range(kb):
                tables[o + x * own + y * others] += tables[target + x * kb + y]
        push(w, QUEUE_EDGE, g >> 1)
        w.counts[PARALLEL] += 1
    else:
        e = ha >> 1
        w.edge_alive[e] = True
        attach(w, 2 * e, a)
        attach(w, 2 * e + 1, b)
        w.offset[e] = target
        push(w, QUEUE_EDGE, e)
    w.alive[v] = False
    w.cost[sv] = 0.0
    w.counts[ELIMINATED] += 1
    for u in (a, b):
        push(w, QUEUE_NODE, u)
        push(w, QUEUE_DOMINANCE, u)
    return tables, log


@njit(cache=True)
def uses_no_more(w, usages, u, y, x):
    i = w.item[u]
    while i >= 0:
        if usages[w.item_offset[i] + y] > usages[w.item_offset[i] + x]:
            return False
        i = w.item_next[i]
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
    k = w.k[u]
    s = w.start[u]
    width = 0
    h = w.head[u]
    while h >= 0:
        width += w.k[w.end[h ^ 1]]
        h = w.next[h]
    if k * k * (width + 1) > MOST_DOMINANCE:
        return
    keep = np.ones(k, np.bool_)
    left = k
    for x in range(k):
        for y in range(k):
            if x == y or not keep[y] or not uses_no_more(w, usages, u, y, x):
                continue
            total = w.cost[s + y] - w.cost[s + x]
            h = w.head[u]
            while h >= 0 and total < np.inf:
                own, others = strides(w, h)
                total += excess(tables, w.offset[h >> 1], own, others, w.k[w.end[h ^ 1]], y, x)
                h = w.next[h]
            if total <= 0:
                keep[x] = False
                left -= 1
                break
    if left < k:
        w.counts[DOMINATED] += k - left
        remove_choices(w, tables, usages, u, keep)


@njit(cache=True, nogil=True)
def reduce_to_fixpoint(w, tables, usages, log, dominance, most_eliminated):
    """Apply every step until none applies. Returns the pools and the node or edge without choices, if any."""
    f = np.empty(w.k.max() if len(w.k) else 1, np.int64)
    g = np.empty_like(f)
    while True:
        if w.queue_ends[QUEUE_EDGE, 1] > 0:
            e = pop(w, QUEUE_EDGE)
            if not w.edge_alive[e]:
                continue
            if not arc_consistent(w, tables, usages, e):
                return tables, usages, log, w.end[2 * e]
            a, b = w.end[2 * e], w.end[2 * e + 1]
            if w.k[a] == 1 or w.k[b] == 1:
                push(w, QUEUE_NODE, a)
                push(w, QUEUE_NODE, b)
                continue
            if separate(w, tables, e):
                continue
            forward = is_function(w, tables, 2 * e, f)
            backward = is_function(w, tables, 2 * e + 1, g)
            if forward and backward:
                forward = w.degree[a] >= w.degree[b]
                backward = not forward
            if forward and growth_of_merge(w, 2 * e) <= MOST_GROWTH:
                tables, usages, log = merge(w, tables, usages, log, 2 * e, f)
            elif backward and growth_of_merge(w, 2 * e + 1) <= MOST_GROWTH:
                tables, usages, log = merge(w, tables, usages, log, 2 * e + 1, g)
        elif w.queue_ends[QUEUE_NODE, 1] > 0:
            u = pop(w, QUEUE_NODE)
            if not w.alive[u]:
                continue
            if not prune(w, tables, usages, u):
                return tables, usages, log, u
            if w.k[u] == 1:
                log = fix(w, tables, log, u)
            elif w.item[u] < 0:
                if w.degree[u] == 0:
                    log = fix(w, tables, log, u)
                elif w.degree[u] == 1:
                    log = fold(w, tables, log, u)
                elif w.degree[u] == 2:
                    a = w.end[w.head[u] ^ 1]
                    b = w.end[w.next[w.head[u]] ^ 1]
                    if w.k[a] * w.k[b] <= max(most_eliminated, w.k[u] * (w.k[a] + w.k[b])):
                        tables, log = eliminate_pair(w, tables, log, u)
        elif dominance and w.queue_ends[QUEUE_DOMINANCE, 1] > 0:
            u = pop(w, QUEUE_DOMINANCE)
            if w.alive[u]:
                dominate(w, tables, usages, u)
        else:
            return tables, usages, log, -1


@njit(cache=True)
def begin(w, tables, usages):
    """Link the edges, merge parallel ones, put loops into node costs, queue everything."""
    for e in range(len(w.offset)):
        a, b = w.end[2 * e], w.end[2 * e + 1]
        if a == b:
            for x in range(w.k[a]):
                w.cost[w.start[a] + x] += tables[w.offset[e] + x * w.k[a] + x]
            w.edge_alive[e] = False
        else:
            attach(w, 2 * e, a)
            attach(w, 2 * e + 1, b)
            push(w, QUEUE_EDGE, e)
    for u in range(len(w.k)):
        h = w.head[u]
        while h >= 0:
            after = w.next[h]
            v = w.end[h ^ 1]
            if w.mark[v] >= 0:
                g = w.mark[v]
                own, others = strides(w, h)
                own2, others2 = strides(w, g)
                o, o2 = w.offset[h >> 1], w.offset[g >> 1]
                for x in range(w.k[u]):
                    for z in range(w.k[v]):
                        tables[o2 + x * own2 + z * others2] += tables[o + x * own + z * others]
                drop_edge(w, h >> 1)
                w.counts[PARALLEL] += 1
            else:
                w.mark[v] = h
            h = after
        h = w.head[u]
        while h >= 0:
            w.mark[w.end[h ^ 1]] = -1
            h = w.next[h]
        settle_items(w, usages, u)
        push(w, QUEUE_NODE, u)
        push(w, QUEUE_DOMINANCE, u)


@njit(cache=True)
def settle_all(w, usages):
    for u in range(len(w.k)):
        if w.alive[u] and w.item[u] >= 0:
            settle_items(w, usages, u)
            push(w, QUEUE_NODE, u)
            push(w, QUEUE_DOMINANCE, u)


@njit(cache=True)
def largest_usages(w, usages, most):
    """The largest usage of each item that is still in use; zero for the others."""
    for u in range(len(w.k)):
        if w.alive[u]:
            i = w.item[u]
            while i >= 0:
                for x in range(w.k[u]):
                    most[i] = max(most[i], usages[w.item_offset[i] + x])
                i = w.item_next[i]


@njit(cache=True)
def items_of(w, usages, nodes):
    """Memory items of `nodes` in compact form."""
    count = 0
    total = 0
    for u in nodes:
        i = w.item[u]
        while i >= 0:
            count += 1
            total += w.k[u]
            i = w.item_next[i]
    first = np.zeros(len(nodes) + 1, np.int64)
    lo, hi, offset = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    usage = np.empty(total, np.int64)
    at = 0
    used = 0
    for n in range(len(nodes)):
        i = w.item[nodes[n]]
        while i >= 0:
            lo[at], hi[at], offset[at] = w.item_lo[i], w.item_hi[i], used
            for x in range(w.k[nodes[n]]):
                usage[used] = usages[w.item_offset[i] + x]
                used += 1
            at += 1
            i = w.item_next[i]
        first[n + 1] = at
    return first, lo, hi, offset, usage
