"""The core move: exact elimination of most nodes given the others, with a random cutset.

Nodes are eliminated one by one, smallest table first (bucket elimination: the table over the remaining neighbours
has the best cost of the eliminated nodes). A node is eliminated only while its table stays under a limit; when none can
be, a neighbour of a blocked node is fixed at its current choice, selected by degree and by a weight that is random at
every call, so that hubs are sometimes free. The result is the optimum over all free nodes given the fixed ones; without
fixed nodes it is the optimum.
"""

from typing import NamedTuple

import numpy as np

from ._compiled import compiled, copy, fill
from ._kernel import Arrays

_SCALE = 32  # units of the integer logarithm per factor of two
_BUCKETS = 128
_MOST_SCOPE = 24
OUTSIDE, LIVE, GONE = 0, 1, 2


NODE = np.dtype(
    [
        ("state", np.int64),  # outside (or fixed), live or eliminated
        ("weight", np.float64),
        ("log_k", np.int64),
        ("log_size", np.int64),  # of the table over its live neighbours
        ("degree", np.int64),
        ("head", np.int64),  # first link to a neighbour
        ("bucket", np.int64),
        ("bucket_next", np.int64),
        ("bucket_prev", np.int64),
        ("rank", np.int64),  # when it was eliminated
        ("place", np.int64),  # in the scope of the current step
        ("message", np.int64),  # offset of its message
        ("child", np.int64),  # first message that it receives
        ("sibling", np.int64),
    ]
)
LINK = np.dtype([("next", np.int64), ("node", np.int64)])
STEP = np.dtype([("node", np.int64), ("scope", np.int64), ("length", np.int64)])


class Scratch(NamedTuple):
    """Memory of one worker, reused by every call."""

    node: np.ndarray
    link: np.ndarray
    hash: np.ndarray  # pairs that are linked
    bucket_head: np.ndarray
    step: np.ndarray  # node, start and length of the scope
    scope: np.ndarray
    partial: np.ndarray
    random: np.ndarray  # state of the generator


def scratch(a: Arrays, seed: int) -> Scratch:
    n, m = len(a.k), len(a.ends)
    links = 8 * m + 16 * n + 4096
    node = np.zeros(n, NODE)
    node["log_k"] = np.ceil(np.log2(np.maximum(a.k, 1)) * _SCALE)
    return Scratch(
        node=node,
        link=np.zeros(links, LINK),
        hash=np.zeros(1 << int(np.ceil(np.log2(2 * links))), np.int64),
        bucket_head=np.zeros(_BUCKETS + 1, np.int64),
        step=np.zeros(n + 1, STEP),
        scope=np.zeros(4 * n + 2 * m + 1024, np.int64),
        partial=np.zeros((_MOST_SCOPE + 2, int(a.k.max(initial=1)))),
        random=np.array([seed], np.uint64),
    )


@compiled
def uniform(random):
    """The next number in [0, 1) of a splitmix64 generator."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def _linked(hash, slots, u, v):
    """Add the pair to the set in the first `slots` slots; true if it was in the set already."""
    if u > v:
        u, v = v, u
    key = (u << 32) + v + 1
    mask = slots - 1
    slot = ((key * 0x9E3779B97F4A7C1) >> 20) & mask
    while hash[slot] != 0:
        if hash[slot] == key:
            return True
        slot = (slot + 1) & mask
    hash[slot] = key
    return False


@compiled
def _file(s, v, limit):
    """Put `v` into the bucket of its table size; sizes above the limit go into the last one."""
    b = min(s.node[v].log_size >> 4, _BUCKETS - 1)
    if s.node[v].log_size > limit or s.node[v].degree > _MOST_SCOPE:
        b = _BUCKETS
    if s.node[v].bucket == b:
        return
    _unfile(s, v)
    s.node[v].bucket = b
    first = s.bucket_head[b]
    s.node[v].bucket_next = first
    s.node[v].bucket_prev = -1
    if first >= 0:
        s.node[first].bucket_prev = v
    s.bucket_head[b] = v


@compiled
def _unfile(s, v):
    if s.node[v].bucket < 0:
        return
    if s.node[v].bucket_prev >= 0:
        s.node[s.node[v].bucket_prev].bucket_next = s.node[v].bucket_next
    else:
        s.bucket_head[s.node[v].bucket] = s.node[v].bucket_next
    if s.node[v].bucket_next >= 0:
        s.node[s.node[v].bucket_next].bucket_prev = s.node[v].bucket_prev
    s.node[v].bucket = -1


@compiled
def _leave(s, v, limit):
    """Remove `v` from the live nodes and from its neighbours' lists."""
    p = s.node[v].head
    while p >= 0:
        t = s.link[p].node
        if s.node[t].state == LIVE:
            s.node[t].log_size -= s.node[v].log_k
            s.node[t].degree -= 1
            _file(s, t, limit)
        p = s.link[p].next


