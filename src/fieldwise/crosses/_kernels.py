"""Numba kernels for crossed categories: which rows share one, and sums over them, fold by fold."""

from __future__ import annotations

import numpy as np

from ..engines._numba import njit

# Bounds of shrinkage. At the upper one evidence is proportional to the sum of residuals, which is
# informative where rows of one category differ more than others do (each click was sampled with
# non-clicks).
LEAST, MOST = 0.5, 1e6
LARGEST = float(np.finfo(np.float32).max)


@njit(cache=True, nogil=True)
def keys_of(codes, cross):
    """(n,) a hash of each row's codes in a cross; 64 bits, so that any two of a billion crossed
    categories share one with a chance of 3 %, of ten million with 3 in a million"""
    n = len(codes)
    out = np.empty(n, np.uint64)
    for r in range(n):
        key = np.uint64(0)
        for j in cross:
            key = key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(codes[r, j] + 2)
            key ^= key >> np.uint64(29)
            key *= np.uint64(0xBF58476D1CE4E5B9)
            key ^= key >> np.uint64(32)
        out[r] = key
    return out


@njit(cache=True, nogil=True)
def grouped(keys):
    """The number of every row's crossed category, in order of appearance, and the first row of
    each."""
    n = len(keys)
    size = 16
    while size < 2 * n:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, np.int32)
    group, first = np.empty(n, np.int32), np.empty(n, np.int64)
    n_groups = 0
    for r in range(n):
        at = (keys[r] >> np.uint64(20)) & mask
        while slots[at] >= 0 and keys[first[slots[at]]] != keys[r]:
            at = (at + np.uint64(1)) & mask
        if slots[at] < 0:
            slots[at] = n_groups
            first[n_groups] = r
            n_groups += 1
        group[r] = slots[at]
    return group, first[:n_groups].copy()


@njit(cache=True, nogil=True)
def placed(keys):
    """A hash table of distinct keys: slots that hold their numbers, -1 if empty."""
    size = 16
    while size < 2 * len(keys):
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, np.int32)
    for i in range(len(keys)):
        at = (keys[i] >> np.uint64(20)) & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = i
    return slots


@njit(cache=True, nogil=True)
def looked_up(keys, slots, known):
    """(n,) the number of each key among `known`, -1 if it is not there"""
    mask = np.uint64(len(slots) - 1)
    out = np.empty(len(keys), np.int32)
    for r in range(len(keys)):
        at = (keys[r] >> np.uint64(20)) & mask
        while slots[at] >= 0 and known[slots[at]] != keys[r]:
            at = (at + np.uint64(1)) & mask
        out[r] = slots[at]
    return out


@njit(cache=True, nogil=True)
def told(codes, members, slots, keys, evidence, weight, ends):
    """evidence (n, c, T) of all crosses, and the weight (n, c) it is based on

    Cross k has the parts of members, slots and keys (with evidence and weight) between ends[k] and
    ends[k + 1], (c + 1, 3); see `keys_of` and `placed`. Unknown crossed categories have 0.
    """
    n, n_crosses, n_targets = len(codes), len(ends) - 1, evidence.shape[1]
    out = np.zeros((n, n_crosses, n_targets), np.float32)
    seen = np.zeros((n, n_crosses), np.float32)
    for k in range(n_crosses):
        own = keys_of(codes, members[ends[k, 0] : ends[k + 1, 0]])
        first = ends[k, 2]
        among = keys[first : ends[k + 1, 2]]
        at = looked_up(own, slots[ends[k, 1] : ends[k + 1, 1]], among)
        for r in range(n):
            if at[r] >= 0:
                seen[r, k] = weight[first + at[r]]
                for t in range(n_targets):
                    out[r, k, t] = evidence[first + at[r], t]
    return out, seen


