"""The report: what is on the page, that no name can break out of it, how it works in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import fieldwise.report
from browser import CHROMIUM, by_id
from fieldwise import FieldwiseClassifier, FieldwiseRegressor, load_flights
from fieldwise.explain import figures
from fieldwise.explain.html import card_html, explanation_html, model_html
from fieldwise.explain.shapes import curves, top_pairs, waterfall
from fieldwise.report import markdown, plain, report_numbers
from fieldwise.report.page import page

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

ATTACK = "</script><img src=x onerror='window.__xss=1'>"
NASTY = [
    ATTACK,
    '"><svg onload="window.__xss=2">',
    "it's `a` | b\nnew line",
    "-dash $HOME \\ *star*",
    "naïve 日本 🚲 \u2028",
    "x" * 300,
]


def numbers_of(estimator, X, y, **options):
    """The numbers of a model of X and y, judged by the same rows."""
    model = estimator.fit(X, y).model_
    (target,) = (t.column for t in model.schema.targets)
    return report_numbers(model, X.with_columns(pl.Series(target, y)), show=False, **options)


@pytest.fixture(scope="module")
def nasty():
    """A model whose fields and categories have the worst of names."""
    random = np.random.default_rng(0)
    n = 1200
    a, b, c = (random.integers(0, k, n) for k in (len(NASTY), 5, 40))
    X = pl.DataFrame(
        {
            f"field {ATTACK}": [NASTY[k] for k in a],
            "b's | `field`": [None if k == 4 else f"b{k}" for k in b],
            "plain": [f"c{k}" for k in c],
        }
    )
    y = (random.random(n) < 0.3 + 0.3 * (a % 2) + 0.2 * (b == 1)).astype(int)
    return numbers_of(FieldwiseClassifier(rank=3, epochs=4, learning_rate=0.1), X, y, cards=12)


@pytest.fixture(scope="module")
def flights():
    frame = load_flights().sample(20_000, seed=0).drop("date")
    estimator = FieldwiseClassifier(rank=6, epochs=3, learning_rate=0.1)
    return numbers_of(estimator, frame.drop("late"), frame["late"].to_numpy(), cards=150)


@pytest.fixture(scope="module")
def flights_page(flights, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "flights.html"
    path.write_text(page(flights), "utf-8")
    return path


@pytest.fixture(scope="module")
def many(flights):
    """The same with 400 thousand categories, named as hashes are."""
    random = np.random.default_rng(1)
    n = 400_000
    return {
        **flights,
        "categories": {
            "total": n,
            "field": random.integers(0, len(flights["fields"]), n),
            "name": [f"{k:08x}" for k in random.integers(0, 2**32, n - 1)] + ["the Rarest one"],
            "count": np.sort(random.zipf(1.3, n).clip(1, 10**7))[::-1],
            "bias": random.normal(size=n),
            "main": random.normal(size=n),
            "distance": random.gamma(2, size=n),
        },
    }


class Elements(HTMLParser):
    """Every element of a page, as a parser sees it, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    def island(self, name):
        scripts = [attrs for tag, attrs in self.found if tag == "script"]
        return self.scripts[[attrs.get("id") for attrs in scripts].index(name)]


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_names_cannot_become_markup(nasty):
    found = Elements(page(nasty))
    assert not [tag for tag, _ in found.found if tag in ("img", "svg", "iframe", "object")]
    assert not [attrs for _, attrs in found.found if any(k.startswith("on") for k in attrs)]
    assert ATTACK in json.loads(found.island("page-data"))["fields"][0]
    assert set(NASTY) <= set(unpacked(found.island("names")))


