"""What goes out with a version agrees with itself; the parts of `make release-check`."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest
import yaml
from release import check

import fieldwise

ROOT = Path(__file__).parent.parent
SOFTWARE = {"cff-version", "message", "title", "authors", "version", "date-released", "license"}
PERSON, ENTITY = {"family-names", "given-names"}, {"name"}


def releases():
    """Versions and dates of the changelog, the newest first."""
    text = (ROOT / "CHANGELOG.md").read_text()
    assert text.index("## [Unreleased]") < text.index("## [1.")
    found = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert len(found) == text.count("\n## [") - 1
    return found


def test_the_version_is_one():
    (version, date), *before = releases()
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert version == fieldwise.__version__ == check.version() == about["version"]
    assert dt.date.fromisoformat(date) == about["date-released"]
    order = [tuple(map(int, v.split("."))) for v, _ in [(version, date), *before]]
    assert order == sorted(order, reverse=True)


def test_the_citation_is_of_its_format():
    """The fields that version 1.2.0 of the Citation File Format asks for, of the kinds it says."""
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert about.keys() >= SOFTWARE
    assert (about["cff-version"], about["type"]) == ("1.2.0", "software")
    assert isinstance(about["date-released"], dt.date)
    (paper,) = about["references"]
    assert {"type", "title", "authors"} <= paper.keys()
    assert paper["type"] == "conference-paper"
    assert isinstance(paper["year"], int)
    assert paper["conference"]["name"]
    for author in (*about["authors"], *paper["authors"]):
        assert set(author) in (PERSON, ENTITY)
        assert all(isinstance(name, str) for name in author.values())
    assert [a["family-names"] for a in paper["authors"]] == ["Li", "Zhang", "Gong", "Yao", "Wu"]


def test_every_file_of_the_package_is_looked_for():
    names = check.modules()
    assert set(check.NEEDED) - {"LICENSE"} <= names
    assert check.missing("w", [f"x/{name}" for name in names], names) == []
    assert check.missing("w", ["fieldwise/py.type"], {"fieldwise/py.typed"}) == [
        "w lacks fieldwise/py.typed"
    ]


def test_junk_is_found():
    bad = ["tests/test_x.py", "fieldwise/__pycache__/a.pyc", "benchmarks/results/cpu.json"]
    assert check.junk([*bad, *check.modules()]) == bad


def test_classifiers_are_known():
    text = (ROOT / "pyproject.toml").read_text()
    names = re.findall(r'^    "(.+ :: .+)",$', text, re.MULTILINE)
    assert "Development Status :: 5 - Production/Stable" in names
    assert check.unknown_classifiers([*names, "Topic :: Nothing"]) == [
        "'Topic :: Nothing' is no classifier"
    ]


def test_the_readme_renders():
    assert check.unrendered((ROOT / "README.md").read_text()) == []


@pytest.mark.parametrize("text", ["| a |\n|--\n\n**b", "[a](b c d)", "#a\n```"])
def test_what_does_not_render_is_told(text):
    found = check.unrendered(f"{text}\n")
    assert found if "```" not in text else not found
