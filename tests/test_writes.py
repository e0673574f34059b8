"""Everything that is written is whole or not at all: as the source has it, and as the system is
asked for it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import fieldwise
from commands import dead_process
from fieldwise.files import replace_folder, temporary_folder, write_atomically

SOURCE = Path(fieldwise.__file__).parent

# Names of what writes a file, a folder's names, or takes a path to do so.
WRITERS = {
    *("write_bytes", "write_text", "tofile", "savefig", "savez", "savez_compressed", "savetxt"),
    *("to_csv", "to_parquet", "to_pickle", "sink_parquet", "sink_csv", "sink_ipc"),
    *("write_ipc", "write_ndjson", "write_json", "mkstemp", "NamedTemporaryFile"),
}
MOVERS = {"rename", "replace", "move", "copy", "copy2", "copyfile", "copytree", "link", "truncate"}

# Where that is done by hand, and why what is there is never half of something.
BY_HAND = {
    "files.write_atomically": "what everybody else calls",
    "files.array_on_disk": "memory on a disk, for the process that made it alone",
    "files.remove_folder": "renamed, then removed",
    "files.replace_folder": "one folder in the place of another",
    "files.put_back": "one rename",
    "model_folder._write_files": "in a temporary folder, which is synced and then renamed",
    "tensors.write_tensors": "in the temporary folder of a model",
    "checkpoint.write_array": "synced; the header that is written after it makes it count",
    "data.store.StoreWriter._open": "synced; the header that is written last makes it count",
    "data.store.StoreWriter._undo": "cut to the rows that the header counts",
    "data.provisional.Spool.write": "never read after the process that wrote it",
    "data.remote._put": "a whole folder gets its name",
    "data.remote._move_files": "into a temporary folder, which is synced and then renamed",
    "updating.versions.being_changed": "a lock, which is empty",
    "updating.versions._kept": "a whole folder gets its name",
    "updating.versions._copy": "into a temporary folder, which is synced and then renamed",
    "compare.run.Work._fit": "a line a fit, added to a file; only a limit of time reads it",
    "serve.live.LiveModel._loaded": "into a folder of the server's own, which goes with it",
}


def writes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The functions that write by hand, and where."""
    memory = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "BytesIO" in ast.dump(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def walk(node: ast.AST, inside: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                name = (*inside, child.name)
            if isinstance(child, ast.Call) and by_hand(child, memory):
                yield ".".join(inside), child.lineno
            yield from walk(child, name)

    return walk(tree, ())


def by_hand(call: ast.Call, memory: set[str]) -> bool:
    if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id in memory:
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = getattr(getattr(call.func, "value", None), "id", "")
    if name == "open":
        given = (inner for part in (*call.args, *call.keywords) for inner in ast.walk(part))
        words = [node.value for node in given if isinstance(node, ast.Constant)]
        changes = any(isinstance(w, str) and set(w) & set("wax+") and len(w) < 4 for w in words)
        return changes or (owner == "os" and "O_CREAT" in ast.dump(call))
    if name in MOVERS:
        return owner in ("os", "shutil") or (name == "rename" and is_path(call))
    return name in WRITERS or (name == "save" and owner == "np")


def is_path(call: ast.Call) -> bool:
    """`path.rename(other)`; a frame's takes names."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.BinOp)


def test_nothing_else_writes_by_hand() -> None:
    found = {}
    for path in SOURCE.rglob("*.py"):
        room = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for where, line in writes(ast.parse(path.read_text())):
            found[f"{room}.{where}"] = f"{path}:{line}"
    new = {name: at for name, at in found.items() if name not in BY_HAND}
    assert not new, f"write these with fieldwise.files, or say in BY_HAND why not: {new}"
    assert set(BY_HAND) - set(found) == set(), "these write no longer: take them out of BY_HAND"


@pytest.mark.parametrize(
    "line",
    [
        "open('f', 'w')", "path.open('wb')", "path.open(mode='a')", "path.write_text('x')",
        "frame.write_ipc(path)", "np.save(path, x)", "os.rename(a, b)", "shutil.move(a, b)",
        "figure.savefig(path)", "os.open(path, os.O_RDWR | os.O_CREAT)", "one.rename(a / b)",
    ],
)  # fmt: skip
def test_what_is_found(line: str) -> None:
    assert list(writes(ast.parse(f"def f():\n    {line}")))


@pytest.mark.parametrize(
    "line", ["path.open()", "open('r')", "frame.rename(names)", "s.replace(a)"]
)
def test_what_is_not(line: str) -> None:
    assert not list(writes(ast.parse(f"def f():\n    {line}")))


def recorded(monkeypatch) -> list[tuple[str, str]]:
    """What is asked of the system, in order, and the name of the file or folder it is about."""
    asked: list[tuple[str, str]] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "rename")}

    def fsync(handle: int) -> None:
        asked.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        real["fsync"](handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("replace", "rename"):

        def moved(a, b, name=name):
            asked.append((name, Path(b).name))
            real[name](a, b)

        monkeypatch.setattr(os, name, moved)
    return asked


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files need /proc")
def test_a_file_is_synced_before_it_gets_its_name(tmp_path, monkeypatch) -> None:
    asked = recorded(monkeypatch)
    write_atomically(tmp_path / "f", b"content")
    assert asked == [("fsync", f".f.{os.getpid()}.tmp"), ("replace", "f"), ("fsync", tmp_path.name)]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files need /proc")
def test_a_model_is_synced_before_it_gets_its_name(models, tmp_path, monkeypatch) -> None:
    model = fieldwise.FieldwiseModel.load(models["plain"])
    asked = recorded(monkeypatch)
    model.save(tmp_path / "m")
    files = {p.name for p in (tmp_path / "m").iterdir()}
    before = asked[: asked.index(("rename", "m"))]
    assert files <= {name for what, name in before if what == "fsync"}
    assert before[-1] == ("fsync", temporary_folder(tmp_path / "m").name)
    assert asked[-1] == ("fsync", tmp_path.name)


def test_a_write_that_fails_leaves_the_old_file(tmp_path) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "f", broken())
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_two_processes_may_write_the_same_file(tmp_path, monkeypatch) -> None:
    """The one that ends last is there, whole."""

    def content() -> Iterator[bytes]:
        yield b"one"
        with monkeypatch.context() as other:
            other.setattr(os, "getpid", os.getppid)
            write_atomically(tmp_path / "f", b"another")
        assert (tmp_path / "f").read_bytes() == b"another"
        yield b" and one"

    write_atomically(tmp_path / "f", content())
    assert (tmp_path / "f").read_bytes() == b"one and one"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path) -> None:
    left = tmp_path / f".f.{dead_process()}.tmp"
    left.write_bytes(b"half")
    write_atomically(tmp_path / "f", b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_takes_the_place_of_another(tmp_path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    replace_folder(tmp_path / "new", tmp_path / "old")
    assert [p.name for p in (tmp_path / "old").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
