"""Build the wheel and the sdist, look into them, and try the wheel where nothing else is: `make
release-check`.

    build -> contents -> metadata -> a clean environment -> the README's ten lines -> fieldwise demo
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from packaging.metadata import Metadata

ROOT = Path(__file__).parent.parent
MOST_BYTES = 5_000_000  # of the wheel, and of the sdist; most of it are the flights
NEEDED = (
    "fieldwise/py.typed",
    "fieldwise/data/flights.parquet",
    "fieldwise/report/page.html",
    "fieldwise/report/page.css",
    "fieldwise/report/page.js",
    "LICENSE",
)
NEEDED_OF_SOURCE = ("README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")
JUNK = re.compile(
    r"(^|/)(tests?|benchmarks|docs|examples|release|\.ci)/|__pycache__|\.(pyc|nbc|nbi)$"
)
RUNTIME_ONLY = ("torch", "pandas", "pyarrow", "lightgbm", "ray", "fastapi", "matplotlib")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        step("build", built, place / "dist")
        wheel, source = sorted((place / "dist").iterdir(), key=lambda p: p.suffix != ".whl")
        step("contents", check_contents, wheel, source)
        step("metadata", check_metadata, wheel)
        step("install in a clean environment", installed, wheel, place / "clean")
        python = place / "clean" / "bin" / "python"
        step("the README's ten lines", ten_lines, python, place)
        step("fieldwise demo", run, [python.with_name("fieldwise"), "demo"], place)
        print(f"{wheel.name} and {source.name} are good")


def step(title: str, work: Any, *given: Any) -> None:
    print(f"{title} ...", flush=True)
    work(*given)


def run(command: Sequence[Any], folder: Path) -> str:
    """Away from the checkout, whose source must not be what is imported."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "COVERAGE_PROCESS_START")
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    run(command, ROOT)


def check_contents(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        in_wheel = found.namelist()
    with tarfile.open(source) as packed:
        in_source = [name.partition("/")[2] for name in packed.getnames()]
    wanted = modules() | set(NEEDED)
    problems = missing(wheel.name, in_wheel, wanted)
    problems += missing(source.name, in_source, wanted | set(NEEDED_OF_SOURCE))
    problems += [f"{name} is not wanted" for name in junk([*in_wheel, *in_source])]
    for file in (wheel, source):
        if file.stat().st_size > MOST_BYTES:
            problems.append(f"{file.name} has {file.stat().st_size:,} bytes, over {MOST_BYTES:,}")
    if problems:
        sys.exit("\n".join(problems))


def modules() -> set[str]:
    """Every file of the package that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "src/fieldwise"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.removeprefix("src/") for name in listed.stdout.split()}


def missing(archive: str, names: Sequence[str], wanted: set[str]) -> list[str]:
    return [
        f"{archive} lacks {name}"
        for name in sorted(wanted)
        if not any(found == name or found.endswith(f"/{name}") for found in names)
    ]


def junk(names: Sequence[str]) -> list[str]:
    return [name for name in names if JUNK.search(name)]


def check_metadata(wheel: Path) -> None:
    """What an index would refuse, and a README that would not be shown."""
    with zipfile.ZipFile(wheel) as found:
        (name,) = (n for n in found.namelist() if n.endswith(".dist-info/METADATA"))
        about = Metadata.from_email(found.read(name), validate=True)
    problems = []
    if str(about.version) != version():
        problems.append(f"the wheel is of version {about.version}, the source of {version()}")
    if about.description_content_type != "text/markdown" or not about.description:
        problems.append("the README is not the wheel's description")
    problems += unknown_classifiers(about.classifiers or [])
    problems += unrendered(about.description or "")
    if problems:
        sys.exit("\n".join(problems))


def unknown_classifiers(names: Sequence[str]) -> list[str]:
    from trove_classifiers import classifiers

    return [f"{name!r} is no classifier" for name in names if name not in classifiers]


def unrendered(text: str) -> list[str]:
    """What is left of Markdown in the page that is made of it."""
    page = MarkdownIt("commonmark").enable("table").render(text)
    shown = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", page, flags=re.DOTALL)
    words = re.sub(r"<[^>]+>", "", shown)
    return [f"the README shows {m[0]!r}" for m in re.finditer(r"```|\*\*|\]\(|^#+ |\|---", words)]


def version() -> str:
    text = (ROOT / "src" / "fieldwise" / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def installed(wheel: Path, folder: Path) -> None:
    """The wheel and what it needs to run, of the pinned versions, and nothing else."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", wheel], folder)
    run([*pip, "check"], folder)
    there = {line.partition("==")[0].lower() for line in run([*pip, "freeze"], folder).split()}
    extra = sorted(there & set(RUNTIME_ONLY))
    if extra:
        sys.exit(f"the wheel alone brings {', '.join(extra)}")
    said = run([python, "-c", "import fieldwise; print(fieldwise.__file__)"], folder)
    if not said.startswith(str(folder)):
        sys.exit(f"what is imported is {said.strip()}, not what was installed")


def ten_lines(python: Path, folder: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[:1]
    run([python, "-c", code], folder)


if __name__ == "__main__":
    main()
