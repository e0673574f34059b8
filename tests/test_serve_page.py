"""The page of `fieldwise serve`, in a browser: the form, the prediction, two rows, the ranking."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import polars as pl
import pytest

import fieldwise
from browser import CHROMIUM, by_id
from fieldwise import FieldwiseClassifier, FieldwiseRegressor, load_flights

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

FOLDER = Path(fieldwise.__file__).parent / "serve"
SCRIPTS = sorted(FOLDER.glob("*.js"))
ATTACK = "</script><img src=x onerror='window.__xss=1'>"
NASTY = [
    ATTACK,
    '"><svg onload="window.__xss=2">',
    "it's `a` | b\nnew line $HOME \\",
    "مرحبا بالعالم",
    "naïve 日本 🚲",
    "x" * 300,
]


# Models -------------------------------------------------------------------------------------------


def fitted(X, y, estimator=FieldwiseClassifier):
    return estimator(rank=3, epochs=3, learning_rate=0.1).fit(X, y).model_


@pytest.fixture(scope="module")
def flights():
    frame = load_flights().sample(20_000, seed=0)
    names = ("late", "date", "carrier", "origin", "dest", "hour", "sched_dep_time", "tailnum",
             "weekday", "month", "plane_year", "manufacturer")  # fmt: skip
    frame = frame.select(names).with_columns(
        pl.col("sched_dep_time").cast(pl.Float64) + 0.5,
        pl.col("date").str.to_date(),
    )
    return fitted(frame.drop("late"), frame["late"].to_numpy())


@pytest.fixture(scope="module")
def nasty():
    """The worst of names, a list, missing values."""
    random = np.random.default_rng(0)
    n = 1200
    a, b = random.integers(0, len(NASTY), n), random.integers(0, 5, n)
    X = pl.DataFrame(
        {
            f"field {ATTACK}": [NASTY[k] for k in a],
            "b's | `field`": [None if k == 4 else f"b{k}" for k in b],
            "tags": [[NASTY[k], f"t{j}"] for k, j in zip(a, b, strict=True)],
            "x" * 80: [f"c{k}" for k in random.integers(0, 40, n)],
        }
    )
    return fitted(X, (random.random(n) < 0.3 + 0.3 * (a % 2) + 0.2 * (b == 1)).astype(int))


@pytest.fixture(scope="module")
def wide():
    """Sixty fields."""
    random = np.random.default_rng(1)
    X = pl.DataFrame({f"f{k:02}": random.integers(0, 9, 800).astype(str) for k in range(60)})
    return fitted(X, (X["f07"] > "4").to_numpy().astype(int))


@pytest.fixture(scope="module")
def many():
    """400 thousand categories."""
    random = np.random.default_rng(2)
    n = 400_000
    names = [f"{k * 2654435761 % 2**32:08x}" for k in range(n - 1)] + ["the Rarest one"]
    X = pl.DataFrame({"ad": names, "site": random.integers(0, 9, n).astype(str)})
    estimator = FieldwiseClassifier(rank=2, epochs=1, min_count=1)
    return estimator.fit(X, random.integers(0, 2, n)).model_


@pytest.fixture(scope="module")
def classes():
    X = pl.DataFrame({"a": ["u", "v", "w", "u"] * 90, "b": ["p", "q", "r"] * 120})
    return fitted(X, np.array([f"class {k}" for k in X["a"].rank("dense").to_list()]))


@pytest.fixture(scope="module")
def numbers():
    X = pl.DataFrame({"a": ["u", "v", "w", "u"] * 60, "b": ["p", "q", "r"] * 80})
    y = np.where(X["a"] == "u", 50.0, -10.0) + np.random.default_rng(0).normal(size=240)
    return fitted(X, y, FieldwiseRegressor)


# The server: the one thing that changes with it ---------------------------------------------------


@contextmanager
def serving(model, token=None):
    """The address of a server of this model."""
    import uvicorn

    from fieldwise.serve.app import create_app

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(model.save(Path(folder, "model")), token=token)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def served():
    """A model and a token, where there is one -> the address of a server of it."""
    known = {}
    with ExitStack() as running:

        def serve(model, token=None):
            key = (id(model), token)
            if key not in known:
                known[key] = running.enter_context(serving(model, token))
            return known[key]

        yield serve


# Without a browser --------------------------------------------------------------------------------


FORBIDDEN = ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
             "new Function", "createContextualFragment", "http://", "https://"]  # fmt: skip


def test_scripts_make_no_markup_of_text():
    assert len(SCRIPTS) >= 1
    for path in SCRIPTS:
        text = path.read_text("utf-8")
        for word in FORBIDDEN:
            assert word not in text.replace('"http://www.w3.org/2000/svg"', ""), (path.name, word)


def test_markup_has_no_script_of_its_own_and_asks_nobody_else():
    text = (FOLDER / "page.html").read_text("utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|//", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text) == [""]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text).group(1)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "url(" not in (FOLDER / "page.css").read_text("utf-8")


def test_what_scripts_look_for_is_there():
    ids = set(re.findall(r'\sid="([^"]+)"', (FOLDER / "page.html").read_text("utf-8")))
    for path in SCRIPTS:
        text = path.read_text("utf-8")
        assert set(re.findall(r'byId\("([^"]+)"\)', text)) <= ids
        assert all((FOLDER / name).is_file() for name in re.findall(r'from "\./([^"]+)"', text))


def test_its_colours_are_those_of_the_report():
    def colours(path):
        text = path.read_text("utf-8").split("@media print")[0]
        return re.findall(r"(--(?!line)\w+): (#\w+);", text)

    mine = colours(FOLDER / "page.css")
    assert len(mine) == 20
    assert mine == colours(FOLDER.parent / "report" / "page.css")


# In a browser -------------------------------------------------------------------------------------


def text_of(tab, name):
    return tab.evaluate(f"{by_id(name)}.innerText")


def field_input(model, column):
    return by_id(f"field-{model.schema.columns.index(column)}")


def row_of(tab):
    """The row that the page stands at."""
    said = "new URLSearchParams(location.hash.slice(1)).get('row')"
    return json.loads(tab.evaluate(said))


def settled(tab):
    """No answer is being waited for."""
    tab.wait(f"{by_id('answer')}.getAttribute('aria-busy') === 'false'")


def chance_text(chance):
    return "> 99.9 %" if 0.999 < chance < 1 else f"{float(f'{100 * chance:.3g}'):g} %"


def agrees(tab, model):
    """The number on the page is the model's for the row on the page."""
    settled(tab)
    row = row_of(tab)
    assert list(row) == model.schema.columns
    wanted = chance_text(float(model.predict_proba(row)[0]))
    assert tab.wait(f"{by_id('prediction')}.innerText") == wanted
    return row


