"""Fields and the models of categories: against W written out, and on planted tables."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from fieldwise import (
    DataError,
    FieldwiseClassifier,
    FieldwiseModel,
    FieldwiseRegressor,
    ModelError,
    SchemaError,
    SettingError,
    maths,
)
from fieldwise.explain.categories import CategoryModels, confidence
from fieldwise.explain.fields import field_importance
from fieldwise.explain.rows import Marginals, RowExplainer
from fieldwise.layout import Layout


def models(n_outputs=1, output=0, seed=0):
    random = np.random.default_rng(seed)
    layout = Layout.of((4, 5, 3, 2), rank=3, n_outputs=n_outputs)
    counts = random.integers(1, 50, layout.n_rows)
    table = random.normal(size=(layout.n_rows, layout.width)).astype(np.float32)
    rows = np.concatenate([table, maths.mean_rows(table, layout, counts)]).astype(np.float32)
    marginals = Marginals.of_counts(layout, counts)
    explainer = RowExplainer(rows, layout, marginals, np.zeros(n_outputs))
    return table.astype(float), CategoryModels(explainer, counts, output), explainer


def written_out(table, layout, o, i):
    """W (d_i, d) and b (d_i,), a loop at a time; 0 on the field's own rows."""
    W, b = np.zeros((layout.sizes[i], layout.n_rows)), np.zeros(layout.sizes[i])
    for k in range(layout.sizes[i]):
        mine = table[layout.offsets[i] + k]
        b[k] = mine[layout.n_columns + o]
        for row in range(layout.n_rows):
            if not layout.offsets[i] <= row < layout.offsets[i + 1]:
                for t in range(layout.block(o, i).start, layout.block(o, i).stop):
                    W[k, row] += mine[t] * table[row, t]
    return W, b


@pytest.mark.parametrize(("n_outputs", "output"), [(1, 0), (3, 1)])
def test_distances_are_those_of_w_written_out(n_outputs, output):
    table, found, _ = models(n_outputs, output)
    layout = found.layout
    for i in range(layout.n_fields):
        first = layout.own(i).start
        W, b = written_out(table, layout, output, i)
        W_b = np.concatenate([W, b[:, None]], axis=1)
        away = np.linalg.norm(W_b - W_b.mean(axis=0), axis=1)
        np.testing.assert_allclose(found.distances(i), away, rtol=1e-5)
        apart = np.linalg.norm(W_b - W_b[1], axis=1)
        near, distances = found.nearest(first + 1, 2)
        wanted = [k for k in np.argsort(apart, kind="stable") if k != 1][:2]
        assert list(near - first) == wanted
        np.testing.assert_allclose(distances, apart[wanted], rtol=1e-5)
        assert found.between(first, first + 1) == pytest.approx(apart[0], rel=1e-5)


@pytest.mark.parametrize(("n_outputs", "output"), [(1, 0), (3, 1)])
def test_the_form_that_is_shown_is_the_same_model(n_outputs, output):
    """Weights have mean 0 over training, and bias and weights still give every score."""
    table, found, explainer = models(n_outputs, output)
    layout, share = found.layout, explainer.marginals.weight
    random = np.random.default_rng(3)
    rows = layout.rows(np.stack([random.integers(0, d, 20) for d in layout.sizes], axis=1))
    wanted = maths.field_scores(table, layout, rows)[:, output]
    for i in range(layout.n_fields):
        W, _ = written_out(table, layout, output, i)
        for n, row in enumerate(rows):
            weights = found.weights(int(row[i]))
            others = np.delete(row, i)
            said = found.bias[row[i]] + weights[others].sum()
            assert said == pytest.approx(wanted[n, i], rel=1e-4, abs=1e-5)
            k = row[i] - layout.offsets[i]
            for j in range(layout.n_fields):
                if j != i:
                    own = layout.own(j)
                    assert share[own] @ weights[own] == pytest.approx(0, abs=1e-5)
                    centred = W[k, own] - share[own] @ W[k, own]
                    np.testing.assert_allclose(weights[own], centred, rtol=1e-4, atol=1e-5)


