"""The paper in plain NumPy: this file defines what "correct" means.

Letters: m fields, field i has d_i categories and rank r_i, d and R their sums; K outputs (one, or
more for classes, tasks and members of an ensemble); S slots, one per field unless a field is
multi-valued. The table T is (d, R + K); its entry in row k and column t is V where both belong to
one field, else U; the last columns are b. A sample is one row number of T per slot, rows (n, S),
each with a value, values (n, S): 1 for a category (None: all are 1), 0 for an empty slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .layout import COMPONENTS, Layout

__all__ = [
    "adagrad",
    "bound",
    "bound_terms",
    "category_shares",
    "constrain",
    "effects",
    "evidence",
    "field_means",
    "field_scores",
    "fold",
    "given_others",
    "gradient",
    "gradient_squares",
    "importance",
    "local",
    "main_slopes",
    "mean_of_outputs",
    "mean_rows",
    "norms",
    "pair_effects",
    "penalty",
    "penalty_gradient",
    "pieces",
    "reach",
    "scores",
    "shapley",
    "shared_decay",
    "shrinkage",
    "starting_rows",
    "variances",
]

EPSILON = 1e-10
PIECE = 1 << 13  # rows of a table converted to float64 at a time


def _parts(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p (n, R), q (n, R) and each field's sum in every column, B (n, m, R + K)

    B_jt = sum of x T[f, t] over the slots of field j    q_t = B_jt of t's owner
    p_t = sum of the other fields' B_jt; in a column of pairs, of B_jt B_lt over pairs j < l of them
    """
    taken = table[rows]  # (n, S, R + K)
    if values is not None:
        taken = taken * values[:, :, None]
    by_field = np.add.reduceat(taken, layout.slot_starts[:-1], axis=1)  # (n, m, R + K)
    B = by_field[:, :, : layout.n_columns]
    q = by_field[:, layout.owner, np.arange(layout.n_columns)]
    p = B.sum(axis=1) - q
    if layout.is_pair.any():
        squares = (B**2).sum(axis=1) - q**2
        p = np.where(layout.is_pair, (p**2 - squares) / 2, p)
    return p, q, by_field


