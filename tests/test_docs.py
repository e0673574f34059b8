"""The README's code runs, its links lead somewhere, its figures are those of the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readmes_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pages = [ROOT / "README.md", ROOT / "docs" / "training.md", ROOT / "docs" / "tasks.md"]
    for page in pages:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        assert blocks
        for block in blocks:
            exec(compile(block, page.name, "exec"), {})
    assert "carrier" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_readmes_figures_are_the_results():
    text = (ROOT / "README.md").read_text()
    data = results("data")
    figures = [
        " / ".join(f"{r['rows_per_second']:,.0f}" for r in data["encode"]),
        " / ".join(f"{r['peak_gb']:.2f}" for r in data["encode"]) + " GB",
        f"{data['times_plain_loop']:.1f} times",
        f"{data['import_seconds']:.2f} / {data['help_seconds']:.2f} s",
    ]
    for shape in results("cpu")["training"].values():
        speed = shape["samples_per_second"]
        for peer in ("published", "sparse"):
            figures.append(f"{speed[peer]:,.0f} ({shape[f'times_{peer}']:.0f} times)")
        figures.append(f"| {speed['fieldwise']:,.0f} |")
    cpu = results("cpu")
    figures.append(f"| {cpu['scoring']['rows_per_second']:,.0f} |")
    figures.append(f"{cpu['one_row_microseconds']['median']:.0f} microseconds")
    models = [results("accuracy")["tables"][f"flights_{k}"]["models"] for k in (1, 2)]
    gaps = [m["fieldwise"]["logloss"] - m["FFM"]["logloss"] for m in models]
    figures.append(f"{gaps[0]:.4f} and {gaps[1]:.4f}")
    for table in ("flights", "frappe"):
        for model in results("accuracy")["tables"][table]["models"].values():
            figures.append(f"{model['logloss']:.4f} ({model['seconds']:.0f} s)")
    assert [f for f in figures if f not in text] == []