def write(tab, model, column, text):
    """As a person does: into the input, over what was there."""
    tab.click(field_input(model, column))
    tab.evaluate(f"{field_input(model, column)}.select()")
    tab.type(text) if text else tab.press("Backspace")


def options_of(tab, model, column, text=""):
    """The categories that are offered for a text, once they are."""
    box = f"{field_input(model, column)}.closest('.field').querySelector('.popup')"
    tab.wait(f"!{box}.hidden && {box}.dataset.query === {json.dumps(text)}")
    return tab.evaluate(f"[...{box}.querySelectorAll('li bdi')].map(e => e.textContent)")


def choose(tab, model, column, text):
    """By typing and keys."""
    write(tab, model, column, text)
    for _ in range(options_of(tab, model, column, text).index(text) + 1):
        tab.press("ArrowDown")
    tab.press("Enter")


def in_order(tab, url, complaints=()):
    """Nothing on the console, nothing asked of anyone but the server."""
    assert [c for c in tab.complaints() if not any(word in str(c) for word in complaints)] == []
    assert [request for request in tab.requests() if not request.startswith(url)] == []


@in_browser
def test_it_starts_with_usual_values_and_their_prediction(browser, served, flights):
    tab = browser.open(served(flights))
    row = agrees(tab, flights)
    for column, value in row.items():
        text = "" if value is None else str(value)
        assert tab.evaluate(f"{field_input(flights, column)}.value") == text
    assert text_of(tab, "what") == "chance that y = 1"
    base = flights.explain(row).base
    assert text_of(tab, "typical") == f"typical: {chance_text(1 / (1 + np.exp(-base)))}"
    assert tab.evaluate("document.title") == "y: fieldwise"
    in_order(tab, served(flights))


@in_browser
def test_a_category_by_keys(browser, served, flights):
    tab = browser.open(served(flights))
    origin = field_input(flights, "origin")
    assert tab.evaluate(f"{origin}.getAttribute('role')") == "combobox"
    write(tab, flights, "origin", "l")
    assert options_of(tab, flights, "origin", "l") == ["LGA"]
    assert tab.evaluate(f"{origin}.getAttribute('aria-expanded')") == "true"
    assert tab.evaluate(f"{origin}.getAttribute('aria-activedescendant')") is None
    tab.press("ArrowDown")
    option = f"document.getElementById({origin}.getAttribute('aria-activedescendant'))"
    assert tab.evaluate(f"{option}.getAttribute('role')") == "option"
    assert tab.evaluate(f"{option}.getAttribute('aria-selected')") == "true"
    assert tab.evaluate(f"{option}.parentElement.id === {origin}.getAttribute('aria-controls')")
    tab.press("Enter")
    assert tab.evaluate(f"{origin}.getAttribute('aria-expanded')") == "false"
    assert tab.evaluate(f"{origin}.value") == "LGA"
    assert agrees(tab, flights)["origin"] == "LGA"
    # Escape: what was typed is forgotten.
    write(tab, flights, "origin", "J")
    options_of(tab, flights, "origin", "J")
    tab.press("Escape")
    assert tab.evaluate(f"{origin}.value") == "LGA"
    tab.press("Tab")
    assert agrees(tab, flights)["origin"] == "LGA"
    in_order(tab, served(flights))


@in_browser
def test_a_category_by_mouse(browser, served, flights):
    tab = browser.open(served(flights))
    dest = field_input(flights, "dest")
    tab.click(dest)
    assert tab.evaluate("getSelection().toString()") == tab.evaluate(f"{dest}.value")
    offered = options_of(tab, flights, "dest")
    counts = dict(flights.vocabulary["dest"].entries.select("category", "count").iter_rows())
    assert offered[0] == "missing"
    most = sorted(counts.values(), reverse=True)[:20]
    assert [counts[name] for name in offered[1:]] == most
    tab.click(f"{dest}.closest('.field').querySelectorAll('.popup li')[3]")
    assert agrees(tab, flights)["dest"] == offered[3]
    assert tab.evaluate(f"document.activeElement === {dest}")


