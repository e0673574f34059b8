"""The charts of the page, as Vega-Lite specifications. Colours are the page's CSS variables, so
that the same chart works in light, dark and print; the page draws the legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from ..explain.shapes import by_share, curves, pair_cells, run_names

__all__ = ["CONFIG", "bundle", "charts"]

Chart = dict[str, Any]
ACCENT, SOFT, UP, DOWN, INK, MUTED = (
    f"var(--{name})" for name in ("accent", "soft", "up", "down", "ink", "muted")
)
LINES = [f"var(--line{k})" for k in range(1, 7)]
# Names of categories are long; on a phone they must leave room for the chart.
NARROW = alt.ExprRef("containerSize()[0] < 420 ? 136 : 170")
MOST_FIELDS = 40  # in a chart; the tables have all of them

CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "bar": {"cornerRadiusEnd": 2},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": MUTED},
    "axis": {
        "labelColor": MUTED, "titleColor": MUTED, "gridColor": "var(--hair)", "domain": False,
        "tickColor": "var(--hair)", "labelFontSize": 12, "titleFontSize": 12,
        "titleFontWeight": "normal", "titlePadding": 8, "labelLimit": 150, "tickSize": 4,
    },
    "axisY": {"labelPadding": 6},
}  # fmt: skip


@cache
def bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one self-contained script."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return str(script).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def charts(numbers: Mapping[str, Any]) -> dict[str, Chart]:
    """The charts that there are numbers for, by name."""
    fields, chance = numbers["fields"], numbers["summary"]["task"] == "chance"
    out = {"shares": shares(fields), "importance": importance(fields)}
    out["pairs"] = pair_map(fields, numbers["pairs"])
    if numbers["history"]:
        out["history"] = history(numbers["history"])
    if numbers["odd"]:
        out["odd"] = odd(numbers["odd"])
    if numbers["rows"]:
        out["waterfall"] = waterfall_chart(numbers["summary"]["unit"])
    if numbers["calibration"]:
        out["calibration"] = calibration(numbers["calibration"]["bins"], chance=chance)
    if numbers["slices"]:
        out["slices"] = slices(numbers["slices"], "logloss" if chance else "loss")
    if numbers["bound"]:
        out["bound"] = bound(numbers["bound"]["fields"])
    return out


def _spec(chart: Any, rows: Sequence[Mapping[str, Any]], description: str, height: int) -> Chart:
    body = chart.properties(
        data=alt.NamedData(name="rows"), width="container", height=height, description=description
    ).to_dict()
    body.pop("$schema"), body.pop("config", None)
    body["autosize"] = {"type": "fit-x", "contains": "padding"}
    return {**body, "datasets": {"rows": list(rows)}}


def _y(name: str, **axis: Any) -> Any:
    """A vertical axis of names, in the given order."""
    return alt.Y(f"{name}:N", sort=None, title=None, axis=alt.Axis(ticks=False, **axis))


def _tips(**fields: str) -> list[Any]:
    """Tooltips: title=field:type or title=field:Q|format."""
    out = []
    for title, name in fields.items():
        field, _, form = name.partition("|")
        more = {"format": form} if form else {}
        out.append(alt.Tooltip(field, title=title.replace("_", " "), **more))
    return out


def history(records: Sequence[Mapping[str, Any]]) -> Chart:
    points = curves(records)
    names = run_names(points)
    scale = alt.Scale(domain=names, range=[LINES[k % len(LINES)] for k in range(len(names))])
    dash = alt.Scale(domain=["held out", "training"], range=[[1, 0], [5, 4]])
    # Vega puts ticks between two epochs, and rounds what it writes there.
    most = max((point["epoch"] for point in points), default=1)
    whole = list(range(1, most + 1, 1 + most // 12))
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(grid=False, values=whole, format="d"))
    line = alt.Chart().mark_line(point={"size": 45, "filled": True}, strokeWidth=2)
    chart = line.encode(
        x=x,
        y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False)),
        color=alt.Color("name:N", scale=scale, legend=None),
        strokeDash=alt.StrokeDash("rows:N", scale=dash, legend=None),
        detail="run:N",
        tooltip=_tips(epoch="epoch:Q", rows="rows:N", loss="loss:Q|.5f", run="name:N"),
    )
    return _spec(chart, points, "Loss on training and held-out rows after every epoch", 260)


def shares(fields: Sequence[Mapping[str, Any]]) -> Chart:
    rows = [
        {"name": f["name"], "part": part, "share": f[key], "order": k}
        for f in (fields[i] for i in by_share(fields)[:MOST_FIELDS])
        for k, (part, key) in enumerate((("by itself", "share"), ("in pairs", "pair_share")))
    ]
    scale = alt.Scale(domain=["by itself", "in pairs"], range=[ACCENT, SOFT])
    chart = alt.Chart().mark_bar(height={"band": 0.7}).encode(
        y=_y("name"),
        x=alt.X("share:Q", title="share of the score's variance",
                axis=alt.Axis(format="~%", tickCount=4)),
        color=alt.Color("part:N", scale=scale, legend=None),
        order="order:O",
        tooltip=_tips(field="name:N", part="part:N", share="share:Q|.2%"),
    )  # fmt: skip
    words = "Share of the variance of the score by field, by itself and in pairs with other fields"
    return _spec(chart, rows, words, 11 * len(rows))


def importance(fields: Sequence[Mapping[str, Any]]) -> Chart:
    keys = ("name", "kind", "categories", "rank", "importance")
    top = sorted(fields, key=lambda f: -f["importance"])[:MOST_FIELDS]
    chart = alt.Chart().mark_bar(height={"band": 0.7}, color=ACCENT).encode(
        y=_y("name"),
        x=alt.X("importance:Q", title="importance", axis=alt.Axis(tickCount=4)),
        tooltip=_tips(field="name:N", importance="importance:Q|.4g", kind="kind:N",
                      categories="categories:Q|,", rank="rank:Q"),
    )  # fmt: skip
    rows = [{key: f[key] for key in keys} for f in top]
    return _spec(chart, rows, "The paper's importance of every field", 22 * len(rows))


def pair_map(fields: Sequence[Mapping[str, Any]], pairs: Any) -> Chart:
    cells = pair_cells(fields, pairs, MOST_FIELDS)
    names = list(dict.fromkeys(cell["one"] for cell in cells))
    band = alt.Scale(domain=names, paddingInner=0.06)
    labels = alt.Axis(labelAngle=-60, ticks=False, labelLimit=110)

    def layer(what: str, colour: str) -> Any:
        fade = alt.Scale(range=[0.06, 1], domainMin=0)
        return alt.Chart().mark_rect(color=colour, cornerRadius=2).encode(
            x=alt.X("other:N", scale=band, title=None, axis=labels),
            y=alt.Y("one:N", scale=band, title=None, axis=alt.Axis(ticks=False)),
            opacity=alt.Opacity("share:Q", scale=fade, legend=None),
            tooltip=_tips(field="one:N", with_field="other:N", share="share:Q|.3%", what="what:N"),
        ).transform_filter(alt.datum.what == what)  # fmt: skip

    both = alt.layer(layer("as a pair", ACCENT), layer("by itself", UP))
    chart = both.resolve_scale(opacity="independent")
    words = "Share of the variance of the score by pair of fields; the diagonal is the main effects"
    return _spec(chart, cells, words, max(24 * len(names), 120))


def odd(found: Sequence[Mapping[str, Any]]) -> Chart:
    rows = [{**one, "label": f"{one['field']} = {one['category']}"} for one in found[:25]]
    y = _y("label", labelLimit=NARROW)
    tips = _tips(field="field:N", category="category:N", rows="count:Q|,",
                 distance="distance:Q|.3f", typical="typical:Q|.3f")  # fmt: skip
    base = alt.Chart().encode(y=y, tooltip=tips)
    x = alt.X("typical:Q", title="distance from its field's mean model",
              axis=alt.Axis(tickCount=5))  # fmt: skip
    stick = base.mark_rule(strokeWidth=2, color="var(--hair)").encode(x=x, x2="distance:Q")
    usual = base.mark_tick(color=MUTED, thickness=2, size=12).encode(x="typical:Q")
    dot = base.mark_circle(size=90, color=UP, opacity=1).encode(x="distance:Q")
    words = "Distance of odd categories, a dot each; the tick is what is typical of the field"
    return _spec(alt.layer(stick, usual, dot), rows, words, 22 * len(rows))


def waterfall_chart(unit: str) -> Chart:
    """A waterfall without data; the page sets its rows and its height, here that of one step."""
    scale = alt.Scale(domain=["raises", "lowers", "whole"], range=[UP, DOWN, INK])
    colour = alt.Color("kind:N", scale=scale, legend=None)
    tips = _tips(field="field:N", value="value:N", effect="effect:Q|+.4f", score_after="end:Q|.4f")
    base = alt.Chart().encode(y=_y("label", labelLimit=NARROW, labelColor=INK), tooltip=tips)
    wide = alt.Scale(zero=False, padding=44, nice=False)
    x = alt.X("start:Q", title=unit, scale=wide, axis=alt.Axis(tickCount=4))
    bars = base.mark_bar(height={"band": 0.62}).encode(x=x, x2="end:Q", color=colour)
    ends = base.transform_filter(alt.datum.kind == "whole").mark_tick(thickness=4, size=18)
    ends = ends.encode(x="end:Q", color=colour)
    words = base.mark_text(align="left", dx=7).encode(
        x="far:Q", text=alt.Text("effect:Q", format="+.2f")
    )
    picture = alt.layer(bars, ends, words)
    said = "How the fields take the score from that of a typical row to that of this row"
    return _spec(picture, [], said, 26)


def calibration(bins: Sequence[Mapping[str, Any]], *, chance: bool) -> Chart:
    form, tip = ("~%", ".2%") if chance else ("~g", ".4g")
    axis = {"format": form, "tickCount": 5}
    tips = _tips(predicted=f"predicted:Q|{tip}", observed=f"observed:Q|{tip}",
                 from_="low:Q|" + tip, to="high:Q|" + tip, rows="count:Q|,")  # fmt: skip
    base = alt.Chart().encode(
        x=alt.X("predicted:Q", title="predicted", axis=alt.Axis(**axis)), tooltip=tips
    )
    y = alt.Y("predicted:Q", title="observed", axis=alt.Axis(**axis))
    perfect = base.mark_line(color=MUTED, strokeDash=[4, 4], strokeWidth=1, tooltip=None).encode(
        y=y, tooltip=alt.value(None)
    )
    spread = base.mark_rule(strokeWidth=2, color=SOFT).encode(y="low:Q", y2="high:Q")
    dots = base.mark_circle(size=80, color=ACCENT, opacity=1).encode(y="observed:Q")
    words = "Observed against predicted; the dashed line is perfect calibration"
    return _spec(alt.layer(perfect, spread, dots), bins, words, 320)


def slices(found: Sequence[Mapping[str, Any]], loss: str) -> Chart:
    rows = [{**one, "label": f"{one['field']} = {one['category']}"} for one in found[:25]]
    base = alt.Chart().encode(
        y=_y("label", labelLimit=NARROW),
        tooltip=_tips(field="field:N", category="category:N", rows="count:Q|,",
                      all_rows="overall:Q|.4f", excess="excess:Q|+.4f", **{loss: "loss:Q|.4f"}),
    )  # fmt: skip
    x = alt.X("overall:Q", title=loss,
              scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=4))  # fmt: skip
    stick = base.mark_rule(strokeWidth=2, color="var(--hair)").encode(x=x, x2="loss:Q")
    line = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(x="overall:Q")
    dot = base.mark_circle(size=90, color=UP, opacity=1).encode(x="loss:Q")
    words = "The slices of rows where the model is worst, and their loss"
    return _spec(alt.layer(line, stick, dot), rows, words, 22 * len(rows))


def bound(fields: Sequence[Mapping[str, Any]]) -> Chart:
    top = sorted(fields, key=lambda f: -f["term"])[:MOST_FIELDS]
    chart = alt.Chart().mark_bar(height={"band": 0.7}, color=ACCENT).encode(
        y=_y("name"),
        x=alt.X("term:Q", title="term of the bound", axis=alt.Axis(tickCount=4)),
        tooltip=_tips(field="name:N", term="term:Q|.4g", n1="n1:Q|.4g", n2="n2:Q|.4g"),
    )  # fmt: skip
    return _spec(chart, top, "What every field adds to the bound", 22 * len(top))