def field_scores(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """f_i(x) = V_i[x_i] . sum_{j != i} U_i[x_j] + b[x_i], for every output and field i

    With the component "fm" also V'_i[x_i] . sum_{j < l, both != i} U'_i[x_j] * U'_i[x_l].
    table (d, R + K), rows (n, S) -> (n, K, m)
    """
    return _field_scores(layout, *_parts(table, layout, rows, values))


def _field_scores(layout: Layout, p: np.ndarray, q: np.ndarray, by_field: np.ndarray) -> np.ndarray:
    out = np.array(by_field[:, :, layout.n_columns :].swapaxes(1, 2))
    for o in range(layout.n_outputs):
        for i in range(layout.n_fields):
            columns = layout.block(o, i)
            out[:, o, i] += (p[:, columns] * q[:, columns]).sum(axis=1)
    return out


def scores(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """z(x) = sum_i f_i(x), for every output; rows (n, S) -> (n, K)"""
    total: np.ndarray = field_scores(table, layout, rows, values).sum(axis=2)
    return total


def gradient(
    table: np.ndarray,
    layout: Layout,
    rows: np.ndarray,
    df: np.ndarray,
    values: np.ndarray | None = None,
) -> np.ndarray:
    """d loss / dT, given df = d loss / df_i of every sample, (n, K, m). (d, R + K)

    df_i/dT[f_j, t] = x_j (p_t if j is of field i else q_t) in i's columns    df_i/db[f_i] = x_i
    In a column of pairs q_t is multiplied by the sum of B over the fields other than i and j.
    """
    p, q, B = _parts(table, layout, rows, values)
    by_column = df[:, layout.output, layout.owner]  # (n, R)
    out = np.zeros_like(table)
    B = B[:, :, : layout.n_columns]
    others = B.sum(axis=1) - q
    for j, field in enumerate(layout.slot_owner):
        slope = _slope(layout, field, p, q, B, others) * by_column
        both = np.concatenate([slope, df[:, :, field]], axis=1)
        if values is not None:
            both = both * values[:, j, None]
        np.add.at(out, rows[:, j], both)  # repeated rows add up
    return out


def _slope(
    layout: Layout, field: int, p: np.ndarray, q: np.ndarray, B: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """df_i/dB_jt for j = field and every column t, of the field i that owns it: (n, R)"""
    if not layout.is_pair.any():
        return np.where(layout.owner == field, p, q)
    lone = np.where(layout.is_pair, q * (others - B[:, field]), q)
    return np.where(layout.owner == field, p, lone)


def gradient_squares(
    table: np.ndarray,
    layout: Layout,
    rows: np.ndarray,
    df: np.ndarray,
    values: np.ndarray | None = None,
) -> np.ndarray:
    """For every field the squared gradient of one sample by its row of that field, averaged over
    samples, (m, R + K): what a row gains in Adagrad's state each time it is seen alone."""
    p, q, by_field = _parts(table, layout, rows, values)
    B = by_field[:, :, : layout.n_columns]
    others, by_column = B.sum(axis=1) - q, df[:, layout.output, layout.owner]
    out = np.empty((layout.n_fields, layout.width))
    for j in range(layout.n_fields):
        slope = _slope(layout, j, p, q, B, others) * by_column
        out[j] = (np.concatenate([slope, df[:, :, j]], axis=1) ** 2).mean(axis=0)
        if values is not None:
            x = values[:, layout.slot_starts[j] : layout.slot_starts[j + 1]]
            out[j] *= np.sum(x**2) / max(np.count_nonzero(x), 1)
    return out


def local(table: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A small float64 table of only the rows that `rows` (n, S) names, and `rows` renumbered"""
    distinct, inside = np.unique(rows, return_inverse=True)
    return table[distinct].astype(np.float64), inside.reshape(rows.shape)


def given_others(
    table: np.ndarray,
    layout: Layout,
    rows: np.ndarray,
    field: int,
    values: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """z (n, K), and the slopes (n, R) by which one more row of a field would change it:

    z_o(with a row r of value x) = z_o + x (sum of slope_t r_t over o's columns + r_b)

    The slopes do not depend on the field's own rows: given all others, z is linear in them.
    """
    if layout.is_pair.any():
        p, q, by_field = _parts(table, layout, rows, values)
        B = by_field[:, :, : layout.n_columns]
        slope = _slope(layout, field, p, q, B, B.sum(axis=1) - q)
        return _field_scores(layout, p, q, by_field).sum(axis=2), slope
    # One slot at a time: faster than gathering all rows side by side.
    R, n = layout.n_columns, len(rows)
    S, q = np.zeros((n, layout.width), table.dtype), np.zeros((n, R), table.dtype)
    for s, i in enumerate(layout.slot_owner.tolist()):
        taken = table[rows[:, s]]
        taken = taken if values is None else taken * values[:, s, None]
        S += taken
        for o in range(layout.n_outputs):
            q[:, layout.block(o, i)] += taken[:, layout.block(o, i)]
    p = S[:, :R] - q
    each = (p * q).reshape(n, layout.n_outputs, R // layout.n_outputs)
    return each.sum(axis=2) + S[:, R:], np.where(layout.owner == field, p, q)


def _field(
    table: np.ndarray, layout: Layout, o: int, i: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A block's columns: all rows X (d, r), of these the field's own V (d_i, r), and b (d_i,)"""
    X = table[:, layout.block(o, i)]
    return X, X[layout.own(i)], table[layout.own(i), layout.n_columns + o]


def penalty(table: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """||W_b - mean||_F^2 and ||mean||_F^2 of every field, without forming W = U^T V. (m,), (m,)

    With G = U^T U over the other fields' rows, C = V - mean(V) and v = mean(V), for every output:
    variance = tr(C G C^T) + ||b - mean(b)||^2        mean = v G v^T + mean(b)^2
    """
    variance, mean = np.zeros(layout.n_fields), np.zeros(layout.n_fields)
    grams = iter(_grams(table, layout))
    for o in range(layout.n_outputs):
        for i in range(layout.n_fields):
            G, own = next(grams), layout.own(i)
            V = table[own, layout.block(o, i)].astype(np.float64)
            b = table[own, layout.n_columns + o].astype(np.float64)
            v = V.mean(axis=0)
            C = V - v
            variance[i] += np.sum((C @ G) * C) + np.sum((b - b.mean()) ** 2)
            mean[i] += v @ G @ v + b.mean() ** 2
    return np.maximum(variance, 0), np.maximum(mean, 0)  # rounding may leave them below 0


def _grams(table: np.ndarray, layout: Layout) -> list[np.ndarray]:
    """G = U^T U of every block, (r_i, r_i), one output after the other, computed in pieces"""
    m = layout.n_fields
    blocks = [layout.block(o, i) for o in range(layout.n_outputs) for i in range(m)]
    out = [np.zeros((t.stop - t.start, t.stop - t.start)) for t in blocks]
    for part in pieces(slice(0, layout.n_rows)):
        T = table[part, : layout.n_columns].astype(np.float64)
        for k, t in enumerate(blocks):
            before, _, after = layout.cut(k % m, part)  # between them are rows of V
            out[k] += T[before, t].T @ T[before, t] + T[after, t].T @ T[after, t]
    return out


def penalty_gradient(table: np.ndarray, layout: Layout) -> np.ndarray:
    """d/dT of the sum over fields of variance and mean. (d, R + K)

    d/dV = 2 C G + (2 / d_i) 1 v G      d/dU = 2 U (C^T C + v^T v)
    d/db = 2 (b - mean(b)) + 2 mean(b) / d_i
    """
    out = np.zeros_like(table)
    for o in range(layout.n_outputs):
        for i in range(layout.n_fields):
            X, V, b = _field(table, layout, o, i)
            own, columns = layout.own(i), layout.block(o, i)
            G = X.T @ X - V.T @ V
            v = V.mean(axis=0)
            C = V - v
            out[:, columns] = 2 * X @ (C.T @ C + np.outer(v, v))
            out[own, columns] = 2 * C @ G + 2 / len(V) * (v @ G)
            out[own, layout.n_columns + o] = 2 * (b - b.mean()) + 2 * b.mean() / len(b)
    return out


def constrain(
    table: np.ndarray, layout: Layout, max_variance: float | None, max_mean: float | None
) -> None:
    """Bring every field's variance and mean within bounds, in place: V and b become
    s_mean mean + s_variance (V - mean), with the largest s <= 1 that satisfy them.
    """
    variance, mean = penalty(table, layout)
    for i in range(layout.n_fields):
        spread = _shrink(variance[i], max_variance)
        center = _shrink(mean[i], max_mean)
        if spread == center == 1:
            continue
        own = table[layout.own(i)]
        for o in range(layout.n_outputs):
            for columns in (
                layout.block(o, i),
                slice(layout.n_columns + o, layout.n_columns + o + 1),
            ):
                average = own[:, columns].mean(axis=0, dtype=np.float64)
                own[:, columns] = center * average + spread * (own[:, columns] - average)


def _shrink(found: float, most: float | None) -> float:
    return 1.0 if most is None or found <= most else float(np.sqrt(most / found))


def fold(table: np.ndarray, layout: Layout, factors: np.ndarray) -> np.ndarray:
    """The table whose f_i is factors[o, i] times this one's, for every output o. (d, R + K)

    U and V take the square root each: p is computed as a sum that includes q, minus q, which
    cancels in float32 where q is far larger.
    """
    out = np.array(table)
    for o in range(layout.n_outputs):
        for i in range(layout.n_fields):
            own, columns = layout.own(i), layout.block(o, i)
            out[:, columns] *= np.sqrt(np.abs(factors[o, i]))
            out[own, columns] *= np.sign(factors[o, i])
            out[own, layout.n_columns + o] *= factors[o, i]
    return out


def mean_of_outputs(table: np.ndarray, layout: Layout, n_members: int) -> tuple[np.ndarray, Layout]:
    """One model whose score is the mean of the members': their columns side by side.

    The K = n_members k outputs are ordered by member. -> k outputs, ranks n_members r_i. (A rank
    may then exceed d_i: it is a sum of models whose ranks do not.)
    """
    k = layout.n_outputs // n_members
    ranks = tuple(n_members * r for r in layout.ranks)
    merged = Layout(layout.sizes, ranks, k, layout.slots, layout.component)
    table = fold(table, layout, np.full((layout.n_outputs, layout.n_fields), 1 / n_members))
    out = np.zeros((layout.n_rows, merged.width), dtype=table.dtype)
    for o in range(k):
        for i in range(layout.n_fields):
            blocks = [table[:, layout.block(e * k + o, i)] for e in range(n_members)]
            kinds = [np.split(block, COMPONENTS[layout.component], axis=1) for block in blocks]
            parts = [part for kind in zip(*kinds, strict=True) for part in kind]
            out[:, merged.block(o, i)] = np.concatenate(parts, axis=1)
        members = layout.n_columns + np.arange(o, layout.n_outputs, k)
        out[:, merged.n_columns + o] = table[:, members].sum(axis=1)
    return out, merged


def mean_rows(table: np.ndarray, layout: Layout, counts: np.ndarray) -> np.ndarray:
    """The mean row of every field, weighted by how often each category was seen. (m, R + K)

    A field never seen gets the plain mean.
    """
    shares = category_shares(layout, counts)
    out = np.empty((layout.n_fields, table.shape[1]), dtype=table.dtype)
    for i in range(layout.n_fields):
        out[i] = np.einsum("k,kt->t", shares[layout.own(i)], table[layout.own(i)])
    return out


def category_shares(layout: Layout, counts: np.ndarray) -> np.ndarray:
    """(d,) the share of each category in its field; equal shares in a field never seen"""
    out = np.empty(layout.n_rows)
    for i in range(layout.n_fields):
        count = counts[layout.own(i)].astype(np.float64)
        out[layout.own(i)] = count / count.sum() if count.sum() > 0 else 1 / len(count)
    return out


def starting_rows(
    seed: int, scale: float, first: int, n: int, width: int, n_biases: int
) -> np.ndarray:
    """(n, width) the initial rows of a table from `first` on: U and V uniform in +-scale, b zero.

    The same bits on every machine. The stream advances by four numbers at a time, so `first` times
    the columns without biases must be a multiple of four.
    """
    drawn = width - n_biases
    bits = np.random.Philox(np.random.SeedSequence([seed, 101]))
    bits.advance(first * drawn // 4)  # in units of four numbers
    raw = bits.random_raw(n * drawn) >> np.uint64(40)  # 24 bits: exact in float32
    unit = raw.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    out = np.zeros((n, width), np.float32)
    out[:, :drawn] = np.float32(scale) * unit.reshape(n, drawn)
    return out


def shared_decay(share: np.ndarray, n_rows: int, batch_size: int, strength: float) -> np.ndarray:
    """delta_k = strength / (n pi_k), the decay of row k each time it is in a batch

    share (d,) of the n rows have category k, so pi_k = 1 - (1 - share_k)^batch of all batches do. A
    Gaussian prior of variance 1 / strength adds strength / (2 n) |T_k|^2 to the mean loss, whose
    gradient strength / n T_k is due at every step. Row k only moves in the batches it is in, so it
    gets 1 / pi_k times that there: rare rows decay less often, and more each time.
    """
    once = 1.0 / max(n_rows, 1)
    absent = batch_size * np.log1p(-np.clip(share, once, 1.0 - 1e-12))
    out: np.ndarray = strength * once / -np.expm1(absent)
    return out


def adagrad(
    table: np.ndarray,
    state: np.ndarray,
    slope: np.ndarray,
    rows: np.ndarray,
    lr: float,
    decay: float,
) -> None:
    """One step in place on `rows`; decay is added to the gradient before it is squared.

    g = slope + decay T      state += g^2      T -= lr g / (sqrt(state) + 1e-10)
    """
    g = slope[rows] + decay * table[rows]
    state[rows] += g * g
    table[rows] -= lr * g / (np.sqrt(state[rows]) + EPSILON)


def norms(table: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """N1_i = ||W_b - mean||_F and N2_i = ||mean||_F of every field. (m,), (m,)"""
    variance, mean = penalty(table, layout)
    return np.sqrt(variance), np.sqrt(mean)


def importance(table: np.ndarray, layout: Layout) -> np.ndarray:
    """||W_b - mean||_F / d_i, for every field i: how much its models differ on average. (m,)"""
    out: np.ndarray = norms(table, layout)[0] / np.array(layout.sizes)
    return out


def bound(table: np.ndarray, layout: Layout, n_samples: int) -> float:
    """sqrt(m / n) sum_i (N1_i + N2_i): bounds the empirical Rademacher complexity of the models"""
    every = np.full(layout.n_fields, layout.n_fields)
    return float(bound_terms(*norms(table, layout), every, every, n_samples).sum())


def bound_terms(
    n1: np.ndarray, n2: np.ndarray, rows: np.ndarray, sums: np.ndarray, n_samples: int
) -> np.ndarray:
    """sqrt(rows_i / n) N1_i + sqrt(sums_i / n) N2_i: what every field adds to the bound. (m,)

    rows and sums (m,) are those of `reach`; m, both of them, where every value is a category.
    """
    out: np.ndarray = (np.sqrt(rows) * n1 + np.sqrt(sums) * n2) / np.sqrt(n_samples)
    return out


def reach(layout: Layout, weight: np.ndarray, square: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How large samples' values are, for `bound_terms`. (m,), (m,)

    rows_i = mean of ||x_i||^2 (1 + sum_{j != i} ||x_j||^2)        x_i (d_i,) field i's values
    sums_i = mean of (sum of x_i)^2 (1 + sum_{j != i} ||x_j||^2)

    weight and square (d,) are the means over training of a category's value and of its square.
    Fields, and the categories of a list, are treated as independent. Both are m where every field
    has one category of value 1.
    """
    squares, sums = np.zeros(layout.n_fields), np.zeros(layout.n_fields)
    for i in range(layout.n_fields):
        w, s = weight[layout.own(i)], square[layout.own(i)]
        squares[i] = s.sum()
        sums[i] = s.sum() if layout.slots[i] == 1 else w.sum() ** 2 + np.sum(s - w**2)
    others = 1 + squares.sum() - squares
    return squares * others, sums * others


# How a sample's score decomposes. Every field has a row B_j = sum of x T[f] over its slots; with
# mu_j its mean over training and ~B_j = B_j - mu_j,
#
#   pair_ij(A, C) = A_i . C_j in i's columns + A_i . C_j in j's columns          (A_i, C_j are rows)
#   base   = sum_i mu_i[b] + sum_{i < j} pair_ij(mu, mu)
#   main_i = ~B_i[b] + sum_{j != i} pair_ij(~B, mu)
#   z      = base + sum_i main_i + sum_{i < j} pair_ij(~B, ~B)
#
# If fields were independent, with the distributions they have in training, every main effect would
# have mean 0, and every pair effect mean 0 whichever of its fields is held fixed. So a pair effect
# holds nothing that one of its fields explains alone, variances add up, and the Shapley value of a
# field is its main effect plus half of its pairs.


def field_means(table: np.ndarray, layout: Layout, weight: np.ndarray) -> np.ndarray:
    """mu (m, R + K), from weight (d,), the mean over training of a category's value: its share,
    where values are 1"""
    out = np.zeros((layout.n_fields, layout.width))
    for i in range(layout.n_fields):
        for part in pieces(layout.own(i)):
            out[i] += np.einsum("k,kt->t", weight[part], table[part, : layout.width])
    return out


def pair_effects(layout: Layout, A: np.ndarray, C: np.ndarray) -> np.ndarray:
    """pair_ij(A, C) of rows (n, m, R + K) -> (n, K, m, m); zero for i = j"""
    m, K, R = layout.n_fields, layout.n_outputs, layout.n_columns
    columns = np.arange(R)
    out = np.zeros((len(A), K, m, m))
    own_A, own_C = A[:, layout.owner, columns], C[:, layout.owner, columns]  # (n, R)
    for o in range(K):
        for i in range(m):
            t = layout.block(o, i)
            out[:, o, i, :] += np.einsum("nt,njt->nj", own_A[:, t], C[:, :, t])
            out[:, o, :, i] += np.einsum("njt,nt->nj", A[:, :, t], own_C[:, t])
    out[:, :, range(m), range(m)] = 0.0
    return out


def effects(
    table: np.ndarray,
    layout: Layout,
    mean: np.ndarray,
    rows: np.ndarray,
    values: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """base (K,), main (n, K, m) and pair effects (n, K, m, m), each pair twice

    mean (m, R + K) is mu.
    """
    _, _, by_field = _parts(table.astype(np.float64, copy=False), layout, rows, values)
    away = by_field - mean
    R = layout.n_columns
    middle = pair_effects(layout, mean[None], mean[None])[0]  # (K, m, m)
    base = mean[:, R:].sum(axis=0) + middle.sum(axis=(1, 2)) / 2
    every = np.broadcast_to(mean, away.shape)
    main = away[:, :, R:].swapaxes(1, 2) + pair_effects(layout, away, every).sum(axis=3)
    return base, main, pair_effects(layout, away, away)


def shapley(main: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """main_i + 1/2 sum_j pair_ij: what field i adds to the fields revealed before it, on average
    over all orders of revealing them. (n, K, m)"""
    out: np.ndarray = main + pairs.sum(axis=3) / 2
    return out


def main_slopes(layout: Layout, mean: np.ndarray, i: int) -> np.ndarray:
    """g (R + K, K) with main_i = ~B_i g: in i's columns the other fields' mean rows summed, in
    another field's columns that field's own mean row, and 1 for the bias"""
    R = layout.n_columns
    slopes, mine = mean[layout.owner, np.arange(R)], np.flatnonzero(layout.owner == i)
    slopes[mine] = mean[:, mine].sum(axis=0) - mean[i, mine]
    out = np.zeros((layout.width, layout.n_outputs))
    out[np.arange(R), layout.output] = slopes
    out[R:] = np.eye(layout.n_outputs)
    return out


def variances(
    table: np.ndarray, layout: Layout, mean: np.ndarray, weight: np.ndarray, square: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The variance of every main effect, (K, m), and of every pair effect, (K, m, m), each twice

    mean (m, R + K) is mu, square (d,) the mean over training of a category's value squared. With
    S_i the covariance of ~B_i it is g . S_i g of main_i = g . ~B_i, and of pair_ij the sum of
    S_i[s, t] S_j[s, t] over s and t in the columns of i and j. A field of one slot has one category
    at a time; those of a list are treated as independent.
    """
    m, K = layout.n_fields, layout.n_outputs
    main, pairs = np.zeros((K, m)), np.zeros((K, m, m))
    found = [_spread(table, layout, i, mean, weight, square) for i in range(m)]
    for o in range(K):
        for i, (of_main, within, across) in enumerate(found):
            main[o, i] = of_main[o]
            for j in range(i):
                _, its_within, its_across = found[j]
                both = sum(np.sum(within[o][k] * its_within[o][k]) for k in (i, j))
                both += 2 * np.sum(across[o][j] * its_across[o][i].T)
                pairs[o, i, j] = pairs[o, j, i] = both
    return main, pairs


def _spread(
    table: np.ndarray,
    layout: Layout,
    i: int,
    mean: np.ndarray,
    weight: np.ndarray,
    square: np.ndarray,
) -> tuple[np.ndarray, list[list[np.ndarray]], list[list[np.ndarray]]]:
    """g . S_i g (K,) and, for every output and field j, the parts of S_i that pairs need: within
    the columns of j (r_j, r_j), and between those of i and j (r_i, r_j)"""
    m, K = layout.n_fields, layout.n_outputs
    blocks = [[layout.block(o, j) for j in range(m)] for o in range(K)]
    ranks = layout.widths
    exclusive = layout.slots[i] == 1
    g = main_slopes(layout, mean, i)
    main = np.zeros(K)
    within = [[np.zeros((r, r)) for r in ranks] for _ in range(K)]
    across = [[np.zeros((ranks[i], r)) for r in ranks] for _ in range(K)]

    def add(T: np.ndarray, share: np.ndarray) -> None:
        main[:] += share @ (T @ g) ** 2
        scaled = T * share[:, None]
        for o in range(K):
            whole = layout.columns(o)
            wide = scaled[:, blocks[o][i]].T @ T[:, whole]
            for j, block in enumerate(blocks[o]):
                within[o][j] += scaled[:, block].T @ T[:, block]
                across[o][j] += wide[:, block.start - whole.start : block.stop - whole.start]

    for part in pieces(layout.own(i)):
        w, s = weight[part], square[part]
        add(table[part, : layout.width].astype(np.float64), s if exclusive else s - w**2)
    if exclusive:
        add(mean[i : i + 1], np.array([-1.0]))
    return main, within, across


def pieces(rows: slice) -> Iterator[slice]:
    """Split rows of a table into pieces small enough to copy to float64."""
    for low in range(rows.start, rows.stop, PIECE):
        yield slice(low, min(low + PIECE, rows.stop))


def shrinkage(y: np.ndarray, w: np.ndarray, category: np.ndarray) -> float:
    """a = within / between: the variance of y within categories over that of categories' means.

    Analysis of variance, with n_k = sum of w over category k, G categories and the residuals e of y
    from its mean:

        within = (sum w e^2 - sum_k n_k e_k^2) / (n - G)           e_k the mean of e in k
        between = (sum_k n_k e_k^2 - (G - 1) within) / (n - sum_k n_k^2 / n)

    y, w and category (n,). With prior variance `between` the posterior mean of e_k is
    n_k e_k / (n_k + a), which is the evidence. Clipped to 0.5 .. 10^6.
    """
    n, e = w.sum(), y - (w @ y) / w.sum()
    groups = [category == k for k in np.unique(category)]
    sizes = np.array([w[own].sum() for own in groups])
    means = np.array([w[own] @ e[own] / w[own].sum() for own in groups])
    told = sizes @ means**2
    within = (w @ e**2 - told) / max(n - len(groups), 1.0)
    between = told - (len(groups) - 1) * within
    room = n - sizes @ sizes / n
    if within <= 0:
        return 0.5
    if between <= 0 or room <= 0 or n <= len(groups):
        return 1e6
    return float(np.clip(within * room / between, 0.5, 1e6))


def evidence(y: np.ndarray, w: np.ndarray, category: np.ndarray, asked: Any) -> float:
    """sum of w (y - mean) over the rows of category `asked` / (sum of w over them + a)

    y, w and category (n,) are the known rows: for a row of a training table those of the other
    folds.
    """
    own, mean = category == asked, (w @ y) / w.sum()
    return float(w[own] @ (y[own] - mean) / (w[own].sum() + shrinkage(y, w, category)))
