"""What the build of the manual adds to the pages as they are written.

    [presets.json](../benchmarks/results/presets.json)   files of the repository come along
    <!-- code: fieldwise.maths.scores -->                the code of a function, folded
    <!-- commands -->                                    every command with its options

On a page of the repository, read without the build, links work and remarks are not seen.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
TABLE = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE = re.compile(r"^<!-- code: ([\w., ]+) -->$", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Files of the repository that a page leads to become files of the site."""
    for page in list(files.documentation_pages()):
        for target, _ in OUTSIDE.findall(page.content_string):
            found = _outside(page.src_uri, target)
            if found is None or files.get_file_from_path(_place(found)):
                continue
            text = found.read_text()
            if found.suffix == ".md":
                text = OUTSIDE.sub(r"`\1`", re.sub(r"\]\(docs/", "](../", text))
                text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
            elif found.suffix != ".json":
                language = {".py": "python", ".toml": "toml"}.get(found.suffix, "text")
                text = f"# {found.relative_to(ROOT)}\n\n````{language}\n{text}\n````\n"
                text = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n{text}"
            file = File.generated(
                config, _place(found), content=text, inclusion=InclusionLevel.NOT_IN_NAV
            )
            files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    def inside(match: re.Match[str]) -> str:
        found = _outside(page.file.src_uri, match[1])
        if found is None:
            return match[0]
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"]({posixpath.relpath(_place(found), here)}{match[2] or ''})"

    markdown = OUTSIDE.sub(inside, markdown)
    # Within code in a table the site needs no backslash before the sign that ends a cell.
    markdown = TABLE.sub(lambda row: row[0].replace("\\|", "|"), markdown)
    markdown = CODE.sub(lambda match: _code(match[1].split(", ")), markdown)
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", commands())
    return markdown


def _outside(page: str, target: str) -> Path | None:
    """The file of the repository, outside of docs, that a page's link leads to."""
    found = (ROOT / "docs" / page).parent.joinpath(target).resolve()
    if not found.is_file() or found.is_relative_to(ROOT / "docs"):
        return None
    return found if found.is_relative_to(ROOT) else None


def _place(file: Path) -> str:
    """Where it is in the site; text becomes a page."""
    name = file.relative_to(ROOT).as_posix()
    return "repository/" + (name if file.suffix in (".md", ".json") else f"{name}.md")


def _code(names: list[str]) -> str:
    """The code of these functions, as it is imported, folded."""
    out = []
    for name in names:
        module, _, function = name.rpartition(".")
        found = getattr(__import__(module, fromlist=[function]), function)
        out.append(f'??? code "`{name.removeprefix("fieldwise.")}`"\n\n    ```python')
        out += [f"    {line}".rstrip() for line in inspect.getsource(found).rstrip().split("\n")]
        out.append("    ```\n")
    return "\n".join(out)


def commands() -> str:
    """Every command, its arguments and options, as the command line has them."""
    from fieldwise.cli import app

    out = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        function = command.callback
        hints = get_type_hints(function, include_extras=True)
        panels: dict[str, list[tuple[str, str, str]]] = {}
        for parameter in command.params:
            rows = panels.setdefault(parameter.rich_help_panel or "", [])
            rows.append(_row(parameter, _kind(hints[parameter.name])))
        out += [f"## {name}", "", *_said(inspect.getdoc(function) or "")]
        for panel, rows in panels.items():
            out += [f"**{panel}**", ""] if panel else []
            out += ["| | | |", "|---|---|---|"]
            out += [f"| {name} | {kind} | {said} |" for name, kind, said in rows]
            out.append("")
    return "\n".join(out)


def _said(text: str) -> list[str]:
    """What a command says of itself, and its examples."""
    out = []
    for paragraph in text.split("\n\n"):
        is_code = all(line.startswith("fieldwise ") for line in paragraph.split("\n"))
        out += ["```bash", paragraph, "```", ""] if is_code else [_escaped(paragraph), ""]
    return out


def _kind(hint: Any) -> Any:
    """The type of a parameter, None and what typer is told of it aside."""
    kind = get_args(hint)[0]
    kinds = [k for k in get_args(kind) if k is not type(None)]
    return kinds[0] if len(kinds) < len(get_args(kind)) else kind


def _row(parameter: Any, kind: Any) -> tuple[str, str, str]:
    """A name in capital letters is an argument."""
    is_option = parameter.opts[0].startswith("--")
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar]
    words = {str: "text", int: "whole number", float: "number", Path: "path", bool: ""}
    value = parameter.metavar if is_option and parameter.metavar else words.get(kind, "text")
    said, default = _escaped(parameter.help or ""), parameter.default
    if parameter.required:
        said += " **Required.**" if is_option else ""
    elif default not in (None, False):
        said += f" Unless set: `{default}`."
    return ", ".join(f"`{name}`" for name in names), value, said


def _escaped(text: str) -> str:
    text = " ".join(text.split())
    return re.sub(r"([|*_<>])", r"\\\1", text)
