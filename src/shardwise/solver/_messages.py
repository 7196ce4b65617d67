"""Sequential tree-reweighted message passing (TRW-S): a bound on the priced problem, and a first solution.

A pass visits the nodes in order and sends messages over each edge to later nodes, then back. The bound never
falls from one pair of passes to the next while the node costs stay the same, and is valid for any messages.
"""

import numpy as np

from ._compiled import compiled


def message_offsets(a) -> np.ndarray:
    """Offset of the message into the node of each half-edge; the last entry is the total length."""
    return np.concatenate([[0], np.cumsum(a.k[a.ends.reshape(-1)])]).astype(np.int64)


@compiled
def sweep(a, theta, tables, messages, offset, x, forward):
    """One pass. Forward passes also decode into `x`; backward passes return the lower bound."""
    n = len(a.k)
    most = 0
    for v in range(n):
        most = max(most, a.k[v])
    total = np.empty(most)
    out = np.empty(most)
    bound = 0.0
    for step in range(n):
        v = step if forward else n - 1 - step
        kv = a.k[v]
        for c in range(kv):
            total[c] = theta[a.start[v] + c]
        if forward:
            for c in range(kv):
                out[c] = total[c]
        earlier, later = 0, 0
        for j in range(a.first[v], a.first[v + 1]):
            h = a.half[j]
            t = a.near[j]
            o = offset[h]
            for c in range(kv):
                total[c] += messages[o + c]
            if t < v:
                earlier += 1
                if forward:
                    at = a.table[h] + x[t] * kv
                    for c in range(kv):
                        out[c] += tables[at + c]
            else:
                later += 1
                if forward:
                    for c in range(kv):
                        out[c] += messages[o + c]
        if forward:
            best = 0
            for c in range(1, kv):
                if out[c] < out[best]:
                    best = c
            x[v] = best
        least = total[0]
        for c in range(1, kv):
            least = min(least, total[c])
        bound += least
        gamma = 1.0 / max(earlier, later, 1)
        for c in range(kv):
            total[c] = (total[c] - least) * gamma
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            if (t > v) == forward:
                h = a.half[j]
                o = offset[h]
                for c in range(kv):
                    out[c] = total[c] - messages[o + c]
                to = offset[h ^ 1]
                table = a.table[h]
                lowest = np.inf
                for z in range(a.k[t]):
                    row = table + z * kv
                    value = out[0] + tables[row]
                    for c in range(1, kv):
                        candidate = out[c] + tables[row + c]
                        if candidate < value:
                            value = candidate
                    messages[to + z] = value
                    if value < lowest:
                        lowest = value
                for z in range(a.k[t]):
                    messages[to + z] -= lowest
                bound += lowest
    return bound


@compiled
def slacks(a, theta, tables, messages, offset, slack):
    """A lower bound on how much the bound rises when a node is fixed at a choice. Valid after a backward pass.

    The pass splits the priced cost into the bound and nonnegative terms on nodes and edges (the fraction `gamma` of a
    node's surplus goes to each edge to an earlier node); a choice raises the bound by its own terms.
    """
    n = len(a.k)
    most = 1
    for v in range(n):
        most = max(most, a.k[v])
    surplus = np.empty(len(a.cost))
    shares = np.empty(n)
    for v in range(n):
        kv = a.k[v]
        s = a.start[v]
        earlier, later = 0, 0
        for c in range(kv):
            surplus[s + c] = theta[s + c]
        for j in range(a.first[v], a.first[v + 1]):
            o = offset[a.half[j]]
            for c in range(kv):
                surplus[s + c] += messages[o + c]
            if a.near[j] < v:
                earlier += 1
            else:
                later += 1
        least = np.inf
        for c in range(kv):
            least = min(least, surplus[s + c])
        shares[v] = 1.0 / max(earlier, later, 1)
        for c in range(kv):
            surplus[s + c] -= least
            slack[s + c] = surplus[s + c] * (1.0 - earlier * shares[v])
    row = np.empty(most)
    for v in range(n):
        kv = a.k[v]
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            if t > v:
                continue
            h = a.half[j]
            mine, theirs = offset[h], offset[h ^ 1]
            for c in range(kv):
                row[c] = np.inf
            least = np.inf
            for z in range(a.k[t]):
                at = a.table[h] + z * kv
                lowest = np.inf
                for c in range(kv):
                    value = tables[at + c] - messages[mine + c] - messages[theirs + z]
                    value += shares[v] * surplus[a.start[v] + c]
                    row[c] = min(row[c], value)
                    lowest = min(lowest, value)
                slack[a.start[t] + z] += lowest
                least = min(least, lowest)
            # `least` is part of the bound (the pass added it for this edge), on both ends.
            for z in range(a.k[t]):
                slack[a.start[t] + z] -= least
            for c in range(kv):
                slack[a.start[v] + c] += row[c] - least
