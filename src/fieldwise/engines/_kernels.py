"""Numba kernels of one training step: forward, group, update. Compiled once and cached.

Letters as in maths.py. Rows of the table are padded to whole cache lines; columns R .. R + K are b.
A step works on B samples: `a` (B, P) and `c` (B, P) hold dz q and dz p of every sample (and dz in
columns R .. of `a`), so that a row's gradient is a plain sum of rows of `a`, and in its own blocks
of `c`. `d` (B, ...) holds the scores, then their derivatives: K per sample, or K m if every
field has a loss or a weight of its own (`by_field`); the biases' gradients then come from `d`.
`biased` (m,) is false for fields whose columns and biases another engine has.

Nothing here depends on the number of threads: a sample's score and a row's gradient are each
summed by one thread, in the order of samples.
"""

from __future__ import annotations

import math

import numpy as np

from ._numba import njit, prange
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

LOGISTIC, SOFTMAX, SQUARED, ABSOLUTE, HUBER, POISSON = range(6)
SUM, WEIGHTED, VOTE = range(3)  # how the scores of fields are combined
AHEAD = 2  # lines of the next sample's rows to prefetch
EPSILON = np.float32(1e-10)


@njit(cache=True, inline="always")
def _prefetch_rows(table, rows):
    """Prefetch the first lines of each row; the processor continues once it sees a sequence."""
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
def _logistic(z, y):
    return max(z, 0.0) - y * z + math.log1p(math.exp(-abs(z)))


@njit(cache=True)
def _slope(kind, delta, z, first, step, size, y):
    """The loss of the scores z[first], z[first + step], ..; replaces them with derivatives."""
    if kind == SOFTMAX:
        top = z[first]
        for k in range(1, size):
            top = max(top, z[first + k * step])
        total = 0.0
        for k in range(size):
            total += math.exp(z[first + k * step] - top)
        mine = int(y)
        loss = top + math.log(total) - z[first + mine * step]
        for k in range(size):
            at = first + k * step
            z[at] = math.exp(z[at] - top) / total - (1.0 if k == mine else 0.0)
        return loss
    v = z[first]
    away = v - y
    if kind == LOGISTIC:
        loss = _logistic(v, y)
        z[first] = _sigmoid(v) - y
    elif kind == SQUARED:
        loss = 0.5 * away * away
        z[first] = away
    elif kind == POISSON:
        mean = math.exp(min(v, 30.0))
        loss = mean - y * v
        z[first] = mean - y
    elif kind == ABSOLUTE or abs(away) > delta:
        sign = 1.0 if away > 0 else -1.0 if away < 0 else 0.0
        bound = 1.0 if kind == ABSOLUTE else delta
        loss = abs(away) if kind == ABSOLUTE else delta * (abs(away) - 0.5 * delta)
        z[first] = bound * sign
    else:
        loss = 0.5 * away * away
        z[first] = away
    return loss


@njit(cache=True, inline="always")
def _block(table, rows, x, starts, b, slots, a, c, keep, has_values):
    """sum of p q over the columns of block b, whose field has these slots; see `split_own`."""
    if slots[1] - slots[0] == 1:
        mine, number = rows[slots[0] : slots[1]], x[slots[0] : slots[1]] if has_values else x
        if keep:
            return split_own(table, mine, number, starts[b : b + 2], a, c, has_values)
        return own_products(table, mine, number, starts[b : b + 2], a, a, has_values)
    z = np.float32(0.0)
    for t in range(starts[b], starts[b + 1]):
        q = np.float32(0.0)
        for k in range(slots[0], slots[1]):
            q += x[k] * table[rows[k], t]
        p = a[t] - q
        z += p * q
        if keep:
            a[t], c[t] = q, p
    return z