@compiled
def plan(a, s, region, limit):
    """Choose order, scopes and cutset for the nodes of `region`. Returns the number eliminated and fixed."""
    log_limit = np.int64(np.log2(limit) * _SCALE)
    slots = 64
    while slots < len(s.hash) and slots < 64 * len(region) + 4 * _MOST_SCOPE * _MOST_SCOPE:
        slots *= 2
    for i in range(slots):
        s.hash[i] = 0
    most_links = min(len(s.link), slots // 2)
    fill(s.bucket_head, -1)
    for v in region:
        s.node[v].state = LIVE
        s.node[v].weight = uniform(s.random)
        s.node[v].log_size = 0
        s.node[v].degree = 0
        s.node[v].head = -1
        s.node[v].bucket = -1
    links = 0
    for v in region:
        for i in range(a.first[v], a.first[v + 1]):
            t = a.near[i]
            if s.node[t].state == LIVE:
                s.link[links].next = s.node[v].head
                s.link[links].node = t
                s.node[v].head = links
                links += 1
                s.node[v].log_size += s.node[t].log_k
                s.node[v].degree += 1
                if v < t:
                    _linked(s.hash, slots, v, t)
    for v in region:
        _file(s, v, log_limit)
    eliminated, fixed, scopes = 0, 0, 0
    lowest = 0
    remaining = len(region)
    while remaining > 0:
        while lowest < _BUCKETS and s.bucket_head[lowest] < 0:
            lowest += 1
        roomy = links + _MOST_SCOPE * _MOST_SCOPE < most_links and scopes + _MOST_SCOPE < len(s.scope)
        if lowest < _BUCKETS and roomy:
            v = s.bucket_head[lowest]
            _unfile(s, v)
            s.node[v].state = GONE
            s.node[v].rank = eliminated
            s.step[eliminated].node = v
            s.step[eliminated].scope = scopes
            eliminated += 1
            begin = scopes
            p = s.node[v].head
            while p >= 0:
                t = s.link[p].node
                if s.node[t].state == LIVE:
                    s.scope[scopes] = t
                    scopes += 1
                p = s.link[p].next
            for i in range(begin, scopes):
                t = s.scope[i]
                s.node[t].log_size -= s.node[v].log_k
                s.node[t].degree -= 1
                for j in range(begin, i):
                    r = s.scope[j]
                    if not _linked(s.hash, slots, t, r):
                        s.link[links].next = s.node[t].head
                        s.link[links].node = r
                        s.node[t].head = links
                        s.link[links + 1].next = s.node[r].head
                        s.link[links + 1].node = t
                        s.node[r].head = links + 1
                        links += 2
                        s.node[t].log_size += s.node[r].log_k
                        s.node[r].log_size += s.node[t].log_k
                        s.node[t].degree += 1
                        s.node[r].degree += 1
            for i in range(begin, scopes):
                _file(s, s.scope[i], log_limit)
                if s.node[s.scope[i]].bucket < lowest:
                    lowest = s.node[s.scope[i]].bucket
        else:
            blocked = s.bucket_head[_BUCKETS]
            if blocked < 0:
                blocked = s.bucket_head[lowest]
            victim, most = blocked, -1.0
            p = s.node[blocked].head
            while p >= 0:
                t = s.link[p].node
                if s.node[t].state == LIVE and s.node[t].degree * s.node[t].weight > most:
                    victim, most = t, s.node[t].degree * s.node[t].weight
                p = s.link[p].next
            _unfile(s, victim)
            s.node[victim].state = OUTSIDE
            _leave(s, victim, log_limit)
            fixed += 1
            lowest = 0
        remaining -= 1
    s.step[eliminated].scope = scopes
    return eliminated, fixed


@compiled
def work_without_cutset(a, s, limit):
    """The number of table entries that eliminating every node would read; infinite if a node had to be fixed."""
    eliminated, fixed = plan(a, s, np.arange(len(a.k)), limit)
    if fixed:
        return np.inf
    work = 0.0
    for i in range(eliminated):
        size = float(a.k[s.step[i].node])
        for j in range(s.step[i].scope, s.step[i + 1].scope):
            size *= a.k[s.scope[j]]
        work += size
    return work


@compiled
def _tidy_scope(s, i):
    """Drop fixed nodes from the scope of step `i` and sort it, latest first. Returns its length."""
    begin = s.step[i].scope
    length = 0
    for j in range(begin, s.step[i + 1].scope):
        t = s.scope[j]
        if s.node[t].state == GONE:
            p = begin + length
            while p > begin and s.node[s.scope[p - 1]].rank < s.node[t].rank:
                s.scope[p] = s.scope[p - 1]
                p -= 1
            s.scope[p] = t
            length += 1
    return length


@compiled
def solve_region(a, theta, tables, s, x, region, limit, pool):
    """Set `x` on `region` to the best choices given the rest. Returns the number of fixed nodes and the pool.

    `theta` are the node costs; `tables` the edge tables; `pool` holds the messages and may grow.
    """
    eliminated, fixed = plan(a, s, region, limit)
    used = 0
    for i in range(eliminated):
        s.node[s.step[i].node].child = -1
    factor_at = np.empty(256, np.int64)
    factor_depth = np.empty(256, np.int64)
    factor_stride = np.empty((256, _MOST_SCOPE), np.int64)
    digits = np.empty(_MOST_SCOPE, np.int64)
    for i in range(eliminated):
        v = s.step[i].node
        kv = a.k[v]
        begin = s.step[i].scope
        depth = _tidy_scope(s, i)
        s.step[i].length = depth
        size = 1
        for d in range(depth):
            s.node[s.scope[begin + d]].place = d
            size *= a.k[s.scope[begin + d]]
        if used + size > len(pool):
            grown = np.empty(2 * len(pool) + size)
            copy(grown, pool, used)
            pool = grown
        unary = s.partial[0]
        for c in range(kv):
            unary[c] = theta[a.start[v] + c]
        most_factors = depth
        m = s.node[v].child
        while m >= 0:
            most_factors += 1
            m = s.node[m].sibling
        if most_factors > len(factor_at):
            factor_at = np.empty(2 * most_factors, np.int64)
            factor_depth = np.empty(2 * most_factors, np.int64)
            factor_stride = np.empty((2 * most_factors, _MOST_SCOPE), np.int64)
        # Factors: edges to later nodes and messages; edges to fixed nodes and unary messages join `unary`.
        factors = 0
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            at = a.table[a.half[j]]
            if s.node[t].state != GONE:
                at += x[t] * kv
                for c in range(kv):
                    unary[c] += tables[at + c]
            elif s.node[t].rank > i:
                factor_at[factors] = at
                factor_depth[factors] = s.node[t].place
                for d in range(depth):
                    factor_stride[factors, d] = 0
                factor_stride[factors, s.node[t].place] = kv
                factors += 1
        m = s.node[v].child
        while m >= 0:
            r = s.node[m].rank
            at = s.node[m].message
            length = s.step[r].length
            if length == 1:
                for c in range(kv):
                    unary[c] += pool[at + c]
            else:
                factor_at[factors] = -1 - at
                for d in range(depth):
                    factor_stride[factors, d] = 0
                stride = kv
                deepest = 0
                for q in range(length - 2, -1, -1):
                    t = s.scope[s.step[r].scope + q]
                    factor_stride[factors, s.node[t].place] = stride
                    deepest = max(deepest, s.node[t].place)
                    stride *= a.k[t]
                factor_depth[factors] = deepest
                factors += 1
            m = s.node[m].sibling
        # Odometer over the scope; level d + 1 of `partial` holds what depends on the first d + 1 digits.
        for d in range(depth):
            digits[d] = 0
        level = 0
        s.node[v].message = used
        position = used
        if depth == 0:
            least = unary[0]
            for c in range(1, kv):
                least = min(least, unary[c])
            pool[position] = least
        else:
            while True:
                for d in range(level, depth):
                    row = s.partial[d + 1]
                    above = s.partial[d]
                    for c in range(kv):
                        row[c] = above[c]
                    for f in range(factors):
                        if factor_depth[f] == d:
                            at = factor_at[f]
                            if at >= 0:
                                for q in range(d + 1):
                                    at += factor_stride[f, q] * digits[q]
                                for c in range(kv):
                                    row[c] += tables[at + c]
                            else:
                                at = -1 - at
                                for q in range(d + 1):
                                    at += factor_stride[f, q] * digits[q]
                                for c in range(kv):
                                    row[c] += pool[at + c]
                row = s.partial[depth]
                least = row[0]
                for c in range(1, kv):
                    if row[c] < least:
                        least = row[c]
                pool[position] = least
                position += 1
                level = depth - 1
                while level >= 0:
                    digits[level] += 1
                    if digits[level] < a.k[s.scope[begin + level]]:
                        break
                    digits[level] = 0
                    level -= 1
                if level < 0:
                    break
            parent = s.scope[begin + depth - 1]
            s.node[v].sibling = s.node[parent].child
            s.node[parent].child = v
        used += size
    # Read the choices back, last eliminated first.
    for i in range(eliminated - 1, -1, -1):
        v = s.step[i].node
        kv = a.k[v]
        total = s.partial[0]
        for c in range(kv):
            total[c] = theta[a.start[v] + c]
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            if s.node[t].state != GONE or s.node[t].rank > i:
                at = a.table[a.half[j]] + x[t] * kv
                for c in range(kv):
                    total[c] += tables[at + c]
        m = s.node[v].child
        while m >= 0:
            r = s.node[m].rank
            at = s.node[m].message
            stride = kv
            for q in range(s.step[r].length - 2, -1, -1):
                t = s.scope[s.step[r].scope + q]
                at += stride * x[t]
                stride *= a.k[t]
            for c in range(kv):
                total[c] += pool[at + c]
            m = s.node[m].sibling
        best = x[v]
        for c in range(kv):
            if total[c] < total[best]:
                best = c
        x[v] = best
    for v in region:
        s.node[v].state = OUTSIDE
    return fixed, pool
