"""A DuckDB in memory and a PostgreSQL of its own, for tests: tables in, scripts and queries run."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Database", "duckdb_in_memory", "postgres_server", "psql"]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Database:
    """A connection and its mark for a parameter."""

    def __init__(self, dialect: str, connection: Any, mark: str) -> None:
        self.dialect, self.connection, self._mark = dialect, connection, mark

    def run(self, script: str) -> None:
        self.connection.execute(script)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return list(self.connection.execute(query).fetchall())

    def create(self, table: str, types: Mapping[str, str]) -> None:
        """A table with these columns, and `id`."""
        columns = ", ".join(f"{_quoted(name)} {kind}" for name, kind in types.items())
        self.run(f"CREATE TABLE {_quoted(table)} (id integer, {columns})")

    def fill(self, table: str, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """These rows alone, numbered in `id`."""
        self.run(f"DELETE FROM {_quoted(table)}")
        columns = ", ".join(map(_quoted, names)).replace("%", "%%" if self._mark == "%s" else "%")
        marks = ", ".join([self._mark] * (len(names) + 1))
        text = f"INSERT INTO {_quoted(table)} (id, {columns}) VALUES ({marks})"
        values = [[n, *(row[name] for name in names)] for n, row in enumerate(rows)]
        if values:
            target = self.connection if self.dialect == "duckdb" else self.connection.cursor()
            target.executemany(text, values)


def duckdb_in_memory() -> Database:
    duckdb = pytest.importorskip("duckdb", reason="the package duckdb is not installed")
    return Database("duckdb", duckdb.connect(), "?")


def _found(name: str) -> str | None:
    """A program of the server, which Debian keeps off the path."""
    homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, homes)]))


@contextmanager
def postgres_server() -> Iterator[Path]:
    """The folder of the socket of a server of our own, which is not on the network."""
    pytest.importorskip("psycopg", reason="the package psycopg is not installed")
    programs = [_found(name) for name in ("initdb", "pg_ctl")]
    if None in programs:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="fw-pg-") as name:
        folder, user = Path(name), []
        if os.geteuid() == 0:  # it refuses to run as root
            if "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            shutil.chown(folder, "postgres")
            user = ["runuser", "-u", "postgres", "--"]
        options = ["-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        options += ["--locale=C.UTF-8", "--no-sync"]
        settings = f"-k {folder} -c listen_addresses='' -c fsync=off"
        control = [*user, str(programs[1]), "-D", str(folder / "data"), "-w", "-t", "60"]
        try:
            subprocess.run([*user, str(programs[0]), *options], check=True, capture_output=True)
            subprocess.run(
                [*control, "-l", str(folder / "log"), "-o", settings, "start"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"PostgreSQL cannot be started here: {error} {error.stderr!r}")
        try:
            yield folder
        finally:
            stop = [*control, "-m", "immediate", "stop"]
            subprocess.run(stop, check=True, stdout=subprocess.DEVNULL)


def postgres(folder: Path) -> Database:
    """A connection, to a database with nothing in it."""
    import psycopg

    connection = psycopg.connect(
        host=str(folder), user="postgres", dbname="postgres", autocommit=True
    )
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return Database("postgres", connection, "%s")


def psql(folder: Path, file: Path) -> str:
    """What the command line says of a script."""
    program = _found("psql")
    if program is None:
        pytest.skip("psql is not installed")
    options = ["-h", str(folder), "-U", "postgres", "-X", "-q", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run([program, *options, "-f", str(file)], capture_output=True, text=True)
    return done.stderr
