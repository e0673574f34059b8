"""Numba kernels of one training step: forward, group, update. Compiled once and cached.

Letters as in maths.py. Rows of the table are padded to whole cache lines; column R is b. A step
works on B samples: `a` (B, P) and `c` (B, P) hold dz q and dz p of every sample (and dz in column
R of `a`), so that a row's gradient is a plain sum of rows of `a`, its own block aside.

Nothing here depends on the number of threads: a sample's score and a row's gradient are each
summed by one thread, in the order of samples.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from ._vectors import (
    LINE,
    own_products,
    prefetch,
    split_own,
    sum_1_line,
    sum_2_lines,
    sum_4_lines,
    sum_8_lines,
    sum_part_line,
)

AHEAD = 2  # lines of the next sample's rows that are asked for
EPSILON = np.float32(1e-10)


@njit(cache=True, inline="always")
def _prefetch_rows(table, rows):
    """The first lines of each row; the processor goes on by itself once it sees a run."""
    for j in range(len(rows)):
        for t in range(0, min(AHEAD * LINE, table.shape[1]), LINE):
            prefetch(table, rows[j], t)


@njit(cache=True, inline="always")
def _sum_rows(table, rows, x, out, low, high, has_values):
    """out = sum_k x_k table[rows[k]], columns low to high"""
    t = low
    while t + 8 * LINE <= high:
        sum_8_lines(table, rows, x, out, t, high, has_values)
        t += 8 * LINE
    if t + 4 * LINE <= high:
        sum_4_lines(table, rows, x, out, t, high, has_values)
        t += 4 * LINE
    if t + 2 * LINE <= high:
        sum_2_lines(table, rows, x, out, t, high, has_values)
        t += 2 * LINE
    if t + LINE <= high:
        sum_1_line(table, rows, x, out, t, high, has_values)
        t += LINE
    if t < high:
        sum_part_line(table, rows, x, out, t, high, has_values)


@njit(cache=True, inline="always")
def _sigmoid(z):
    small = math.exp(-abs(z))
    return 1.0 / (1.0 + small) if z >= 0 else small / (1.0 + small)


@njit(cache=True, inline="always")
def _loss(z, y):
    return max(z, 0.0) - y * z + math.log1p(math.exp(-abs(z)))


@njit(cache=True, inline="always")
def _forward_sample(table, rows, values, starts, a, c, has_values):
    """z of one sample; leaves q in a and p in c."""
    _sum_rows(table, rows, values, a, 0, table.shape[1], has_values)
    z = split_own(table, rows, values, starts, a, c, has_values)
    return z + a[starts[-1]]


@njit(cache=True, inline="always")
def _score_sample(table, rows, values, starts, sums, has_values):
    """z of one sample, and nothing else."""
    _sum_rows(table, rows, values, sums, 0, table.shape[1], has_values)
    z = own_products(table, rows, values, starts, sums, sums, has_values)
    return z + sums[starts[-1]]


@njit(cache=True, parallel=True)
def score(table, rows, values, starts, offset, out, n_threads, has_values):
    """out[s] = z of sample s"""
    n = len(rows)
    width = table.shape[1]
    for k in prange(n_threads):
        sums = np.empty(width, np.float32)
        high = n * (k + 1) // n_threads
        for s in range(n * k // n_threads, high):
            if s + 1 < high:
                _prefetch_rows(table, rows[s + 1])
            x = values[s] if has_values else values[0]
            out[s] = offset + _score_sample(table, rows[s], x, starts, sums, has_values)


@njit(cache=True, nogil=True)
def score_serial(table, rows, values, starts, offset, out, has_values):
    """The same in the calling thread: for small inputs, and for many threads of a server."""
    sums = np.empty(table.shape[1], np.float32)
    for s in range(len(rows)):
        x = values[s] if has_values else values[0]
        out[s] = offset + _score_sample(table, rows[s], x, starts, sums, has_values)


@njit(cache=True, parallel=True)
def forward(table, rows, values, y, w, starts, offset, a, c, losses, n_threads, has_values):
    """Scores, losses and their derivatives; a and c are ready for `update` after it."""
    n = len(rows)
    total = 0.0
    for s in range(n):
        total += w[s]
    n_columns = starts[-1]
    for k in prange(n_threads):
        low, high = n * k // n_threads, n * (k + 1) // n_threads
        for s in range(low, high):
            if s + 1 < high:
                _prefetch_rows(table, rows[s + 1])
            x = values[s] if has_values else values[0]
            z = offset + _forward_sample(table, rows[s], x, starts, a[s], c[s], has_values)
            losses[s] = w[s] * _loss(z, y[s])
            dz = np.float32(w[s] * (_sigmoid(z) - y[s]) / total) if total > 0 else np.float32(0.0)
            for t in range(n_columns):
                a[s, t] *= dz
                c[s, t] *= dz
            a[s, n_columns] = dz
    return total


@njit(cache=True, parallel=True)
def group(rows, places, samples, distinct, owners, begins, counts, n_threads):
    """Samples by row. Field j's entries fill samples[j * n : (j + 1) * n], a run a distinct row.

    places (d,) is scratch that is zero before and after. Fields own disjoint rows, so they are
    grouped side by side.
    """
    n, m = rows.shape
    for k in prange(n_threads):
        for j in range(m * k // n_threads, m * (k + 1) // n_threads):
            base = j * n
            found = 0
            for s in range(n):
                r = rows[s, j]
                if places[r] == 0:
                    distinct[base + found] = r
                    found += 1
                places[r] += 1
            at = base
            for i in range(found):
                r = distinct[base + i]
                begins[base + i] = at
                at += places[r]
                places[r] = begins[base + i]
            for s in range(n):
                r = rows[s, j]
                samples[places[r]] = s
                places[r] += 1
            for i in range(found):
                places[distinct[base + i]] = 0
            counts[j] = found
    # Runs of all fields, one after the other.
    total = 0
    for j in range(m):
        for i in range(counts[j]):
            distinct[total] = distinct[j * n + i]
            begins[total] = begins[j * n + i]
            owners[total] = j
            total += 1
    begins[total] = m * n
    return total


@njit(cache=True, inline="always")
def _sum_gradient(a, c, values, samples, field, starts, x, g, has_values):
    """g = the gradient of one row: dz q everywhere, dz p in its own block, dz for the bias."""
    if has_values:
        for e in range(len(samples)):
            x[e] = values[samples[e], field]
    _sum_rows(a, samples, x, g, 0, len(g), has_values)
    _sum_rows(c, samples, x, g, starts[field], starts[field + 1], has_values)


@njit(cache=True, inline="always")
def _apply(table, state, r, g, lr, decay):
    """Adagrad on one row."""
    for t in range(len(g)):
        slope = g[t] + decay * table[r, t]
        h = state[r, t] + slope * slope
        state[r, t] = h
        table[r, t] -= lr * slope / (math.sqrt(h) + EPSILON)


@njit(cache=True)
def share_out(begins, total, shares, n_threads):
    """Where each thread's runs begin, so that all have the same work: a sample or four a run."""
    work = begins[total] - begins[0] + 4 * total
    k = 0
    for i in range(total):
        done = begins[i] - begins[0] + 4 * i
        while k < n_threads and done * n_threads >= k * work:
            shares[k] = i
            k += 1
    while k <= n_threads:
        shares[k] = total
        k += 1


