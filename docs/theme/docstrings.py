"""The docstrings of the house as Markdown, for the API reference.

    Parameters                      **Parameters**
    ----------
    rank : so many columns          `rank` : `int | None` = `None`
        a field.                    :   so many columns a field.

Docstrings are read as Python has them once a module is imported: those of estimators share a part.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import Any

import griffe

__all__ = ["Docstrings", "as_markdown"]

SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
PAGE = re.compile(r"docs/(\w+)\.md")
ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*)(?: : (?P<text>.*))?$")


def as_markdown(text: str, given: dict[str, str]) -> str:
    """A docstring; `given` is what is known of the type and default of each parameter."""
    text = PAGE.sub(r"[\1](../\1.md)", text)
    head, *sections = SECTION.split(text)
    parts = [head.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        parts.append(f"**{title}**")
        parts.append(_examples(body) if title == "Examples" else _entries(body, given))
    return "\n\n".join(part for part in parts if part)


def _entries(body: str, given: dict[str, str]) -> str:
    out, found = [], False
    for line in body.strip("\n").split("\n"):
        entry = ENTRY.match(line)
        if entry:
            names = entry["names"].split(", ")
            known = {given[name] for name in names if name in given}
            terms = ", ".join(f"`{name}`" for name in names)
            out += ["", terms + (f" : {known.pop()}" if len(known) == 1 else ""), ""]
            out.append(f":   {entry['text'] or ''}".rstrip())
            found = True
        elif line[:1].isspace() or not line:
            out.append(line)
        else:  # a remark after the list
            out += ["", line] if found else [line]
            found = False
    return "\n".join(out).strip()


def _examples(body: str) -> str:
    """Prose, and what is typed at Python's prompt."""
    out, inside = [], False
    for line in textwrap.dedent(body).strip().split("\n"):
        if line.startswith(">>>") and not inside:
            out += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            out += ["```", ""]
            inside = False
        out.append(line)
    return "\n".join([*out, "```"] if inside else out)


class Docstrings(griffe.Extension):
    """Takes the docstring that Python has, and makes Markdown of it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if not obj.path.startswith("fieldwise"):
            return
        text = inspect.cleandoc(obj.docstring.value) if obj.docstring else ""
        if obj.is_class and "__doc__" in obj.members:  # put together when it is imported
            text = inspect.cleandoc(_imported(obj).__doc__)
        if text:
            given = self._given(obj) if SECTION.search(text) else {}
            obj.docstring = griffe.Docstring(as_markdown(text, given), parent=obj)

    @staticmethod
    def _given(obj: griffe.Object) -> dict[str, str]:
        """Types and defaults, of a class those of its `__init__`."""
        function: Any = obj
        if obj.is_class:
            function = obj.members.get("__init__")
            if function is None:  # what its parents have
                parameters = inspect.signature(_imported(obj)).parameters
                return {k: _shown(p.annotation, repr(p.default)) for k, p in parameters.items()}
        if not isinstance(function, griffe.Function):
            return {}
        return {p.name: _shown(p.annotation, p.default) for p in function.parameters}


def _imported(obj: griffe.Object) -> Any:
    return getattr(importlib.import_module(obj.module.path), obj.name)


def _shown(annotation: Any, default: Any) -> str:
    parts = []
    if annotation not in (None, inspect.Parameter.empty):
        parts.append(f"`{annotation}`")
    if default not in (None, inspect.Parameter.empty):
        parts.append(f"default `{default}`")
    return ", ".join(parts)
