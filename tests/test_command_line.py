"""The command line as a newcomer meets it: help, completion, mistakes, narrow terminals."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import typer

from commands import run
from fieldwise import FieldwiseClassifier, FieldwiseModel, encode
from fieldwise.cli import PANELS, app

GROUP = typer.main.get_command(app)
COMMANDS = list(GROUP.commands)
PROGRAM = Path(sys.executable).with_name("fieldwise")


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A table, a store of it and a model, with names that would be markup."""
    folder = tmp_path_factory.mktemp("things")
    n = 300
    table = pl.DataFrame({
        "site": [f"s{i % 7}" for i in range(n)],
        "[/bold]": [f"[red]{i % 5}" for i in range(n)],
        "clicked": [int(i % 7 + i % 5 > 5) for i in range(n)],
    })  # fmt: skip
    table.write_csv(folder / "t.csv")
    encode(folder / "t.csv", folder / "store", target="clicked")
    clf = FieldwiseClassifier(epochs=1, learning_rate=0.1, n_jobs=1)
    clf.fit(table.drop("clicked"), table["clicked"]).model_.save(folder / "model")
    return folder


def test_help_names_every_command_in_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown, _ = run("--help")
    for panel, commands in PANELS.items():
        assert f"─ {panel} ─" in shown
        for command in commands:
            said = command.__doc__.split("\n")[0]
            line = rf"│ {command.__name__} +{re.escape(said)} +│"
            assert re.search(line, shown), f"{command.__name__}: {said}"
    assert "Exit codes: 0, " in shown


