"""The cost and memory load of one choice per node of the kernel, and node costs including priced memory."""

import numpy as np

from ._compiled import compiled, copy, fill


@compiled
def cost_of(a, x):
    total = 0.0
    for v in range(len(a.k)):
        total += a.cost[a.start[v] + x[v]]
    for e in range(len(a.ends)):
        u, v = a.ends[e, 0], a.ends[e, 1]
        total += a.tables[a.table[2 * e] + x[v] * a.k[u] + x[u]]
    return total


@compiled
def load_of(a, x, load):
    fill(load, 0)
    for v in range(len(a.k)):
        for i in range(a.item_first[v], a.item_first[v + 1]):
            used = a.usage[a.item_offset[i] + x[v]]
            load[a.item_lo[i]] += used
            if a.item_hi[i] < len(load):
                load[a.item_hi[i]] -= used
    for t in range(1, len(load)):
        load[t] += load[t - 1]


@compiled
def overflow(a, load):
    """The excess over the capacity, summed over points."""
    total = 0
    for t in range(len(load)):
        total += max(0, load[t] - a.capacity[t])
    return total


@compiled
def price_nodes(a, prices, theta):
    """Node costs including priced memory."""
    sums = np.empty(len(prices) + 1)
    sums[0] = 0.0
    for t in range(len(prices)):
        sums[t + 1] = sums[t] + prices[t]
    copy(theta, a.cost, len(theta))
    for v in range(len(a.k)):
        for i in range(a.item_first[v], a.item_first[v + 1]):
            price = sums[a.item_hi[i]] - sums[a.item_lo[i]]
            if price > 0:
                for c in range(a.k[v]):
                    theta[a.start[v] + c] += price * a.usage[a.item_offset[i] + c]
