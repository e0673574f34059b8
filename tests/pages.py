"""The pages of the manual as tests read them: blocks of code, and a desk on which they run.

A block in ```python or ```bash runs, and so does an indented one that begins with a program's name.
A remark before a block says that it does not, and why:

    <!-- not run: two machines -->

Its commands are still held against the options that there are.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from commands import run
from serving import Server

__all__ = ["PAGES", "ROOT", "Block", "Desk", "blocks_of", "commands_of", "known_options"]

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("fieldwise", "pip", "make", "curl", "python", "torchrun", "psql", "mlflow")
FENCE = re.compile(r"^```(\w*)$")
NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
# What is shown is for real tables; a test has seconds. Options given twice count the second time.
QUICKLY = {
    "train": ["--epochs", "1", "--learning-rate", "0.1"],
    "compare": ["--methods", "LR,ours", "--trials", "1", "--repeats", "1"],
    "tune": ["--trials", "2"],
    "bound": ["--ranks", "1,2", "--epochs", "3"],
}


@dataclass(frozen=True)
class Block:
    """`line` is where it begins; `reason` why it does not run, if it does not."""

    page: Path
    line: int
    language: str
    text: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Fenced blocks, and those that are indented after an empty line, outside of lists."""
    found, reason, after_empty = [], "", True
    lines = page.read_text().split("\n")
    at = 0
    while at < len(lines):
        line, start = lines[at], at
        at += 1
        fence, remark = FENCE.match(line), NOT_RUN.match(line)
        if fence:
            while lines[at] != "```":
                at += 1
            body, language = lines[start + 1 : at], fence[1]
            at += 1
        elif after_empty and line.startswith("    ") and line.strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            body, language = [text[4:] for text in lines[start:at]], ""
            if body[0].split()[0] in PROGRAMS:
                language = "bash"
        else:
            reason = remark[1] if remark else reason if not line.strip() else ""
            after_empty = not line.strip()
            continue
        found.append(Block(page, start + 1, language, "\n".join(body), reason))
        reason, after_empty = "", True
    return found


def commands_of(block: Block) -> list[str]:
    """Its lines; one that ends in a backslash or within quotes goes on."""
    found, line = [], ""
    for text in block.text.replace("\\\n", " ").split("\n"):
        line += f"\n{text}" if line else text
        try:
            shlex.split(line, comments=True)
        except ValueError:  # no closing quotation yet
            continue
        found.append(line)
        line = ""
    assert not line, f"{block}: {line}"
    return found


@cache
def clicks(seed: int, n: int = 3000) -> pl.DataFrame:
    """A table as the pages speak of: who clicked what, where and when."""
    random = np.random.default_rng(seed)
    user, item, site = (random.integers(0, k, n) for k in (40, 25, 6))
    hour = random.integers(0, 24, n)
    chance = 1 / (1 + np.exp(1 - 2.0 * ((user + item) % 5 < 2) - (hour > 17)))
    clicked = (random.random(n) < chance).astype(int)
    return pl.DataFrame(
        {
            "user": [f"u{k}" for k in user],
            "item": [f"i{k}" for k in item],
            "site": [f"s{k}" for k in site],
            "hour": hour,
            "price": random.gamma(2, 10, n).round(2),
            "genres": [f"g{k % 4}|g{k % 7}" for k in item],
            "impressions": random.integers(5, 9, n),
            "clicks": random.integers(0, 5, n),
            "clicked": clicked,
        }
    )


LEARNED = ["user", "item", "site", "hour", "price", "clicked"]
FLIGHT = ["carrier", "origin", "hour", "late"]
TABLES = {"clicks": 0, "yesterday": 1, "today": 2, "tomorrow": 3, "held_out": 4, "v": 5}


