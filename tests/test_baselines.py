"""The paper's other methods: formulas by nested loops, steps by torch, and what each must learn."""

from __future__ import annotations

import pickle
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch

from fieldwise.baselines import FFM, FM, IPNN, LLFM, LR, OPNN, BaselineEngine, DeepFM, RaFM
from fieldwise.baselines.deep import Dropout
from fieldwise.data.shuffle import Rows
from fieldwise.engines import StepSettings, host
from fieldwise.errors import SettingError
from fieldwise.layout import Layout
from fieldwise.objective import Head, Objective
from fieldwise.problem import Problem
from fieldwise.train import Running, TrainSettings, train

LAYOUT = Layout.of((5, 7, 3, 4), rank=0)


pytestmark = pytest.mark.usefixtures("one_thread")

SEEN = np.array([1, 9, 3, 2, 5, 1, 2, 3, 4, 5, 6, 7, 2, 3, 9, 1, 1, 4, 8])  # times, by category
METHODS = {
    "RaFM": partial(RaFM, counts=SEEN, ranks=(2, 3, 4)),
    "LR": LR,
    "FM": partial(FM, rank=3),
    "FFM": partial(FFM, rank=2),
    "LLFM": partial(LLFM, rank=2, anchors=3),
    "DeepFM": partial(DeepFM, rank=3, dropout=0.0),
    "IPNN": partial(IPNN, rank=3, dropout=0.0),
    "OPNN": partial(OPNN, rank=3, dropout=0.0),
}


def drawn(width, n=6, seed=0):
    """A table, and the row numbers of samples."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(LAYOUT.n_rows + LAYOUT.n_fields, width))
    codes = np.stack([random.integers(0, d, n) for d in LAYOUT.sizes], axis=1)
    return torch.from_numpy(table), torch.from_numpy(LAYOUT.rows(codes))


def by_loops(name, module, rows, numbers):
    """One sample's score, one product at a time."""
    m = len(rows)
    if name == "RaFM":
        starts, z = (1, 3, 6, 10), sum(float(r[0]) for r in rows)
        for i, j in combinations(range(m), 2):
            k = max(k for k in range(3) if k == 0 or min(SEEN[numbers[[i, j]]]) >= (2, 3, 4)[k])
            part = slice(starts[k], starts[k + 1])
            z += rows[i][part] @ rows[j][part]
        return z
    if name == "LR":
        return sum(float(rows[j][0]) for j in range(m))
    if name == "FM":
        v = [row[1:] for row in rows]
        return sum(float(r[0]) for r in rows) + sum(
            v[i] @ v[j] for i, j in combinations(range(m), 2)
        )
    if name == "FFM":
        v = [row[1:].reshape(m, -1) for row in rows]
        both = sum(v[i][j] @ v[j][i] for i, j in combinations(range(m), 2))
        return sum(float(r[0]) for r in rows) + both
    if name == "LLFM":
        parts = [row.reshape(3, -1) for row in rows]
        lengths = module.lengths.detach().numpy()
        near = [2 * sum(p[a][0] for p in parts) - lengths[a] for a in range(3)]
        local = [by_loops("FM", module, [p[a][1:] for p in parts], numbers) for a in range(3)]
        return np.exp(near) @ local / np.exp(near).sum()
    if name == "DeepFM":
        flat = np.concatenate([row[1:] for row in rows])
        deep = module.layers(torch.from_numpy(flat)).item()
        return by_loops("FM", module, rows, numbers) + deep
    v = [row[1:] for row in rows]
    if name == "IPNN":
        products = [v[i] @ v[j] for i, j in combinations(range(m), 2)]
    else:
        s = sum(v)
        products = [a * b for a in s for b in s]
    deep = module.layers(torch.from_numpy(np.concatenate([*v, products]))).item()
    return sum(float(r[0]) for r in rows) + deep


@pytest.mark.parametrize("name", METHODS)
def test_scores_are_the_nested_loops(name):
    module = METHODS[name](LAYOUT).double().eval()
    table, rows = drawn(module.width)
    brought = module.expand(table, torch.arange(len(table)))[rows]
    found = module(brought).detach().numpy()
    found = found if found.ndim == 1 else found[:, -1]
    x = table.numpy()
    wanted = [by_loops(name, module, list(x[sample]), sample) for sample in rows.numpy()]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", ["FM", "FFM", "RaFM", "LLFM"])
