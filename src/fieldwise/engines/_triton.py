"""Triton kernels of the GPU engine: one for a sample's scores, two for the step of its rows.

A row of the table is `width` floats in a stride of whole sectors. Columns are taken in two parts of
powers of two, MAIN and TAIL, so that few lanes idle. What belongs to a column is in small arrays of
MAIN + TAIL entries: the first slot of its owner (-1 for a bias and for padding) and how many slots
that has, its owner, and which score it belongs to.

Entries are (slot, sample) pairs, a field's together, sorted by `key`:

    key = code * SPAN + place * BATCH + sample      SPAN = BATCH * the most slots of a field

so that a row's entries are a run. Sums over runs go by windows of WINDOW entries: `partials` sums the
windows that lie within one run, `update` adds those and the entries at the ends. Nothing is
added with atomics: the order of every sum is fixed, and so is every bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["WINDOW", "forward", "partials", "update"]

WINDOW = 32


@triton.jit
def _both(
    table, rows, values, first_slot, own_slots, s, cols, live,
    S: tl.constexpr, STRIDE: tl.constexpr, SLOTS: tl.constexpr, MOST: tl.constexpr,
    VALUED: tl.constexpr,
):  # fmt: skip
    """What all slots of a sample bring to some columns, and what the columns' owners do."""
    total = tl.zeros([cols.shape[0]], tl.float32)
    for j in range(0, S, SLOTS):
        slot = j + tl.arange(0, SLOTS)
        there = slot < S
        row = tl.load(rows + s * S + slot, mask=there, other=0).to(tl.int64)
        at = row[:, None] * STRIDE + cols[None, :]
        tile = tl.load(table + at, mask=there[:, None] & live[None, :], other=0.0).to(tl.float32)
        if VALUED:
            x = tl.load(values + s * S + slot, mask=there, other=0.0)
            tile = tile * x[:, None]
        total += tl.sum(tile, axis=0)
    first = tl.load(first_slot + cols)
    own = tl.zeros([cols.shape[0]], tl.float32)
    for k in tl.static_range(MOST):
        mine = live & (first >= 0)
        if MOST > 1:
            mine = mine & (k < tl.load(own_slots + cols))
        row = tl.load(rows + s * S + first + k, mask=mine, other=0).to(tl.int64)
        part = tl.load(table + row * STRIDE + cols, mask=mine, other=0.0).to(tl.float32)
        if VALUED:
            part = part * tl.load(values + s * S + first + k, mask=mine, other=0.0)
        own += part
    return total, own


