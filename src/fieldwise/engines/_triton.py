"""Triton kernels of the GPU engine: entries sorted by row, a sample's scores, the step of its rows.

A row of the table is STRIDE floats, WIDTH of them in use and the rest zero. Its columns are
processed in two parts of powers of two, MAIN and TAIL, so that few lanes idle, and the OWN columns
of the row's field once more. Masks change only between whole vectors where possible: one that
changes within four neighbours costs four loads instead of one.

Entries are (slot, sample) pairs, those of a field together, sorted by

    key = code * SPAN + place * BATCH + sample      SPAN = BATCH * the most slots of a field

so that a row's entries are a *run*. `short_runs` processes several runs of up to LENGTH entries at
a time. A longer run, from entry b on, is cut into pieces of LENGTH, the last up to twice as long;
`long_runs` sums piece i into place b // LENGTH + i, which no other piece has, and the program that
finishes last adds up the places. No sum uses atomics: the order of every sum is fixed, and so is
every bit.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["count_runs", "find_runs", "forward", "long_runs", "pack", "short_runs"]


@triton.jit
def pack(
    codes, values, keys, slot_sizes, slot_place, n,
    S: tl.constexpr, BATCH: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
    MANY: tl.constexpr,
):  # fmt: skip
    """Keys of one slot of one batch: codes (steps, n, S) -> keys (steps, S, n). Unseen values come
    after all categories, and empty slots after those."""
    slot, step = tl.program_id(0), tl.program_id(1).to(tl.int64)
    size = tl.load(slot_sizes + slot)
    place = tl.load(slot_place + slot)
    for low in range(0, n, BLOCK):
        sample = low + tl.arange(0, BLOCK)
        there = sample < n
        at = (step * n + sample) * S + slot
        code = tl.load(codes + at, mask=there, other=0)
        code = tl.where(code < 0, size, code)
        if MANY:
            code = tl.where(tl.load(values + at, mask=there, other=1.0) == 0, size + 1, code)
        key = code.to(keys.dtype.element_ty) * SPAN + place * BATCH + sample
        tl.store(keys + (step * S + slot) * n + sample, key, mask=there)


@triton.jit
def _fresh(keys, low, high, entry, SPAN: tl.constexpr):
    """Which entries begin a run of a field, whose entries are low .. high; and their codes."""
    there = entry < high
    code = tl.load(keys + entry, mask=there, other=0) // SPAN
    before = tl.load(keys + entry - 1, mask=there & (entry > low), other=0) // SPAN
    return there & ((code != before) | (entry == low)), code


@triton.jit
def count_runs(
    keys, slot_starts, counts, n, n_entries, M: tl.constexpr, SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """How many runs a field has in a batch."""
    field, step = tl.program_id(0), tl.program_id(1).to(tl.int64)
    low = tl.load(slot_starts + field) * n
    high = tl.load(slot_starts + field + 1) * n
    found = tl.zeros([BLOCK], tl.int32)
    for first in range(low, high, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        fresh, _ = _fresh(keys + step * n_entries, low, high, entry, SPAN)
        found += fresh.to(tl.int32)
    tl.store(counts + step * M + field, tl.sum(found, axis=0))


@triton.jit
def find_runs(
    keys, slot_starts, counts, sizes, offsets, begins, rows, fields, run_at, n_runs, n, n_entries,
    n_rows, M: tl.constexpr, FIELDS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
    LENGTH: tl.constexpr,
):  # fmt: skip
    """Where every run of a field begins, its row (-1 for empty slots) and its field; and the run of
    the last of every LENGTH entries."""
    field, step = tl.program_id(0), tl.program_id(1).to(tl.int64)
    every = tl.arange(0, FIELDS)
    count = tl.load(counts + step * M + every, mask=every < M, other=0)
    done = tl.sum(tl.where(every < field, count, 0), axis=0)
    total = tl.sum(count, axis=0)
    low = tl.load(slot_starts + field) * n
    high = tl.load(slot_starts + field + 1) * n
    size, offset = tl.load(sizes + field), tl.load(offsets + field)
    begins += step * (n_entries + 1)
    rows += step * n_entries
    fields += step * n_entries
    run_at += step * (n_entries // LENGTH + 1)
    for first in range(low, high, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        fresh, code = _fresh(keys + step * n_entries, low, high, entry, SPAN)
        code = code.to(tl.int32)
        at = done + tl.cumsum(fresh.to(tl.int32), axis=0) - 1
        row = tl.where(code < size, offset + code, tl.where(code == size, n_rows + field, -1))
        tl.store(begins + at, entry, mask=fresh)
        tl.store(rows + at, row, mask=fresh)
        tl.store(fields + at, field, mask=fresh)
        last = (entry < high) & (entry % LENGTH == LENGTH - 1)
        tl.store(run_at + entry // LENGTH, at, mask=last)
        done += tl.sum(fresh.to(tl.int32), axis=0)
    if field == M - 1:
        tl.store(begins + total, n_entries)
        tl.store(n_runs + step, total)


@triton.jit
def _add_rows(
    table, row, there, x, cols, total, STRIDE: tl.constexpr, VALUED: tl.constexpr
):  # fmt: skip
    """total plus the rows of some slots, in some columns."""
    at = row[:, None] * STRIDE + cols[None, :]
    tile = tl.load(table + at, mask=there[:, None] & (cols < STRIDE)[None, :], other=0.0)
    tile = tile.to(tl.float32)
    if VALUED:
        tile = tile * x[:, None]
    return total + tl.sum(tile, axis=0)


@triton.jit
def _own_part(
    table, rows, values, first_slot, own_slots, s, cols,
    S: tl.constexpr, STRIDE: tl.constexpr, MOST: tl.constexpr, VALUED: tl.constexpr,
):  # fmt: skip
    """q: the sum of x T over the slots of each column's owner"""
    first = tl.load(first_slot + cols)
    own = tl.zeros([cols.shape[0]], tl.float32)
    for k in tl.static_range(MOST):
        mine = first >= 0
        if MOST > 1:
            mine = mine & (k < tl.load(own_slots + cols))
        row = tl.load(rows + s * S + first + k, mask=mine, other=0).to(tl.int64)
        part = tl.load(table + row * STRIDE + cols, mask=mine, other=0.0).to(tl.float32)
        if VALUED:
            part = part * tl.load(values + s * S + first + k, mask=mine, other=0.0)
        own += part
    return own


