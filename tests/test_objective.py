"""Every loss, number of outputs, combination, value, slot and weight: truth, and equal engines."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fieldwise import maths
from fieldwise.engines import StepSettings, make_engine
from fieldwise.errors import DataError, SettingError
from fieldwise.layout import COMPONENTS, Layout
from fieldwise.losses import LOSSES, check_target
from fieldwise.objective import Head, Objective

CLOSE = {"rtol": 5e-4, "atol": 5e-6}  # float32 against float64 after a few steps

OBJECTIVES = {
    "logistic": (Head(),),
    "softmax": (Head("softmax", 3),),
    "squared": (Head("squared"),),
    "absolute": (Head("absolute"),),
    "huber": (Head("huber", delta=0.4),),
    "poisson": (Head("poisson"),),
    "two tasks": (Head(), Head("squared")),
    "classes and a count": (Head("softmax", 4), Head("poisson")),
}
SIZES, RANKS = (3, 7, 1, 20), (2, 3, 1, 5)


def targets(heads, n, random):
    draw = {
        "logistic": lambda h: random.integers(0, 2, n),
        "softmax": lambda h: random.integers(0, h.size, n),
        "poisson": lambda h: random.poisson(1.5, n),
    }
    columns = [draw.get(h.loss, lambda h: random.normal(size=n))(h) for h in heads]
    return np.stack(columns, axis=1).astype(float)


def case(objective, *, slots=(), valued=False, weights=None, n=70, seed=0, component="linear"):
    random = np.random.default_rng(seed)
    layout = Layout(SIZES, RANKS, objective.n_outputs, slots, component)
    codes = np.stack([random.integers(0, SIZES[i], n) for i in layout.slot_owner], axis=1)
    values = random.normal(size=codes.shape) if valued else None
    if slots:
        values = np.ones(codes.shape) if values is None else values
        values[:, np.array(layout.slots)[layout.slot_owner] > 1] *= (
            random.random((n, sum(s for s in slots if s > 1))) < 0.6
        )
        codes = np.where(values == 0, 0, codes)
    y = targets(objective.heads, n, random)
    n_weights = {None: 0, "one": 1, "each": len(objective.copies)}[weights]
    w = random.random((n, n_weights)) if n_weights else None
    return layout, codes.astype(np.int32), values, y, w


def engines(layout, objective, settings, names=("reference", "cpu"), seed=1):
    random = np.random.default_rng(seed)
    start = random.normal(0, 0.3, (layout.n_rows, layout.width))
    offsets = random.normal(0, 0.3, layout.n_outputs)
    made = []
    for name in names:
        engine = make_engine(name, layout, settings, objective=objective, offsets=offsets)
        engine.table[:], engine.state[:] = start, 1e-3
        made.append(engine)
    return made


def told_by(engine, *data):
    engine.run(*data)
    return tuple(engine.totals)


@pytest.mark.parametrize("combine", ["sum", "weighted", "vote"])
@pytest.mark.parametrize("slots", [(), (1, 3, 1, 2)], ids=["plain", "slots"])
@pytest.mark.parametrize("heads", OBJECTIVES)
def test_steps_and_scores_are_the_slow_twins(heads, slots, combine):
    cases = itertools.product((1, 2), (False, True), (None, "one", "each"))
    for n_members, valued, weights in cases:
        objective = Objective(OBJECTIVES[heads], n_members, combine)
        layout, codes, values, y, w = case(objective, slots=slots, valued=valued, weights=weights)
        settings = StepSettings(0.05, 1e-3, 1e-3, reg_every=3, batch_size=16)
        truth, fast = engines(layout, objective, settings)
        told = [told_by(e, codes, values, y, w) for e in (truth, fast)]
        assert told[1] == pytest.approx(told[0], rel=1e-4)
        np.testing.assert_allclose(fast.table, truth.table, **CLOSE)
        np.testing.assert_allclose(fast.state, truth.state, **CLOSE)
        np.testing.assert_allclose(fast.field_weights, truth.field_weights, **CLOSE)
        found = [e.scores(codes, values) for e in (truth, fast)]
        np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-3)
        fields = (len(SIZES),) if combine == "vote" else ()
        assert found[1].shape == found[0].shape == (len(codes), objective.n_outputs, *fields)


def nested_loops(table, layout, codes, values):
    """f of every sample, output and field, one product at a time."""
    out = np.zeros((len(codes), layout.n_outputs, layout.n_fields))
    rows = layout.rows(codes)
    owner = layout.slot_owner
    x = np.ones(codes.shape) if values is None else values
    for s, o, i in np.ndindex(*out.shape):
        mine = [k for k in range(layout.n_slots) if owner[k] == i]
        others = [k for k in range(layout.n_slots) if owner[k] != i]
        for k in mine:
            out[s, o, i] += x[s, k] * table[rows[s, k], layout.n_columns + o]
            for t in range(layout.block(o, i).start, layout.block(o, i).stop):
                place = t - layout.block(o, i).start
                if layout.component == "fm" and place >= layout.ranks[i]:
                    groups = [
                        x[s, j] * x[s, k2] * table[rows[s, j], t] * table[rows[s, k2], t]
                        for j, k2 in itertools.combinations(others, 2)
                        if owner[j] != owner[k2]
                    ]
                else:
                    groups = [x[s, j] * table[rows[s, j], t] for j in others]
                out[s, o, i] += x[s, k] * table[rows[s, k], t] * sum(groups)
    return out


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("slots", [(), (2, 1, 1, 3)])
def test_field_scores_are_the_nested_loops(slots, component):
    objective = Objective((Head("softmax", 3),))
    kind = {"slots": slots, "component": component}
    layout, codes, values, _, _ = case(objective, **kind, valued=True, n=5)
    table = np.random.default_rng(3).normal(size=(layout.n_rows, layout.width))
    found = maths.field_scores(table, layout, layout.rows(codes), values)
    np.testing.assert_allclose(found, nested_loops(table, layout, codes, values), atol=1e-12)
    total = maths.scores(table, layout, layout.rows(codes), values)
    np.testing.assert_allclose(total, found.sum(axis=2))


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("combine", ["sum", "weighted", "vote"])
@pytest.mark.parametrize("heads", OBJECTIVES)
def test_gradients_are_finite_differences(heads, combine, component):
    objective = Objective(OBJECTIVES[heads], 2, combine)
    kind = {"slots": (1, 2, 1, 1), "component": component}
    layout, codes, values, y, w = case(objective, **kind, weights="each", n=9)
    random = np.random.default_rng(5)
    table = random.normal(0, 0.4, size=(layout.n_rows, layout.width))
    offsets, u = random.normal(size=layout.n_outputs), random.random(layout.n_fields)
    rows = layout.rows(codes)

    def total(table, u):
        """Losses as they are minimised: a mean over weights for every head."""
        out = 0.0
        for e in range(len(objective.copies)):
            alone = np.zeros_like(w)
            alone[:, e] = w[:, e]
            f = maths.field_scores(table, layout, rows, values)
            out += objective.slopes(f, offsets, y, alone, u)[0].sum() / w[:, e].sum()
        return out

    f = maths.field_scores(table, layout, rows, values)
    _, df, du = objective.slopes(f, offsets, y, w, u)
    slope = maths.gradient(table, layout, rows, df, values)
    step = 1e-6
    for at in [tuple(random.integers(0, s) for s in table.shape) for _ in range(60)]:
        moved = [table.copy(), table.copy()]
        moved[0][at] -= step
        moved[1][at] += step
        wanted = (total(moved[1], u) - total(moved[0], u)) / (2 * step)
        assert slope[at] == pytest.approx(wanted, abs=1e-6)
    if combine == "weighted":
        for i in range(len(u)):
            moved = [u.copy(), u.copy()]
            moved[0][i] -= step
            moved[1][i] += step
            wanted = (total(table, moved[1]) - total(table, moved[0])) / (2 * step)
            assert du[i] == pytest.approx(wanted, abs=1e-6)


def test_losses_are_torchs():
    random = np.random.default_rng(0)
    z, n = random.normal(0, 3, (40, 4)), 40
    one = torch.tensor(z[:, 0])
    real = random.normal(size=n)
    label, klass = random.integers(0, 2, n), random.integers(0, 4, n)
    count = random.poisson(2, n)
    wanted = {
        "logistic": functional.binary_cross_entropy_with_logits(
            one, torch.tensor(label, dtype=torch.float64), reduction="none"
        ),
        "softmax": functional.cross_entropy(torch.tensor(z), torch.tensor(klass), reduction="none"),
        "squared": functional.mse_loss(one, torch.tensor(real), reduction="none") / 2,
        "absolute": functional.l1_loss(one, torch.tensor(real), reduction="none"),
        "huber": functional.huber_loss(one, torch.tensor(real), reduction="none", delta=0.7),
        "poisson": functional.poisson_nll_loss(one, torch.tensor(count), reduction="none"),
    }
    truth = {"logistic": label, "softmax": klass, "poisson": count}
    assert set(wanted) == set(LOSSES)
    for name, loss in LOSSES.items():
        scores = z if name == "softmax" else z[:, 0]
        y = truth.get(name, real)
        np.testing.assert_allclose(loss.value(scores, y, 0.7), wanted[name], rtol=1e-10, atol=1e-12)


def test_the_best_constant_is_where_the_slope_is_zero():
    random = np.random.default_rng(0)
    n = 4001
    w = random.random(n)
    truth = {"logistic": random.random(n) < 0.3, "softmax": random.integers(0, 3, n)}
    truth["poisson"] = random.poisson(2, n)
    for name, loss in LOSSES.items():
        y = truth.get(name, random.normal(size=n) ** 2).astype(float)
        z = np.tile(loss.start(y, w), (n, 1))
        z = z if name == "softmax" else z[:, 0]
        slope = (w * loss.derivative(z, y, 1e-3).T).sum(axis=-1) / w.sum()
        assert np.abs(slope).max() < 1e-3


def step_and_look(objective, y, codes, *, layout=None, weight=None, n_steps=4, **settings):
    layout = layout or Layout(SIZES, RANKS, objective.n_outputs)
    settings = StepSettings(0.1, 0.0, 0.0, batch_size=len(codes), **settings)
    (engine,) = engines(layout, objective, settings, names=["reference"])
    for _ in range(n_steps):
        engine.run(codes, None, y, weight)
    return engine


def test_softmax_of_two_classes_is_logistic():
    """With z_1 = -z_0 = z / 2 the loss, and the gradient of the difference, are logistic's."""
    _, codes, _, y, _ = case(Objective())
    layout, two = Layout(SIZES, RANKS), Layout(SIZES, RANKS, 2)
    rows = layout.rows(codes)
    table = np.random.default_rng(2).normal(size=(layout.n_rows, layout.width))
    both = np.zeros((layout.n_rows, two.width))
    half = maths.fold(table, layout, np.full((1, 4), 0.5))
    minus = maths.fold(table, layout, np.full((1, 4), -0.5))
    columns = layout.n_columns
    both[:, :columns], both[:, columns : 2 * columns] = minus[:, :-1], half[:, :-1]
    both[:, -2], both[:, -1] = minus[:, -1], half[:, -1]
    w, u = np.ones((len(y), 1)), np.ones(4)
    f = maths.field_scores(table, layout, rows)
    g = maths.field_scores(both, two, rows)
    one = Objective().slopes(f, np.zeros(1), y, w, u)
    other = Objective((Head("softmax", 2),)).slopes(g, np.zeros(2), y, w, u)
    np.testing.assert_allclose(other[0], one[0], atol=1e-12)
    np.testing.assert_allclose(other[1][:, 1] - other[1][:, 0], 2 * one[1][:, 0], atol=1e-12)


