"""The manual as it is built: whole, without a network, as true as the package it is about."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys

import pytest
import typer

import fieldwise
from browser import CHROMIUM, Browser
from fieldwise import maths
from fieldwise.cli import app
from pages import ROOT, known_options

sys.path.insert(0, str(ROOT / "docs" / "theme"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Built as `make docs` does it: a link, an anchor or a picture that is missing is an error."""
    folder = tmp_path_factory.mktemp("manual") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_public_name_is_in_the_reference(site):
    anchors = set()
    for page in (site / "reference").glob("*.html"):
        anchors |= set(re.findall(r'<h\d id="fieldwise\.([\w.]+)"', page.read_text()))
    public = set(fieldwise.__all__) - {"__version__"}
    assert public <= {name.rpartition(".")[2] for name in anchors}


def test_every_parameter_is_described(site):
    """Of what people call themselves; a model comes from `load` or an estimator."""
    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    sections = re.split(r'<h3 id="fieldwise\.', text)[1:]
    told = {}
    for section in sections:
        terms = re.findall(r"<dt>(.*?)</dt>", section)
        words = {word for term in terms for word in re.findall(r"<code>(\w+)</code>", term)}
        told[section.partition('"')[0].rpartition(".")[2]] = words
    for name in set(fieldwise.__all__) - {"__version__", "FieldwiseModel"}:
        found = getattr(fieldwise, name)
        if not (inspect.isclass(found) and issubclass(found, Exception)):
            assert set(inspect.signature(found).parameters) <= told[name], name


def test_every_command_and_option_is_in_the_reference(site):
    """By the names that the command line takes, and no others."""
    page = (site / "reference" / "commands.html").read_text()
    parts = re.split(r'<h2 id="([\w-]+)"', page)[1:]
    commands = typer.main.get_command(app).commands
    assert parts[::2] == list(commands)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        rows = re.findall(r"<tr>\s*<td>(.*?)</td>", text)
        told = {word for row in rows for word in re.findall(r"<code>([^<]+)</code>", row)}
        taken = {
            word
            for p in commands[name].params
            for word in ([p.metavar] if p.metavar in told else [*p.opts, *p.secondary_opts])
        }
        assert told == taken, name


def test_the_examples_of_commands_are_taken():
    shown = [inspect.getdoc(command.callback) for command in app.registered_commands]
    lines = [line for text in shown for line in text.split("\n") if line.startswith("fieldwise ")]
    assert len(lines) > len(shown)
    for line in lines:
        known_options(shlex.split(line)[1:])


def test_all_of_the_maths_is_told(site):
    text = (ROOT / "docs" / "maths.md").read_text()
    shown = set(re.findall(r"fieldwise\.maths\.(\w+)", text))
    aids = {"category_shares", "local", "main_slopes", "mean_rows", "pieces"}
    assert set(maths.__all__) - aids <= shown
    assert "def field_scores(" in re.sub(r"<[^>]+>", "", (site / "maths.html").read_text())


def test_the_drawings_are_as_their_script_has_them():
    from pictures import drawings

    for name, svg in drawings().items():
        assert (ROOT / "docs" / "images" / f"{name}.svg").read_text() == svg, (
            f"{name}.svg is not what docs/theme/pictures.py draws; run it"
        )


def test_pictures_are_small():
    pictures = [p for p in (ROOT / "docs" / "images").iterdir() if p.suffix == ".png"]
    assert pictures
    assert [p.name for p in pictures if p.stat().st_size > 300_000] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_the_manual_opens_without_a_network(site):
    """From a disk: nothing is asked for elsewhere, it can be searched, and it is dark at night."""
    pages = [p for p in site.rglob("*.html") if p.name != "404.html"]
    with Browser() as browser:
        for k, page in enumerate(sorted(pages)):
            width, dark = ((1200, False), (360, True))[k % 2]
            tab = browser.open(page, width=width, dark=dark, drawn=False)
            scheme = "slate" if dark else "default"
            tab.wait(f"document.body?.dataset.mdColorScheme === '{scheme}'")
            tab.wait("document.readyState === 'complete'")
            assert tab.requests() == [], page.name
            assert tab.complaints() == [], page.name
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert tab.evaluate(wide) <= 0, page.name
            tab.call("Page.close")
        tab = browser.open(site / "index.html", drawn=False)
        tab.wait("document.readyState === 'complete'")
        tab.evaluate("document.querySelector('.md-search__input').focus()")
        tab.call("Input.insertText", text="shrinkage")
        tab.wait("document.querySelectorAll('.md-search-result__item').length > 2")
