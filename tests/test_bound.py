"""The bound of the paper: its numbers against explicit models, and its trend over ranks."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import SettingError, maths
from fieldwise.data.planted import CRITEO_SIZES
from fieldwise.explain import Marginals, bound_of, gap_by_field
from fieldwise.explain.bound import Sample
from fieldwise.layout import Layout
from fieldwise.losses import LOSSES
from fieldwise.objective import Objective
from test_layout_maths import SHAPES, dense_model, random_case


def mixed_rows():
    """Every row of a table whose fields, and the categories of its list, are independent: values
    (n, d) of a category of 3, of a linear number with a missing row, and of a list of 3."""
    categories = np.eye(3)
    numbers = np.array([[-1.5, 0.0], [0.5, 0.0], [2.0, 0.0], [0.0, 1.0]])
    lists = 0.7 * np.array(list(product((0.0, 1.0), repeat=3)))
    every = product(categories, numbers, lists)
    return Layout((3, 2, 3), (2, 0, 2), slots=(1, 1, 3)), np.array([np.hstack(r) for r in every])


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_the_bound_is_that_of_the_explicit_models(sizes, ranks):
    layout, table, _ = random_case(sizes, ranks)
    names = [f"f{i}" for i in range(len(sizes))]
    n, delta, lipschitz, most = 70, 0.1, 1.5, 3.0
    found = bound_of(
        table.astype(np.float32), layout, names, n,
        train_loss=0.4, delta=delta, lipschitz=lipschitz, loss_bound=most,
    ).to_dict()  # fmt: skip
    total = 0.0
    for i, field in enumerate(found["fields"]):
        W = dense_model(layout, table, i)
        mean = W.mean(axis=1, keepdims=True)
        n1, n2 = np.linalg.norm(W - mean), np.linalg.norm(mean)
        assert field["name"] == f"f{i}"
        assert field["n1"] == pytest.approx(n1, abs=1e-5)
        assert field["n2"] == pytest.approx(n2, rel=1e-5)
        assert field["term"] == pytest.approx(math.sqrt(len(sizes) / n) * (n1 + n2), rel=1e-5)
        total += n1 + n2
    assert found["sum"] == pytest.approx(total, rel=1e-5)
    assert found["rademacher"] == pytest.approx(math.sqrt(len(sizes) / n) * total, rel=1e-5)
    assert found["rademacher"] == pytest.approx(maths.bound(table, layout, n), rel=1e-5)
    rest = 3 * most * math.sqrt(math.log(2 / delta) / (2 * n))
    assert found["total"] == pytest.approx(
        0.4 + 2 * lipschitz * found["rademacher"] + rest, rel=1e-6
    )
    assert set(found) == {
        "n_rows", "delta", "lipschitz", "loss_bound", "train_loss", "rademacher", "total", "sum",
        "fields",
    }  # fmt: skip


def test_the_size_of_rows_is_that_of_nested_loops():
    layout, x = mixed_rows()
    rows, sums = maths.reach(layout, x.mean(axis=0), (x**2).mean(axis=0))
    for i in range(layout.n_fields):
        by_rows, by_sums = 0.0, 0.0
        for row in x:
            others = 1.0 + sum(
                value**2 for j in range(layout.n_fields) for value in row[layout.own(j)] if j != i
            )
            by_rows += sum(v**2 for v in row[layout.own(i)]) * others / len(x)
            by_sums += sum(row[layout.own(i)]) ** 2 * others / len(x)
        assert rows[i] == pytest.approx(by_rows, rel=1e-12)
        assert sums[i] == pytest.approx(by_sums, rel=1e-12)
    assert sums[2] > 1.5 * rows[2]  # several values at once
    plain = Layout((3, 4, 2), (1, 1, 1))
    share = maths.category_shares(plain, np.arange(9))
    np.testing.assert_allclose(maths.reach(plain, share, share), 3.0)


def complexity(layout, x, n1, n2, n_draws=400):
    """The empirical Rademacher complexity of all models whose norms are n1 and n2, by chance: with
    M = sum_j sigma_j (x_-i, 1) x_i^T the best one has n1 ||M - mean|| + n2 ||M 1|| / n."""
    random, total = np.random.default_rng(0), np.zeros(layout.n_fields)
    for _ in range(n_draws):
        sigma = random.choice([-1.0, 1.0], len(x))
        for i in range(layout.n_fields):
            own = np.isin(np.arange(layout.n_rows), np.arange(*layout.offsets[i : i + 2]))
            others = np.hstack([x[:, ~own], np.ones((len(x), 1))])
            M = (others * sigma[:, None]).T @ x[:, own]
            away = M - M.mean(axis=1, keepdims=True)
            total[i] += n1[i] * np.linalg.norm(away) + n2[i] * np.linalg.norm(M.sum(axis=1))
    return total / len(x) / n_draws


def test_the_complexity_of_rows_with_values_is_within_the_bound_and_near_it():
    layout, x = mixed_rows()
    marginals = Marginals(x.mean(axis=0), (x**2).mean(axis=0))
    table = np.random.default_rng(3).normal(size=(layout.n_rows, layout.width))
    found = bound_of(table, layout, "abc", len(x), train_loss=0.0, marginals=marginals)
    true = complexity(layout, x, found.n1, found.n2)
    assert (true <= found.terms).all()
    assert (true >= 0.6 * found.terms).all()
    lists = np.zeros(3), np.ones(3)  # of the means alone
    alone = maths.bound_terms(*lists, found.rows, found.rows, len(x))[2]
    assert complexity(layout, x, *lists)[2] > alone  # ||x_i||^2 in place of the sums is no bound


@given(st.permutations(range(4)), st.floats(0.1, 10), st.integers(1, 10**6))
def test_laws(order, factor, n):
    sizes, ranks = (2, 7, 3, 1), (1, 4, 3, 1)
    layout, table, _ = random_case(sizes, ranks)
    first = bound_of(table, layout, "abcd", n, train_loss=0.0)
    moved = Layout([sizes[i] for i in order], [ranks[i] for i in order])
    at = np.concatenate([np.arange(*layout.offsets[i : i + 2]) for i in order])
    columns = np.concatenate([np.arange(*layout.starts[i : i + 2]) for i in order])
    names = ["abcd"[i] for i in order]
    other = bound_of(table[at][:, [*columns, -1]], moved, names, n, train_loss=0.0)
    np.testing.assert_allclose(other.terms, first.terms[list(order)], rtol=1e-9, atol=1e-12)
    # Scores that are larger by a factor have norms that are; four times the rows halve the bound.
    grown = maths.fold(table, layout, np.full((1, 4), factor))
    more = bound_of(grown, layout, "abcd", 4 * n, train_loss=0.0)
    np.testing.assert_allclose(more.terms, first.terms * factor / 2, rtol=1e-9, atol=1e-12)
    assert more.sum == pytest.approx(first.sum * factor)
    wider = bound_of(table, layout, "abcd", n, train_loss=0.25)
    assert wider.total == pytest.approx(first.total + 0.25)


def test_norms_some_rows_at_a_time_are_those_of_all_at_once(monkeypatch):
    layout, table, _ = random_case((40, 3, 25), (5, 3, 6))
    table += 3.0  # means far from zero: what is subtracted too late is lost
    whole = maths.penalty(table, layout)
    monkeypatch.setattr(maths, "PIECE", 7)
    np.testing.assert_allclose(maths.penalty(table, layout), whole, rtol=1e-12)
    for i in range(3):
        W = dense_model(layout, table, i)
        away = W - W.mean(axis=1, keepdims=True)
        assert whole[0][i] == pytest.approx((away**2).sum(), rel=1e-10)


def test_a_large_table_is_never_whole_in_float64():
    import tracemalloc

    layout = Layout.of([max(1, d // 8) for d in CRITEO_SIZES], rank_base=1.6)
    table = np.ones((layout.n_rows, layout.width), np.float32)
    tracemalloc.start()
    bound_of(table, layout, [""] * 39, 10, train_loss=0.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < table.nbytes


def test_what_the_bound_refuses():
    layout, table, _ = random_case((3, 4), (2, 2))
    options = {"train_loss": 0.1}
    with pytest.raises(SettingError, match="the prediction of a vote is no sum"):
        bound_of(table, layout, "ab", 9, objective=Objective(combine="vote"), **options)
    fm = Layout((3, 4), (2, 2), component="fm")
    with pytest.raises(SettingError, match="the component 'fm' has more in it"):
        bound_of(np.zeros((7, fm.width)), fm, "ab", 9, **options)
    two = Layout((3, 4), (2, 2), 2)
    with pytest.raises(SettingError, match="of one score a row, and the model has 2"):
        bound_of(np.zeros((7, two.width)), two, "ab", 9, **options)
    lists = Layout((3, 4), (2, 2), slots=(1, 2))
    with pytest.raises(SettingError, match="need marginals"):
        bound_of(table, lists, "ab", 9, **options)
    with pytest.raises(SettingError, match="delta=1"):
        bound_of(table, layout, "ab", 9, delta=1, **options)
    with pytest.raises(SettingError, match="n_rows=0"):
        bound_of(table, layout, "ab", 0, **options)
    with pytest.raises(SettingError, match="loss_bound=0"):
        bound_of(table, layout, "ab", 9, loss_bound=0, **options)


def test_the_gap_is_the_rise_without_a_field_on_both_kinds_of_rows():
    layout, x = Layout((3, 2, 4), (2, 2, 2), slots=(1, 1, 2)), np.random.default_rng(0)
    table = x.normal(size=(layout.n_rows, layout.width))
    counts = x.integers(1, 9, layout.n_rows)
    rows = np.concatenate([table, maths.mean_rows(table, layout, counts)])

    def losses(codes, values, y):
        at = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
        return LOSSES["logistic"].value(maths.scores(rows, layout, at, values)[:, 0], y, 0.0)

    def sample(n):
        codes = np.stack([x.integers(0, layout.sizes[i], n) for i in layout.slot_owner], axis=1)
        values = np.where(layout.slot_owner == 2, x.random((n, 4)), 1.0)
        return Sample(codes, values, x.integers(0, 2, n).astype(float), x.random(n))

    trained, held_out = sample(30), sample(20)
    found = {f["name"]: f for f in gap_by_field(losses, layout, "abc", trained, held_out)}
    means = [rows[layout.n_rows + i] for i in range(3)]
    means[2] = means[2] * trained.values[:, 2:].mean(axis=0).sum()
    for i, name in enumerate("abc"):
        for part, key in ((trained, "training"), (held_out, "held_out")):
            rise = 0.0
            for s in range(len(part.y)):
                brought = [
                    sum(
                        part.values[s, k] * table[layout.rows(part.codes)[s, k]]
                        for k in range(4)
                        if layout.slot_owner[k] == j
                    )
                    for j in range(3)
                ]
                pair = []
                for rest in (brought, [means[j] if j == i else brought[j] for j in range(3)]):
                    z = sum(r[-1] for r in rest)
                    for t in range(layout.n_columns):
                        own = layout.owner[t]
                        z += rest[own][t] * sum(rest[j][t] for j in range(3) if j != own)
                    pair.append(math.log1p(math.exp(z)) - part.y[s] * z)
                rise += part.w[s] * (pair[1] - pair[0]) / part.w.sum()
            assert found[name][key] == pytest.approx(rise, abs=1e-10)
        assert found[name]["gap"] == found[name]["training"] - found[name]["held_out"]
    gaps = [f["gap"] for f in found.values()]
    assert gaps == sorted(gaps, reverse=True)
