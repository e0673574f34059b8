"""Every example runs as a reader runs it, and says what its page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(p.name for p in EXAMPLES.glob("*.py"))
NOTEBOOK = EXAMPLES / "flights.ipynb"
MOST_BYTES = 500_000  # of the notebook with its pictures
PLACES = r"/(?:home|root|tmp|work|Users|opt|usr|var)/"


def shown(script):
    """What the page of examples says it prints."""
    text = (EXAMPLES / "README.md").read_text()
    after = text[text.index(f"`python examples/{script}`") :]
    block = re.search(r"\n\n((?:    .*\n|\n)+)", after)
    return re.sub(r"^    ", "", block[1], flags=re.MULTILINE).strip().splitlines()


def without_numbers(line):
    return re.sub(r"[-+]?\d[\d,.e-]*", "#", line).split(" = ")[0].rstrip()


def numbers(line):
    return [float(n.replace(",", "")) for n in re.findall(r"[-+]?\d[\d,]*\.\d+", line)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_print_what_their_page_shows(script, tmp_path):
    command = [sys.executable, str(EXAMPLES / script), "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    said, page = done.stdout.strip().splitlines(), shown(script)
    assert len(said) == len(page)
    told = re.compile("logloss|AUC|held-out")
    figures = [(a, b) for a, b in zip(said, page, strict=True) if told.search(b)]
    assert figures
    for one, other in figures:
        assert without_numbers(one) == without_numbers(other)
        assert numbers(one) == pytest.approx(numbers(other), abs=0.01)


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = [cell.get("outputs") for cell in notebook.cells if cell.cell_type == "code"]
    about = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=about).execute()
    after = [cell.get("outputs") for cell in notebook.cells if cell.cell_type == "code"]
    for was, now in zip(before, after, strict=True):
        assert [kinds(out) for out in was] == [kinds(out) for out in now]


def kinds(output):
    return sorted(output.get("data", {"text": ""}))


def test_the_notebook_is_small_and_names_no_machine():
    text = NOTEBOOK.read_text()
    assert len(text) < MOST_BYTES
    assert text.count('"image/png"') == 3
    assert re.findall(PLACES, text) == []
    for cell in nbformat.reads(text, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs, f"cell {cell.id} has no output"
            assert all(out.output_type != "error" for out in cell.outputs)