@in_browser
def test_typed_text_counts_when_it_is_left(browser, served, flights):
    tab = browser.open(served(flights))
    write(tab, flights, "carrier", "ua")
    tab.press("Enter")
    tab.wait(f"{field_input(flights, 'carrier')}.value === 'UA'")  # the category it spells
    tab.wait("location.hash.includes('UA')")
    assert agrees(tab, flights)["carrier"] == "UA"
    write(tab, flights, "carrier", "Zeppelin")
    tab.press("Tab")
    hint = f"{field_input(flights, 'carrier')}.closest('.field').querySelector('.hint').innerText"
    tab.wait(f"{hint} === 'never seen in training'")
    assert agrees(tab, flights)["carrier"] == "Zeppelin"
    choose(tab, flights, "carrier", "B6")
    assert tab.evaluate(hint) == ""
    assert agrees(tab, flights)["carrier"] == "B6"


@in_browser
def test_missing_is_a_choice(browser, served, flights):
    tab = browser.open(served(flights))
    tailnum = field_input(flights, "tailnum")
    before = text_of(tab, "prediction")
    write(tab, flights, "tailnum", "")
    tab.press("Enter")
    tab.wait("new URLSearchParams(location.hash.slice(1)).get('row').includes('\"tailnum\":null')")
    assert agrees(tab, flights)["tailnum"] is None
    assert tab.evaluate(f"{tailnum}.placeholder") == "missing"
    assert text_of(tab, "prediction") != before
    tab.click(f"{field_input(flights, 'sched_dep_time')}.parentElement.querySelector('.clear')")
    assert agrees(tab, flights)["sched_dep_time"] is None
    tab.click(field_input(flights, "dest"))
    assert options_of(tab, flights, "dest")[0] == "missing"
    tab.press("ArrowDown"), tab.press("Enter")
    assert agrees(tab, flights)["dest"] is None


@in_browser
def test_numbers_move_it_as_they_are_typed(browser, served, flights):
    tab = browser.open(served(flights))
    name = "sched_dep_time"
    kind = tab.evaluate(f"{field_input(flights, name)}.type")
    hint = tab.evaluate(
        f"{field_input(flights, name)}.closest('.field').querySelector('.hint').innerText"
    )
    assert kind == "number"
    assert re.fullmatch(r"[\d,.]+ to [\d,.]+", hint)
    seen = set()
    for value in (630, 1234.5, 2200):
        write(tab, flights, name, str(value))
        tab.wait(f"location.hash.includes('{value}')")
        assert agrees(tab, flights)[name] == value
        seen.add(text_of(tab, "prediction"))
    assert len(seen) > 1
    in_order(tab, served(flights))


@in_browser
def test_a_time_is_text(browser, served, flights):
    tab = browser.open(served(flights))
    write(tab, flights, "date", "2013-07-04")
    tab.press("Enter")
    assert agrees(tab, flights)["date"] == "2013-07-04"


STEPS = """[...document.querySelectorAll('#steps li:not(.top)')].map(li => ({
  label: li.firstElementChild.textContent,
  numbers: [...li.querySelectorAll('.n')].map(n => n.textContent),
  bar: [...li.querySelectorAll('rect')].map(r => [r.getAttribute('x'), r.getAttribute('width')]),
  ties: [...li.querySelectorAll('line')].map(l => l.getAttribute('x1')),
  kind: li.querySelector('rect')?.getAttribute('class') ?? null}))"""


def number_of(text):
    return float(text.replace("−", "-").replace(",", "").replace("+", ""))


@in_browser
def test_the_waterfall_leads_from_the_base_to_the_score(browser, served, flights):
    tab = browser.open(served(flights))
    row = agrees(tab, flights)
    whole = flights.explain(row)
    wanted = dict(zip(whole.names, whole.shapley[0], strict=True))
    steps = tab.evaluate(STEPS)
    assert steps[0]["label"] == "a typical row"
    assert number_of(steps[0]["numbers"][0]) == pytest.approx(whole.base, abs=6e-4)
    assert number_of(steps[-1]["numbers"][0]) == pytest.approx(
        float(flights.decision_function(row)[0]), abs=6e-4
    )
    assert len(steps) == 12  # the ends, nine fields, the others
    order = sorted(wanted, key=lambda name: -abs(wanted[name]))
    for name, step in zip(order, steps[1:10], strict=False):
        assert step["label"].startswith(name)
        assert number_of(step["numbers"][0]) == pytest.approx(wanted[name], abs=6e-4)
        assert step["kind"] == ("up" if wanted[name] > 0 else "down")
    assert steps[10]["label"] == f"{len(order) - 9} others"
    rest = sum(wanted[name] for name in order[9:])
    assert number_of(steps[10]["numbers"][0]) == pytest.approx(rest, abs=6e-4)
    # A step begins where the one before it ended.
    for above, below in pairwise(steps):
        ends = [float(x.rstrip("%")) for x in (above["ties"][-1], below["ties"][0])]
        assert ends[0] == pytest.approx(ends[1], abs=0.01)
    tab.click("document.querySelector('.fold')")
    unfolded = tab.evaluate(STEPS)
    assert [s["label"].split()[0] for s in unfolded[1:-2]] == order
    tab.click("document.querySelector('.fold')")
    assert len(tab.evaluate(STEPS)) == 12
    # A step leads to its field.
    tab.click("document.querySelectorAll('#steps .jump')[0]")
    column = order[0].split(".")[0]
    assert tab.evaluate(f"document.activeElement === {field_input(flights, column)}")
    in_order(tab, served(flights))