def test_weight_two_is_the_row_twice():
    _, codes, _, y, _ = case(Objective())
    weight = np.ones((len(y), 1))
    weight[10:30] = 2
    twice = np.concatenate([np.arange(len(y)), np.arange(10, 30)])
    heavy = step_and_look(Objective(), y, codes, weight=weight)
    longer = step_and_look(Objective(), y[twice], codes[twice])
    np.testing.assert_allclose(heavy.table, longer.table, atol=1e-12)


def test_permuting_classes_permutes_outputs():
    objective = Objective((Head("softmax", 3),))
    layout, codes, _, y, _ = case(objective)
    order = np.array([2, 0, 1])
    settings = StepSettings(0.1, 0.0, 1e-3, reg_every=2, batch_size=35)
    plain, moved = engines(layout, objective, settings, names=["reference"] * 2)
    columns = np.concatenate([np.flatnonzero(layout.output == o) for o in order])
    columns = np.concatenate([columns, layout.n_columns + order])
    moved.table[:] = plain.table[:, columns]
    moved.offsets = plain.offsets[order]
    place = np.argsort(order)
    plain.run(codes, None, y, None)
    moved.run(codes, None, place[y.astype(int)], None)
    np.testing.assert_allclose(moved.table, plain.table[:, columns], atol=1e-12)