@njit(cache=True)
def _by_field(table, rows, x, starts, slot_starts, a, c, out, keep, has_values):
    """f of every output and field, out[o m + i]"""
    m = len(slot_starts) - 1
    n_columns = starts[-1]
    _sum_rows(table, rows, x, a, 0, table.shape[1], has_values)
    for b in range(len(starts) - 1):
        o, i = b // m, b % m
        slots = slot_starts[i : i + 2]
        f = _block(table, rows, x, starts, b, slots, a, c, keep, has_values)
        for k in range(slots[0], slots[1]):
            f += (x[k] if has_values else np.float32(1.0)) * table[rows[k], n_columns + o]
        out[b] = f


@njit(cache=True, inline="always")
def _scores(table, rows, x, starts, slot_starts, a, c, out, keep, has_values):
    """z of every output, without the intercepts"""
    m = len(slot_starts) - 1
    n_outputs = (len(starts) - 1) // m
    _sum_rows(table, rows, x, a, 0, table.shape[1], has_values)
    for o in range(n_outputs):
        if len(rows) == m:
            part = starts[o * m : (o + 1) * m + 1]
            if keep:
                z = split_own(table, rows, x, part, a, c, has_values)
            else:
                z = own_products(table, rows, x, part, a, a, has_values)
        else:
            z = np.float32(0.0)
            for b in range(o * m, (o + 1) * m):
                slots = slot_starts[b - o * m : b - o * m + 2]
                z += _block(table, rows, x, starts, b, slots, a, c, keep, has_values)
        out[o] = z + a[starts[-1] + o]


@njit(cache=True, inline="always")
def _score_sample(table, rows, x, starts, slot_starts, offsets, sums, out, by_field, has_values):
    """The scores of one sample: z, or f of every field."""
    if by_field:
        _by_field(table, rows, x, starts, slot_starts, sums, sums, out, False, has_values)
        return
    _scores(table, rows, x, starts, slot_starts, sums, sums, out, False, has_values)
    for o in range(len(offsets)):
        out[o] += offsets[o]


