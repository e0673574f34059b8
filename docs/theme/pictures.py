"""The drawings of the manual, as SVG that is read by day and by night.

    python docs/theme/pictures.py       # writes docs/images/{table,step,evidence,shards}.svg

`make test` draws them again and compares. The numbers of `step` are worked out by `maths.py`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from fieldwise import Layout, maths

__all__ = ["drawings"]

IMAGES = Path(__file__).parents[1] / "images"
STYLE = """
svg { color-scheme: light dark; --ink: #1f2d2b; --soft: #5a6f6b; --line: #9db3ae;
  --paper: #fbfdfc; --empty: #eef3f1; --a: #8fd3c4; --b: #f6c98a; --c: #b3bdf2; --warn: #f3b3a6; }
@media (prefers-color-scheme: dark) { svg { --ink: #e7f0ee; --soft: #a9bbb7; --line: #62756f;
  --paper: #1d2523; --empty: #2a3431; --a: #1f7a6b; --b: #94641c; --c: #4a57a8; --warn: #93463a; } }
text { font: 14px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
.head { font-weight: 600; } .small, .soft { font-size: 12.5px; } .soft { fill: var(--soft); }
.number { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.paper { fill: var(--paper); } .empty { fill: var(--empty); } .a { fill: var(--a); }
.b { fill: var(--b); } .c { fill: var(--c); } .warn { fill: var(--warn); }
rect { stroke: var(--line); stroke-width: 1; } .paper, .plain { stroke: none; }
path { fill: none; stroke: var(--soft); stroke-width: 1.5; }
marker path { fill: var(--soft); stroke: none; }
"""
FIELDS = {"carrier": ["UA", "B6", "AA"], "origin": ["EWR", "JFK"], "dest": ["ATL", "BOS", "LAX"]}
COLOURS = dict(zip(FIELDS, "abc", strict=True))


class Drawing:
    """Shapes in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, kind: str = "empty") -> None:
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" class="{kind}"/>'
        )

    def text(self, x: float, y: float, words: object, kind: str = "") -> None:
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(str(words))}</text>')

    def arrow(self, *points: tuple[float, float]) -> None:
        line = " L ".join(f"{x:g} {y:g}" for x, y in points)
        self.shapes.append(f'<path d="M {line}" marker-end="url(#tip)"/>')

    def svg(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
                'markerHeight="7" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>',
                f'<rect class="paper" width="{self.width}" height="{self.height}" rx="8"/>',
                *self.shapes,
                "</svg>\n",
            ]
        )


def table() -> Drawing:
    """Rows, columns and who owns them."""
    d = Drawing(720, 400, "One table: rows are categories, columns belong to fields")
    left, top, cell, high = 150, 74, 52, 30
    x = left
    for name in FIELDS:
        d.text(x + cell, top - 30, name, "head middle")
        d.text(x + cell, top - 12, "2 columns", "soft middle")
        x += 2 * cell + 8
    d.text(x + cell / 2, top - 30, "bias", "head middle")
    y = top
    for row_field, categories in FIELDS.items():
        for category in categories:
            d.text(left - 14, y + 20, f"{row_field} = {category}", "end")
            x = left
            for field in FIELDS:
                own = field == row_field
                for _ in range(2):
                    d.box(x, y, cell, high, COLOURS[field] if own else "empty")
                    d.text(x + cell / 2, y + 20, "V" if own else "U", "number middle")
                    x += cell
                x += 8
            d.box(x, y, cell, high, "plain empty")
            d.text(x + cell / 2, y + 20, "b", "number middle")
            y += high
        y += 8
    right = x + cell + 20
    d.text(right, top + 20, "V, in colour:", "head")
    for k, line in enumerate(["the category's own", "model"]):
        d.text(right, top + 40 + 18 * k, line, "soft")
    d.text(right, top + 92, "U:", "head")
    for k, line in enumerate(["what it brings to", "the models of the", "column's owner"]):
        d.text(right, top + 112 + 18 * k, line, "soft")
    d.text(left, y + 24, "A row is a category. A column belongs to one field: its owner.", "soft")
    return d


def step() -> Drawing:
    """One row of data: gather, sum, score; then the way back."""
    layout = Layout((1, 1, 1), (1, 1, 1))
    rows = np.array([[2.0, 1, -1, 0.5], [1, 3, 0, -0.5], [-1, 1, 1, 0.0]])
    codes = np.array([[0, 1, 2]])
    own = rows[range(3), range(3)]
    total = rows.sum(axis=0)
    rest = total[:3] - own
    z = float(maths.scores(rows, layout, codes)[0, 0])
    assert z == rest @ own + total[3]
    d = Drawing(760, 470, "A training step: three rows are gathered, summed, and written back")
    left, cell, high = 190, 62, 30
    columns = [*FIELDS, "bias"]
    for k, name in enumerate(columns):
        d.text(left + k * cell + cell / 2, 34, name, "soft middle")
    words = ["carrier = UA", "origin = EWR", "dest = LAX"]

    def line(y: float, title: str, values: list[str], kinds: list[str], kind: str = "") -> None:
        d.text(left - 14, y + 20, title, f"end {kind}")
        for k, (value, colour) in enumerate(zip(values, kinds, strict=True)):
            if value:
                d.box(left + k * cell, y, cell, high, colour)
                d.text(left + k * cell + cell / 2, y + 20, value, "number middle")

    for i, word in enumerate(words):
        kinds = ["abc"[k] if k == i else "empty" for k in range(4)]
        line(46 + 34 * i, word, [f"{v:g}" for v in rows[i]], kinds)
    aside = left + 4 * cell + 24
    d.text(aside, 66, "1  Gather", "head")
    d.text(aside, 85, "a row of the table for every field", "soft")
    line(172, "S, their sum", [f"{v:g}" for v in total], ["empty"] * 4, "head")
    line(212, "q, owners' own", [f"{v:g}" for v in own] + [""], [*"abc", ""], "head")
    line(252, "p = S - q, others", [f"{v:g}" for v in rest] + [""], ["empty"] * 4, "head")
    d.text(aside, 192, "2  Sum", "head")
    d.text(aside, 211, "q is on the diagonal above;", "soft")
    d.text(aside, 229, "p is what the other fields bring", "soft")
    sums = " + ".join(f"({p:g} x {q:g})" for p, q in zip(rest, own, strict=True))
    d.text(24, 316, f"z = {sums} + {total[3]:g} = {z:g}", "number")
    d.text(aside, 276, "3  Score", "head")
    d.text(aside, 295, "one dot product; then the loss's", "soft")
    d.text(aside, 313, "derivative dz", "soft")
    d.text(left - 14, 366, "slope of a row", "end head")
    for k, owner in enumerate("abc"):
        d.box(left + k * cell, 346, cell, high, owner)
        d.text(left + k * cell + cell / 2, 366, "dz p", "number middle")
    d.text(left + 3 * cell + cell / 2, 366, "dz", "number middle")
    d.text(left - 14, 400, "in others' columns", "end soft")
    for k in range(3):
        d.box(left + k * cell, 380, cell, high, "empty")
        d.text(left + k * cell + cell / 2, 400, "dz q", "number middle")
    d.text(aside, 366, "4  Back", "head")
    d.text(aside, 385, "a row gets p in its own columns and", "soft")
    d.text(aside, 403, "q in others'; rows that occur twice", "soft")
    d.text(aside, 421, "in a batch are summed, then Adagrad", "soft")
    d.text(left, 448, "What moves is memory: m rows in, m rows out.", "soft")
    return d


def evidence() -> Drawing:
    """What other rows of a combination say, without a row's own fold."""
    labels = [[1], [0, 1], [], [1, 1], [1], [0], [1, 0], [], [1], [1]]
    mine, mean, a = 3, 0.4, 5
    others = [v for k, fold in enumerate(labels) if k != mine for v in fold]
    n, said = len(others), sum(others) - mean * len(others)
    d = Drawing(760, 330, "Evidence: the rows of the other nine folds, shrunken")
    d.text(24, 38, "Rows of the crossed category  user u7 x item i3,  by fold", "head")
    for k, fold in enumerate(labels):
        x = 24 + 71 * k
        d.box(x, 56, 64, 84, "warn" if k == mine else "empty")
        d.text(x + 32, 158, f"fold {k + 1}", "soft middle")
        for j, label in enumerate(fold):
            d.text(x + 32, 88 + 28 * j, label, "number middle")
    x = 24 + 71 * mine + 32
    d.text(x, 182, "these two rows are learned from now:", "head middle")
    d.text(x, 200, "their own labels, and all of their fold, are not read", "soft middle")
    d.text(24, 240, f"others: n = {n} rows, {sum(others)} ones; mean of all rows {mean:g}", "")
    d.text(
        24,
        268,
        f"evidence = ({sum(others)} - {n} x {mean:g}) / ({n} + a) = {said:.1f} / {n + a} = "
        f"{said / (n + a):.2f}     with a = {a}",
        "number",
    )
    d.text(24, 300, "Few rows: near 0. Many rows: their mean. A combination never seen: 0.", "soft")
    return d


def shards() -> Drawing:
    """Columns shared out between workers."""
    d = Drawing(760, 430, "Column sharding: one float a row is exchanged")
    d.box(180, 20, 400, 40)
    d.text(380, 45, "codes of 2,048 rows, the same for all", "middle")
    held = [("a", "user, day"), ("b", "ad, hour"), ("c", "site")]
    for k, (colour, fields) in enumerate(held):
        x = 30 + 240 * k
        d.arrow((380, 60), (x + 110, 98))
        d.box(x, 100, 220, 92, colour)
        d.text(x + 110, 126, f"worker {k}", "head middle")
        d.text(x + 110, 148, f"columns of {fields}", "middle")
        d.text(x + 110, 170, "their biases, Adagrad's state", "small middle")
        d.arrow((x + 110, 192), (380 + 90 * (k - 1), 236))
        d.text(x + 110 + (14 if k == 2 else 8), 218, f"z{k}", "number")
    d.box(180, 238, 400, 52)
    d.text(380, 260, "z = z0 + z1 + z2", "number middle")
    d.text(380, 280, "one float a row and output: 8 kB", "soft middle")
    for k, (colour, _) in enumerate(held):
        x = 30 + 240 * k
        d.arrow((380 + 90 * (k - 1), 290), (x + 110, 332))
        d.box(x, 334, 220, 52, colour)
        d.text(x + 110, 356, "gradient, Adagrad, penalty", "middle")
        d.text(x + 110, 376, "nothing is sent", "small middle")
    d.text(
        380,
        414,
        "All workers see the same scores, so they come to the same decisions.",
        "soft middle",
    )
    return d


def drawings() -> dict[str, str]:
    return {f.__name__: f().svg() for f in (table, step, evidence, shards)}


if __name__ == "__main__":
    for name, svg in drawings().items():
        (IMAGES / f"{name}.svg").write_text(svg)
