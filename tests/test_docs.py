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
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "carrier" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readmes_figures_are_the_results():
    text = (ROOT / "README.md").read_text()
    found = json.loads((ROOT / "benchmarks" / "results" / "data.json").read_text())
    rates = " / ".join(f"{r['rows_per_second']:,.0f}" for r in found["encode"])
    peaks = " / ".join(f"{r['peak_gb']:.2f}" for r in found["encode"])
    assert rates in text
    assert peaks in text
    assert f"{found['times_plain_loop']:.1f} times" in text
    assert f"{found['import_seconds']:.2f} / {found['help_seconds']:.2f} s" in text