def test_slopes_written_by_hand_are_those_of_differences(name):
    module = METHODS[name](LAYOUT).double()
    table, rows = drawn(module.width, n=3)
    numbers = torch.arange(len(table))
    table.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: module(module.expand(t, numbers)[rows]), (table,))


def test_lower_levels_of_rafm_are_trained_towards_the_higher():
    """Of three levels, each is pulled to the next, and none pulls the next to itself."""
    module = METHODS["RaFM"](LAYOUT)
    scores = torch.tensor([[1.0, 3.0, 4.0]], requires_grad=True)
    aside = module.aside(scores)
    assert aside.item() == 4 + 1
    (slope,) = torch.autograd.grad(aside.sum(), scores)
    assert slope.tolist() == [[-4.0, -2.0, 0.0]]
    # The score of level 1 alone is an FM of the first rank; the last is the score.
    table, rows = drawn(module.width)
    levels = module.double()(module.expand(table, torch.arange(len(table)))[rows])
    first = FM(LAYOUT, rank=2)(table[rows][:, :, :3])
    np.testing.assert_allclose(levels[:, 0], first)


def test_dropout_drops_its_share_and_keeps_the_mean():
    layer = Dropout(0.3)
    torch.manual_seed(0)
    found = layer(torch.ones(400, 501))
    assert float((found == 0).float().mean()) == pytest.approx(77 / 256, abs=0.005)
    assert float(found.mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(layer.eval()(torch.ones(3)), torch.ones(3))
    assert torch.equal(Dropout(0.0)(torch.ones(3)), torch.ones(3))


def data(n=50, seed=0):
    random = np.random.default_rng(seed)
    codes = np.stack([random.integers(0, d, n) for d in LAYOUT.sizes], axis=1).astype(np.int32)
    return codes, random.integers(0, 2, (n, 1)).astype(float), random


@pytest.mark.parametrize("name", METHODS)
def test_steps_are_those_of_torchs_adagrad(name):
    codes, y, random = data()
    weight = random.random((50, 1))
    settings = StepSettings(learning_rate=0.05, weight_decay=0.0, batch_size=16)
    engine = BaselineEngine(LAYOUT, settings, offsets=np.array([-0.3]), make=METHODS[name])
    engine.initialise(1, 0.1)
    engine.state.fill_(1e-3)
    table = torch.nn.Parameter(engine._rows.clone())
    twin = METHODS[name](LAYOUT)
    twin.load_state_dict(engine.module.state_dict())
    optimiser = torch.optim.Adagrad(
        [table, *twin.parameters()], lr=0.05, initial_accumulator_value=1e-3, eps=1e-10
    )
    for parameter in twin.parameters():
        optimiser.state[parameter]["sum"] += (0.05 / twin.first_step) ** 2
    engine.run(codes, None, y, weight)
    rows = torch.from_numpy(LAYOUT.rows(codes).astype(np.int64))
    for low in range(0, 50, 16):
        part = slice(low, low + 16)
        w = torch.from_numpy(weight[part, 0].astype(np.float32))
        found = twin(twin.expand(table, torch.arange(len(table)))[rows[part]])
        z = (found if found.dim() == 1 else found[:, -1]) - 0.3
        target = torch.from_numpy(y[part, 0].astype(np.float32))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, target, reduction="none")
        if name == "RaFM":
            loss = loss + sum((found[:, k] - found[:, k + 1].detach()) ** 2 for k in range(2))
        optimiser.zero_grad()
        ((w * loss).sum() / w.sum()).backward()
        optimiser.step()
    assert engine.n_steps == 4
    np.testing.assert_allclose(engine._rows, table.detach(), rtol=1e-4, atol=1e-6)
    for mine, its in zip(engine.module.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), its.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["DeepFM", "IPNN", "OPNN"])
def test_the_first_step_leaves_layers_near_where_they_were_drawn(name):
    codes, y, _ = data()
    settings = StepSettings(learning_rate=0.1, weight_decay=1e-6, batch_size=50)
    engine = BaselineEngine(LAYOUT, settings, make=METHODS[name])
    engine.initialise(0, 0.02)
    engine.state.fill_(1e-6)
    rows = engine._rows.clone()
    layers = [part for part in engine.module.modules() if isinstance(part, torch.nn.Linear)]
    before = [layer.weight.detach().clone() for layer in layers]
    engine.run(codes, None, y, None)
    assert float((engine._rows - rows).abs().max()) > 0.09
    for layer, old in zip(layers, before, strict=True):
        assert 0 < float((layer.weight.detach() - old).norm()) < 0.1 * float(old.norm())