@in_browser
def test_an_answer_that_comes_late_is_dropped(browser, served, flights):
    url = served(flights)
    tab = browser.open(url)
    tab.hold("*/predict*")
    for value in ("700", "2300"):
        write(tab, flights, "sched_dep_time", value)
        tab.held(1 if value == "700" else 2)
    first, second = tab.held(2)
    tab.call("Fetch.continueRequest", requestId=second["requestId"])
    settled(tab)
    right = text_of(tab, "prediction")
    wrong = {"model": "a-model", "predictions": [{"prediction": 0.987654, "score": 9.0}]}
    with suppress(RuntimeError):  # where it was called off, there is nothing to answer
        tab.answer(first, 200, json.dumps(wrong))
    tab.evaluate("new Promise(done => setTimeout(done, 200))")
    assert text_of(tab, "prediction") == right
    tab.call("Fetch.disable")
    assert agrees(tab, flights)["sched_dep_time"] == 2300


@in_browser
def test_typing_asks_once(browser, served, flights):
    tab = browser.open(served(flights))
    before = len([r for r in tab.requests() if "predict" in r])
    tab.click(field_input(flights, "sched_dep_time"))
    tab.evaluate(f"{field_input(flights, 'sched_dep_time')}.select()")
    for letter in "1905":
        tab.type(letter)
    tab.wait("location.hash.includes('1905')")
    assert agrees(tab, flights)["sched_dep_time"] == 1905
    assert len([r for r in tab.requests() if "predict" in r]) <= before + 2


# Two rows -----------------------------------------------------------------------------------------


@in_browser
def test_two_rows_side_by_side(browser, served, flights):
    tab = browser.open(served(flights))
    pinned = agrees(tab, flights)
    tab.click(by_id("pin"))
    tab.wait("location.hash.includes('pinned=')")
    choose(tab, flights, "origin", "LGA")
    choose(tab, flights, "carrier", "DL")
    row = agrees(tab, flights)
    differing = [c for c in row if row[c] != pinned[c]]
    assert differing
    chances = [float(flights.predict_proba(r)[0]) for r in (row, pinned)]
    assert chance_text(chances[1]) in text_of(tab, "second")
    gap = 100 * (chances[0] - chances[1])
    way = "higher" if gap > 0 else "lower"
    assert f"A is {float(f'{abs(gap):.3g}'):g} points {way}" in text_of(tab, "second")
    assert set(re.findall(r"\w+", text_of(tab, "differ").split(" in ")[1])) == set(differing)
    marked = "[...document.querySelectorAll('.field.differs label span')].map(e => e.textContent)"
    assert tab.evaluate(marked) == differing
    hint = (
        f"{field_input(flights, differing[0])}.closest('.field').querySelector('.hint').innerText"
    )
    assert tab.evaluate(hint) == f"B has {pinned[differing[0]]}"
    a, b = (flights.explain(r).shapley[0] for r in (row, pinned))
    names = flights.explain(row).names
    by_name = {name: (x - y, x, y) for name, x, y in zip(names, a, b, strict=True)}
    tab.evaluate("document.querySelector('.fold')?.click()")
    steps = tab.evaluate(STEPS)
    assert steps[0]["label"] == "B"
    assert steps[-1]["label"] == "A"
    found = [s for s in steps[1:-1] if len(s["numbers"]) == 3]
    assert len(found) == len(names)
    sizes = []
    for step in found:
        wanted = by_name[step["label"].split()[0]]
        assert [number_of(n) for n in step["numbers"]] == pytest.approx(wanted, abs=6e-4)
        sizes.append(abs(wanted[0]))
    assert sizes == sorted(sizes, reverse=True)
    origin = next(s["label"] for s in found if s["label"].startswith("origin"))
    assert origin == f"origin {pinned['origin']} → LGA"
    tab.click(by_id("swap"))
    assert agrees(tab, flights) == pinned
    assert chance_text(chances[0]) in text_of(tab, "second")
    tab.click(by_id("unpin"))
    settled(tab)
    assert tab.evaluate(f"{by_id('second')}.hidden && {by_id('differ')}.hidden")
    assert "pinned" not in tab.evaluate("location.hash")
    assert tab.evaluate(STEPS)[0]["label"] == "a typical row"
    in_order(tab, served(flights))


# The ranking --------------------------------------------------------------------------------------

RANKED = """[...document.querySelectorAll('#ranking tbody tr')].map(
  row => [...row.cells].map(cell => cell.innerText))"""


def rank_over(tab, name):
    tab.evaluate(f"{by_id('over')}.value = {json.dumps(name)}")
    tab.evaluate(f"{by_id('over')}.dispatchEvent(new Event('change'))")
    tab.wait("document.querySelectorAll('#ranking tbody tr').length")