def test_nothing_is_loaded_from_elsewhere(flights_page):
    text = flights_page.read_text("utf-8")
    found = Elements(text)
    for tag, attrs in found.found:
        assert not {"src", "href", "srcset", "action", "data"} & set(attrs), tag
    policy = next(a["content"] for _, a in found.found if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'sha256-" in policy
    assert "@import" not in text
    assert not re.search(r"url\(\s*['\"]?https?:", text)


def test_pages_of_flights_are_small(flights_page):
    assert flights_page.stat().st_size < 4_000_000


def test_400_thousand_categories_fit_into_ten_megabytes(many):
    text = page(many)
    assert len(text.encode()) < 10_000_000
    assert "all 400,000 categories" in text
    found = Elements(text)
    assert len(unpacked(found.island("names"))) == 400_000
    assert len(unpacked(found.island("cards"))) == len(many["cards"])


def test_what_does_not_fit_is_left_out_and_said(many):
    text = page(many, limit=3_000_000)
    assert 2_500_000 < len(text.encode()) <= 3_000_000
    (n,) = re.findall(r"knows the ([\d,]+) most frequent of 400,000 categories", text)
    names = unpacked(Elements(text).island("names"))
    assert len(names) == int(n.replace(",", "")) > 50_000
    assert names == many["categories"]["name"][: len(names)]


def test_columns_come_back(many):
    """As the page reads them: planes of bytes, differences of counts, steps."""
    found = Elements(page(many))
    about, wanted = json.loads(found.island("page-data")), many["categories"]
    raw = gzip.decompress(base64.b64decode(found.island("columns")))
    planes = np.frombuffer(raw, np.uint8).reshape(5, 4, -1).astype(np.int64)
    columns = sum(planes[:, k] << (8 * k) for k in range(4))
    np.testing.assert_array_equal(columns[0], wanted["field"])
    np.testing.assert_array_equal(np.cumsum(columns[1][::-1])[::-1], wanted["count"])
    for k, key in enumerate(("bias", "main", "distance")):
        low, step = about["scales"][k]
        assert np.abs(low + step * columns[2 + k] - wanted[key]).max() <= step / 2 + 1e-12


@pytest.mark.parametrize("missing", ["rows", "calibration", "slices", "bound", "history", "odd"])
def test_a_report_without_some_of_it(nasty, missing):
    less = {**nasty, missing: None if missing not in ("history", "odd") else []}
    assert f'data-chart="{missing}"' not in page(less)
    assert markdown(less)


def test_numbers_that_are_not_there(nasty):
    holes = {**nasty["categories"], "bias": np.full_like(nasty["categories"]["bias"], np.nan)}
    cards = [{**card, "error": None, "confidence": None} for card in nasty["cards"]]
    text = page({**nasty, "categories": holes, "cards": cards})
    json.loads(Elements(text).island("page-data"), parse_constant=pytest.fail)


def test_a_model_of_numbers():
    X = pl.DataFrame({"a": ["u", "v", "w", "u"] * 60, "b": ["1", "2", "3"] * 80})
    y = np.where(X["a"] == "u", 5.0, 1.0) + np.random.default_rng(0).normal(size=240)
    found = numbers_of(FieldwiseRegressor(rank=2, epochs=3, learning_rate=0.1), X, y)
    assert found["summary"]["task"] == "number"
    assert "predicted" in page(found)
    assert "logloss" not in markdown(found)


def test_a_model_of_three_classes_names_the_one_it_explains():
    random = np.random.default_rng(0)
    X = pl.DataFrame(
        {"a": random.choice(["u", "v", "w"], 300), "b": random.choice(["1", "2"], 300)}
    )
    y = np.where(random.random(300) < 0.7, X["a"].to_numpy(), "v")
    found = numbers_of(FieldwiseClassifier(rank=2, epochs=3, learning_rate=0.1), X, y, output="w")
    text = page(found)
    assert "is that of y = w" in text
    about = json.loads(Elements(text).island("page-data"))
    assert about["command"] == "fieldwise category --output w"


def test_every_public_name_is_there():
    for name in fieldwise.report.__all__:
        assert callable(getattr(fieldwise.report, name))


def test_markdown_holds_any_name(nasty):
    text = markdown(nasty)
    for heading in ("Training", "Fields", "Pairs of fields", "Rows", "Calibration"):
        assert f"## {heading}" in text
    widths = set()
    for line in text.splitlines():
        if line.startswith("|"):
            widths.add(len(re.findall(r"(?<!\\)\|", line)))
        elif widths:
            assert len(widths) == 1, line
            widths = set()
    assert "<img" not in text
    assert r"\`a\` \| b new line" in text


def test_plain_is_json(nasty):
    found = plain({**nasty, "hole": float("nan"), "array": np.array([1.0, np.inf])})
    text = json.dumps(found, allow_nan=False)
    assert json.loads(text)["array"] == [1.0, None]
    assert json.loads(text)["categories"]["name"] == nasty["categories"]["name"]


def test_a_waterfall_ends_at_the_score(flights):
    found = flights["rows"]
    for row in found["rows"]:
        for most in (3, 14, 100):
            steps = waterfall(row, found["base"], found["names"], most)
            assert len(steps) == min(most, len(found["names"])) + 2
            assert steps[1]["start"] == steps[0]["end"] == found["base"]
            assert math.isclose(steps[-2]["end"], row["score"], abs_tol=1e-9)
            assert all(a["end"] == b["start"] for a, b in pairwise(steps[:-1]))


def test_runs_of_training_are_told_apart():
    record = {"train_loss": 0.5, "learning_rate": 0.1}
    twice = [{**record, "epoch": 1}, {**record, "epoch": 2, "loss": 0.4}, {**record, "epoch": 1}]
    found = [(p["run"], p["epoch"], p["rows"]) for p in curves(twice)]
    assert found == [(1, 1, "training"), (1, 2, "training"), (1, 2, "held out"), (2, 1, "training")]


@pytest.mark.parametrize(("n", "shown"), [(1, [1]), (2, [1, 2]), (30, list(range(1, 31, 3)))])
def test_the_curve_of_training_marks_whole_epochs(n, shown):
    charts = pytest.importorskip("fieldwise.report.charts")
    spec = charts.history([{"train_loss": 0.5, "epoch": k} for k in range(1, n + 1)])
    assert spec["encoding"]["x"]["axis"]["values"] == shown


def test_top_pairs_are_the_largest(flights):
    found = top_pairs(flights["fields"], flights["pairs"], 5)
    away = np.array(flights["pairs"])
    np.fill_diagonal(away, -1)
    assert found[0][2] == pytest.approx(away.max())
    assert [f[2] for f in found] == sorted((f[2] for f in found), reverse=True)


def test_a_missing_extra_is_said():
    code = "import sys; sys.modules['altair'] = None\nimport fieldwise.report.page"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "fieldwise[report]"' in done.stderr


def test_notebooks_show_escaped_tables(nasty):
    texts = [card_html(card) for card in nasty["cards"]]
    rows = nasty["rows"]
    texts.append(explanation_html(rows["base"], rows["names"], rows["rows"]))
    texts.append(model_html(nasty["summary"], nasty["fields"]))
    assert any("onerror" in text for text in texts)
    for text in texts:
        tags = {tag for tag, _ in Elements(text).found}
        assert not tags & {"img", "svg", "script", "iframe"}


@pytest.mark.filterwarnings("ignore:Glyph")  # the font has no bicycle
def test_pictures_are_drawn_and_nothing_stays_open(flights, nasty, tmp_path):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    for numbers in (flights, nasty):
        rows = numbers["rows"]
        drawn = [
            figures.plot_importance(numbers["fields"]),
            figures.plot_pairs(numbers["fields"], numbers["pairs"]),
            figures.plot_history(numbers["history"]),
            figures.plot_calibration(numbers["calibration"]),
            figures.plot_waterfall(rows["rows"][0], rows["base"], rows["names"]),
        ]
        for k, ax in enumerate(drawn):
            ax.figure.savefig(tmp_path / f"{k}.png")
    assert pyplot.get_fignums() == []
    ax = Figure().add_subplot()
    assert figures.plot_card(flights["cards"][0], ax) is ax
    assert len(ax.patches) == 15


# In a browser -------------------------------------------------------------------------------------


PANELS = (
    "[...document.querySelectorAll('.panel')].filter("
    "p => p.checkVisibility({visibilityProperty: true})).map(p => p.id)"
)


def click_tab(tab, name):
    tab.click(by_id(f"tab-{name}"))
    tab.wait(f"!{by_id(name)}.classList.contains('off')")


def search(tab, text):
    tab.evaluate(f"{by_id('query')}.focus(), {by_id('query')}.select()")
    tab.type(text)
    tab.wait(f"document.documentElement.dataset.searched === {json.dumps(text.strip().lower())}")


def in_order(tab):
    """No complaint on the console, nothing asked for."""
    assert tab.complaints() == []
    assert tab.requests() == []


@in_browser
def test_tabs_by_mouse_and_by_keys(browser, flights_page):
    tab = browser.open(flights_page)
    assert tab.evaluate(PANELS) == ["overview"]
    click_tab(tab, "fields")
    assert tab.evaluate(PANELS) == ["fields"]
    tab.press("ArrowRight")
    assert tab.evaluate(PANELS) == ["categories"]
    assert tab.evaluate("document.activeElement.id") == "tab-categories"
    for key, name in (("End", "quality"), ("ArrowRight", "overview"), ("ArrowLeft", "quality"),
                      ("Home", "overview")):  # fmt: skip
        tab.press(key)
        assert tab.evaluate(PANELS) == [name]
    assert tab.evaluate("document.querySelectorAll('[role=tab][tabindex=\"0\"]').length") == 1
    in_order(tab)


@in_browser
def test_a_category_is_found_and_its_card_opened(browser, flights, flights_page):
    tab = browser.open(flights_page)
    click_tab(tab, "categories")
    tab.wait("document.querySelectorAll('#hits li').length === 50")
    card = next(c for c in flights["cards"] if c["field"] == "origin")
    search(tab, card["category"])
    name = "document.querySelector('#hits li .name').firstChild.textContent"
    assert tab.evaluate(name).lower() == card["category"].lower()
    origin = [f["name"] for f in flights["fields"]].index("origin")
    tab.evaluate(f"{by_id('within')}.value = '{origin}'")
    tab.evaluate(f"{by_id('within')}.dispatchEvent(new Event('change'))")
    tab.wait("document.querySelectorAll('#hits li').length === 1")
    tab.click("document.querySelector('#hits li')")
    text = tab.wait(f"{by_id('card')}.innerText")
    assert card["category"] in text
    assert f"{card['count']:,}" in text
    assert text.count("weight") >= 5
    near = card["nearest"][0][0]
    tab.click("document.querySelector('.near .link')")
    assert tab.evaluate("document.querySelector('#card h3').textContent") == near
    in_order(tab)


@in_browser
def test_search_by_keys_alone(browser, flights_page):
    tab = browser.open(flights_page)
    click_tab(tab, "categories")
    search(tab, "N")
    third = "document.querySelectorAll('#hits li .name')[2].firstChild.textContent"
    for _ in range(3):
        tab.press("ArrowDown")
    tab.press("ArrowDown"), tab.press("ArrowUp")
    assert tab.evaluate(f"{by_id('query')}.getAttribute('aria-activedescendant')") == "hit-2"
    name = tab.evaluate(third)
    tab.press("Enter")
    assert tab.evaluate("document.querySelector('#card h3').textContent") == name
    assert tab.evaluate("document.activeElement.id") == "card"
    in_order(tab)


@in_browser
def test_a_pointer_on_a_chart_shows_its_numbers(browser, flights, flights_page):
    tab = browser.open(flights_page)
    click_tab(tab, "fields")
    tab.hover("document.querySelector('[data-chart=importance] .mark-rect path')")
    tip = "document.querySelector('#vg-tooltip-element.visible')?.innerText"
    top = max(flights["fields"], key=lambda f: f["importance"])
    assert top["name"] in tab.wait(tip)
    assert f"{top['categories']:,}" in tab.evaluate(tip)
    in_order(tab)


@in_browser
def test_rows_are_chosen(browser, flights, flights_page):
    tab = browser.open(flights_page)
    click_tab(tab, "rows")
    words = "document.querySelector('[data-chart=waterfall]').textContent"
    labels = [
        waterfall(row, flights["rows"]["base"], flights["rows"]["names"])
        for row in flights["rows"]["rows"][:2]
    ]
    assert labels[0][1]["label"] in tab.evaluate(words)
    tab.click(by_id("next"))
    tab.wait(f"{words}.includes({json.dumps(labels[1][1]['label'])})")
    assert tab.evaluate(f"{by_id('row')}.value") == "1"
    in_order(tab)


@in_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_one_way(browser, flights_page, nasty, tmp_path, dark):
    worst = tmp_path / "nasty.html"
    worst.write_text(page(nasty), "utf-8")
    for path in (flights_page, worst):
        tab = browser.open(path, width=360, height=740, dark=dark)
        for name in ("overview", "fields", "categories", "rows", "quality"):
            click_tab(tab, name)
            if name == "categories":
                tab.wait("document.querySelectorAll('#hits li').length")
                tab.click("document.querySelector('#hits li')")
            assert tab.evaluate("document.documentElement.scrollWidth") == 360, name
        in_order(tab)


@in_browser
def test_dark_is_dark(browser, flights_page):
    def light(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    ground = "getComputedStyle(document.body).backgroundColor"
    words = "getComputedStyle(document.querySelector('.chart .role-axis-label text')).fill"
    for dark in (False, True):
        tab = browser.open(flights_page, dark=dark)
        assert (light(tab.evaluate(ground)) < 60) == dark
        assert (light(tab.evaluate(words)) > light(tab.evaluate(ground))) == dark


@in_browser
def test_no_name_runs(browser, nasty, tmp_path):
    path = tmp_path / "nasty.html"
    path.write_text(page(nasty), "utf-8")
    tab = browser.open(path)
    click_tab(tab, "categories")
    for name in NASTY:
        search(tab, name.split("\n")[0])
        tab.press("Enter")
        assert tab.evaluate("document.querySelector('#card h3').textContent") == name
    for chart, panel in (("shares", "fields"), ("pairs", "fields"), ("waterfall", "rows")):
        click_tab(tab, panel)
        tab.hover(f"document.querySelector('[data-chart={chart}] path[aria-label*=onerror]')")
        tip = tab.wait("document.querySelector('#vg-tooltip-element.visible')?.innerText")
        assert ATTACK in tip
    assert tab.evaluate("window.__xss") is None
    assert tab.evaluate("document.querySelectorAll('img, body > svg').length") == 0
    in_order(tab)


@in_browser
def test_what_has_no_card_has_a_command(browser, nasty, tmp_path):
    path = tmp_path / "few.html"
    path.write_text(page({**nasty, "cards": [], "model": "my model"}), "utf-8")
    tab = browser.open(path)
    click_tab(tab, "categories")
    for name in NASTY:
        search(tab, name.split("\n")[0])
        tab.press("Enter")
        command = tab.evaluate("document.querySelector('#card code').textContent")
        words = [word for word in shlex.split(command) if word != "--"]
        assert words == ["fieldwise", "category", "my model", nasty["fields"][0]["name"], name]
        assert (" -- " in command) == name.startswith("-")
    if shutil.which("bash"):
        done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True)
        assert done.stdout.decode().split("\0")[-2] == NASTY[-1]


@in_browser
def test_400_thousand_categories_are_searched_at_once(browser, many, tmp_path):
    path = tmp_path / "many.html"
    path.write_text(page(many), "utf-8")
    tab = browser.open(path)
    click_tab(tab, "categories")
    tab.wait("document.querySelectorAll('#hits li').length === 50")
    search(tab, "rarest")
    assert tab.evaluate("document.querySelectorAll('#hits li').length") == 1
    for text in ("a", "rarest one", many["categories"]["name"][77]):
        search(tab, text)
        assert float(tab.evaluate("document.documentElement.dataset.searchMs")) < 1000
    tab.press("Enter")
    wanted = f"{many['categories']['bias'][77]:+.2f}".replace("-", "−")
    assert f"{many['categories']['count'][77]:,}" in tab.evaluate(f"{by_id('card')}.innerText")
    assert wanted[:-1] in tab.evaluate(f"{by_id('card')}.innerText")
    in_order(tab)


@in_browser
def test_printed_is_all_of_it(browser, flights_page):
    tab = browser.open(flights_page)
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert len(tab.evaluate(PANELS)) == 5
    assert not tab.evaluate("document.querySelector('nav').checkVisibility()")
    empty = "[...document.querySelectorAll('.chart')].filter(c => !c.querySelector('svg')).length"
    assert tab.evaluate(empty) == 0


def test_assets_are_in_the_package():
    folder = Path(fieldwise.report.__file__).parent
    assert all((folder / name).is_file() for name in ("page.html", "page.css", "page.js"))