@triton.jit
def _forward_part(
    table, rows, values, first_slot, own_slots, a, c, s, cols,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    SLOTS: tl.constexpr, MOST: tl.constexpr, VALUED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Keeps p and q of some columns and gives their part of z, the biases among it."""
    live = cols < WIDTH
    total, q = _both(
        table, rows, values, first_slot, own_slots, s, cols, live, S, STRIDE, SLOTS, MOST, VALUED
    )
    p = total - q
    if KEEP:
        tl.store(a + s * STRIDE + cols, p, mask=live)
        tl.store(c + s * STRIDE + cols, tl.where(cols < R, q, 1.0), mask=live)
    return tl.sum(tl.where(cols < R, p * q, total), axis=0)


@triton.jit
def forward(
    table, rows, values, first_slot, own_slots, a, c, offset, y, w, total, d, losses,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    MAIN: tl.constexpr, TAIL: tl.constexpr, SLOTS: tl.constexpr, MOST: tl.constexpr,
    VALUED: tl.constexpr, WEIGHTED: tl.constexpr, PLAIN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One sample. p and q are kept in a and c. PLAIN is one output, a sum of fields: KEEP then also
    takes the logistic loss and its derivative, otherwise d is the score. Of other objectives the
    scores are made of a and c elsewhere."""
    s = tl.program_id(0).to(tl.int64)
    z = _forward_part(
        table, rows, values, first_slot, own_slots, a, c, s, tl.arange(0, MAIN),
        S, STRIDE, R, WIDTH, SLOTS, MOST, VALUED, KEEP,
    )  # fmt: skip
    if TAIL > 0:
        z += _forward_part(
            table, rows, values, first_slot, own_slots, a, c, s, MAIN + tl.arange(0, TAIL),
            S, STRIDE, R, WIDTH, SLOTS, MOST, VALUED, KEEP,
        )  # fmt: skip
    if PLAIN:
        z += offset
        if KEEP:
            target = tl.load(y + s)
            weight = 1.0
            if WEIGHTED:
                weight = tl.load(w + s)
            small = tl.exp(-tl.abs(z))
            chance = tl.where(z >= 0, 1.0, small) / (1.0 + small)
            tl.store(losses + s, weight * (tl.maximum(z, 0.0) - target * z + tl.log(1.0 + small)))
            share = weight / tl.load(total)
            tl.store(d + s, tl.where(weight > 0, share * (chance - target), 0.0))
        else:
            tl.store(d + s, z)


@triton.jit
def _entries(
    keys, values, a, c, d, owner, score_of, low, high, field, slot, cols, live,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, N_SCORES: tl.constexpr,
    BATCH: tl.constexpr, SPAN: tl.constexpr, AT_ONCE: tl.constexpr,
    VALUED: tl.constexpr, BY_FIELD: tl.constexpr,
):  # fmt: skip
    """The gradient's sum over entries low .. high, which belong to one row; `slot` is the first of
    its field."""
    own = tl.load(owner + cols) == field
    score = tl.load(score_of + cols)
    if BY_FIELD:
        score = tl.where(cols >= R, score + field, score)
    out = tl.zeros([cols.shape[0]], tl.float32)
    for e in range(low, high, AT_ONCE):
        entry = e + tl.arange(0, AT_ONCE)
        there = entry < high
        key = tl.load(keys + entry, mask=there, other=0)
        s = (key % BATCH).to(tl.int64)
        at = s[:, None] * STRIDE + cols[None, :]
        wanted = there[:, None] & live[None, :]
        slope = tl.load(a + at, mask=wanted & own[None, :], other=0.0)
        slope += tl.load(c + at, mask=wanted & ~own[None, :], other=0.0)
        if N_SCORES == 1:
            factor = tl.load(d + s, mask=there, other=0.0)[:, None]
        else:
            factor = tl.load(d + s[:, None] * N_SCORES + score[None, :], mask=wanted, other=0.0)
        if VALUED:
            place = (key % SPAN) // BATCH
            x = tl.load(values + s * S + slot + place, mask=there, other=0.0)
            factor = factor * x[:, None]
        out += tl.sum(slope * factor, axis=0)
    return out


@triton.jit
def partials(
    keys, values, a, c, d, owner, score_of, slot_field, slot_first, partial, n, n_entries,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    N_SCORES: tl.constexpr, BATCH: tl.constexpr, SPAN: tl.constexpr, MAIN: tl.constexpr,
    TAIL: tl.constexpr, AT_ONCE: tl.constexpr, LENGTH: tl.constexpr, VALUED: tl.constexpr,
    BY_FIELD: tl.constexpr,
):  # fmt: skip
    """The sums of windows that lie within one row's run."""
    window = tl.program_id(0).to(tl.int64)
    low = tl.program_id(0) * LENGTH
    high = low + LENGTH
    if high <= n_entries:
        field = tl.load(slot_field + low // n)
        last = tl.load(slot_field + (high - 1) // n)
        code = tl.load(keys + low) // SPAN
        if (field == last) & (code == tl.load(keys + high - 1) // SPAN):
            slot = tl.load(slot_first + low // n)
            cols = tl.arange(0, MAIN)
            live = cols < WIDTH
            found = _entries(
                keys, values, a, c, d, owner, score_of, low, high, field, slot, cols, live,
                S, STRIDE, R, N_SCORES, BATCH, SPAN, AT_ONCE, VALUED, BY_FIELD,
            )  # fmt: skip
            tl.store(partial + window * STRIDE + cols, found, mask=live)
            if TAIL > 0:
                more = MAIN + tl.arange(0, TAIL)
                live_more = more < WIDTH
                found_more = _entries(
                    keys, values, a, c, d, owner, score_of, low, high, field, slot, more,
                    live_more, S, STRIDE, R, N_SCORES, BATCH, SPAN, AT_ONCE, VALUED, BY_FIELD,
                )  # fmt: skip
                tl.store(partial + window * STRIDE + more, found_more, mask=live_more)


@triton.jit
def _run_part(
    table, state, pull, keys, values, a, c, d, owner, score_of, partial,
    low, middle, upper, high, first_window, last_window, row, field, slot, rate, decay, seed, cols,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    N_SCORES: tl.constexpr, BATCH: tl.constexpr, SPAN: tl.constexpr, AT_ONCE: tl.constexpr,
    VALUED: tl.constexpr, BY_FIELD: tl.constexpr, PULL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Some columns of one row: the gradient's sum, and Adagrad."""
    live = cols < WIDTH
    at = row * STRIDE + cols
    weight = tl.load(table + at, mask=live, other=0.0).to(tl.float32)
    if not PULL:
        squares = tl.load(state + at, mask=live, other=0.0)
    slope = _entries(
        keys, values, a, c, d, owner, score_of, low, middle, field, slot, cols, live,
        S, STRIDE, R, N_SCORES, BATCH, SPAN, AT_ONCE, VALUED, BY_FIELD,
    )  # fmt: skip
    for window in range(first_window, last_window):
        slope += tl.load(partial + window * STRIDE + cols, mask=live, other=0.0)
    if upper < high:
        slope += _entries(
            keys, values, a, c, d, owner, score_of, upper, high, field, slot, cols, live,
            S, STRIDE, R, N_SCORES, BATCH, SPAN, AT_ONCE, VALUED, BY_FIELD,
        )  # fmt: skip
    slope += decay * weight
    if PULL:
        tl.store(pull + at, tl.load(pull + at, mask=live, other=0.0) + slope, mask=live)
    else:
        squares += slope * slope
        weight -= rate * slope / (tl.sqrt(squares) + 1e-10)
        tl.store(state + at, squares, mask=live)
        if HALF:
            # Rounded up or down by chance, so that small steps count in the mean. The chance is a
            # hash of the place and the step: the same in every run.
            chance = (tl.randint(tl.load(seed), at.to(tl.int32)) & 0xFFFF).to(tl.int32)
            bits = weight.to(tl.int32, bitcast=True) + chance
            weight = (bits & -65536).to(tl.float32, bitcast=True)
        tl.store(table + at, weight.to(table.dtype.element_ty), mask=live)


@triton.jit
def update(
    table, state, pull, keys, begins, n_runs, values, a, c, d, owner, score_of,
    slot_field, slot_first, sizes, offsets, partial, n, n_rows, rate, decay, seed,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    N_SCORES: tl.constexpr, BATCH: tl.constexpr, SPAN: tl.constexpr, MAIN: tl.constexpr,
    TAIL: tl.constexpr, AT_ONCE: tl.constexpr, LENGTH: tl.constexpr, VALUED: tl.constexpr,
    BY_FIELD: tl.constexpr, PULL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The step of every row in the batch, some runs a program. PULL adds to a gradient of the whole
    table instead."""
    many = tl.load(n_runs)
    for k in range(tl.program_id(0), many, tl.num_programs(0)):
        low = tl.load(begins + k)
        high = tl.load(begins + k + 1)
        field = tl.load(slot_field + low // n)
        slot = tl.load(slot_first + low // n)
        size = tl.load(sizes + field)
        code = (tl.load(keys + low) // SPAN).to(tl.int32)
        if code <= size:  # more: slots without a value
            row = tl.where(code < size, tl.load(offsets + field) + code, n_rows + field)
            row = row.to(tl.int64)
            first_window = (low + LENGTH - 1) // LENGTH
            last_window = high // LENGTH
            whole = last_window > first_window
            middle = tl.where(whole, first_window * LENGTH, high)
            upper = tl.where(whole, last_window * LENGTH, high)
            _run_part(
                table, state, pull, keys, values, a, c, d, owner, score_of, partial,
                low, middle, upper, high, first_window, last_window, row, field, slot,
                rate, decay, seed, tl.arange(0, MAIN),
                S, STRIDE, R, WIDTH, N_SCORES, BATCH, SPAN, AT_ONCE, VALUED, BY_FIELD, PULL, HALF,
            )  # fmt: skip
            if TAIL > 0:
                _run_part(
                    table, state, pull, keys, values, a, c, d, owner, score_of, partial,
                    low, middle, upper, high, first_window, last_window, row, field, slot,
                    rate, decay, seed, MAIN + tl.arange(0, TAIL),
                    S, STRIDE, R, WIDTH, N_SCORES, BATCH, SPAN, AT_ONCE, VALUED, BY_FIELD, PULL,
                    HALF,
                )  # fmt: skip
