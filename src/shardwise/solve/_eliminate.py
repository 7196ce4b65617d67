"""The core move: exact elimination of most nodes given the others, with a random cutset.

Nodes are eliminated one by one, cheapest table first (bucket elimination: the table over the neighbours that
are left holds the best cost of what is gone). A node is eliminated only while its table stays under a limit;
when none can be, a neighbour of a blocked node is fixed at its current choice, picked by degree and a weight
that is drawn anew at every call, so that hubs are free sometimes. The result is the optimum over all free
nodes given the fixed ones; without fixed nodes it is the optimum.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from ._kernel import Arrays

_SCALE = 32  # units of the integer logarithm per factor of two
_BUCKETS = 128
_MOST_SCOPE = 24
OUTSIDE, LIVE, GONE = 0, 1, 2


class Scratch(NamedTuple):
    """Memory of one worker, reused by every call."""

    state: np.ndarray
    weight: np.ndarray
    log_k: np.ndarray
    log_size: np.ndarray
    degree: np.ndarray
    head: np.ndarray  # neighbour lists
    link: np.ndarray
    link_node: np.ndarray
    hash: np.ndarray  # pairs that are linked
    bucket: np.ndarray  # bucket of a node, first of a bucket, next and previous in it
    bucket_head: np.ndarray
    bucket_next: np.ndarray
    bucket_prev: np.ndarray
    order: np.ndarray
    rank: np.ndarray
    scope_start: np.ndarray
    scope: np.ndarray
    message: np.ndarray  # offset of a node's message
    child: np.ndarray  # messages that a node receives, linked
    sibling: np.ndarray
    partial: np.ndarray
    random: np.ndarray  # state of the generator


def scratch(a: Arrays, seed: int) -> Scratch:
    n, m = len(a.k), len(a.ends)
    links = 8 * m + 16 * n + 4096
    slots = 1 << int(np.ceil(np.log2(2 * links)))

    def ints(size: int) -> np.ndarray:
        return np.zeros(size, np.int64)

    random = np.array([seed], np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x2545F4914F6CDD1D)
    return Scratch(
        state=np.zeros(n, np.int8),
        weight=np.zeros(n),
        log_k=np.ceil(np.log2(np.maximum(a.k, 1)) * _SCALE).astype(np.int64),
        log_size=ints(n),
        degree=ints(n),
        head=ints(n),
        link=ints(links),
        link_node=ints(links),
        hash=np.zeros(slots, np.int64),
        bucket=ints(n),
        bucket_head=ints(_BUCKETS + 1),
        bucket_next=ints(n),
        bucket_prev=ints(n),
        order=ints(n),
        rank=ints(n),
        scope_start=ints(n + 1),
        scope=ints(n * 4 + 2 * m + 1024),
        message=ints(n),
        child=ints(n),
        sibling=ints(n),
        partial=np.zeros((_MOST_SCOPE + 2, int(a.k.max()) if n else 1)),
        random=random,
    )


@njit(cache=True)
def uniform(random):
    """The next number in [0, 1) of a splitmix64 generator."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True)
def _linked(hash, u, v, insert):
    """Whether the pair is in the set, after inserting it if asked."""
    if u > v:
        u, v = v, u
    key = (u << 32) + v + 1
    mask = len(hash) - 1
    slot = ((key * 0x9E3779B97F4A7C1) >> 20) & mask
    while hash[slot] != 0:
        if hash[slot] == key:
            return True
        slot = (slot + 1) & mask
    if insert:
        hash[slot] = key
    return False


@njit(cache=True)
def _file(s, v, limit):
    """Put `v` into the bucket of its table size; what is above the limit goes into the last one."""
    b = min(s.log_size[v] >> 4, _BUCKETS - 1)
    if s.log_size[v] > limit or s.degree[v] > _MOST_SCOPE:
        b = _BUCKETS
    if s.bucket[v] == b:
        return
    _unfile(s, v)
    s.bucket[v] = b
    first = s.bucket_head[b]
    s.bucket_next[v] = first
    s.bucket_prev[v] = -1
    if first >= 0:
        s.bucket_prev[first] = v
    s.bucket_head[b] = v


