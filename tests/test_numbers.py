"""Histogram, ExactSum and bins: exact, and the same in any order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data import numbers
from fieldwise.data.numbers import ExactSum, Histogram, bin_labels, bin_of

floats = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(floats, max_size=60), st.integers(1, 7))
def test_exact_sum(values, piece):
    total = ExactSum()
    for i in range(0, len(values), piece):
        total.add(np.array(values[i : i + piece]))
    assert total.value() == sum((Fraction(v) for v in values), Fraction(0))


@given(st.lists(st.floats(), min_size=1, max_size=80), st.randoms(), st.integers(1, 9))
def test_histogram_forgets_the_order(values, random, n_bins):
    whole = Histogram()
    whole.add(np.array(values))
    random.shuffle(values)
    pieces = Histogram()
    for v in values:
        pieces.add(np.array([v]))
    assert whole.edges(n_bins) == pieces.edges(n_bins)
    edges = whole.edges(n_bins)
    assert len(edges) < n_bins
    kept = [v for v in values if not np.isnan(v)]
    counts = np.bincount(bin_of(np.array(kept), edges), minlength=len(edges) + 1)
    assert whole.counts(edges).tolist() == counts.tolist()


def test_coarse_histogram_forgets_the_order_and_keeps_the_counts(monkeypatch):
    monkeypatch.setattr(numbers, "LIMIT", 50)
    values = np.random.default_rng(0).lognormal(size=3000)
    whole, pieces = Histogram(), Histogram()
    whole.add(values)
    for part in np.array_split(np.random.default_rng(1).permutation(values), 37):
        pieces.add(part)
    edges = whole.edges(10)
    assert edges == pieces.edges(10)
    assert whole.n_distinct <= 50
    counts = np.bincount(bin_of(values, edges), minlength=len(edges) + 1)
    assert whole.counts(edges).tolist() == counts.tolist()
    assert counts.min() > 150  # near 300 each


def test_minus_infinity_stays_lowest_when_bits_are_dropped(monkeypatch):
    monkeypatch.setattr(numbers, "LIMIT", 50)
    values = np.concatenate([np.random.default_rng(0).normal(size=900), np.full(100, -np.inf)])
    histogram = Histogram()
    histogram.add(values)
    edges = histogram.edges(8)
    counts = np.bincount(bin_of(values, edges), minlength=len(edges) + 1)
    assert histogram.counts(edges).tolist() == counts.tolist()


@given(st.lists(st.floats(-1e100, 1e100).filter(lambda v: v == 0 or abs(v) > 1e-100), max_size=40))
def test_exact_sum_of_squares(values):
    total = ExactSum()
    total.add_squares(np.array(values))
    assert total.value() == sum((Fraction(v) ** 2 for v in values), Fraction(0))


def test_few_values_get_a_bin_each():
    histogram = Histogram()
    histogram.add(np.array([3.0, 1.0, 1.0, -0.0, 0.0, np.nan]))
    assert histogram.edges(10) == (1.0, 3.0)
    assert bin_of(np.array([-5, 0.0, 1, 2.9, 3, np.inf, -np.inf]), (1.0, 3.0)).tolist() == [
        *[0, 0, 1, 1, 2, 2, 0]
    ]


def test_bins_hold_equal_shares():
    values = np.random.default_rng(0).normal(size=10_000)
    histogram = Histogram()
    histogram.add(values)
    counts = histogram.counts(histogram.edges(8))
    assert len(counts) == 8
    assert counts.max() - counts.min() <= 2


def test_a_heavy_value_does_not_empty_bins():
    histogram = Histogram()
    histogram.add(np.concatenate([np.zeros(900), np.arange(1, 101)]))
    counts = histogram.counts(histogram.edges(10))
    assert (counts > 0).all()
    assert counts[0] == 900


@pytest.mark.parametrize(
    ("edges", "labels"),
    [
        ((), ["any"]),
        ((2.0,), ["< 2", ">= 2"]),
        ((2.0, 5.5), ["< 2", "[2, 5.5)", ">= 5.5"]),
        ((1.00000001, 1.00000002), ["< 1.00000001", "[1.00000001, 1.00000002)", ">= 1.00000002"]),
    ],
)
def test_labels(edges, labels):
    assert bin_labels(edges) == labels
