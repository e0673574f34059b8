"""The package as a whole: its public names, its import graph, how light it is to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fieldwise
import fieldwise.data

SOURCE = Path(fieldwise.__file__).parent

# A module imports only from its own row and the rows beneath it, and never in a circle.
ROWS = [
    {"errors", "_lazy", "blas", "callbacks", "progress", "files", "tensors", "tree_text"},
    {"layout", "maths", "losses", "objective", "metrics", "packed"},
    {"engines", "data", "checkpoint"},
    {"boosted", "crosses", "held_out"},
    {"explain", "model_checks", "model_folder", "one_category", "problem", "ranking", "targets"}
    | {"train"},
    {"model"},
    {"_estimator", "crossing", "estimators", "features", "fitting", "predicting"}
    | {"baselines", "compress", "updating"},
    {"tune", "trend", "report", "serve", "distributed", "export"},
    {"compare", "demo"},
    {"cli"},
    {"__main__"},
]


def test_public_names() -> None:
    assert fieldwise.__all__ == [
        "BaselineClassifier",
        "DataError",
        "Field",
        "FieldEncoder",
        "FieldwiseClassifier",
        "FieldwiseError",
        "FieldwiseFeatures",
        "FieldwiseModel",
        "FieldwiseRegressor",
        "Layout",
        "MissingExtra",
        "ModelError",
        "Schema",
        "SchemaError",
        "SettingError",
        "Store",
        "StoreError",
        "Target",
        "TrainingError",
        "__version__",
        "encode",
        "load_flights",
        "synthetic",
        "update",
    ]


@pytest.mark.parametrize("package", [fieldwise, fieldwise.data])
def test_names_for_type_checkers_are_the_names(package) -> None:
    """What `if TYPE_CHECKING` imports, what is imported lazily and __all__ are one list."""
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    typed = {a.name for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == set(package._WHERE) == set(package.__all__) - {"__version__"}


@pytest.mark.parametrize("package", [fieldwise, fieldwise.data])
def test_every_public_name_is_there(package) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = package.nothing_like_it


def module_name(path: Path) -> str:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Modules of the package that this file imports, wherever in the file, types aside."""
    name = module_name(path)
    here = name.split(".") if name else []
    if path.name != "__init__.py":
        here = here[:-1]
    found = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = here[: len(here) - node.level + 1]
        target = [*base, *(node.module or "").split(".")] if node.module else base
        for alias in node.names:
            full = ".".join([*target, alias.name])
            is_module = (SOURCE / Path(*full.split("."))).with_suffix(".py").exists()
            found.add(full if is_module else ".".join(target))
    return found - {""}


def graph() -> dict[str, set[str]]:
    return {module_name(p): imports_of(p) for p in SOURCE.rglob("*.py") if module_name(p)}


def row_of(module: str) -> int:
    room = module.split(".", maxsplit=1)[0]
    rows = [i for i, row in enumerate(ROWS) if room in row]
    assert rows, f"module {module!r} has no row: add it to ROWS"
    return rows[0]


def test_no_arrow_points_up() -> None:
    arrows = [(a, b) for a, targets in graph().items() for b in targets]
    assert len(arrows) > 30
    assert [(a, b) for a, b in arrows if row_of(b) > row_of(a)] == []


def test_no_circle() -> None:
    try:
        list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(f"imports go in a circle: {' -> '.join(error.args[1])}")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(out.stdout.split())


HEAVY = {"numpy", "polars", "numba", "sklearn", "torch", "triton", "rich", "typer", "pandas"}


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import fieldwise", set()),
        ("import fieldwise.layout, fieldwise.maths", {"numpy"}),
        ("import fieldwise.data.store, fieldwise.data.shuffle, fieldwise.progress", {"numpy"}),
        ("import fieldwise.data.encoding", {"numpy", "polars"}),
    ],
)
def test_imports_stay_light(statement: str, allowed: set[str]) -> None:
    assert loaded_by(statement) & HEAVY <= allowed


def test_every_file_says_what_it_is_for() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} starts without a docstring"