@njit(cache=True)
def _unfile(s, v):
    if s.bucket[v] < 0:
        return
    if s.bucket_prev[v] >= 0:
        s.bucket_next[s.bucket_prev[v]] = s.bucket_next[v]
    else:
        s.bucket_head[s.bucket[v]] = s.bucket_next[v]
    if s.bucket_next[v] >= 0:
        s.bucket_prev[s.bucket_next[v]] = s.bucket_prev[v]
    s.bucket[v] = -1


@njit(cache=True)
def _leave(s, v, limit):
    """`v` is no longer live: its neighbours lose it."""
    p = s.head[v]
    while p >= 0:
        t = s.link_node[p]
        if s.state[t] == LIVE:
            s.log_size[t] -= s.log_k[v]
            s.degree[t] -= 1
            _file(s, t, limit)
        p = s.link[p]


@njit(cache=True)
def plan(a, s, region, limit):
    """Choose order, scopes and cutset for the nodes of `region`. Returns the number eliminated and fixed."""
    log_limit = np.int64(np.log2(limit) * _SCALE)
    slots = 64
    while slots < len(s.hash) and slots < 64 * len(region) + 4 * _MOST_SCOPE * _MOST_SCOPE:
        slots *= 2
    hash = s.hash[:slots]
    hash[:] = 0
    most_links = min(len(s.link), slots // 2)
    s.bucket_head[:] = -1
    for v in region:
        s.state[v] = LIVE
        s.weight[v] = uniform(s.random)
        s.log_size[v] = 0
        s.degree[v] = 0
        s.head[v] = -1
        s.bucket[v] = -1
    links = 0
    for v in region:
        for i in range(a.first[v], a.first[v + 1]):
            t = a.near[i]
            if s.state[t] == LIVE:
                s.link[links] = s.head[v]
                s.link_node[links] = t
                s.head[v] = links
                links += 1
                s.log_size[v] += s.log_k[t]
                s.degree[v] += 1
                if v < t:
                    _linked(hash, v, t, True)
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
            s.state[v] = GONE
            s.rank[v] = eliminated
            s.order[eliminated] = v
            s.scope_start[eliminated] = scopes
            eliminated += 1
            begin = scopes
            p = s.head[v]
            while p >= 0:
                t = s.link_node[p]
                if s.state[t] == LIVE:
                    s.scope[scopes] = t
                    scopes += 1
                p = s.link[p]
            for i in range(begin, scopes):
                t = s.scope[i]
                s.log_size[t] -= s.log_k[v]
                s.degree[t] -= 1
                for j in range(begin, i):
                    r = s.scope[j]
                    if not _linked(hash, t, r, True):
                        s.link[links] = s.head[t]
                        s.link_node[links] = r
                        s.head[t] = links
                        s.link[links + 1] = s.head[r]
                        s.link_node[links + 1] = t
                        s.head[r] = links + 1
                        links += 2
                        s.log_size[t] += s.log_k[r]
                        s.log_size[r] += s.log_k[t]
                        s.degree[t] += 1
                        s.degree[r] += 1
            for i in range(begin, scopes):
                _file(s, s.scope[i], log_limit)
                if s.bucket[s.scope[i]] < lowest:
                    lowest = s.bucket[s.scope[i]]
        else:
            blocked = s.bucket_head[_BUCKETS]
            if blocked < 0:
                blocked = s.bucket_head[lowest]
            victim, most = blocked, -1.0
            p = s.head[blocked]
            while p >= 0:
                t = s.link_node[p]
                if s.state[t] == LIVE and s.degree[t] * s.weight[t] > most:
                    victim, most = t, s.degree[t] * s.weight[t]
                p = s.link[p]
            _unfile(s, victim)
            s.state[victim] = OUTSIDE
            _leave(s, victim, log_limit)
            fixed += 1
            lowest = 0
        remaining -= 1
    s.scope_start[eliminated] = scopes
    return eliminated, fixed


@njit(cache=True)
def _tidy_scope(s, i):
    """Drop fixed nodes from the scope of step `i` and sort it, latest first. Returns its length."""
    begin = s.scope_start[i]
    length = 0
    for j in range(begin, s.scope_start[i + 1]):
        t = s.scope[j]
        if s.state[t] == GONE:
            p = begin + length
            while p > begin and s.rank[s.scope[p - 1]] < s.rank[t]:
                s.scope[p] = s.scope[p - 1]
                p -= 1
            s.scope[p] = t
            length += 1
    return length


@njit(cache=True)
def solve_region(a, theta, tables, s, x, region, limit, pool):
    """Set `x` on `region` to the best choices given the rest. Returns how many were fixed and the pool.

    `theta` are the node costs; `tables` the edge tables; `pool` holds the messages and may grow.
    """
    eliminated, fixed = plan(a, s, region, limit)
    used = 0
    for i in range(eliminated):
        s.child[s.order[i]] = -1
    factor_at = np.empty(256, np.int64)
    factor_depth = np.empty(256, np.int64)
    factor_stride = np.empty((256, _MOST_SCOPE), np.int64)
    digits = np.empty(_MOST_SCOPE, np.int64)
    place = np.empty(len(a.k), np.int64) if eliminated else np.empty(0, np.int64)
    lengths = np.empty(eliminated, np.int64)
    for i in range(eliminated):
        v = s.order[i]
        kv = a.k[v]
        begin = s.scope_start[i]
        depth = _tidy_scope(s, i)
        lengths[i] = depth
        size = 1
        for d in range(depth):
            place[s.scope[begin + d]] = d
            size *= a.k[s.scope[begin + d]]
        if used + size > len(pool):
            grown = np.empty(2 * len(pool) + size)
            grown[:used] = pool[:used]
            pool = grown
        unary = s.partial[0]
        for c in range(kv):
            unary[c] = theta[a.start[v] + c]
        most_factors = depth
        m = s.child[v]
        while m >= 0:
            most_factors += 1
            m = s.sibling[m]
        if most_factors > len(factor_at):
            factor_at = np.empty(2 * most_factors, np.int64)
            factor_depth = np.empty(2 * most_factors, np.int64)
            factor_stride = np.empty((2 * most_factors, _MOST_SCOPE), np.int64)
        # Factors: edges to later nodes and messages; edges to fixed nodes and unary messages join `unary`.
        factors = 0
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            at = a.table[a.half[j]]
            if s.state[t] != GONE:
                at += x[t] * kv
                for c in range(kv):
                    unary[c] += tables[at + c]
            elif s.rank[t] > i:
                factor_at[factors] = at
                factor_depth[factors] = place[t]
                for d in range(depth):
                    factor_stride[factors, d] = 0
                factor_stride[factors, place[t]] = kv
                factors += 1
        m = s.child[v]
        while m >= 0:
            r = s.rank[m]
            at = s.message[m]
            length = lengths[r]
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
                    t = s.scope[s.scope_start[r] + q]
                    factor_stride[factors, place[t]] = stride
                    deepest = max(deepest, place[t])
                    stride *= a.k[t]
                factor_depth[factors] = deepest
                factors += 1
            m = s.sibling[m]
        # Odometer over the scope; level d + 1 of `partial` holds what depends on the first d + 1 digits.
        for d in range(depth):
            digits[d] = 0
        level = 0
        s.message[v] = used
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
            s.sibling[v] = s.child[parent]
            s.child[parent] = v
        used += size
    # Read the choices back, last eliminated first.
    for i in range(eliminated - 1, -1, -1):
        v = s.order[i]
        kv = a.k[v]
        total = s.partial[0]
        for c in range(kv):
            total[c] = theta[a.start[v] + c]
        for j in range(a.first[v], a.first[v + 1]):
            t = a.near[j]
            if s.state[t] != GONE or s.rank[t] > i:
                at = a.table[a.half[j]] + x[t] * kv
                for c in range(kv):
                    total[c] += tables[at + c]
        m = s.child[v]
        while m >= 0:
            r = s.rank[m]
            at = s.message[m]
            stride = kv
            for q in range(lengths[r] - 2, -1, -1):
                t = s.scope[s.scope_start[r] + q]
                at += stride * x[t]
                stride *= a.k[t]
            for c in range(kv):
                total[c] += pool[at + c]
            m = s.sibling[m]
        best = x[v]
        for c in range(kv):
            if total[c] < total[best]:
                best = c
        x[v] = best
    for v in region:
        s.state[v] = OUTSIDE
    return fixed, pool
