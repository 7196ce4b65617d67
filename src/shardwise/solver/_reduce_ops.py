"""The compiled steps of reduction: each turns the working problem into a smaller one with the same optimum."""

import numpy as np

from ._compiled import compiled, fill
from ._work import (
    DOMINATED,
    ELIMINATED,
    FIXED,
    FOLDED,
    FORBIDDEN_CHOICES,
    MERGED,
    NONE,
    PARALLEL,
    QUEUE_DOMINANCE,
    QUEUE_EDGE,
    QUEUE_NODE,
    SEPARABLE,
    STEP_DOMINATE,
    STEP_ELIMINATE,
    STEP_MERGE,
    STEP_SEPARATE,
    TABLES_USED,
    USAGES_USED,
    attach,
    detach,
    drop_edge,
    pop,
    push,
    record,
    remove_choices,
    room_for,
    room_for_tables,
    settle_items,
    strides,
)

# Table entries that a merge or an elimination may add to those it replaces.
MOST_GROWTH = 1 << 20
# Table entries beyond which the dominance test of a node is skipped.
MOST_DOMINANCE = 400_000_000


@compiled
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


@compiled
def keep_allowed(w, tables, usages, u, keep):
    """Remove the choices of a node that are forbidden. False when none is left."""
    left = keep.sum()
    if left == 0:
        return False
    if left < w.node[u].k:
        w.counts[FORBIDDEN_CHOICES] += w.node[u].k - left
        remove_choices(w, tables, usages, u, keep)
    return True


@compiled
def prune(w, tables, usages, u):
    """Remove choices of infinite cost. False when none is left."""
    keep = np.empty(w.node[u].k, np.bool_)
    for x in range(w.node[u].k):
        keep[x] = w.cost[w.node[u].start + x] < np.inf
    return keep_allowed(w, tables, usages, u, keep)


@compiled
def arc_consistent(w, tables, usages, e):
    """Remove choices that no choice of the other node allows. False when none is left."""
    for side in range(2):
        h = 2 * e + side
        u = w.half[h].end
        v = w.half[h ^ 1].end
        own, others = strides(w, h)
        o = w.edge[e].offset
        keep = np.empty(w.node[u].k, np.bool_)
        for x in range(w.node[u].k):
            keep[x] = False
            for z in range(w.node[v].k):
                if tables[o + x * own + z * others] < np.inf:
                    keep[x] = True
                    break
        if not keep_allowed(w, tables, usages, u, keep):
            return False
    return True


@compiled
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


@compiled
def is_function(w, tables, h, f):
    """True if the choice of `h`'s node determines the other's, with the map in `f`."""
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


@compiled
def growth_of_merge(w, h):
    """Entries that the tables of `h`'s other node gain when it is merged into `h`'s node."""
    u, v = w.half[h].end, w.half[h ^ 1].end
    gain = 0
    g = w.node[v].head
    while g >= 0:
        gain += (w.node[u].k - w.node[v].k) * w.node[w.half[g ^ 1].end].k
        g = w.half[g].next
    return gain


@compiled
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


@compiled
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


@compiled
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


@compiled
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


@compiled
def uses_no_more(w, usages, u, y, x):
    i = w.node[u].item
    while i >= 0:
        if usages[w.item[i].offset + y] > usages[w.item[i].offset + x]:
            return False
        i = w.item[i].next
    return True


@compiled
def excess(tables, o, own, others, k, y, x):
    """The largest excess of choice `y` over choice `x` on one edge, over the other node's choices."""
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


@compiled
def best_partners(w, tables, u, x):
    """For each edge of the node, the other node's cheapest choice given `x`."""
    degree = 0
    h = w.node[u].head
    while h >= 0:
        degree += 1
        h = w.half[h].next
    best = np.zeros(degree, np.int64)
    h, i = w.node[u].head, 0
    while h >= 0:
        own, others = strides(w, h)
        o = w.edge[h >> 1].offset + x * own
        for z in range(1, w.node[w.half[h ^ 1].end].k):
            if tables[o + z * others] < tables[o + best[i] * others]:
                best[i] = z
        h, i = w.half[h].next, i + 1
    return best


@compiled
def least_excess(w, tables, u, best, y, x):
    """The excess of choice `y` over `x` at the best partners of `x`: a lower bound on the largest excess, which rules
    out most pairs quickly."""
    s = w.node[u].start
    total = w.cost[s + y] - w.cost[s + x]
    h, i = w.node[u].head, 0
    while h >= 0:
        own, others = strides(w, h)
        o = w.edge[h >> 1].offset + best[i] * others
        if tables[o + x * own] < np.inf:
            total += tables[o + y * own] - tables[o + x * own]
        h, i = w.half[h].next, i + 1
    return total


@compiled
def dominate(w, tables, usages, u):
    """Remove choices that another can replace at no more cost and memory, for all choices of the other nodes."""
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
        best = best_partners(w, tables, u, x)
        for y in range(k):
            if x == y or not keep[y] or least_excess(w, tables, u, best, y, x) > 0:
                continue
            if not uses_no_more(w, usages, u, y, x):
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


@compiled
def reduce_to_fixpoint(w, tables, usages, log, steps, most_eliminated):
    """Apply the steps (a sum of `STEP_...`) until none applies.

    Forbidden pairs and single choices are always processed. Returns the pools and the node without choices, or -1.
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