def test_a_field_of_many_slots_with_one_value_is_the_plain_one():
    objective = Objective()
    layout, codes, _, y, _ = case(objective)
    wide = replace(layout, slots=(1, 3, 1, 1))
    many = np.zeros((len(codes), 6), np.int32)
    many[:, [0, 2, 4, 5]] = codes  # the second of three slots is filled
    values = np.ones(many.shape)
    values[:, [1, 3]] = 0
    settings = StepSettings(0.1, 1e-2, 1e-3, reg_every=2, batch_size=16)
    for name in ("reference", "cpu"):
        (plain,) = engines(layout, objective, settings, names=[name])
        (slotted,) = engines(wide, objective, settings, names=[name])
        plain.run(codes, None, y, None)
        slotted.run(many, values, y, None)
        np.testing.assert_allclose(slotted.table, plain.table, rtol=1e-5, atol=1e-7)


def test_members_and_weights_fold_into_one_plain_table():
    objective = Objective((Head("softmax", 3),), n_members=2, combine="weighted")
    layout, codes, _, y, _ = case(objective)
    (engine,) = engines(layout, objective, StepSettings(batch_size=16), names=["reference"])
    engine.run(codes, None, y, None)
    assert not np.allclose(engine.field_weights, 1)
    scores = engine.scores(codes, None).reshape(len(codes), 2, 3).mean(axis=1)
    factors = np.tile(engine.field_weights, (layout.n_outputs, 1))
    table = maths.fold(engine.table, layout, factors)
    table, merged = maths.mean_of_outputs(table, layout, 2)
    offsets = engine.offsets.reshape(2, 3).mean(axis=0)
    assert (merged.n_outputs, merged.ranks) == (3, tuple(2 * r for r in RANKS))
    found = maths.scores(table, merged, merged.rows(codes)) + offsets
    np.testing.assert_allclose(found, scores, atol=1e-12)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_hard_constraints_hold_after_every_due_step(name):
    objective = Objective((Head("softmax", 3),))
    layout, codes, _, y, _ = case(objective)
    settings = StepSettings(
        0.2, 0.0, 0.0, reg_every=1, batch_size=35, max_variance=0.5, max_mean=0.02
    )
    (engine,) = engines(layout, objective, settings, names=[name])
    engine.run(codes, None, y, None)
    variance, mean = maths.penalty(engine.table, layout)
    assert (variance <= 0.5 * (1 + 1e-5)).all()
    assert (mean <= 0.02 * (1 + 1e-5)).all()
    assert variance.max() > 0.49