class Desk:
    """A folder in which a page's blocks run, one after the other.

    Files that a page takes as given are there once they are named: tables of clicks, the flights
    (few of them), a store, models.
    """

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self.shared = folder, shared
        self.server: Server | None = None

    def run(self, block: Block) -> None:
        if block.language == "python":
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)
        else:
            for line in commands_of(block):
                self.command(line)

    def check(self, block: Block) -> None:
        """Of a block that does not run: whether it could be read."""
        if block.language == "python":
            compile(block.text, str(block.page), "exec")
        for line in commands_of(block) if block.language == "bash" else ():
            words = shlex.split(line, comments=True)
            if "fieldwise" in words:
                words = words[words.index("fieldwise") + 1 :]
                known_options(words[: words.index("<")] if "<" in words else words)

    def close(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def command(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        environment = {}
        while words and re.match(r"^[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if not words:  # a remark
            return
        program, rest = words[0], words[1:]
        if program == "fieldwise" and rest[:1] == ["serve"]:
            self._serve(rest[1:], environment)
        elif program == "fieldwise":
            self._fieldwise(rest)
        elif program == "curl":
            self._curl(line)
        elif program == "pip":
            extras_are_there(rest)
        elif program == "make":
            asked = subprocess.run(["make", "-n", *rest], cwd=ROOT, capture_output=True, text=True)
            assert asked.returncode == 0, asked.stderr
        elif program == "python" and rest[:1] == ["-m"]:  # a program of ours, which takes long
            module = ROOT / rest[1].replace(".", "/")
            assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), line
        elif program in ("python", "mkdir", "cp", "mv"):
            self._given(rest)
            subprocess.run(
                re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", line),
                shell=True, check=True, capture_output=True, env={**os.environ, **environment},
            )  # fmt: skip
        else:
            raise AssertionError(f"{program}: a program that the tests do not know")

    def _fieldwise(self, words: list[str]) -> None:
        known_options(words)
        command, out = words[0], ""
        if "--out" in words:
            out = words[words.index("--out") + 1]
            if "--append" not in words and "--overwrite" not in words:
                shutil.rmtree(out, ignore_errors=True)  # of a block before
        self._given([word for word in words if word != out])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on standard error, of a command
            run(*words, *QUICKLY.get(command, ()))
        assert not out or Path(out).exists(), f"{out} was not written"

    def _serve(self, words: list[str], environment: dict[str, str]) -> None:
        known_options(["serve", *words])
        self.close()
        self._given(words)
        self.server = Server(Path(words[0]), **environment)  # on a port of its own

    def _curl(self, line: str) -> None:
        assert self.server is not None, "curl without a server"
        self._given(re.findall(r"@([\w.]+)", line))
        line = re.sub(r"(localhost|127\.0\.0\.1):8000", f"127.0.0.1:{self.server.port}", line)
        done = subprocess.run(f"{line} -sS --fail-with-body", shell=True, capture_output=True)
        assert done.returncode == 0, (line, done.stdout, done.stderr)

    def _given(self, words: list[str]) -> None:
        """What a line names and no block has made."""
        for word in words:
            path = Path(word)
            if path.is_absolute() or path.exists() or word.startswith("-"):
                continue
            made = self._made(word)
            if made is not None and made.is_dir():
                shutil.copytree(made, path)
            elif made is not None:
                shutil.copy(made, path)

    def _made(self, name: str) -> Path | None:
        path = self.shared / name
        if path.exists():
            return path
        stem, _, kind = name.rpartition(".")
        if name == "clicks/*.csv":
            Path("clicks").mkdir(exist_ok=True)
            for k in range(2):
                clicks(k).select(LEARNED).write_csv(f"clicks/{k}.csv")
            return None
        if name.startswith("flights") and kind in ("", "parquet", "flights"):
            import fieldwise

            fieldwise.load_flights().select(FLIGHT).head(4000).write_parquet(path)
        elif name == "counts.csv":
            clicks(0).write_csv(path)
        elif stem in TABLES and kind == "csv":
            clicks(TABLES[stem]).select(LEARNED).write_csv(path)
        elif stem in TABLES and kind == "parquet":
            clicks(TABLES[stem]).select(LEARNED).write_parquet(path)
        elif kind == "ffm":
            rows = clicks(len(stem)).select("clicked", "user", "item").iter_rows()
            lines = [f"{y} 0:{user[1:]}:1 1:{item[1:]}:1" for y, user, item in rows]
            path.write_text("\n".join([*lines, ""]))
        elif name in ("clicks.model", "clicks.store"):
            table = self._made("clicks.csv")
            verb = ["train", "--quiet", *QUICKLY["train"]] if kind == "model" else ["encode"]
            run(*verb, table, "--target", "clicked", "--out", path)
        elif name == "late.model":
            table = self._made("flights")
            run("train", table, "--target", "late", "--out", path, "--quiet", *QUICKLY["train"])
        else:
            return None
        return path


def known_options(words: list[str]) -> None:
    """Whether the command line takes these words, without doing what they say."""
    import typer.main

    from fieldwise.cli import app

    group: Any = typer.main.get_command(app)
    assert words[0] in group.commands, f"fieldwise {words[0]}"
    try:
        group.commands[words[0]].make_context(words[0], words[1:])
    except Exception as error:  # click's, which typer brings a copy of
        raise AssertionError(f"fieldwise {shlex.join(words)}: {error}") from error


def extras_are_there(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words:
        found = re.fullmatch(r"(fieldwise|\.)\[([\w,]+)\]", word)
        for extra in found[2].split(",") if found else ():
            assert extra in project["optional-dependencies"], word
