"""layout.py, maths.py and losses.py against nested loops, finite differences and autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.planted import AVAZU_SIZES, CRITEO_SIZES
from fieldwise.errors import SettingError
from fieldwise.layout import Layout, constant_ranks, log_ranks
from fieldwise.losses import LOSSES, log_odds, sigmoid
from fieldwise.maths import (
    adagrad,
    bound,
    field_scores,
    gradient,
    importance,
    penalty,
    penalty_gradient,
    scores,
)

SHAPES = [((3, 4, 2), (2, 3, 1)), ((1, 1), (1, 1)), ((5,), (2,)), ((2, 7, 3, 1), (0, 4, 3, 1))]


def random_case(sizes, ranks, n=6, seed=0):
    layout = Layout(sizes, ranks)
    random = np.random.default_rng(seed)
    table = random.normal(size=(layout.n_rows, layout.width))
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
    assert log_ranks([3], 1 + 1e-12) == (3,)  # at once
    with pytest.raises(SettingError, match="field 1"):
        Layout((2, 3), (1, -1))
    with pytest.raises(SettingError, match="0 outputs"):
        Layout((2, 3), (1, 1), 0)
    with pytest.raises(SettingError, match="a size and a rank"):
        Layout((), ())


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_field_scores_are_the_nested_loops(sizes, ranks):
    layout, table, rows = random_case(sizes, ranks)
    found = field_scores(table, layout, rows)[:, 0]
    for sample, got in zip(rows, found, strict=True):
        for i in range(layout.n_fields):
            f = table[sample[i], -1]
            for t in range(layout.starts[i], layout.starts[i + 1]):
                for j in range(layout.n_fields):
                    if j != i:
                        f += table[sample[i], t] * table[sample[j], t]
            assert got[i] == pytest.approx(f, abs=1e-12)
    assert np.allclose(scores(table, layout, rows)[:, 0], found.sum(axis=1), atol=1e-12)


def dense_model(layout, table, i):
    """W_b of field i: a column a category, a row a category of another field, then b."""
    columns = range(layout.starts[i], layout.starts[i + 1])
    own = range(layout.offsets[i], layout.offsets[i + 1])
    others = [k for k in range(layout.n_rows) if k not in own]
    weights = [[sum(table[k, t] * table[o, t] for t in columns) for k in own] for o in others]
    return np.array([*weights, [table[k, -1] for k in own]])


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_penalty_importance_and_bound_without_forming_W(sizes, ranks):
    layout, table, _ = random_case(sizes, ranks)
    variance, mean = penalty(table, layout)
    total = 0.0
    for i in range(layout.n_fields):
        weights = dense_model(layout, table, i)
        average = weights.mean(axis=1, keepdims=True)
        away = np.linalg.norm(weights - average)
        assert variance[i] == pytest.approx(away**2, abs=1e-10)
        assert mean[i] == pytest.approx((average**2).sum(), abs=1e-10)
        assert importance(table, layout)[i] == pytest.approx(away / sizes[i], abs=1e-7)
        total += away + np.linalg.norm(average)
    assert bound(table, layout, 50) == pytest.approx(math.sqrt(len(sizes) / 50) * total, abs=1e-6)


def test_one_category_has_no_variance():
    layout, table, _ = random_case((1, 4), (1, 2))
    assert penalty(table, layout)[0][0] == pytest.approx(0, abs=1e-12)


def torch_model(sizes, ranks, table, layout, rows, values):
    """z and the penalty written with one U, V, b and W a field, as in the paper."""
    parameters = torch.tensor(table, requires_grad=True)
    z = torch.zeros(len(rows), dtype=torch.float64)
    constraint = torch.zeros((), dtype=torch.float64)
    one_hot = torch.zeros(len(rows), layout.n_rows, dtype=torch.float64)
    for j in range(len(sizes)):
        one_hot[torch.arange(len(rows)), torch.tensor(rows[:, j])] = torch.tensor(values[:, j])
    for i in range(len(sizes)):
        own = torch.arange(*layout.offsets[i : i + 2])
        others = torch.tensor([k for k in range(layout.n_rows) if k not in own], dtype=torch.long)
        columns = torch.arange(*layout.starts[i : i + 2])
        V, U = parameters[own][:, columns].T, parameters[others][:, columns].T
        b = parameters[own, -1]
        W = U.T @ V
        g = one_hot[:, others] @ W + b  # every category's model
        z = z + (one_hot[:, own] * g).sum(dim=1)
        W_b = torch.cat([W, b[None, :]])
        mean = W_b.mean(dim=1, keepdim=True)
        constraint = constraint + ((W_b - mean) ** 2).sum() + (mean**2).sum()
    return parameters, z, constraint


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
@pytest.mark.parametrize("valued", [False, True])
def test_gradients_are_autograds(sizes, ranks, valued):
    layout, table, rows = random_case(sizes, ranks)
    random = np.random.default_rng(1)
    values = random.normal(size=rows.shape) if valued else np.ones(rows.shape)
    y = random.integers(0, 2, len(rows)).astype(float)
    parameters, z, constraint = torch_model(sizes, ranks, table, layout, rows, values)
    found = scores(table, layout, rows, values if valued else None)[:, 0]
    assert np.allclose(found, z.detach().numpy(), atol=1e-10)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(z, torch.tensor(y))
    (slope,) = torch.autograd.grad(loss, parameters, retain_graph=True)
    dz = LOSSES["logistic"].derivative(found, y, 1.0) / len(y)
    df = np.tile(dz[:, None, None], (1, 1, len(sizes)))
    mine = gradient(table, layout, rows, df, values if valued else None)
    assert np.allclose(mine, slope.numpy(), atol=1e-10)
    (slope,) = torch.autograd.grad(constraint, parameters)
    assert np.allclose(penalty_gradient(table, layout), slope.numpy(), atol=1e-9)
    assert sum(map(np.sum, penalty(table, layout))) == pytest.approx(constraint.item())


@pytest.mark.parametrize(("sizes", "ranks"), SHAPES)
def test_penalty_gradient_by_finite_differences(sizes, ranks):
    layout, table, _ = random_case(sizes, ranks)
    slope = penalty_gradient(table, layout)
    random = np.random.default_rng(2)
    for _ in range(12):
        k, t = random.integers(0, table.shape[0]), random.integers(0, table.shape[1])
        nudged = []
        for step in (1e-5, -1e-5):
            moved = table.copy()
            moved[k, t] += step
            nudged.append(sum(map(np.sum, penalty(moved, layout))))
        assert slope[k, t] == pytest.approx((nudged[0] - nudged[1]) / 2e-5, rel=1e-4, abs=1e-5)


def test_adagrad_is_torchs():
    layout, table, rows = random_case((3, 4, 2), (2, 3, 1))
    touched = np.arange(layout.n_rows)
    parameter = torch.nn.Parameter(torch.tensor(table))
    optimiser = torch.optim.Adagrad(
        [parameter], lr=0.1, weight_decay=0.01, initial_accumulator_value=1e-6
    )
    mine, state = table.copy(), np.full_like(table, 1e-6)
    for step in range(4):
        slope = gradient(mine, layout, rows, np.full((len(rows), 1, 3), 0.1 * (step + 1)))
        parameter.grad = torch.tensor(slope)
        optimiser.step()
        adagrad(mine, state, slope, touched, lr=0.1, decay=0.01)
        assert np.allclose(mine, parameter.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=lambda loss: loss.name)
def test_loss_derivatives(loss):
    z = np.random.default_rng(0).uniform(-4, 4, (40, 3))
    for y in (0.0, 1.0, 2.0):
        target = np.full(len(z), y)
        found = loss.derivative(z if loss.name == "softmax" else z[:, 0], target, 0.5)
        for k in range(3 if loss.name == "softmax" else 1):
            step = 1e-6 * (np.arange(3) == k)
            pair = [z + step, z - step]
            up, down = (v if loss.name == "softmax" else v[:, 0] for v in pair)
            slope = (loss.value(up, target, 0.5) - loss.value(down, target, 0.5)) / 2e-6
            assert np.allclose(found.reshape(len(z), -1)[:, k], slope, atol=1e-7)


def test_logistic_loss_far_out():
    far = np.array([-1e4, 1e4])
    loss = LOSSES["logistic"]
    assert loss.value(far, np.array([0.0, 1.0]), 1.0).tolist() == [0, 0]
    assert loss.value(far, np.array([1.0, 0.0]), 1.0).tolist() == [1e4, 1e4]
    assert sigmoid(far).tolist() == [0, 1]
    assert log_odds(0.25) == pytest.approx(math.log(1 / 3))
    assert math.isfinite(log_odds(0.0))


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
    assert np.allclose(found, field_scores(table, layout, rows)[:, :, order])