@njit(cache=True, parallel=True)
def update(
    table,
    state,
    a,
    c,
    values,
    samples,
    distinct,
    owners,
    begins,
    shares,
    starts,
    lr,
    decay,
    n_threads,
    has_values,
):
    """Adagrad on every distinct row of the batch; each row is one thread's."""
    width = table.shape[1]
    for k in prange(n_threads):
        g = np.empty(width, np.float32)
        x = np.empty(len(a), np.float32)
        for i in range(shares[k], shares[k + 1]):
            r = distinct[i]
            if i + 1 < shares[k + 1]:
                nxt = distinct[i + 1]
                for t in range(0, min(width, 8 * LINE), LINE):
                    prefetch(table, nxt, t)
                    prefetch(state, nxt, t)
            mine = samples[begins[i] : begins[i + 1]]
            _sum_gradient(a, c, values, mine, owners[i], starts, x, g, has_values)
            _apply(table, state, r, g, lr, decay)


@njit(cache=True)
def train_steps(
    table,
    state,
    rows,
    values,
    y,
    w,
    starts,
    offset,
    scratch,
    batch,
    lr,
    decay,
    n_threads,
    has_values,
):
    """One step a batch over all rows given, in their order. Returns summed losses and weights."""
    a, c, losses, places, samples, distinct, owners, begins, counts, shares = scratch
    loss, weight = 0.0, 0.0
    for first in range(0, len(rows), batch):
        last = min(first + batch, len(rows))
        n = last - first
        x = values[first:last] if has_values else values
        weight += forward(
            table,
            rows[first:last],
            x,
            y[first:last],
            w[first:last],
            starts,
            offset,
            a[:n],
            c[:n],
            losses[:n],
            n_threads,
            has_values,
        )
        for s in range(n):
            loss += losses[s]
        total = group(
            rows[first:last], places, samples, distinct, owners, begins, counts, n_threads
        )
        share_out(begins, total, shares, n_threads)
        update(
            table,
            state,
            a,
            c,
            x,
            samples,
            distinct,
            owners,
            begins,
            shares,
            starts,
            lr,
            decay,
            n_threads,
            has_values,
        )
    return loss, weight


@njit(cache=True, nogil=True)
def add_batch(
    table,
    slopes,
    first_row,
    order,
    low,
    high,
    a,
    c,
    values,
    samples,
    distinct,
    owners,
    begins,
    starts,
    decay,
    has_values,
):
    """Add the batch's gradient and decay of the runs order[low:high] to the slopes of a block."""
    g = np.empty(slopes.shape[1], np.float32)
    x = np.empty(len(a), np.float32)
    for e in range(low, high):
        i = order[e]
        r = distinct[i]
        mine = samples[begins[i] : begins[i + 1]]
        _sum_gradient(a, c, values, mine, owners[i], starts, x, g, has_values)
        for t in range(len(g)):
            slopes[r - first_row, t] += g[t] + decay * table[r, t]


@njit(cache=True, nogil=True)
def apply_block(table, state, slopes, first_row, lr):
    """Adagrad on a block of rows, given their whole gradient."""
    for k in range(len(slopes)):
        _apply(table, state, first_row + k, slopes[k], lr, np.float32(0.0))