def test_distances_are_what_importance_is_made_of():
    table, found, _ = models()
    for i, wanted in enumerate(maths.importance(table, found.layout)):
        away = found.distances(i)
        assert np.sqrt(np.sum(away**2)) / len(away) == pytest.approx(wanted, rel=1e-5)


def test_effects_are_the_pairs_of_the_maths():
    table, found, explainer = models(2, 1)
    layout = found.layout
    row = layout.offsets[1] + 2
    partners = np.array([0, 3, layout.offsets[2], layout.n_rows - 1])
    effects = found.effects(row, partners)
    mean = maths.field_means(table, layout, explainer.marginals.weight)
    for partner, effect in zip(partners, effects, strict=True):
        sample = layout.offsets[:-1].copy()
        sample[1], sample[found.field_of(partner)] = row, partner
        _, _, pairs = maths.effects(table, layout, mean, sample[None])
        assert effect == pytest.approx(pairs[0, 1, 1, found.field_of(partner)], rel=1e-4, abs=1e-5)


def test_the_strongest_partners_are_the_ends_of_the_weights():
    _, found, _ = models()
    found.counts[found.layout.own(1)] = [50, 50, 3, 50, 50]  # the third was hardly ever seen
    weights = np.zeros(found.layout.n_rows)
    weights[found.layout.own(1)] = [0.5, -2.0, 9.0, 0.1, 0.0]
    high, low = found.strongest(weights, 1, 3)
    assert list(high - 4) == [0, 3]
    assert list(low - 4) == [1]


def test_shares_of_variance_add_up_to_one():
    _, _, explainer = models(2, 1)
    fields = field_importance(explainer, ["a", "b", "c", "d"], 1, "second")
    assert fields.share.sum() + fields.pairs.sum() / 2 == pytest.approx(1)
    assert fields.share.sum() + fields.pair_share.sum() == pytest.approx(1)
    shown = json.loads(json.dumps(fields.to_dict()))
    totals = [row["share"] + row["pair_share"] for row in shown["fields"]]
    assert totals == sorted(totals, reverse=True)
    assert {row["name"] for row in shown["fields"]} == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("main", "error", "wanted"), [(0, 1, 0.5), (-1.96, 1, 0.975), (1, None, None)]
)
def test_confidence_is_the_chance_of_the_sign(main, error, wanted):
    assert confidence(main, error) == (None if wanted is None else pytest.approx(wanted, abs=1e-3))


def planted(n=30_000, seed=0):
    """`where` decides alone; `odd` of `who` turns what `what` says around; the rest is noise."""
    random = np.random.default_rng(seed)
    where, what = random.integers(0, 6, n), random.integers(0, 8, n)
    who, noise = random.integers(0, 10, n), random.integers(0, 20, n)
    side = np.where(what < 4, 1.0, -1.0) * np.where(who == 3, -1.5, 0.3)
    score = 1.2 * (where - 2.5) + side
    frame = pl.DataFrame(
        {
            "noise": [f"n{k}" for k in noise],
            "who": ["odd" if k == 3 else f"person{k}" for k in who],
            "what": [f"thing{k}" for k in what],
            "where": [f"place{k}" for k in where],
            "scarce": [f"s{k}" if k < 3 else "common" for k in range(n)],
        }
    )
    return frame, (random.random(n) < 1 / (1 + np.exp(-score))).astype(int)


@pytest.fixture(scope="module")
def fitted():
    X, y = planted()
    return FieldwiseClassifier(rank=4, epochs=8, learning_rate=0.1, min_count=5).fit(X, y)


def test_the_planted_field_and_category_come_out_first(fitted):
    fields = fitted.explain_fields()
    assert fields.to_dict()["fields"][0]["name"] == "where"
    assert fields.share[3] > 0.5
    pairs = fields.pairs * (1 - np.eye(5))
    assert set(divmod(int(pairs.argmax()), 5)) == {1, 2}  # who and what
    assert fitted.model_.learned.odd()[0]["category"] == "odd"
    card = fitted.explain_category("who", "odd")
    assert (card.oddity, card.size, card.note) == (1, 10, "")
    assert card.distance > 2 * card.typical
    high, low = card.partners["what"]
    assert {p.category for p in low} <= {"thing0", "thing1", "thing2", "thing3"}
    assert {p.category for p in high} <= {"thing4", "thing5", "thing6", "thing7"}
    assert all(p.effect > 0.5 for p in high)
    assert all(p.effect < -0.5 for p in low)
    assert "who" not in card.partners
    assert set(card.partners) == {"noise", "what", "where", "scarce"}