@njit(cache=True, parallel=True)
def score(table, rows, values, starts, slot_starts, offsets, out, n_threads, by_field, has_values):
    """out[s] = the scores of sample s"""
    n = len(rows)
    width = table.shape[1]
    for k in prange(n_threads):
        sums = np.empty(width, np.float32)
        high = n * (k + 1) // n_threads
        for s in range(n * k // n_threads, high):
            if s + 1 < high:
                _prefetch_rows(table, rows[s + 1])
            x = values[s] if has_values else values[0]
            _score_sample(
                table,
                rows[s],
                x,
                starts,
                slot_starts,
                offsets,
                sums,
                out[s],
                by_field,
                has_values,
            )


@njit(cache=True, nogil=True)
def score_serial(table, rows, values, starts, slot_starts, offsets, out, by_field, has_values):
    """`score` in the calling thread: for small inputs, and for the many threads of a server."""
    sums = np.empty(table.shape[1], np.float32)
    for s in range(len(rows)):
        x = values[s] if has_values else values[0]
        _score_sample(
            table,
            rows[s],
            x,
            starts,
            slot_starts,
            offsets,
            sums,
            out[s],
            by_field,
            has_values,
        )


@njit(cache=True)
def _judge(d, y, w, totals, offsets, copies, deltas, m, combine, u, du):
    """The loss of one sample; replaces its scores in d with derivatives. See `Objective`."""
    loss = 0.0
    n_outputs = len(offsets)
    for e in range(len(copies)):
        kind, first, size, target = copies[e]
        g = e if len(totals) > 1 else 0
        share = np.float32(w[g] / totals[g]) if totals[g] > 0 else np.float32(0.0)
        if combine == VOTE:
            for i in range(m):
                for o in range(first, first + size):
                    d[o * m + i] += offsets[o]
                loss += w[g] * _slope(kind, deltas[e], d, first * m + i, m, size, y[target])
                for o in range(first, first + size):
                    d[o * m + i] *= share
            continue
        if combine == WEIGHTED:  # z is stored after the fields' scores
            at = n_outputs * m + first
            for o in range(first, first + size):
                z = offsets[o]
                for i in range(m):
                    z += u[i] * d[o * m + i]
                d[n_outputs * m + o] = z
        else:
            at = first
            for o in range(first, first + size):
                d[o] += offsets[o]
        loss += w[g] * _slope(kind, deltas[e], d, at, 1, size, y[target])
        for k in range(at, at + size):
            d[k] *= share
        if combine == WEIGHTED:
            for o in range(first, first + size):
                dz = d[n_outputs * m + o]
                for i in range(m):
                    du[i] += dz * d[o * m + i]
                    d[o * m + i] = dz * u[i]
    return loss


@njit(cache=True, parallel=True)
def _forward_plain(table, batch, starts, offset, scratch, n_threads, has_values):
    """`forward` for one logistic output, fields summed, one slot each."""
    rows, values, y, w = batch
    a, c, _, _, losses = scratch
    n = len(rows)
    total = 0.0
    for s in range(n):
        total += w[s, 0]
    n_columns = starts[-1]
    for k in prange(n_threads):
        low, high = n * k // n_threads, n * (k + 1) // n_threads
        for s in range(low, high):
            if s + 1 < high:
                _prefetch_rows(table, rows[s + 1])
            x = values[s] if has_values else values[0]
            _sum_rows(table, rows[s], x, a[s], 0, table.shape[1], has_values)
            z = split_own(table, rows[s], x, starts, a[s], c[s], has_values)
            z += a[s, n_columns] + offset
            losses[s] = w[s, 0] * _logistic(z, y[s, 0])
            dz = np.float32(0.0)
            if total > 0:
                dz = np.float32(w[s, 0] * (_sigmoid(z) - y[s, 0]) / total)
            for t in range(n_columns):
                a[s, t] *= dz
                c[s, t] *= dz
            a[s, n_columns] = dz
    return total


@njit(cache=True, inline="always")
def _score_parts(table, rows, x, starts, slot_starts, combine, a, c, d, has_values):
    """q, p and the scores of one sample, by field unless fields are summed."""
    if combine == SUM:
        _scores(table, rows, x, starts, slot_starts, a, c, d, True, has_values)
    else:
        _by_field(table, rows, x, starts, slot_starts, a, c, d, True, has_values)


@njit(cache=True, inline="always")
def _judge_sample(s, batch, starts, m, objective, totals, scratch):
    """The loss of a sample whose scores are known; a, c and d become derivatives."""
    _, _, y, w = batch
    offsets, copies, deltas, combine, u = objective
    a, c, d, du, losses = scratch
    n_outputs = len(offsets)
    for i in range(len(u)):
        du[s, i] = 0.0
    losses[s] = _judge(d[s], y[s], w[s], totals, offsets, copies, deltas, m, combine, u, du[s])
    if combine == SUM:
        for o in range(n_outputs):
            dz = d[s, o]
            for t in range(starts[o * m], starts[(o + 1) * m]):
                a[s, t] *= dz
                c[s, t] *= dz
            a[s, starts[-1] + o] = dz
        return
    for b in range(n_outputs * m):
        df = d[s, b]
        for t in range(starts[b], starts[b + 1]):
            a[s, t] *= df
            c[s, t] *= df


@njit(cache=True)
def _total_weights(w):
    totals = np.zeros(w.shape[1])
    for s in range(len(w)):
        for g in range(w.shape[1]):
            totals[g] += w[s, g]
    return totals


@njit(cache=True, parallel=True)
def _forward_any(
    table, batch, starts, slot_starts, objective, totals, scratch, n_threads, has_values
):
    rows, values, _, _ = batch
    a, c, d, _, _ = scratch
    n, m, combine = len(rows), len(slot_starts) - 1, objective[3]
    for k in prange(n_threads):
        low, high = n * k // n_threads, n * (k + 1) // n_threads
        for s in range(low, high):
            if s + 1 < high:
                _prefetch_rows(table, rows[s + 1])
            x = values[s] if has_values else values[0]
            _score_parts(
                table, rows[s], x, starts, slot_starts, combine, a[s], c[s], d[s], has_values
            )
            _judge_sample(s, batch, starts, m, objective, totals, scratch)


@njit(cache=True, parallel=True)
def partial(table, batch, starts, slot_starts, combine, scratch, n_threads, has_values):
    """These columns' part of the scores, into d; a, c and d are then ready for `finish`."""
    rows, values, _, _ = batch
    a, c, d, _, _ = scratch
    n = len(rows)
    for k in prange(n_threads):
        low, high = n * k // n_threads, n * (k + 1) // n_threads
        for s in range(low, high):
            if s + 1 < high:
                _prefetch_rows(table, rows[s + 1])
            x = values[s] if has_values else values[0]
            _score_parts(
                table, rows[s], x, starts, slot_starts, combine, a[s], c[s], d[s], has_values
            )


@njit(cache=True, parallel=True)
def finish(batch, totals, starts, m, objective, scratch, n_threads):
    """The rest of `forward`, once the scores in d are summed; totals are the sums of weights."""
    n = len(batch[0])
    for k in prange(n_threads):
        for s in range(n * k // n_threads, n * (k + 1) // n_threads):
            _judge_sample(s, batch, starts, m, objective, totals, scratch)


@njit(cache=True)
def forward(table, batch, starts, slot_starts, objective, scratch, n_threads, has_values):
    """Scores, losses and their derivatives; a, c and d are then ready for `update`. Returns the sum
    of weights."""
    offsets, copies, _, combine, _ = objective
    one = combine == SUM and len(offsets) == 1 and batch[0].shape[1] == len(slot_starts) - 1
    if one and copies[0, 0] == LOGISTIC:
        return _forward_plain(table, batch, starts, offsets[0], scratch, n_threads, has_values)
    totals = _total_weights(batch[3])
    _forward_any(
        table, batch, starts, slot_starts, objective, totals, scratch, n_threads, has_values
    )
    return totals.sum() / len(totals)


@njit(cache=True, parallel=True)
def group(rows, values, slot_starts, places, entries, runs, n_threads):
    """Group samples by row: a field's entries are together, one run for each distinct row. Returns
    the number of runs.

    places (d,) is scratch that is zero before and after. Fields own disjoint rows, so they are
    grouped in parallel. Empty slots (of value 0) of fields with several are left out.
    """
    samples, slots = entries
    distinct, owners, begins, ends, counts = runs
    n, n_slots = rows.shape
    m = len(slot_starts) - 1
    many = n_slots > m
    for k in prange(n_threads):
        for j in range(m * k // n_threads, m * (k + 1) // n_threads):
            base = slot_starts[j] * n
            found = 0
            for slot in range(slot_starts[j], slot_starts[j + 1]):
                for s in range(n):
                    r = rows[s, slot]
                    if many and values[s, slot] == 0:
                        continue
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
            for slot in range(slot_starts[j], slot_starts[j + 1]):
                for s in range(n):
                    if many and values[s, slot] == 0:
                        continue
                    r = rows[s, slot]
                    samples[places[r]] = s
                    if many:
                        slots[places[r]] = slot
                    places[r] += 1
            for i in range(found):
                ends[base + i] = places[distinct[base + i]]
                places[distinct[base + i]] = 0
            counts[j] = found
    # Runs of all fields, one after the other.
    total = 0
    for j in range(m):
        base = slot_starts[j] * n
        for i in range(base, base + counts[j]):
            distinct[total] = distinct[i]
            begins[total] = begins[i]
            ends[total] = ends[i]
            owners[total] = j
            total += 1
    return total


@njit(cache=True, inline="always")
def _sum_gradient(
    a,
    c,
    d,
    values,
    samples,
    slots,
    begin,
    end,
    field,
    starts,
    steps,
    x,
    g,
    by_field,
    has_values,
):
    """g = the gradient of one row: dz q everywhere, dz p in its own blocks, dz for the biases."""
    _, _, n_outputs, m, biased = steps
    mine = samples[begin:end]
    if has_values:
        many = values.shape[1] > m
        for e in range(begin, end):
            x[e - begin] = values[samples[e], slots[e] if many else field]
    _sum_rows(a, mine, x, g, 0, len(g), has_values)
    for o in range(n_outputs):
        b = o * m + field
        _sum_rows(c, mine, x, g, starts[b], starts[b + 1], has_values)
    if by_field:
        for o in range(n_outputs):
            total = np.float32(0.0)
            for e in range(len(mine)):
                total += (x[e] if has_values else np.float32(1.0)) * d[mine[e], o * m + field]
            g[starts[-1] + o] = total
    if not biased[field]:
        g[starts[-1] : starts[-1] + n_outputs] = 0.0


@njit(cache=True, inline="always")
def _apply(table, state, r, g, lr, decay):
    """Adagrad on one row."""
    for t in range(len(g)):
        slope = g[t] + decay * table[r, t]
        h = state[r, t] + slope * slope
        state[r, t] = h
        table[r, t] -= lr * slope / (math.sqrt(h) + EPSILON)


@njit(cache=True)
def share_out(begins, ends, total, shares, n_threads):
    """Where each thread's runs begin, so that all have equal work: 1 per sample and 4 per run."""
    work = 4 * total
    for i in range(total):
        work += ends[i] - begins[i]
    k, done = 0, 0
    for i in range(total):
        while k < n_threads and done * n_threads >= k * work:
            shares[k] = i
            k += 1
        done += 4 + ends[i] - begins[i]
    while k <= n_threads:
        shares[k] = total
        k += 1


@njit(cache=True, inline="always")
def _prefetch_run(table, state, distinct, i, last):
    if i + 1 < last:
        r = distinct[i + 1]
        for t in range(0, min(table.shape[1], 8 * LINE), LINE):
            prefetch(table, r, t)
            prefetch(state, r, t)


@njit(cache=True, parallel=True)
def _update_plain(table, state, a, c, samples, runs, shares, starts, steps, n_threads):
    """`update` for one output, fields summed, no values."""
    lr, decays, _, _, biased = steps
    distinct, owners, begins, ends, _ = runs
    width = table.shape[1]
    for k in prange(n_threads):
        g = np.empty(width, np.float32)
        for i in range(shares[k], shares[k + 1]):
            _prefetch_run(table, state, distinct, i, shares[k + 1])
            mine, field = samples[begins[i] : ends[i]], owners[i]
            _sum_rows(a, mine, g, g, 0, width, False)
            _sum_rows(c, mine, g, g, starts[field], starts[field + 1], False)
            if not biased[field]:
                g[starts[-1]] = 0.0
            _apply(table, state, distinct[i], g, lr, decays[distinct[i]])


@njit(cache=True, parallel=True)
def _update_any(
    table, state, buffers, values, entries, runs, shares, starts, steps, by_field, n_threads,
    has_values,
):  # fmt: skip
    a, c, d = buffers
    samples, slots = entries
    distinct, owners, begins, ends, _ = runs
    lr, decays, _, _, _ = steps
    for k in prange(n_threads):
        g = np.empty(table.shape[1], np.float32)
        x = np.empty(values.shape[1] * len(a), np.float32)
        for i in range(shares[k], shares[k + 1]):
            _prefetch_run(table, state, distinct, i, shares[k + 1])
            _sum_gradient(
                a, c, d, values, samples, slots, begins[i], ends[i], owners[i], starts, steps, x, g,
                by_field, has_values,
            )  # fmt: skip
            _apply(table, state, distinct[i], g, lr, decays[distinct[i]])


@njit(cache=True)
def update(
    table, state, buffers, values, entries, runs, shares, starts, steps, by_field, n_threads,
    has_values,
):  # fmt: skip
    """Adagrad on every distinct row of the batch, each by one thread."""
    if steps[2] == 1 and not by_field and not has_values:
        a, c, _ = buffers
        _update_plain(table, state, a, c, entries[0], runs, shares, starts, steps, n_threads)
        return
    _update_any(
        table, state, buffers, values, entries, runs, shares, starts, steps, by_field, n_threads,
        has_values,
    )  # fmt: skip


@njit(cache=True, parallel=True)
def gradients(buffers, values, entries, runs, total, starts, steps, by_field, out, n_threads,
              has_values):  # fmt: skip
    """out[i] = the batch's gradient of the i-th distinct row, without decay"""
    a, c, d = buffers
    samples, slots = entries
    _, owners, begins, ends, _ = runs
    for k in prange(n_threads):
        x = np.empty(values.shape[1] * len(a), np.float32)
        for i in range(total * k // n_threads, total * (k + 1) // n_threads):
            _sum_gradient(
                a, c, d, values, samples, slots, begins[i], ends[i], owners[i], starts, steps, x,
                out[i], by_field, has_values,
            )  # fmt: skip


@njit(cache=True, parallel=True)
def apply_rows(table, state, rows, g, lr, decays, n_threads):
    """Adagrad on some rows, given their gradients."""
    for k in prange(n_threads):
        for i in range(len(rows) * k // n_threads, len(rows) * (k + 1) // n_threads):
            _apply(table, state, rows[i], g[i], lr, decays[rows[i]])


@njit(cache=True)
def weigh_fields(u, state, du, n, lr):
    """Adagrad on the weights of fields, which stay at or above 0."""
    for i in range(len(u)):
        slope = np.float32(0.0)
        for s in range(n):
            slope += du[s, i]
        state[i] += slope * slope
        u[i] = max(u[i] - lr * slope / (math.sqrt(state[i]) + EPSILON), np.float32(0.0))


@njit(cache=True)
def train_steps(
    table, state, data, starts, slot_starts, objective, field_state, scratch, entries, runs, shares,
    places, batch, lr, decays, biased, n_threads, has_values,
):  # fmt: skip
    """One step per batch over all rows, in order. Returns summed losses and weights."""
    rows, values, y, w = data
    offsets, _, _, combine, u = objective
    a, c, d, du, losses = scratch
    by_field = combine != SUM
    steps = (lr, decays, len(offsets), len(slot_starts) - 1, biased)
    loss, weight = 0.0, 0.0
    for first in range(0, len(rows), batch):
        last = min(first + batch, len(rows))
        n = last - first
        x = values[first:last] if has_values else values
        part = (rows[first:last], x, y[first:last], w[first:last])
        weight += forward(
            table,
            part,
            starts,
            slot_starts,
            objective,
            (a[:n], c[:n], d[:n], du[:n], losses[:n]),
            n_threads,
            has_values,
        )
        for s in range(n):
            loss += losses[s]
        total = group(rows[first:last], x, slot_starts, places, entries, runs, n_threads)
        share_out(runs[2], runs[3], total, shares, n_threads)
        update(
            table,
            state,
            (a, c, d),
            x,
            entries,
            runs,
            shares,
            starts,
            steps,
            by_field,
            n_threads,
            has_values,
        )
        if combine == WEIGHTED:
            weigh_fields(u, field_state, du, n, lr)
    return loss, weight


@njit(cache=True, nogil=True)
def add_rows(table, slopes, first_row, rows, g, decays):
    """Add a batch's gradients g of some rows, and their decay, to the slopes of a block."""
    for i in range(len(rows)):
        r = rows[i]
        for t in range(g.shape[1]):
            slopes[r - first_row, t] += g[i, t] + decays[r] * table[r, t]


@njit(cache=True, nogil=True)
def apply_block(table, state, slopes, first_row, lr):
    """Adagrad on a block of rows, given their whole gradient."""
    for k in range(len(slopes)):
        _apply(table, state, first_row + k, slopes[k], lr, np.float32(0.0))
