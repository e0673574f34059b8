"""The command line as a test calls it, in this process; and a process that is no more."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import pytest

from fieldwise.cli import main

__all__ = ["dead_process", "run"]


def run(*arguments: Any, expect: int = 0) -> tuple[str, str]:
    """What a command prints, on standard output and standard error."""
    out, errors = StringIO(), StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr("sys.argv", ["fieldwise", *map(str, arguments)])
        main()
    assert (ended.value.code or 0) == expect, out.getvalue() + errors.getvalue()
    return out.getvalue(), errors.getvalue()


def dead_process() -> int:
    """Its number."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
