"""The walk among solutions of a kernel.

A step proposes changes by the core move under scaled, noisy prices, splits the changed nodes into connected components
and accepts each component that lowers the cost, provided no time point exceeds its capacity (or its previous load).
"""

import math

import numpy as np

from ._compiled import compiled, copy, fill
from ._eliminate import solve_region, uniform
from ._pricing import cost_of, load_of, price_nodes


@compiled
def _change_of_load(a, nodes, x, y, change):
    """Add the change of load from `x` to `y` on `nodes` to `change`; returns the affected range."""
    first, last = len(change), 0
    for v in nodes:
        for i in range(a.item_first[v], a.item_first[v + 1]):
            o = a.item_offset[i]
            d = a.usage[o + y[v]] - a.usage[o + x[v]]
            if d != 0:
                change[a.item_lo[i]] += d
                change[a.item_hi[i]] -= d
                first = min(first, a.item_lo[i])
                last = max(last, a.item_hi[i])
    return first, last


@compiled
def _accept(a, nodes, x, y, load, prices, change, overflowing):
    """Move `nodes` from `x` to `y` if that lowers the cost and overflows nothing. Returns the change of cost or nan."""
    gain = 0.0
    for v in nodes:
        gain += a.cost[a.start[v] + y[v]] - a.cost[a.start[v] + x[v]]
        kv = a.k[v]
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            at = a.table[a.half[j]]
            if y[t] == x[t]:
                gain += a.tables[at + x[t] * kv + y[v]] - a.tables[at + x[t] * kv + x[v]]
            elif t < v:
                gain += a.tables[at + y[t] * kv + y[v]] - a.tables[at + x[t] * kv + x[v]]
    first, last = _change_of_load(a, nodes, x, y, change)
    running = 0
    priced = gain
    relief = 0
    fits = True
    for t in range(first, last):
        running += change[t]
        if running != 0:
            priced += prices[t] * running
            over = load[t] + running - a.capacity[t]
            before = max(load[t] - a.capacity[t], 0)
            if over > before:
                fits = False
                break
            relief += before - max(over, 0)
    accepted = fits and (relief > 0 or priced < -1e-9) if overflowing else fits and priced < -1e-9
    if accepted:
        running = 0
        for t in range(first, last):
            running += change[t]
            load[t] += running
        for v in nodes:
            x[v] = y[v]
    if first < last:
        for t in range(first, last + 1):
            change[t] = 0
    return gain if accepted else np.nan


@compiled
def _components(a, s, x, y, region, members, starts):
    """Connected components of the nodes that changed: `members` from `starts`. Returns their number."""
    count = 0
    filled = 0
    for v in region:
        if x[v] != y[v] and s.node[v].state == 0:
            starts[count] = filled
            count += 1
            s.node[v].state = 3
            members[filled] = v
            head = filled
            filled += 1
            while head < filled:
                u = members[head]
                head += 1
                for j in range(a.first[u], a.first[u + 1]):
                    t = a.near[j]
                    if x[t] != y[t] and s.node[t].state == 0:
                        s.node[t].state = 3
                        members[filled] = t
                        filled += 1
    starts[count] = filled
    for i in range(filled):
        s.node[members[i]].state = 0
    return count


@compiled
def _ball(a, s, size, region):
    """A connected set of about `size` nodes around a random one, in `region`. Returns their number."""
    n = len(a.k)
    v = min(np.int64(uniform(s.random) * n), n - 1)
    region[0] = v
    s.node[v].state = 3
    filled, head = 1, 0
    while head < filled and filled < size:
        u = region[head]
        head += 1
        degree = a.first[u + 1] - a.first[u]
        skip = np.int64(uniform(s.random) * degree)
        for i in range(min(degree, 64)):
            t = a.near[a.first[u] + (i + skip) % degree]
            if s.node[t].state == 0 and filled < size:
                s.node[t].state = 3
                region[filled] = t
                filled += 1
    for i in range(filled):
        s.node[region[i]].state = 0
    return filled


@compiled
def walk(a, s, x, load, prices, scale, noise, size, limit, free, pool):
    """One proposal and its acceptance, in place on `x` and `load`. Returns the change of cost and the pool.

    `scale` multiplies the prices, `noise` is the spread of random factors on them, `size` the number of nodes
    that may change (0 for all), `limit` the largest table of the core move. `free` accepts every proposal.
    """
    n = len(a.k)
    points = len(prices)
    noisy = np.empty(points)
    over = 0
    factor = 1.0
    period = 1 + np.int64(uniform(s.random) * max(points, 1))
    for t in range(points):
        if t % period == 0:
            factor = scale * math.exp(noise * (2 * uniform(s.random) - 1))
        noisy[t] = prices[t] * factor
        if load[t] > a.capacity[t]:
            over += 1
    theta = np.empty(len(a.cost))
    price_nodes(a, noisy, theta)
    region = np.empty(n, np.int64)
    if 0 < size < n:
        region = region[: _ball(a, s, size, region)]
    else:
        for v in range(n):
            region[v] = v
    y = np.empty(n, np.int64)
    copy(y, x, n)
    _, pool = solve_region(a, theta, a.tables, s, y, region, limit, pool)
    if free:
        total = cost_of(a, y) - cost_of(a, x)
        copy(x, y, n)
        load_of(a, x, load)
        return total, pool
    members, starts = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    count = _components(a, s, x, y, region, members, starts)
    total = 0.0
    if count == 0:
        return total, pool
    change = np.empty(points + 1, np.int64)
    fill(change, 0)
    gain = _accept(a, members[: starts[count]], x, y, load, noisy, change, over > 0)
    if not math.isnan(gain):
        return gain, pool
    if count > 1:
        shift = np.int64(uniform(s.random) * count)
        for i in range(count):
            c = (i + shift) % count
            gain = _accept(a, members[starts[c] : starts[c + 1]], x, y, load, noisy, change, over > 0)
            if not math.isnan(gain):
                total += gain
    return total, pool