def test_a_card_knows_how_sure_it_is(fitted):
    card = fitted.explain_category("where", "place5")
    assert card.main == pytest.approx(3, abs=0.5)
    assert card.confidence > 0.999
    p = 1 / (1 + np.exp(-(fitted.model_.learned.explainer.base[0] + card.main)))
    assert card.error == pytest.approx(1 / np.sqrt(card.count * p * (1 - p)), rel=1e-6)
    assert card.nearest[0][0] == "place4"
    json.dumps(card.to_dict())


def test_where_two_categories_differ(fitted):
    found = fitted.compare_categories("who", "odd", "person1", n=6)
    assert {d.field for d in found.differences} == {"what"}
    for d in found.differences:
        sign = 1 if d.category >= "thing4" else -1
        assert sign * d.difference > 0
        assert sign * d.effect > 1
        assert d.difference == pytest.approx(d.first - d.second)
    assert found.fields[0][0] == "what"
    back = fitted.compare_categories("who", "person1", "odd", n=6)
    assert [d.category for d in back.differences] == [d.category for d in found.differences]
    assert back.distance == pytest.approx(found.distance)
    assert found.distance > 2 * found.typical
    json.dumps(found.to_dict())


def test_what_is_asked_for_wrongly_is_said(fitted):
    with pytest.raises(
        DataError, match=r"'who': 'od' was never seen in training. Did you mean 'odd'"
    ):
        fitted.explain_category("who", "od")
    with pytest.raises(SchemaError, match="Did you mean 'who'"):
        fitted.explain_category("whoo", "odd")
    with pytest.raises(SettingError, match="share one model"):
        fitted.compare_categories("scarce", "s0", "s1")
    with pytest.raises(SettingError, match="output '7' is not one of 1"):
        fitted.explain_fields("7")
    rare = fitted.explain_category("scarce", "s1")
    assert rare.note.startswith("'s1' was seen 1 times, too rarely for a model of its own")
    assert (rare.category, rare.count) == ("(rare)", 3)


def test_categories_of_every_kind_are_found():
    random = np.random.default_rng(0)
    n = 2000
    number = random.normal(size=n)
    X = pl.DataFrame(
        {
            "bin": number,
            "line": random.normal(size=n),
            "whole": random.integers(0, 5, n),
            "tags": [["x", "y"] if k % 2 else ["z"] for k in range(n)],
            "gap": [None if k % 4 == 0 else "there" for k in range(n)],
        }
    )
    model = FieldwiseClassifier(rank=2, epochs=2, kinds={"line": "linear", "whole": "category"})
    model.fit(X, (number > 0).astype(int))
    low = model.explain_category("bin", -10)
    assert low.category.startswith("<")
    assert model.explain_category("bin", "-10").category == low.category
    assert model.explain_category("bin", low.category).count == low.count
    assert model.explain_category("whole", 3).category == "3"
    assert model.explain_category("whole", "3").count == model.explain_category("whole", 3).count
    assert model.explain_category("tags", "x").share == pytest.approx(0.5, abs=0.01)
    assert model.explain_category("gap", None).category == "(missing)"
    assert model.explain_category("gap", "(missing)").count == n // 4
    line = model.explain_category("line", 0.5)
    assert (line.category, dict(line.partners), line.share) == ("(value)", {}, 1.0)
    assert model.model_.importance()["line"] == 0
    fields = model.explain_fields()
    assert fields.importance[1] == 0
    assert fields.share[1] > 0


