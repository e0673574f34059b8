"""What a score is made of: effects, Shapley values and variances against brute force."""

from __future__ import annotations

from itertools import combinations, product
from math import factorial

import numpy as np
import pytest

from fieldwise import maths
from fieldwise.errors import SettingError
from fieldwise.explain.rows import Marginals, RowExplainer
from fieldwise.layout import Layout


def model(sizes=(3, 4, 2), rank=2, n_outputs=1, seed=0, slots=()):
    random = np.random.default_rng(seed)
    layout = Layout.of(sizes, rank=rank, n_outputs=n_outputs, slots=slots)
    table = random.normal(size=(layout.n_rows, layout.width))
    shares = [random.dirichlet(np.ones(d)) for d in sizes]
    return layout, table, shares


def every_sample(layout, shares):
    """All combinations of categories, and the chance of each if fields were independent."""
    codes = np.array(list(product(*(range(d) for d in layout.sizes))))
    chance = np.prod([shares[j][codes[:, j]] for j in range(len(shares))], axis=0)
    return layout.rows(codes), chance


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_effects_add_up_to_the_score_and_have_no_mean(n_outputs):
    layout, table, shares = model(n_outputs=n_outputs)
    share = np.concatenate(shares)
    mean = maths.field_means(table, layout, share)
    rows, chance = every_sample(layout, shares)
    base, main, pairs = maths.effects(table, layout, mean, rows)
    z = maths.scores(table, layout, rows)
    np.testing.assert_allclose(base + main.sum(axis=2) + pairs.sum(axis=(2, 3)) / 2, z, atol=1e-12)
    np.testing.assert_allclose(base, chance @ z, atol=1e-12)
    np.testing.assert_allclose(np.einsum("n,nki->ki", chance, main), 0, atol=1e-12)
    for i, j in combinations(range(3), 2):
        for k in range(layout.sizes[i]):  # held fixed, nothing is left of the pair
            there = rows[:, i] == layout.offsets[i] + k
            found = np.einsum("n,nk->k", chance[there], pairs[there][:, :, i, j])
            np.testing.assert_allclose(found, 0, atol=1e-12)


def by_coalitions(table, layout, shares, sample):
    """Shapley values by their definition: fields that are not known are drawn from training."""
    m = layout.n_fields
    rows, chance = every_sample(layout, shares)

    def worth(known):
        mixed = rows.copy()
        mixed[:, list(known)] = sample[list(known)]
        return chance @ maths.scores(table, layout, mixed)[:, 0]

    out = np.zeros(m)
    for i in range(m):
        others = [j for j in range(m) if j != i]
        for size in range(m):
            for known in combinations(others, size):
                share = factorial(size) * factorial(m - size - 1) / factorial(m)
                out[i] += share * (worth((*known, i)) - worth(known))
    return out


def test_shapley_values_are_those_of_all_coalitions():
    layout, table, shares = model(sizes=(3, 2, 4, 2), rank=3)
    share = np.concatenate(shares)
    mean = maths.field_means(table, layout, share)
    rows, _ = every_sample(layout, shares)
    base, main, pairs = maths.effects(table, layout, mean, rows)
    found = maths.shapley(main, pairs)[:, 0]
    for n in (0, 7, 20, 47):
        wanted = by_coalitions(table, layout, shares, rows[n])
        np.testing.assert_allclose(found[n], wanted, atol=1e-10)
    z = maths.scores(table, layout, rows)[:, 0]
    np.testing.assert_allclose(base[0] + found.sum(axis=1), z, atol=1e-10)


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_variances_are_those_of_the_effects_and_add_up(n_outputs):
    layout, table, shares = model(n_outputs=n_outputs, sizes=(3, 4, 2, 3))
    share = np.concatenate(shares)
    mean = maths.field_means(table, layout, share)
    rows, chance = every_sample(layout, shares)
    _, main, pairs = maths.effects(table, layout, mean, rows)
    of_main, of_pairs = maths.variances(table, layout, mean, share, share)
    np.testing.assert_allclose(of_main, np.einsum("n,nki->ki", chance, main**2), rtol=1e-9)
    wanted = np.einsum("n,nkij->kij", chance, pairs**2)
    np.testing.assert_allclose(of_pairs, wanted, rtol=1e-9, atol=1e-12)
    z = maths.scores(table, layout, rows)
    whole = chance @ (z - chance @ z) ** 2
    np.testing.assert_allclose(of_main.sum(axis=1) + of_pairs.sum(axis=(1, 2)) / 2, whole)