def examples(text):
    lines = [line.strip() for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("fieldwise ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_are_of_the_command(name):
    """Each parses, though its files are not there."""
    found = examples(GROUP.commands[name].help)
    assert found
    assert any(words[0] == name for words in found)
    for command, *words in found:
        GROUP.commands[command].make_context(command, words)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_flags_are_shown_without_a_value(name):
    shown, _ = run(*filter(None, [name]), "--help")
    assert "--help" in shown
    assert "bool" not in shown.lower()


def test_examples_of_the_whole_help():
    for command, *words in examples(GROUP.help):
        GROUP.commands[command].make_context(command, words)
    with pytest.raises(Exception, match="--outt"):
        GROUP.commands["train"].make_context("train", ["t.csv", "--outt", "m"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("tr", {"train"}), ("train --learn", {"--learning-rate"}), ("comp", {"compare", "compress"})],
)
def test_bash_completes_commands_and_options(typed, wanted):
    words = ["fieldwise", *typed.split()]
    env = os.environ | {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    script = (
        'eval "$(_FIELDWISE_COMPLETE=source_bash fieldwise)"; '
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        "_fieldwise_completion fieldwise; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == wanted


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("trian", "Did you mean 'train'?"),
        ("train {t} --out m --taget clicked", "--target"),
        ("train {t} --out m --target click", "Did you mean 'clicked'?"),
        ("train {t} --out m --target clicked --drop sit", "Did you mean 'site'?"),
        (
            "train {t} --out m --target clicked --preset glas",
            "--preset 'glas' is not one of fast, glass, best. Did you mean 'glass'?",
        ),
        (
            "train {t} --out m --target clicked --combine vote --preset best",
            "leave out --combine 'vote' or set --cross 'none'",
        ),
        (
            "train {t} --out m --target clicked --kind site=numerci",
            "Did you mean 'numeric'?",
        ),
        ("train {t} --out {model} --target clicked", "set --overwrite or choose another name"),
        ("train seed=3/x.csv --target y --out m", "error: seed=3/x.csv: no such file"),
        ("train {open} --out m --target b", "or read without quotes (--no-quotes)"),
        ("export {model} --to onx --out x", "--to 'onx' is not one of onnx, sql, python. Did"),
        ("train {model} --out m --target clicked", "is a model, not a table"),
        ("inspect {store}", "is a store; name the table it was made from"),
        ("predict {model} {store} --out p.csv", "is a store; name the table"),
        ("predict m.model {t} --out p.csv", "no such folder. Make one with: fieldwise train"),
        ("evaluate {t} {model}", "it has no model.json. Make one with: fieldwise train"),
        ("serve {store}", "Make a model with: fieldwise train"),
        ("plan {t}", "say what to learn, with --target COLUMN"),
        ("explain {model} --format htlm", "Did you mean 'html'?"),
        ("predict {model} {pipe} --out p.csv", "can be read once; tables are read more"),
        ("train {pipe} --target clicked --out m", "save it as a file first"),
        (
            "train {t} --target clicked --out {busy} --overwrite",
            "'notes.txt', which is not a file of",
        ),
        ("update {busy} {t}", "'notes.txt', which is not a file of a model, would be lost"),
        ("compress {model} --validation {t} --out {busy} --overwrite", "move it elsewhere"),
        ("train {t} --target clicked --out {foreign} --overwrite", "is not a model; it is not rep"),
    ],
)
def test_mistakes_say_what_to_do(things, tmp_path, monkeypatch, typed, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (things / "open.csv").write_text('a,b\n"x,1\n')
    if not (things / "pipe").exists():
        os.mkfifo(things / "pipe")
        shutil.copytree(things / "model", things / "busy")
        (things / "busy" / "notes.txt").write_text("mine")
        (things / "foreign").mkdir()
        (things / "foreign" / "model.json").write_text("{}")
    names = {
        "pipe": things / "pipe",
        "busy": things / "busy",
        "foreign": things / "foreign",
        "open": things / "open.csv",
        "t": things / "t.csv",
        "store": things / "store",
        "model": things / "model",
    }
    _, errors = run(*typed.format(**names).split(), expect=2)
    assert words in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "typed",
    [
        "predict {model} {t} --out {t}",
        "predict {model} {folder} --out {t}",
        "predict {model} {t} --out {link}",
        "explain {model} {t} --format html --out {t}",
        "tune {t} --target clicked --out {t}",
    ],
)
def test_nothing_is_written_over_the_table_that_is_read(things, tmp_path, typed):
    content = (things / "t.csv").read_bytes()
    (tmp_path / "tables").mkdir()
    table = shutil.copy(things / "t.csv", tmp_path / "tables" / "t.csv")
    (tmp_path / "link.csv").symlink_to(table)
    names = {"t": table, "folder": tmp_path / "tables", "link": tmp_path / "link.csv"}
    _, errors = run(*typed.format(model=things / "model", **names).split(), expect=2)
    assert "is the table that is read; choose another name" in errors
    assert Path(table).read_bytes() == content
    assert len(list(tmp_path.rglob("*"))) == 3


def test_standard_output_may_be_closed(things):
    shell = f"{sys.executable} -m fieldwise inspect {things / 't.csv'} >&-"
    ended = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_letters_that_the_terminal_does_not_know(things, tmp_path):
    (tmp_path / "t.csv").write_text("Größe,y\n" + "ü,1\nß,0\n" * 40)
    command = [sys.executable, "-m", "fieldwise", "inspect", tmp_path / "t.csv"]
    known = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Gr\\xf6\\xdfe" in ended.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_may_be_full(things):
    shell = f"{sys.executable} -m fieldwise inspect {things / 't.csv'} >/dev/full"
    ended = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "error: No space left on device\n")


def test_names_are_not_markup(things):
    shown, _ = run("inspect", things / "t.csv", "--target", "clicked")
    assert re.search(r"^ +\[/bold\] +category", shown, re.MULTILINE)
    shown, _ = run("info", things / "model")
    assert re.search(r"^ +\[/bold\] +category", shown, re.MULTILINE)
    shown, _ = run("category", things / "model", "site", "s1")
    assert "[red]" in shown


@pytest.mark.parametrize("command", ["inspect {t} --target clicked", "info {m}", "explain {m}"])
def test_tables_fit_a_narrow_terminal(things, monkeypatch, command):
    """No word is broken and no number cut at 60 columns."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setattr("fieldwise.cli.screen.console.__defaults__", (60,))
    shown, _ = run(*command.format(t=things / "t.csv", m=things / "model").split())
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
    assert max(map(len, lines)) <= 60
    heads = {"inspect": "distinct", "info": "importance", "explain": "in pairs"}
    assert heads[command.split()[0]] in shown
    assert "…" not in shown


def test_no_colour_where_there_is_no_terminal(things):
    for words in (["inspect", things / "t.csv", "--target", "clicked"], ["trian"], ["--help"]):
        command = [sys.executable, "-m", "fieldwise", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "\x1b" not in done.stdout + done.stderr


def test_warnings_are_one_line(things, tmp_path):
    more = pl.read_csv(things / "t.csv").drop("clicked").with_columns(extra=1)
    more.write_csv(tmp_path / "more.csv")
    words = ["predict", things / "model", tmp_path / "more.csv", "--out", tmp_path / "p.csv"]
    command = [sys.executable, "-m", "fieldwise", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "warning: columns the model does not know are ignored: extra\n"


def test_ctrl_c_says_how_to_go_on(tmp_path):
    """Before an epoch is over there is no model yet; after it the best so far is kept."""
    rows = "".join(f"{i % 997},{i % 1013},{i % 2}\n" for i in range(1_000_000))
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows)
    words = ["train", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m"]
    command = [sys.executable, "-m", "fieldwise", *map(str, words), "--rank", "64"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / ".m.work" / "store").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted; the same command with --resume continues" in errors
    run(*words, "--resume", "--epochs", 1, "--learning-rate", 0.1, "--quiet")
    assert len(FieldwiseModel.load(tmp_path / "m").history) == 1


def test_the_version_is_said():
    from fieldwise import __version__

    assert run("--version")[0] == f"fieldwise {__version__}\n"
