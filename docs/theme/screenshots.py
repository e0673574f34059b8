"""The pictures of the report, of a report that the project's own commands make of the flights.

PYTHONPATH=src:tests python docs/theme/screenshots.py     # docs/images/report-*.png
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from PIL import Image

from browser import Browser, Tab
from pages import ROOT, blocks_of, commands_of

IMAGES = ROOT / "docs" / "images"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        os.chdir(folder)
        for block in blocks_of(ROOT / "docs" / "report.md"):
            if block.language == "python":
                exec(block.text, {})
            for line in commands_of(block) if block.language == "bash" else ():
                if os.system(line):
                    raise SystemExit(line)
        tab = browser.open(Path("report.html"), width=1000, height=960, still=True)
        tab.evaluate("document.querySelector('footer').remove()")  # it names the version
        for name in ("overview", "fields", "categories", "rows", "quality"):
            tab.evaluate(f"document.getElementById('tab-{name}').click()")
            tab.wait(f"!document.getElementById('{name}').classList.contains('off')")
            if name == "categories":
                chosen(tab, "B6")
            shot(tab, f"report-{name}", "document.body" if name == "overview" else f"#{name}")
            if name == "fields":
                shot(tab, "report-pairs", "#fields .block:nth-of-type(2)")
            if name == "quality":
                shot(tab, "report-bound", "#quality .block:last-of-type")


def chosen(tab: Tab, category: str) -> None:
    tab.wait("document.querySelectorAll('#hits li').length > 1")
    tab.evaluate("document.getElementById('query').focus()")
    tab.type(category)
    tab.wait(f"document.documentElement.dataset.searched === '{category.lower()}'")
    tab.press("Enter")
    tab.wait(f"document.getElementById('card').textContent.includes('{category}')")


def shot(tab: Tab, name: str, at: str) -> None:
    tab.evaluate(f"document.querySelector('{at.removeprefix('document.')}').scrollIntoView()")
    tab.evaluate("new Promise((done) => setTimeout(done, 500))")
    picture = IMAGES / f"{name}.png"
    tab.picture(picture)
    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(
        picture, optimize=True
    )


if __name__ == "__main__":
    main()
