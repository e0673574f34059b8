"""Commands that show what a model learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingError, not_one_of
from .options import AsJson, Model, Quiet, Separator, locate
from .screen import say, show_table

__all__ = ["category", "explain"]

Output = Annotated[
    str | None,
    typer.Option(
        "--output", help="The class or target whose score to explain; the last unless set."
    ),
]
SUFFIXES = {".html": "html", ".md": "md", ".json": "json"}


def explain(
    model: Model,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE", help="Rows to explain and to judge the model by (optional)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A .html, .md or .json file to write; unless set, prints tables."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="html, md or json, where the name of --out does not say."),
    ] = None,
    output: Output = None,
    table_format: Annotated[
        str,
        typer.Option(
            "--table-format",
            help="The format of TABLE, as --format of `fieldwise train`.",
        ),
    ] = "auto",
    separator: Separator = None,
    quiet: Quiet = False,
) -> None:
    """What a model learned: a report to open, or tables here.

    fieldwise explain clicks.model
    fieldwise explain clicks.model tomorrow.csv --out report.html
    """
    from ..data.readers import check_not_read
    from ..files import write_atomically
    from ..model import FieldwiseModel
    from ..report.numbers import report_numbers

    form = _form(form, out)
    if out is not None and not out.absolute().parent.is_dir():
        raise SettingError(f"{out}: there is no folder {out.parent}; make it first")
    if form == "html":
        from ..report.page import page  # first, so that a missing package is reported at once
    loaded = FieldwiseModel.load(model)
    if not quiet:
        _tell_trees(loaded)
    options: dict[str, Any] = {"cards": 0} if form is None else {}
    if data is not None:
        options |= {"format": table_format, "separator": separator}
        if out is not None:
            check_not_read(out, locate(data))
    numbers = report_numbers(
        loaded,
        None if data is None else locate(data),
        output=output,
        show=False if quiet else None,
        **options,
    )
    numbers["model"] = str(model)
    if form is None:
        _show(numbers)
        return
    from ..report.text import markdown, plain

    if form == "html":
        text = page(numbers)
    else:
        text = markdown(numbers) if form == "md" else json.dumps(plain(numbers)) + "\n"
    if out is None:
        typer.echo(text)
        return
    write_atomically(out, text.encode())
    if not quiet:
        typer.echo(f"{out}: {len(text.encode()) / 1e6:.1f} MB")


def _form(form: str | None, out: Path | None) -> str | None:
    """The format to write; None if neither a file nor a format is named."""
    if form is None and out is not None:
        form = SUFFIXES.get(out.suffix)
        if form is None:
            raise SettingError(f"{out}: name it .html, .md or .json, or give --format")
    if form not in (None, *SUFFIXES.values()):
        raise not_one_of(f"--format {form!r}", form, SUFFIXES.values())
    if form == "html" and out is None:
        raise SettingError("--format html needs --out, the file to write")
    return form


def category(
    model: Model,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="The field.")],
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="The category; (missing) and (rare) are categories too."
        ),
    ],
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="Another category, to see where their models differ."),
    ] = None,
    partners: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most partners to show; unless set, 3 per field, or 10 in all in a comparison.",
        ),
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """The model of one category, or where the models of two differ.

    fieldwise category clicks.model site example.org
    fieldwise category clicks.model site example.org example.com
    """
    from ..model import FieldwiseModel

    loaded = FieldwiseModel.load(model)
    _tell_trees(loaded)
    found: Any
    if other is None:
        found = loaded.explain_category(field, value, n=partners or 3, output=output)
    else:
        found = loaded.compare_categories(field, value, other, n=partners or 10, output=output)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    elif other is None:
        _show_card(found)
    else:
        _show_comparison(found)


def _tell_trees(model: Any) -> None:
    if model.boosted is not None:
        typer.echo(
            "boosted trees make this model's predictions: rows are explained by the trees; fields, "
            "pairs and categories by the field-wise score that the trees read",
            err=True,
        )


def _show_card(card: Any) -> None:
    say(f"{card.field} = {card.category}, of {card.output}")
    if card.note:
        say(card.note)
    sure = ""
    if card.error is not None:
        sure = f" (± {card.error:.3f}; the direction is {card.confidence:.1%} sure)"
    say(f"seen {card.count:,} times, {card.share:.2%} of rows")
    say(f"adds {card.main:+.3f} to the score on average{sure}; bias {card.bias:+.3f}")
    say(
        f"distance from the field's mean model {card.distance:.3f}, typically {card.typical:.3f}: "
        f"{card.oddity} of {card.size} by distance"
    )
    if card.nearest:
        near = ", ".join(f"{name} ({d:.2f})" for name, d in card.nearest)
        say(f"nearest: {near}")
    rows = []
    for name, ends in card.partners.items():
        for sign, partners in zip(("for", "against"), ends, strict=True):
            for k, p in enumerate(partners):
                head = (name if sign == "for" and k == 0 else "", sign if k == 0 else "")
                numbers = (f"{p.weight:+.3f}", f"{p.effect:+.3f}", f"{p.count:,}")
                rows.append((*head, p.category, *numbers))
    if rows:
        heads = ("field", "", "category", "weight", "together", "seen")
        show_table("Its strongest partners", heads, rows, words=3)


def _show_comparison(found: Any) -> None:
    say(f"{found.field}: {found.first} and {found.second}, of {found.output}")
    for k, name in enumerate((found.first, found.second)):
        say(
            f"{name}: seen {found.counts[k]:,} times, adds {found.main[k]:+.3f} on average, "
            f"bias {found.bias[k]:+.3f}"
        )
    say(
        f"distance of the two models {found.distance:.3f}; of the field's from their mean "
        f"typically {found.typical:.3f}"
    )
    by_field = ", ".join(f"{name} {apart:.3f}" for name, apart in found.fields[:6])
    say(f"partners' weights differ by, on average of each field: {by_field}")
    rows = [
        (d.field, d.category, f"{d.first:+.3f}", f"{d.second:+.3f}", f"{d.difference:+.3f}",
         f"{d.effect:+.3f}", f"{d.count:,}")
        for d in found.differences
    ]  # fmt: skip
    heads = ("field", "category", found.first, found.second, "difference", "together", "seen")
    show_table("Where they differ most", heads, rows, words=2)


def _show(numbers: dict[str, Any]) -> None:
    from ..explain.shapes import by_share, top_pairs
    from ..report.text import headline

    say(headline(numbers))
    fields = [numbers["fields"][i] for i in by_share(numbers["fields"])]
    rows = [
        (f["name"], f["kind"], f"{f['categories']:,}", f"{f['importance']:.4f}",
         f"{f['share']:.1%}", f"{f['pair_share']:.1%}")
        for f in fields
    ]  # fmt: skip
    title = "Fields, by their share of the score's variance"
    heads = ["field", "kind", "categories", "importance", "alone", "in pairs"]
    show_table(title, heads, rows, words=2, spare=("kind",))
    pairs = [(a, b, f"{s:.2%}") for a, b, s in top_pairs(numbers["fields"], numbers["pairs"])]
    show_table("Pairs of fields", ("field", "and", "share"), pairs[:10], words=2)
    odd = [
        (
            c["field"],
            c["category"],
            f"{c['count']:,}",
            f"{c['distance']:.3f}",
            f"{c['typical']:.3f}",
        )
        for c in numbers["odd"][:10]
    ]
    heads = ["field", "category", "seen", "distance", "typically"]
    show_table("Categories that stand apart", heads, odd, words=2)
    for title, body in (("held out", numbers["summary"]["metrics"]), ("on this table",
                        numbers["data_metrics"])):  # fmt: skip
        if body:
            words = ", ".join(f"{k.replace('_', ' ')} {v:.4f}" for k, v in body.items())
            say(f"{title}: {words}")
    if numbers["slices"]:
        worst = [
            (s["field"], s["category"], f"{s['count']:,}", f"{s['loss']:.4f}",
             f"{s['excess']:+.4f}")
            for s in numbers["slices"][:10]
        ]  # fmt: skip
        heads = ["field", "category", "rows", "loss", "over all rows'"]
        show_table("Where the loss is highest", heads, worst, words=2)