def test_values_and_lists_have_moments_of_their_own():
    """A list of two categories that come independently, and a field that carries a number."""
    layout, table, _ = model(sizes=(2, 1, 3), slots=(2, 1, 1))
    chance_a, chance_b = 0.3, 0.8
    numbers, how_often = np.array([-1.0, 0.5, 2.0]), np.array([0.2, 0.5, 0.3])
    share = np.array([0.5, 0.25, 0.25])
    weight = np.array([chance_a, chance_b, how_often @ numbers, *share])
    square = np.array([chance_a, chance_b, how_often @ numbers**2, *share])
    samples, values, chance = [], [], []
    for a, b, k, c in product((0, 1), (0, 1), range(3), range(3)):
        samples.append([0, 1, 2, 3 + c])
        values.append([a, b, numbers[k], 1.0])
        own = (chance_a if a else 1 - chance_a) * (chance_b if b else 1 - chance_b)
        chance.append(own * how_often[k] * share[c])
    rows, values, chance = np.array(samples), np.array(values, float), np.array(chance)
    mean = maths.field_means(table, layout, weight)
    base, main, pairs = maths.effects(table, layout, mean, rows, values)
    z = maths.scores(table, layout, rows, values)
    np.testing.assert_allclose(base + main.sum(axis=2) + pairs.sum(axis=(2, 3)) / 2, z, atol=1e-12)
    np.testing.assert_allclose(base, chance @ z)
    of_main, of_pairs = maths.variances(table, layout, mean, weight, square)
    np.testing.assert_allclose(of_main[0], np.einsum("n,ni->i", chance, main[:, 0] ** 2), rtol=1e-9)
    wanted = np.einsum("n,nij->ij", chance, pairs[:, 0] ** 2)
    np.testing.assert_allclose(of_pairs[0], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n_outputs", "slots"), [(1, ()), (3, ()), (2, (2, 1, 3))])
def test_the_fast_rows_are_the_plain_ones(n_outputs, slots):
    layout, table, _ = model(n_outputs=n_outputs, sizes=(5, 4, 6), rank=3, slots=slots)
    random = np.random.default_rng(1)
    share = random.random(layout.n_rows)
    marginals = Marginals(share, share)
    counts = random.integers(1, 9, layout.n_rows)
    rows = np.concatenate([table, maths.mean_rows(table, layout, counts)]).astype(np.float32)
    codes = np.stack([random.integers(-1, layout.sizes[j], 50) for j in layout.slot_owner], axis=1)
    wide = random.normal(size=codes.shape).astype(np.float32) if slots else None
    offsets = random.normal(size=n_outputs)
    explainer = RowExplainer(rows, layout, marginals, offsets)
    main, shapley, pairs = explainer(codes.astype(np.int32), wide, pairs=True)
    at = np.where(codes < 0, layout.n_rows + layout.slot_owner, layout.rows(codes))
    mean = maths.field_means(rows, layout, share)
    base, wanted, both = maths.effects(rows, layout, mean, at, wide)
    np.testing.assert_allclose(explainer.base, base + offsets, rtol=1e-6)
    np.testing.assert_allclose(main, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pairs, both, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(shapley, maths.shapley(wanted, both), rtol=1e-4, atol=1e-5)


def test_an_unseen_category_says_nothing():
    """Its row is the mean of its field's, so that its effects are exactly 0."""
    layout, table, shares = model()
    share = np.concatenate(shares)
    rows = np.concatenate([table, maths.mean_rows(table, layout, share)]).astype(np.float32)
    explainer = RowExplainer(rows, layout, Marginals(share, share), np.zeros(1))
    main, shapley, _ = explainer(np.array([[-1, 2, 1]], np.int32), None)
    assert abs(main[0, 0, 0]) < 1e-6
    assert abs(shapley[0, 0, 0]) < 1e-6


def test_small_factorisation_machines_are_not_taken_apart():
    layout = Layout.of((3, 4), rank=2, component="fm")
    rows = np.zeros((9, layout.width), np.float32)
    with pytest.raises(SettingError, match="the component 'fm' has more than those"):
        RowExplainer(rows, layout, Marginals(np.ones(7), np.ones(7)), np.zeros(1))