def test_classes_and_numbers_have_cards_too(tmp_path):
    X, y = planted(3000)
    three = FieldwiseClassifier(rank=2, epochs=2).fit(X, y + (np.arange(3000) % 3 == 0))
    assert three.explain_category("who", "odd").output == "2"
    assert three.explain_category("who", "odd", output="0").output == "0"
    number = FieldwiseRegressor(rank=2, epochs=2).fit(X, y * 2.0)
    model = FieldwiseModel.load(number.model_.save(tmp_path / "m"))
    card = model.explain_category("where", "place0")
    assert card.main < 0
    assert card.error == pytest.approx(model.metrics["rmse"] / np.sqrt(card.count))
    robust = FieldwiseRegressor(rank=2, epochs=1, loss="absolute").fit(X, y * 2.0)
    assert robust.explain_category("where", "place0").confidence is None


def test_what_has_no_models_of_its_own_is_refused():
    X, y = planted(300)
    vote = FieldwiseClassifier(rank=2, epochs=1, combine="vote").fit(X, y)
    with pytest.raises(ModelError, match="the prediction of a vote is not a sum"):
        vote.explain_category("who", "odd")
    small = FieldwiseClassifier(rank=1, epochs=1, component="fm").fit(X, y)
    with pytest.raises(SettingError, match="the component 'fm' has more than those"):
        small.explain_fields()


def test_a_card_of_a_list_says_what_a_value_adds():
    """Six tags that come independently, each of which raises the score: no card may lower it."""
    random = np.random.default_rng(0)
    n = 20_000
    has = random.random((n, 6)) < 0.4
    has[:, 0] |= ~has.any(axis=1)
    lists = [[f"t{k}" for k in np.flatnonzero(row)] for row in has]
    y = (random.random(n) < 1 / (1 + np.exp(-(has.sum(axis=1) - 2.5)))).astype(int)
    X = pl.DataFrame({"tags": lists, "other": random.choice(["a", "b"], n)})
    fields = {"tags": {"pooling": "sum"}}
    model = FieldwiseClassifier(rank=2, epochs=4, learning_rate=0.1, fields=fields).fit(X, y)
    rows = pl.DataFrame({"tags": [["t1", "t2"], ["t1", "t2", "t3"]], "other": ["a", "a"]})
    added = np.diff(model.decision_function(rows))[0]
    card = model.explain_category("tags", "t3")
    assert card.main == pytest.approx(added, abs=0.1)
    assert card.main > 0.5
    assert card.share == pytest.approx(has[:, 3].mean(), abs=0.001)
    assert card.error == pytest.approx(1 / np.sqrt(card.count * 0.2), rel=0.4)


def test_names_that_look_like_ours_are_found():
    n = 3000
    X = pl.DataFrame({"a": ["(rare)", "(missing)", "plain"] * (n // 3), "b": ["x", "y"] * (n // 2)})
    model = FieldwiseClassifier(rank=1, epochs=1).fit(X, np.arange(n) % 2)
    assert model.explain_category("a", "(rare)").count == n // 3
    assert model.explain_category("a", "(missing)").count == n // 3
    with pytest.raises(DataError, match="no category was too rare"):
        model.explain_category("b", "(rare)")


def test_errors_are_of_the_rows_that_were_seen(tmp_path):
    X, y = planted(6000)
    plain = FieldwiseClassifier(rank=2, epochs=3, learning_rate=0.1)
    whole = plain.fit(X, y).explain_category("what", "thing1")
    thinned = FieldwiseClassifier(rank=2, epochs=3, learning_rate=0.1, sampling_rate=0.2).fit(X, y)
    assert thinned.explain_category("what", "thing1").error == pytest.approx(whole.error, rel=0.1)
    shares = FieldwiseClassifier(rank=2, epochs=1).fit(X, y, n_trials=np.full(len(y), 100))
    assert shares.explain_category("what", "thing1").error is None
    two = FieldwiseRegressor(rank=2, epochs=2).fit(X, np.stack([y, 2.0 * y], axis=1))
    assert two.explain_category("what", "thing1").error > 0


def test_importance_is_that_of_the_class_asked_for():
    X, y = planted(3000)
    three = FieldwiseClassifier(rank=2, epochs=2).fit(X, y + (np.arange(3000) % 3 == 0))
    each = [three.explain_fields(name).importance for name in ("0", "1", "2")]
    whole = np.array([three.model_.importance()[name] for name in X.columns])
    np.testing.assert_allclose(np.sqrt(sum(v**2 for v in each)), whole, rtol=1e-5)
    assert not np.allclose(each[0], each[1])