@triton.jit
def _keep(a, c, at, cols, p, q, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr):
    """Store p and q for the step; in c a bias is a column whose q is 1."""
    there = cols < STRIDE
    tl.store(a + at + cols, p, mask=there)
    tl.store(c + at + cols, tl.where(cols < R, q, tl.where(cols < WIDTH, 1.0, 0.0)), mask=there)


@triton.jit
def forward(
    table, rows, values, first_slot, own_slots, a, c, offset, y, w, total_weight, d, losses,
    S: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr, WIDTH: tl.constexpr,
    MAIN: tl.constexpr, TAIL: tl.constexpr, SLOTS: tl.constexpr, MOST: tl.constexpr,
    VALUED: tl.constexpr, WEIGHTED: tl.constexpr, PLAIN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One sample. KEEP stores p and q in a and c. PLAIN is one output, a sum of fields: KEEP then
    also computes the logistic loss and its derivative, otherwise d is the score. Other objectives
    compute scores from a and c elsewhere."""
    s = tl.program_id(0).to(tl.int64)
    cols, more = tl.arange(0, MAIN), MAIN + tl.arange(0, TAIL)
    q = _own_part(table, rows, values, first_slot, own_slots, s, cols, S, STRIDE, MOST, VALUED)
    q_more = _own_part(table, rows, values, first_slot, own_slots, s, more, S, STRIDE, MOST, VALUED)
    total, total_more = tl.zeros([MAIN], tl.float32), tl.zeros([TAIL], tl.float32)
    for first in range(0, S, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        there = slot < S
        row = tl.load(rows + s * S + slot, mask=there, other=0).to(tl.int64)
        x = 1.0
        if VALUED:
            x = tl.load(values + s * S + slot, mask=there, other=0.0)
        total = _add_rows(table, row, there, x, cols, total, STRIDE, VALUED)
        total_more = _add_rows(table, row, there, x, more, total_more, STRIDE, VALUED)
    p, p_more = total - q, total_more - q_more
    if KEEP:
        _keep(a, c, s * STRIDE, cols, p, q, STRIDE, R, WIDTH)
        _keep(a, c, s * STRIDE, more, p_more, q_more, STRIDE, R, WIDTH)
    if PLAIN:
        z = offset + tl.sum(tl.where(cols < R, p * q, total), axis=0)
        z += tl.sum(tl.where(more < R, p_more * q_more, total_more), axis=0)
        if KEEP:
            target = tl.load(y + s)
            weight = 1.0
            if WEIGHTED:
                weight = tl.load(w + s)
            small = tl.exp(-tl.abs(z))
            chance = tl.where(z >= 0, 1.0, small) / (1.0 + small)
            tl.store(losses + s, weight * (tl.maximum(z, 0.0) - target * z + tl.log(1.0 + small)))
            share = weight / tl.load(total_weight)
            tl.store(d + s, tl.where(weight > 0, share * (chance - target), 0.0))
        else:
            tl.store(d + s, z)


@triton.jit
def _own_columns(
    starts, field, M: tl.constexpr, K: tl.constexpr, RANK: tl.constexpr, OWN: tl.constexpr
):  # fmt: skip
    """The columns that fields (n,) own, RANK places per output, and which are in use: (n, OWN)"""
    place = tl.arange(0, OWN)
    there = (place < K * RANK)[None, :] & (field >= 0)[:, None]
    block = (place // RANK * M)[None, :] + field[:, None]
    first = tl.load(starts + block, mask=there, other=0)
    last = tl.load(starts + block + 1, mask=there, other=0)
    cols = first + (place % RANK)[None, :]
    return cols, there & (cols < last)


@triton.jit
def _slopes(
    slopes, d, score_of, biased, s, there, factor, field, cols, live,
    STRIDE: tl.constexpr, R: tl.constexpr, N_SCORES: tl.constexpr, BY_FIELD: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    """The gradient of entries (n,) in columns (n or 1, columns): p or q, times the derivative of
    the loss by the column's score. SHARED: another engine has the biases of some fields."""
    wanted = there[:, None] & live
    slope = tl.load(slopes + s[:, None] * STRIDE + cols, mask=wanted, other=0.0)
    if N_SCORES > 1:
        score = tl.load(score_of + cols, mask=live, other=0)
        if BY_FIELD:  # a bias belongs to the score of the row's field
            score = tl.where(cols >= R, score + field[:, None], score)
        slope *= tl.load(d + s[:, None] * N_SCORES + score, mask=wanted, other=0.0)
    if SHARED:
        own = tl.load(biased + field, mask=field >= 0, other=0)[:, None]
        slope = tl.where((cols < R) | (own > 0), slope, 0.0)
    return slope * factor[:, None]


@triton.jit
def _factors(
    keys, values, d, slot, entry, there,
    S: tl.constexpr, N_SCORES: tl.constexpr, BATCH: tl.constexpr, SPAN: tl.constexpr,
    VALUED: tl.constexpr,
):  # fmt: skip
    """The samples of entries, and the factors of their slopes."""
    key = tl.load(keys + entry, mask=there, other=0)
    s = (key % BATCH).to(tl.int64)
    factor = there.to(tl.float32)
    if N_SCORES == 1:
        factor = tl.load(d + s, mask=there, other=0.0)
    if VALUED:
        place = (key % SPAN) // BATCH
        factor *= tl.load(values + s * S + slot + place, mask=there, other=0.0)
    return s, factor


@triton.jit
def _stepped(weight, squares, slope, rate, decay, PULL: tl.constexpr):
    """Adagrad: the new weight and state; with PULL `squares` is a gradient, and slope is added."""
    slope += decay * weight
    if PULL:
        squares += slope
    else:
        squares += slope * slope
        weight -= rate * slope / (tl.sqrt(squares) + 1e-10)
    return weight, squares


@triton.jit
def _chance(at, seed):
    """A 16-bit hash of a place and a step."""
    x = at.to(tl.uint32) * 0x9E3779B1 + seed.to(tl.uint32) * 0x85EBCA77
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return (x >> 16).to(tl.int32)


@triton.jit
def _write(
    table, kept, at, live, weight, squares, seed, PULL: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    tl.store(kept + at, squares, mask=live)
    if not PULL:
        if HALF:
            # Rounded up or down at random, so that small steps count on average. The random bits
            # are a hash of the place and the step: the same in every run.
            bits = weight.to(tl.int32, bitcast=True) + _chance(at, tl.load(seed))
            weight = (bits & -65536).to(tl.float32, bitcast=True)
        tl.store(table + at, weight.to(table.dtype.element_ty), mask=live)


@triton.jit
def _step_rows(
    table, kept, row, there, cols, more, mine, live_mine, slope, slope_more, slope_mine,
    weight, weight_more, weight_mine, squares, squares_more, squares_mine, rate, decays, seed,
    STRIDE: tl.constexpr, PULL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The step of rows (n,). The columns that a row's field owns are first written as if it did
    not, then overwritten; barriers keep all reads before the first write, and that before the
    second."""
    decay = tl.load(decays + row, mask=there, other=0.0)[:, None]
    weight, squares = _stepped(weight, squares, slope, rate, decay, PULL)
    weight_more, squares_more = _stepped(weight_more, squares_more, slope_more, rate, decay, PULL)
    weight_mine, squares_mine = _stepped(weight_mine, squares_mine, slope_mine, rate, decay, PULL)
    at = row[:, None] * STRIDE
    tl.debug_barrier()
    live, live_more = there[:, None] & (cols < STRIDE), there[:, None] & (more < STRIDE)
    _write(table, kept, at + cols, live, weight, squares, seed, PULL, HALF)
    _write(table, kept, at + more, live_more, weight_more, squares_more, seed, PULL, HALF)
    tl.debug_barrier()
    _write(table, kept, at + mine, live_mine, weight_mine, squares_mine, seed, PULL, HALF)


@triton.jit
def _rows_of(table, kept, row, live, cols, STRIDE: tl.constexpr):
    """Weights and states of some columns of rows (n,)"""
    at = row[:, None] * STRIDE + cols
    weight = tl.load(table + at, mask=live, other=0.0).to(tl.float32)
    return weight, tl.load(kept + at, mask=live, other=0.0)


@triton.jit
def short_runs(
    table, state, pull, keys, begins, rows, fields, n_runs, values, a, c, d, score_of, biased,
    starts, slot_starts, rate, decays, seed,
    S: tl.constexpr, M: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr,
    RANK: tl.constexpr, OWN: tl.constexpr, N_SCORES: tl.constexpr, BATCH: tl.constexpr,
    SPAN: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, RUNS: tl.constexpr,
    LENGTH: tl.constexpr, VALUED: tl.constexpr, BY_FIELD: tl.constexpr, SHARED: tl.constexpr,
    PULL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """The step of rows with few entries, RUNS of them at a time. With PULL, adds to the gradient of
    the whole table instead."""
    kept = pull if PULL else state
    cols, more = tl.arange(0, MAIN)[None, :], MAIN + tl.arange(0, TAIL)[None, :]
    many = tl.load(n_runs)
    for first in range(tl.program_id(0) * RUNS, many, tl.num_programs(0) * RUNS):
        run = first + tl.arange(0, RUNS)
        known = run < many
        row = tl.load(rows + run, mask=known, other=-1).to(tl.int64)
        low = tl.load(begins + run, mask=known, other=0)
        length = tl.load(begins + run + 1, mask=known, other=0) - low
        field = tl.load(fields + run, mask=known, other=-1)
        short = known & (row >= 0) & (length <= LENGTH)
        length = tl.where(short, length, 0)
        longest = tl.max(length, axis=0)
        if longest > 0:
            field = tl.where(short, field, -1)
            mine, live_mine = _own_columns(starts, field, M, K, RANK, OWN)
            live, live_more = short[:, None] & (cols < STRIDE), short[:, None] & (more < STRIDE)
            weight, squares = _rows_of(table, kept, row, live, cols, STRIDE)
            weight_more, squares_more = _rows_of(table, kept, row, live_more, more, STRIDE)
            weight_mine, squares_mine = _rows_of(table, kept, row, live_mine, mine, STRIDE)
            slot = tl.load(slot_starts + field, mask=short, other=0)
            slope = tl.zeros([RUNS, MAIN], tl.float32)
            slope_more = tl.zeros([RUNS, TAIL], tl.float32)
            slope_mine = tl.zeros([RUNS, OWN], tl.float32)
            for e in range(0, longest):
                there = e < length
                s, factor = _factors(
                    keys, values, d, slot, low + e, there, S, N_SCORES, BATCH, SPAN, VALUED
                )
                slope += _slopes(
                    c, d, score_of, biased, s, there, factor, field, cols, cols < STRIDE,
                    STRIDE, R, N_SCORES, BY_FIELD, SHARED,
                )  # fmt: skip
                slope_more += _slopes(
                    c, d, score_of, biased, s, there, factor, field, more, more < STRIDE,
                    STRIDE, R, N_SCORES, BY_FIELD, SHARED,
                )  # fmt: skip
                slope_mine += _slopes(
                    a, d, score_of, biased, s, there, factor, field, mine, live_mine,
                    STRIDE, R, N_SCORES, BY_FIELD, SHARED,
                )  # fmt: skip
            _step_rows(
                table, kept, row, short, cols, more, mine, live_mine, slope, slope_more,
                slope_mine, weight, weight_more, weight_mine, squares, squares_more, squares_mine,
                rate, decays, seed, STRIDE, PULL, HALF,
            )  # fmt: skip


@triton.jit
def _piece_sum(partial, place, there, cols, live, SIZE: tl.constexpr):
    """The sum of places in some columns (1, columns). Bypasses the L1 cache: other multiprocessors
    wrote them."""
    at = place.to(tl.int64)[:, None] * SIZE + cols
    found = tl.load(partial + at, there[:, None] & live, 0.0, cache_modifier=".cg")
    return tl.sum(found, axis=0)[None, :]


@triton.jit
def long_runs(
    table, state, pull, keys, begins, rows, fields, run_at, values, a, c, d, score_of, biased,
    starts, slot_starts, partial, counters, rate, decays, seed,
    S: tl.constexpr, M: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, R: tl.constexpr,
    RANK: tl.constexpr, OWN: tl.constexpr, N_SCORES: tl.constexpr, BATCH: tl.constexpr,
    SPAN: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr, AT_ONCE: tl.constexpr,
    PIECES: tl.constexpr, LENGTH: tl.constexpr, VALUED: tl.constexpr, BY_FIELD: tl.constexpr,
    SHARED: tl.constexpr, PULL: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Sum one piece of a row with many entries; the last to finish also takes the row's step.
    `counters` are zero before and after."""
    place = tl.program_id(0)
    run = tl.load(run_at + place)
    begin, end = tl.load(begins + run), tl.load(begins + run + 1)
    row = tl.load(rows + run).to(tl.int64)
    first = begin // LENGTH
    n_pieces = (end - begin) // LENGTH
    piece = place - first
    if (end - begin > LENGTH) & (piece < n_pieces) & (row >= 0):
        kept = pull if PULL else state
        cols, more = tl.arange(0, MAIN)[None, :], MAIN + tl.arange(0, TAIL)[None, :]
        one = tl.zeros([1], tl.int32)
        field = tl.load(fields + run) + one
        mine, live_mine = _own_columns(starts, field, M, K, RANK, OWN)
        slot = tl.load(slot_starts + tl.load(fields + run))
        low = begin + piece * LENGTH
        high = tl.where(piece == n_pieces - 1, end, low + LENGTH)
        slope = tl.zeros([1, MAIN], tl.float32)
        slope_more = tl.zeros([1, TAIL], tl.float32)
        slope_mine = tl.zeros([1, OWN], tl.float32)
        for begun in range(low, high, AT_ONCE):
            entry = begun + tl.arange(0, AT_ONCE)
            there = entry < high
            s, factor = _factors(
                keys, values, d, slot, entry, there, S, N_SCORES, BATCH, SPAN, VALUED
            )
            slope += tl.sum(_slopes(
                c, d, score_of, biased, s, there, factor, field, cols, cols < STRIDE,
                STRIDE, R, N_SCORES, BY_FIELD, SHARED,
            ), axis=0)[None, :]  # fmt: skip
            slope_more += tl.sum(_slopes(
                c, d, score_of, biased, s, there, factor, field, more, more < STRIDE,
                STRIDE, R, N_SCORES, BY_FIELD, SHARED,
            ), axis=0)[None, :]  # fmt: skip
            slope_mine += tl.sum(_slopes(
                a, d, score_of, biased, s, there, factor, field, mine, live_mine,
                STRIDE, R, N_SCORES, BY_FIELD, SHARED,
            ), axis=0)[None, :]  # fmt: skip
        SIZE: tl.constexpr = STRIDE + OWN
        at_mine = STRIDE + tl.arange(0, OWN)[None, :]
        mark = partial + tl.program_id(0).to(tl.int64) * SIZE
        tl.store(mark + cols, slope, mask=cols < STRIDE)
        tl.store(mark + more, slope_more, mask=more < STRIDE)
        tl.store(mark + at_mine, slope_mine)
        tl.debug_barrier()
        done = tl.atomic_add(counters + first, 1, sem="acq_rel")
        if done == n_pieces - 1:
            last = first + n_pieces
            slope = tl.zeros([1, MAIN], tl.float32)
            slope_more = tl.zeros([1, TAIL], tl.float32)
            slope_mine = tl.zeros([1, OWN], tl.float32)
            for begun in range(first, last, PIECES):
                places = begun + tl.arange(0, PIECES)
                there = places < last
                slope += _piece_sum(partial, places, there, cols, cols < STRIDE, SIZE)
                slope_more += _piece_sum(partial, places, there, more, more < STRIDE, SIZE)
                slope_mine += _piece_sum(partial, places, there, at_mine, live_mine, SIZE)
            rows_here = row + one.to(tl.int64)
            weight, squares = _rows_of(table, kept, rows_here, cols < STRIDE, cols, STRIDE)
            weight_more, squares_more = _rows_of(
                table, kept, rows_here, more < STRIDE, more, STRIDE
            )
            weight_mine, squares_mine = _rows_of(table, kept, rows_here, live_mine, mine, STRIDE)
            _step_rows(
                table, kept, rows_here, one == 0, cols, more, mine, live_mine, slope, slope_more,
                slope_mine, weight, weight_more, weight_mine, squares, squares_more, squares_mine,
                rate, decays, seed, STRIDE, PULL, HALF,
            )  # fmt: skip
            tl.store(counters + first, 0)