def test_votes_train_every_field_by_itself():
    """A field's models are the same whatever the others' targets did to theirs."""
    vote = Objective(combine="vote")
    layout, codes, _, y, _ = case(vote)
    engine = step_and_look(vote, y, codes, layout=layout)
    # Field 1 alone: other fields' own columns are gone.
    alone = Layout(SIZES, (0, RANKS[1], 0, 0))
    settings = StepSettings(0.1, 0.0, 0.0, batch_size=len(codes))
    (single,) = engines(layout, vote, settings, names=["reference"])
    start, offsets = single.table.copy(), single.offsets
    one = make_engine("reference", alone, settings, objective=vote, offsets=offsets)
    columns = [*range(*layout.block(0, 1).indices(99)), layout.n_columns]
    one.table[:], one.state[:] = start[:, columns], 1e-3
    for _ in range(4):
        one.run(codes, None, y, None)
    own = layout.own(1)
    np.testing.assert_allclose(engine.table[own][:, columns], one.table[own], atol=1e-12)


def test_refusals():
    for settings, message in (
        ({"loss": "hinge"}, "loss='hinge'"),
        ({"loss": "softmax", "size": 1}, "softmax cannot have 1 outputs"),
        ({"loss": "squared", "size": 2}, "squared cannot have 2 outputs"),
        ({"loss": "huber", "delta": 0.0}, "delta=0.0"),
    ):
        with pytest.raises(SettingError, match=message):
            Head(**settings)
    with pytest.raises(SettingError, match="combine='max'"):
        Objective(combine="max")
    with pytest.raises(SettingError, match="n_members=0"):
        Objective(n_members=0)
    with pytest.raises(SettingError, match="the objective has 1 outputs and the layout 2"):
        make_engine("cpu", Layout((2,), (1,), 2), StepSettings())
    for loss, y, message in (
        ("poisson", [1.0, -2.0], "-2; counts"),
        ("logistic", [0.0, 1.5], "outside 0 and 1"),
        ("squared", [0.0, np.nan], "NaN or infinity"),
    ):
        with pytest.raises(DataError, match=message):
            check_target(loss, np.array(y))