@njit(cache=True, nogil=True)
def as_fields(numbers, center, scale, edges, ends):
    """codes (n, F) and values (n, F) of the fields made of evidence, numbers (n, E)

    Field k reads column k % E. With scale[k] > 0 it is linear: its value is the number, centered
    and scaled; else it has the bins of edges[ends[k] : ends[k + 1]].
    """
    n, n_fields = len(numbers), len(scale)
    codes, values = np.zeros((n, n_fields), np.int32), np.ones((n, n_fields), np.float32)
    for r in range(n):
        for k in range(n_fields):
            number = np.float64(numbers[r, k % numbers.shape[1]])
            if scale[k] > 0.0:
                value = (number - center[k]) / scale[k]
                values[r, k] = np.float32(min(max(value, -LARGEST), LARGEST))
            else:
                own = edges[ends[k] : ends[k + 1]]
                codes[r, k] = 1 + np.searchsorted(own, number, side="right")
    return codes, values


@njit(cache=True, nogil=True)
def fold_sums(group, n_groups, fold, n_folds, y, w):
    """Weights (g, F) and weighted targets (g, F, T) of every crossed category in every fold."""
    n_targets = y.shape[1]
    count = np.zeros((n_groups, n_folds))
    total = np.zeros((n_groups, n_folds, n_targets))
    for r in range(len(group)):
        g, f = group[r], fold[r]
        count[g, f] += w[r]
        for t in range(n_targets):
            total[g, f, t] += w[r] * y[r, t]
    return count, total


@njit(cache=True, nogil=True)
def shrinkage(count, total, mean, square):
    """a (T,) of `maths.shrinkage`, from count (g,), total (g, T), the mean (T,) and the sum of
    squared residuals (T,)"""
    n_targets = total.shape[1]
    out = np.empty(n_targets)
    n, n2, n_groups = 0.0, 0.0, 0
    for g in range(len(count)):
        if count[g] > 0:
            n += count[g]
            n2 += count[g] ** 2
            n_groups += 1
    for t in range(n_targets):
        between = 0.0
        for g in range(len(count)):
            if count[g] > 0:
                between += (total[g, t] - mean[t] * count[g]) ** 2 / count[g]
        noise = (square[t] - between) / max(n - n_groups, 1.0)
        spread = between - (n_groups - 1) * noise
        room = n - n2 / n if n > 0 else 0.0
        if noise <= 0.0:
            out[t] = LEAST
        elif spread <= 0.0 or room <= 0.0 or n <= n_groups:
            out[t] = MOST
        else:
            out[t] = min(max(noise * room / spread, LEAST), MOST)
    return out


@njit(cache=True, nogil=True)
def fold_shrinkage(count, total, mean, square):
    """a (F, T), each without one fold; count (g, F), total (g, F, T), mean and square (F, T)"""
    n_groups, n_folds, n_targets = total.shape
    out = np.empty((n_folds, n_targets))
    n, s = np.empty(n_groups), np.empty((n_groups, n_targets))
    for own in range(n_folds):
        n[:] = 0.0
        s[:] = 0.0
        for g in range(n_groups):
            for f in range(n_folds):
                if f != own:
                    n[g] += count[g, f]
                    for t in range(n_targets):
                        s[g, t] += total[g, f, t]
        out[own] = shrinkage(n, s, mean[own], square[own])
    return out


@njit(cache=True, nogil=True)
def held_out(group, fold, count, total, mean, shrink, rows):
    """evidence (n, T) and weight (n,) of `rows`, each from the other folds only

    count (g, F) and total (g, F, T) are of each fold; mean (F, T) and shrink (F, T) of all folds
    but that one. Sums run over the other folds, instead of subtracting one from the whole, so that
    no bit of a row's own label is in them.
    """
    n_folds, n_targets = total.shape[1], total.shape[2]
    evidence, seen = np.empty((len(rows), n_targets), np.float32), np.empty(len(rows), np.float32)
    for i in range(len(rows)):
        g, own = group[rows[i]], fold[rows[i]]
        n = 0.0
        for f in range(n_folds):
            if f != own:
                n += count[g, f]
        seen[i] = n
        for t in range(n_targets):
            s = 0.0
            for f in range(n_folds):
                if f != own:
                    s += total[g, f, t]
            evidence[i, t] = (s - mean[own, t] * n) / (n + shrink[own, t])
    return evidence, seen
