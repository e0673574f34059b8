"""layout.py and maths.py against nested loops and the paper's own counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.planted import AVAZU_SIZES, CRITEO_SIZES
from fieldwise.errors import SettingError
from fieldwise.layout import Layout, constant_ranks, log_ranks
from fieldwise.maths import field_scores, importance, scores, spread

SHAPES = [((3, 4, 2), (2, 3, 1)), ((1, 1), (1, 1)), ((5,), (2,)), ((2, 7, 3, 1), (0, 4, 3, 1))]


def random_case(sizes, ranks, n=6, seed=0):
    layout = Layout(sizes, ranks)
    random = np.random.default_rng(seed)
    table = random.normal(size=(layout.n_rows, layout.n_columns + 1))
    codes = np.stack([random.integers(0, d, n) for d in sizes], axis=1)
    return layout, table, layout.rows(codes)


def test_parameter_counts_of_the_paper():
    criteo = Layout.of(CRITEO_SIZES, rank_base=1.6)
    assert (criteo.n_fields, criteo.n_rows, criteo.n_columns) == (39, 395_894, 522)
    # The paper's 206.65 M leaves b out.
    assert round((criteo.n_parameters - criteo.n_rows) / 1e6, 2) == pytest.approx(206.66, abs=0.011)
    avazu = Layout.of(AVAZU_SIZES, rank=8)
    assert (avazu.n_fields, avazu.n_rows, avazu.n_columns) == (22, 2_018_012, 168)
    assert round(avazu.n_parameters / 1e6) == 341
    # 357.18 M is rank 8 in every field, also in those with fewer categories.
    assert round(avazu.n_rows * (22 * 8 + 1) / 1e6, 2) == pytest.approx(357.18, abs=0.011)


@given(st.integers(1, 10**7), st.sampled_from([1.2, 1.4, 1.6, 1.8, 2.0, 3.0, 4.0]))
def test_log_rank_is_the_ceiling(size, base):
    (rank,) = log_ranks([size], base)
    assert rank <= size
    if rank < size:
        assert base**rank >= size * (1 - 1e-9)
        assert rank == 0 or base ** (rank - 1) < size
        assert abs(rank - math.log(size, base)) < 1 + 1e-6


def test_ranks_are_capped_and_overridden():
    assert constant_ranks([1, 5, 100], 8) == (1, 5, 8)
    assert Layout.of([3, 100], rank=8, overrides={1: 2}).ranks == (3, 2)
    with pytest.raises(SettingError, match="rank"):
        constant_ranks([3], -1)
    with pytest.raises(SettingError, match="base"):
        log_ranks([3], 1.0)
    with pytest.raises(SettingError, match="field 1"):
        Layout((2, 3), (1, 4))
    with pytest.raises(SettingError, match="one of each"):
        Layout((), ())


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_field_scores_are_the_nested_loops(sizes, ranks):
    layout, table, rows = random_case(sizes, ranks)
    found = field_scores(table, layout, rows)
    for sample, got in zip(rows, found, strict=True):
        for i in range(layout.n_fields):
            f = table[sample[i], -1]
            for t in range(layout.starts[i], layout.starts[i + 1]):
                for j in range(layout.n_fields):
                    if j != i:
                        f += table[sample[i], t] * table[sample[j], t]
            assert got[i] == pytest.approx(f, abs=1e-12)
    assert np.allclose(scores(table, layout, rows), found.sum(axis=1), atol=1e-12)


def dense_model(layout, table, i):
    """W_b of field i: a column a category, a row a category of another field, then b."""
    columns = range(layout.starts[i], layout.starts[i + 1])
    own = range(layout.offsets[i], layout.offsets[i + 1])
    others = [k for k in range(layout.n_rows) if k not in own]
    weights = [[sum(table[k, t] * table[o, t] for t in columns) for k in own] for o in others]
    return np.array([*weights, [table[k, -1] for k in own]])


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_spread_and_importance_without_forming_W(sizes, ranks):
    layout, table, _ = random_case(sizes, ranks)
    for i in range(layout.n_fields):
        weights = dense_model(layout, table, i)
        away = weights - weights.mean(axis=1, keepdims=True)
        assert spread(table, layout, i) == pytest.approx((away**2).sum(), abs=1e-10)
        assert importance(table, layout)[i] == pytest.approx(
            np.linalg.norm(away) / sizes[i], abs=1e-10
        )


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES[:1])
def test_permuting_fields_permutes_scores(sizes, ranks):
    layout, table, rows = random_case(sizes, ranks)
    order = [2, 0, 1]
    moved = Layout([sizes[i] for i in order], [ranks[i] for i in order])
    row_order = np.concatenate([np.arange(*layout.offsets[i : i + 2]) for i in order])
    column_order = np.concatenate([np.arange(*layout.starts[i : i + 2]) for i in order])
    permuted = table[row_order][:, [*column_order, -1]]
    codes = rows - layout.offsets[:-1]
    found = field_scores(permuted, moved, moved.rows(codes[:, order]))
    assert np.allclose(found, field_scores(table, layout, rows)[:, order])