def test_rows_that_are_absent_do_not_move_and_unseen_ones_are_means():
    codes, y, random = data()
    codes[:, 1] %= 3
    settings = StepSettings(weight_decay=0.5, batch_size=50)
    engine = BaselineEngine(LAYOUT, settings, make=METHODS["FM"])
    engine.initialise(0, 0.1)
    before = engine._rows.clone()
    engine.run(codes, None, y, None)
    assert torch.equal(engine._rows[5 + 3 : 5 + 7], before[5 + 3 : 5 + 7])
    assert not torch.equal(engine._rows[:5], before[:5])
    counts = random.integers(1, 9, LAYOUT.n_rows)
    engine.set_means(counts)
    share = counts[:5] / counts[:5].sum()
    np.testing.assert_allclose(
        engine._rows[LAYOUT.n_rows], share @ host(engine._rows[:5]), rtol=1e-5
    )
    codes[:, 0] = -1
    assert np.isfinite(engine.scores(codes, None)).all()


def test_values_and_lists_weigh_rows():
    layout = Layout.of((5, 4), rank=0, slots=(2, 1))
    engine = BaselineEngine(layout, StepSettings(), make=LR)
    engine.initialise(0, 0.5)
    codes, values = np.array([[1, 3, 2]], np.int32), np.array([[0.5, 0.5, 2.0]])
    w = engine._rows[:, 0].numpy()
    wanted = 0.5 * w[1] + 0.5 * w[3] + 2 * w[5 + 2]
    assert engine.scores(codes, values)[0, 0] == pytest.approx(wanted, rel=1e-5)


def problem(score, n=6000, sizes=(6, 6, 6)):
    """Labels drawn from a score of the codes; a fifth is held out."""
    random = np.random.default_rng(0)
    codes = np.stack([random.integers(0, d, n) for d in sizes], axis=1).astype(np.int32)
    z = score(codes, random)
    y = (random.random(n) < 1 / (1 + np.exp(-z))).astype(float)[:, None]
    held_out = random.random(n) < 0.2
    best = np.mean((np.logaddexp(0, z) - y[:, 0] * z)[held_out])
    layout = Layout.of(sizes, rank=0)
    about = {"counts": np.ones(layout.n_rows, np.int64), "only": ~held_out, "held_out": held_out}
    return Problem(layout=layout, rows=Rows(codes=codes, target=y), **about), best


def additive(codes, random):
    worth = random.normal(0, 1.5, (3, 6))
    return sum(worth[j][codes[:, j]] for j in range(3))


def in_pairs(codes, random):
    v = random.normal(0, 1, (3, 6, 2))
    taken = [v[j][codes[:, j]] for j in range(3)]
    return sum((taken[i] * taken[j]).sum(axis=1) for i, j in combinations(range(3), 2))


def in_field_pairs(codes, random):
    """Another vector for every other field, of opposite signs: no one vector does."""
    v = random.normal(0, 1.2, (3, 3, 6, 2))
    return sum(
        (v[i, j][codes[:, i]] * v[j, i][codes[:, j]]).sum(axis=1)
        for i, j in combinations(range(3), 2)
    )


def fit(task, method, **settings):
    about, best = problem(task)
    chosen = {"learning_rate": 0.1, "weight_decay": 1e-5, "epochs": 20, "patience": 4, **settings}
    make = METHODS[method]
    if method == "RaFM":  # of another table, and of two levels
        make = partial(RaFM, counts=np.arange(18) % 2 + 2, ranks=(2, 3))
    engine = partial(BaselineEngine, make=make)
    found = train(about, TrainSettings(**chosen), Running(engine=engine))
    return found.metrics["logloss"] - best