@in_browser
def test_which_category_wins(browser, served, flights):
    tab = browser.open(served(flights))
    row = agrees(tab, flights)
    rank_over(tab, "carrier")
    found = tab.evaluate(RANKED)
    names = flights.vocabulary["carrier"].entries.filter(pl.col("code") > 0)["category"]
    wanted = {name: float(flights.predict_proba({**row, "carrier": name})[0]) for name in names}
    best = sorted(wanted, key=lambda name: -wanted[name])[:20]
    assert [r[1] for r in found] == best
    assert [r[3] for r in found] == [chance_text(wanted[name]) for name in best]
    now = "document.querySelector('#ranking tr.now')?.cells[1].innerText"
    assert tab.evaluate(now) == (row["carrier"] if row["carrier"] in best else None)
    asked = len([r for r in tab.requests() if r.endswith("/rank")])
    tab.click("document.querySelectorAll('#ranking .jump')[0]")
    assert agrees(tab, flights)["carrier"] == best[0]
    tab.wait(f"{now} === {json.dumps(best[0])}")
    assert tab.evaluate(f"{field_input(flights, 'carrier')}.value") == best[0]
    # The others are the same, so nothing was to ask; another origin is another question.
    assert len([r for r in tab.requests() if r.endswith("/rank")]) == asked
    choose(tab, flights, "origin", "LGA")
    row = agrees(tab, flights)
    best = max(names, key=lambda name: float(flights.predict_proba({**row, "carrier": name})[0]))
    tab.wait(
        f"document.querySelector('#ranking tbody tr').cells[1].innerText === {json.dumps(best)}"
    )
    in_order(tab, served(flights))


@in_browser
def test_numbers_and_times_are_not_ranked(browser, served, flights):
    tab = browser.open(served(flights))
    offered = tab.evaluate(f"[...{by_id('over')}.options].map(o => o.value)")
    assert {"carrier", "hour", "tailnum"} <= set(offered)
    assert "sched_dep_time" not in offered
    assert "date" not in offered


# The address, copies ------------------------------------------------------------------------------


@in_browser
def test_an_address_brings_everything_back(browser, served, flights):
    tab = browser.open(served(flights))
    tab.click(by_id("pin"))
    choose(tab, flights, "origin", "LGA")
    rank_over(tab, "dest")
    row = agrees(tab, flights)
    again = browser.open(tab.evaluate("location.href"))
    assert agrees(again, flights) == row
    assert text_of(again, "second") == text_of(tab, "second")
    again.wait("document.querySelectorAll('#ranking tbody tr').length === 20")
    assert again.evaluate(f"{by_id('over')}.value") == "dest"
    # Another address in the same tab.
    other = "#" + urlencode({"row": json.dumps({**row, "origin": "JFK"})})
    again.evaluate(f"location.hash = {json.dumps(other)}")
    again.wait(f"{by_id('second')}.hidden")
    assert agrees(again, flights)["origin"] == "JFK"


@in_browser
@pytest.mark.parametrize(
    "said",
    [
        {"row": "[1]"},
        {"row": "{"},
        {"row": json.dumps({"nobody": 1, "origin": {"deep": []}, "dest": ["a"]})},
        {"row": '{"__proto__": {"x": 1}}', "pinned": "null", "over": "nobody"},
        {"row": json.dumps({"origin": ATTACK})},
    ],
)
def test_an_address_that_makes_no_sense(browser, served, flights, said):
    tab = browser.open(f"{served(flights)}#{urlencode(said)}")
    row = agrees(tab, flights)
    assert tab.evaluate("window.__xss") is None
    usual = agrees(browser.open(served(flights)), flights)
    assert row == {**usual, **({"origin": ATTACK} if ATTACK in said["row"] else {})}
    in_order(tab, served(flights))


def posted(url, body, **headers):
    request = urllib.request.Request(url, body.encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@in_browser
def test_copies(browser, served, nasty):
    url = served(nasty)
    tab = browser.open(f"{url}#{urlencode({'row': json.dumps({'x' * 80: NASTY[2]})})}")
    row = agrees(tab, nasty)
    tab.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {configurable: true, value: "
        "{writeText: async (text) => { window.copied = text; }}})"
    )
    tab.click("document.querySelector('[data-copy=curl]')")
    words = shlex.split(tab.wait("window.copied"))
    assert text_of(tab, "said") == "Copied."
    assert words[0] == "curl"
    found = posted(words[1], words[-1], **{"content-type": "application/json"})
    chance = found["predictions"][0]["prediction"]
    assert chance == pytest.approx(float(nasty.predict_proba(row)[0]), rel=1e-6)
    tab.click("document.querySelector('[data-copy=json]')")
    assert json.loads(tab.wait("window.copied.startsWith('{') && window.copied")) == {"rows": [row]}
    tab.click("document.querySelector('[data-copy=link]')")
    assert tab.wait("window.copied.startsWith('http') && window.copied").startswith(url + "#row=")
    tab.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab.click("document.querySelector('[data-copy=json]')")
    text = tab.wait(f"!{by_id('by-hand')}.hidden && {by_id('by-hand')}.value")
    assert json.loads(text) == {"rows": [row]}
    assert tab.evaluate("getSelection().toString()") == text


# What goes wrong ----------------------------------------------------------------------------------


@in_browser
def test_what_the_server_refuses_is_said_where_it_belongs(browser, served, flights):
    url = served(flights)
    tab = browser.open(url)
    tab.hold("*/predict*")
    write(tab, flights, "sched_dep_time", "1")
    sentence = "column 'hour' holds 'x', which is no whole number"
    tab.answer(tab.held(1)[0], 422, json.dumps({"error": sentence}))
    field = f"{field_input(flights, 'hour')}.closest('.field')"
    assert tab.wait(f"{field}.querySelector('.wrong').innerText") == sentence
    assert tab.evaluate(f"{field_input(flights, 'hour')}.getAttribute('aria-invalid')") == "true"
    assert text_of(tab, "trouble").startswith("See hour")
    settled(tab)
    # Of no column: beside the number, with a button.
    write(tab, flights, "sched_dep_time", "2")
    tab.answer(tab.held(2)[1], 503, json.dumps({"error": "The model is being loaded."}))
    tab.wait(f"{by_id('trouble')}.innerText.includes('being loaded')")
    assert tab.evaluate(f"{field}.querySelector('.wrong').innerText") == ""
    tab.call("Fetch.disable")
    tab.click(by_id("again"))
    tab.wait(f"{by_id('trouble')}.hidden")
    assert agrees(tab, flights)["sched_dep_time"] == 2
    # Of the ranking: there.
    tab.hold("*/rank")
    tab.evaluate(f"{by_id('over')}.value = 'dest'")
    tab.evaluate(f"{by_id('over')}.dispatchEvent(new Event('change'))")
    tab.answer(tab.held(3)[2], 400, json.dumps({"error": "too many to rank"}))
    tab.wait(f"{by_id('rank-words')}.innerText === 'too many to rank'")
    assert tab.evaluate(f"{by_id('trouble')}.hidden")
    in_order(tab, url, ["Failed to load resource"])


@in_browser
def test_a_number_that_is_none(browser, served, flights):
    tab = browser.open(served(flights))
    row = agrees(tab, flights)
    write(tab, flights, "sched_dep_time", "-")
    field = f"{field_input(flights, 'sched_dep_time')}.closest('.field')"
    assert tab.wait(f"{field}.querySelector('.wrong').innerText") == "This is not a number."
    assert row_of(tab) == row
    tab.type("5")
    assert tab.wait("location.hash.includes('%3A-5')")
    assert agrees(tab, flights)["sched_dep_time"] == -5
    assert tab.evaluate(f"{field}.querySelector('.wrong').innerText") == ""


@in_browser
def test_a_server_that_is_gone(browser, flights):
    with serving(flights) as url:
        tab = browser.open(url)
    write(tab, flights, "sched_dep_time", "900")
    tab.wait(f"{by_id('trouble')}.innerText.includes('does not answer')")
    assert tab.evaluate(f"{by_id('again')}.checkVisibility()")


@in_browser
def test_a_model_that_is_not_taken_apart(browser, served, flights):
    """A vote, say: its prediction is there all the same, and why there is no waterfall."""
    tab = browser.open(served(flights))
    tab.hold("*explain=true")
    write(tab, flights, "sched_dep_time", "900")
    sentence = "the prediction of a vote is not a sum of its fields' scores"
    tab.answer(tab.held(1)[0], 422, json.dumps({"error": sentence}))
    tab.wait(f"{by_id('why-words')}.innerText === {json.dumps(sentence)}")
    assert agrees(tab, flights)["sched_dep_time"] == 900
    assert tab.evaluate(STEPS) == []
    assert tab.evaluate(f"{by_id('trouble')}.hidden")


@in_browser
def test_a_new_version_of_the_model(browser, served, flights):
    url = served(flights)
    tab = browser.open(url)
    rank_over(tab, "carrier")
    with urllib.request.urlopen(f"{url}schema") as answer:
        schema = json.load(answer)
    schema["model"]["id"] = "another"
    columns = {spec["column"]: spec for spec in schema["fields"]}
    columns["sched_dep_time"] |= {"least": 1, "most": 2}
    columns["carrier"]["top"] = [{"value": "ZZ", "count": 7}]
    tab.hold("*/predict*", "*/schema", "*/rank")
    write(tab, flights, "sched_dep_time", "900")
    held = {urlsplit(asked["request"]["url"]).path: asked for asked in tab.held(2)}
    found = [{"prediction": 0.25, "score": -1.1, "class": "0"}]
    body = {"model": "another", "predictions": found}
    tab.answer(held["/rank"], 200, json.dumps({"over": "carrier", "ranking": []}))
    tab.answer(held["/predict"], 200, json.dumps(body))
    tab.answer(tab.held(3)[2], 200, json.dumps(schema))
    tab.wait(f"{by_id('said')}.innerText.includes('new version')")
    ranking = [{"category": "ZZ", "score": 1.0, "prediction": 0.5}]
    tab.answer(tab.held(4)[3], 200, json.dumps({"over": "carrier", "ranking": ranking}))
    settled(tab)
    assert text_of(tab, "prediction") == "25 %"
    tab.wait("document.querySelector('#ranking tbody tr')?.cells[1].innerText === 'ZZ'")
    assert len([r for r in tab.requests() if r.endswith("/schema")]) == 2
    assert tab.evaluate(f"document.activeElement === {field_input(flights, 'sched_dep_time')}")
    hint = f"{field_input(flights, 'sched_dep_time')}.closest('.field').querySelector('.hint')"
    assert tab.evaluate(f"{hint}.innerText") == "1 to 2"
    tab.click(field_input(flights, "carrier"))
    assert options_of(tab, flights, "carrier") == ["missing", "ZZ"]


@in_browser
def test_a_token_is_asked_for_and_kept(browser, served, flights):
    url = served(flights, "open-sesame")
    tab = browser.open(url, drawn=False)
    tab.wait(f"{by_id('gate')}?.open")
    assert tab.evaluate(f"document.activeElement === {by_id('token')}")
    tab.type("wrong"), tab.press("Enter")
    tab.wait(f"{by_id('gate')}.open && !{by_id('refused')}.hidden")
    tab.type("open-sesame"), tab.press("Enter")
    tab.wait("document.documentElement.dataset.drawn === 'yes'")
    agrees(tab, flights)
    assert tab.evaluate("Object.values(sessionStorage)") == ["open-sesame"]
    assert tab.evaluate("localStorage.length") == 0
    assert "sesame" not in tab.evaluate("location.href + document.documentElement.outerHTML")
    tab.evaluate(
        "Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: async (text) => { window.copied = text; }}})"
    )
    tab.click("document.querySelector('[data-copy=curl]')")
    command = tab.wait("window.copied")
    assert "sesame" not in command
    assert '"authorization: Bearer $FIELDWISE_TOKEN"' in command
    # The tab remembers it.
    tab.evaluate("window.before = true")
    tab.call("Page.reload")
    tab.wait("!window.before && document.documentElement?.dataset.drawn === 'yes'")
    assert not tab.evaluate(f"{by_id('gate')}.open")
    agrees(tab, flights)


@in_browser
def test_without_a_token_the_page_says_so(browser, served, flights):
    tab = browser.open(served(flights, "open-sesame"), drawn=False)
    tab.wait(f"{by_id('gate')}?.open")
    tab.press("Escape")
    tab.wait(f"{by_id('trouble')}.innerText.includes('wants a token')")
    assert not tab.evaluate(f"{by_id('pin')}.checkVisibility()")  # there is no row yet
    tab.click(by_id("again"))
    tab.wait(f"{by_id('gate')}.open")


# Names, sizes, devices ----------------------------------------------------------------------------


@in_browser
def test_no_name_runs(browser, served, nasty):
    url = served(nasty)
    tab = browser.open(url)
    column = nasty.schema.columns[0]
    rank_over(tab, column)
    tab.click(by_id("pin"))
    for name in NASTY:
        start = name.split("\n")[0][:9]
        write(tab, nasty, column, start)
        offered = options_of(tab, nasty, column, start)
        assert name in offered
        for _ in range(offered.index(name) + 1):
            tab.press("ArrowDown")
        tab.press("Enter")
        assert agrees(tab, nasty)[column] == name
        labels = "[...document.querySelectorAll('#steps .jump')].map(e => e.textContent).join()"
        assert name in tab.evaluate(labels)
    found = "[...document.querySelectorAll('#ranking .jump bdi')].map(e => e.textContent)"
    assert set(tab.evaluate(found)) == set(NASTY)
    for k in range(len(NASTY)):
        tab.click(f"document.querySelectorAll('#ranking .jump')[{k}]")
        assert agrees(tab, nasty)[column] == tab.evaluate(found)[k]
    assert tab.evaluate("window.__xss") is None
    assert tab.evaluate("document.querySelectorAll('img, iframe, body > svg').length") == 0
    in_order(tab, url)


@in_browser
def test_a_list_is_chips(browser, served, nasty):
    tab = browser.open(served(nasty))
    agrees(tab, nasty)
    tab.click(f"{field_input(nasty, 'tags')}.closest('.field').querySelector('.clear')")
    assert agrees(tab, nasty)["tags"] is None
    choose(tab, nasty, "tags", "t3")
    assert agrees(tab, nasty)["tags"] == ["t3"]
    tab.type("t1"), tab.press("Tab")
    tab.wait("document.querySelectorAll('.chip').length === 2")
    tab.evaluate("new Promise(done => setTimeout(done, 200))")
    assert agrees(tab, nasty)["tags"] == ["t3", "t1"]
    tab.click("document.querySelector('.chip button')")
    assert agrees(tab, nasty)["tags"] == ["t1"]
    tab.evaluate(f"{field_input(nasty, 'tags')}.focus()")
    tab.press("Backspace")
    assert agrees(tab, nasty)["tags"] is None


@in_browser
def test_400_thousand_categories_are_asked_for_a_few_at_a_time(browser, served, many):
    url = served(many)
    with urllib.request.urlopen(url + "schema") as answer:
        assert len(answer.read()) < 20_000
    tab = browser.open(url)
    agrees(tab, many)
    choose(tab, many, "ad", "the Rarest one")
    assert agrees(tab, many)["ad"] == "the Rarest one"
    write(tab, many, "ad", "a")
    assert len(options_of(tab, many, "ad", "a")) == 20
    assert "first 20" in tab.evaluate("document.querySelector('.popup:not([hidden]) p').innerText")
    in_order(tab, url)


@in_browser
def test_sixty_fields(browser, served, wide):
    tab = browser.open(served(wide))
    agrees(tab, wide)
    visible = "[...document.querySelectorAll('.field')].filter(f => f.checkVisibility()).length"
    assert tab.evaluate(visible) == 60
    tab.click(by_id("narrow"))
    tab.type("f5")
    assert tab.evaluate(visible) == 10
    tab.click("document.querySelectorAll('#steps .jump')[0]")  # f07, which is not among them
    assert tab.evaluate(visible) == 60
    assert tab.evaluate(f"document.activeElement === {field_input(wide, 'f07')}")


@in_browser
def test_keys_reach_everything(browser, served, flights):
    tab = browser.open(served(flights))
    tab.evaluate("document.body.focus()")
    order = []
    now = "document.activeElement.id || document.activeElement.textContent"
    for _ in range(60):
        tab.press("Tab")
        if (at := tab.evaluate(now)) in order[:1]:
            break
        order.append(at)
    columns = [f"field-{k}" for k in range(len(flights.schema.columns))]
    assert [name for name in order if name.startswith("field-")] == columns
    assert {"pin", "Copy as curl", "Copy as JSON", "over"} <= set(order)
    assert order.index("pin") < order.index("field-0") < order.index("over")


@in_browser
def test_keys_never_stop_beneath_the_number_that_stays_in_sight(browser, served, wide):
    tab = browser.open(served(wide), height=520, still=True)
    tab.evaluate(f"{by_id('over')}.focus()")
    seen = set()
    while "field-0" not in seen:
        tab.press("Tab", shift=True)
        seen.add(name := tab.evaluate("document.activeElement.id"))
        if name.startswith("field-"):
            top, bottom = "getBoundingClientRect().top", "getBoundingClientRect().bottom"
            assert tab.evaluate(f"{by_id(name)}.{top} >= {by_id('answer')}.{bottom}"), name
    assert len(seen) > 60


@in_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_one_way(browser, served, flights, nasty, wide, dark):
    for model in (flights, nasty, wide):
        tab = browser.open(served(model), width=360, height=740, dark=dark)
        scrolled = "document.documentElement.scrollWidth"
        agrees(tab, model)
        assert tab.evaluate(scrolled) == 360
        tab.click(by_id("pin"))
        for column in model.schema.columns[:2]:
            tab.click(field_input(model, column))
            if tab.evaluate(f"{field_input(model, column)}.getAttribute('role')") == "combobox":
                options_of(tab, model, column)
                edges = "document.querySelector('.popup:not([hidden])').getBoundingClientRect()"
                assert tab.evaluate(f"{edges}.left >= 0 && {edges}.right <= 360")
                tab.press("ArrowDown"), tab.press("Enter")  # missing
            assert tab.evaluate(scrolled) == 360
        settled(tab)
        rank_over(tab, tab.evaluate(f"{by_id('over')}.options[1].value"))
        assert tab.evaluate(scrolled) == 360
        assert tab.evaluate(f"{by_id('answer')}.getBoundingClientRect().height") < 200
        in_order(tab, served(model))


@in_browser
def test_dark_is_dark(browser, served, flights):
    def light(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    for dark in (False, True):
        tab = browser.open(served(flights), dark=dark)
        ground = light(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        words = light(tab.evaluate(f"getComputedStyle({field_input(flights, 'origin')}).color"))
        assert (ground < 60) == dark
        assert (words > ground) == dark


@in_browser
def test_motion_only_where_it_is_welcome(browser, served, flights):
    took = "getComputedStyle(document.querySelector('.gauge .fill')).transitionDuration"
    assert browser.open(served(flights)).evaluate(took) != "0s"
    assert browser.open(served(flights), still=True).evaluate(took) == "0s"


# Other targets ------------------------------------------------------------------------------------


@in_browser
def test_more_than_two_classes(browser, served, classes):
    tab = browser.open(served(classes))
    settled(tab)
    chances = classes.predict_proba(row_of(tab))[0]
    order = np.argsort(-chances)
    found = tab.evaluate(
        "[...document.querySelectorAll('#chances li')].map(e => e.innerText.split('\\n'))"
    )
    wanted = [[classes.classes[k], chance_text(float(chances[k]))] for k in order]
    assert [[part for part in item if part.strip()] for item in found] == wanted
    assert text_of(tab, "prediction") == chance_text(float(chances.max()))
    assert classes.classes[order[0]] in text_of(tab, "what")
    assert classes.classes[order[0]] in text_of(tab, "why-words")
    rank_over(tab, "a")
    assert text_of(tab, "ranked-by") == f"chance of {classes.classes[-1]}"
    assert tab.evaluate(RANKED)[0][1] == "w"


@in_browser
def test_a_number_has_no_gauge(browser, served, numbers):
    tab = browser.open(served(numbers))
    settled(tab)
    wanted = float(numbers.predict(row_of(tab))[0])
    assert number_of(text_of(tab, "prediction")) == pytest.approx(wanted, abs=6e-4)
    assert tab.evaluate(f"{by_id('gauge')}.hidden")
    rank_over(tab, "a")
    assert tab.evaluate(RANKED)[0][1] == "u"


@in_browser
def test_several_targets(browser, served, flights):
    """The server gives a prediction of each; the page shows one, which is chosen."""
    url = served(flights)
    with urllib.request.urlopen(url + "schema") as answer:
        schema = json.load(answer)
    schema["model"] |= {"id": "two", "targets": ["y", "spent"]}
    tab = browser.open(url)
    assert tab.evaluate(f"{by_id('targets')}.hidden")
    tab.hold("*/predict*", "*/schema")
    write(tab, flights, "sched_dep_time", "900")
    parts = {
        "y": {"prediction": 0.25, "score": -1.1, "class": "0"},
        "spent": {"prediction": 12.5, "score": 12.5},
    }
    body = {"model": "two", "predictions": [{"targets": parts}]}
    tab.answer(tab.held(1)[0], 200, json.dumps(body))
    tab.answer(tab.held(2)[1], 200, json.dumps(schema))
    settled(tab)
    assert text_of(tab, "title") == "y, spent"
    assert text_of(tab, "prediction") == "25 %"
    tab.evaluate(f"{by_id('target')}.value = 'spent'")
    tab.evaluate(f"{by_id('target')}.dispatchEvent(new Event('change'))")
    assert text_of(tab, "prediction") == "12.500"
    assert text_of(tab, "what") == "spent is expected to be"
    assert "target=spent" in tab.evaluate("location.hash")