@pytest.mark.parametrize(
    ("task", "method"),
    [
        (additive, "LR"),
        (in_pairs, "FM"),
        (in_pairs, "LLFM"),
        (in_pairs, "RaFM"),
        (in_field_pairs, "FFM"),
        (in_pairs, "DeepFM"),
        (in_pairs, "IPNN"),
        (in_pairs, "OPNN"),
    ],
)
def test_each_learns_what_it_is_made_for(task, method):
    deep = {"batch_size": 256, "epochs": 12}
    chosen = deep if method in ("DeepFM", "IPNN", "OPNN") else {}
    assert fit(task, method, init_scale=0.1, **chosen) < 0.03


def test_what_a_method_is_not_made_for_it_does_not_learn():
    assert fit(in_pairs, "LR") > 0.05


@pytest.mark.parametrize("method", METHODS)
def test_each_overfits_a_tiny_table(method):
    codes, y, _ = data(12, seed=3)
    codes[:, 1] = np.arange(12) % 7
    y[:, 0] = codes[:, 1] % 2
    rate = 0.01 if method in ("DeepFM", "IPNN", "OPNN") else 0.3
    engine = BaselineEngine(LAYOUT, StepSettings(rate, 0.0, batch_size=12), make=METHODS[method])
    engine.initialise(0, 0.1)
    engine.state.fill_(1e-6)
    for _ in range(150):
        engine.run(codes, None, y, None)
    z = engine.scores(codes, None)
    assert np.mean(np.logaddexp(0, z) - y * z) < 0.05


class Stop(Exception):
    pass


def test_a_run_that_is_resumed_gives_the_same_bits(tmp_path):
    about, _ = problem(in_pairs, n=1500)
    settings = TrainSettings(learning_rate=0.01, epochs=3, patience=3)
    make = partial(DeepFM, rank=3, dropout=0.5)
    engine = partial(BaselineEngine, make=make)
    whole = train(about, settings, Running(engine=engine))

    def stop(record):
        raise Stop

    options = {"engine": engine, "checkpoint": tmp_path / "c"}
    with pytest.raises(Stop):
        train(about, settings, Running(**options, checkpoint_minutes=0, callbacks=[stop]))
    again = train(about, settings, Running(**options, resume=True))
    assert np.array_equal(again.table, whole.table)
    other = partial(BaselineEngine, make=METHODS["FM"])
    with pytest.raises(SettingError, match="a checkpoint of another run: engine was 'DeepFM"):
        train(about, settings, Running(engine=other, checkpoint=tmp_path / "c", resume=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_takes_the_same_steps(name):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    codes, y, random = data()
    weight, found = random.random((50, 1)), []
    for device in ("cpu", "cuda"):
        settings = StepSettings(learning_rate=0.05, weight_decay=1e-3, batch_size=16)
        engine = BaselineEngine(LAYOUT, settings, make=METHODS[name], device=device)
        engine.initialise(1, 0.1)
        engine.state.fill_(1e-3)
        before = host(engine.table).copy()
        engine.run(codes, None, y, weight)
        moved, totals = host(engine.table) - before, host(engine.totals)
        engine.set_means(SEEN)
        found.append((moved, host(engine._rows), engine.scores(codes, None), totals))
    for cpu, gpu in zip(*found, strict=True):
        assert np.linalg.norm(gpu - cpu) <= 1e-4 * np.linalg.norm(cpu)


@pytest.mark.gpu
def test_a_gpu_drops_and_resumes_alike():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    codes, y, _ = data()
    make = partial(DeepFM, rank=3, dropout=0.5)
    tables = []
    for _ in range(2):
        engine = BaselineEngine(LAYOUT, StepSettings(batch_size=16), make=make, device="cuda")
        engine.initialise(1, 0.1)
        engine.state.fill_(1e-3)
        engine.run(codes, None, y, None)
        tables.append(host(engine.table))
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["FFM", "RaFM", "DeepFM"])
def test_an_engine_goes_through_a_pickle(name):
    codes, y, _ = data()
    engine = BaselineEngine(LAYOUT, StepSettings(batch_size=16), make=METHODS[name])
    engine.initialise(0, 0.1)
    engine.run(codes, None, y, None)
    engine.set_means(np.ones(LAYOUT.n_rows))
    codes[0] = -1
    again = pickle.loads(pickle.dumps(engine))
    assert np.array_equal(again.scores(codes, None), engine.scores(codes, None))


def test_more_classes_are_refused():
    with pytest.raises(SettingError, match="learn two classes"):
        BaselineEngine(LAYOUT, StepSettings(), Objective((Head("softmax", 3),)), make=LR)
