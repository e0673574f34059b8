"""Hundreds of kills of every command that writes: what was there afterwards, and what came of it.

    python -m benchmarks.faults [minutes] [command, ...]

The kills are those of tests/kills.py: half at moments drawn by chance, half before a step that
changes files. Every tenth or so is of a fresh process, the others of forks of one that is warm.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from .record import save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kills import CASES, Case, Killing, Tally, warm

ROUNDS = 12
USUAL = 4  # kills a round of a command
LONG = {"train --preset best": (0, 5, 10), "compress": range(0, 12, 2), "explain": range(0, 12, 2)}
SIDES = 2  # so many commands at a time


def side(cases: list[Case], folder: Path, until: float) -> list[Killing]:
    """The kills of some of the commands, in rounds, so that each has some when time is up."""
    with warm() as runner:
        every = [Killing(case, runner, folder / case.name, seed=k) for k, case in enumerate(cases)]
        for round in range(ROUNDS):
            for killing in every:
                name = killing.case.name
                if round in LONG.get(name, range(ROUNDS)):
                    killing.run(1 if name in LONG else USUAL, until=until)
                if round % 3 == 0 and killing.case.workers == 1 and name not in LONG:
                    killing.run(1, until=until, fresh=True)
                print(f"round {round + 1}, {name}: {killing.tally.kills} kills", flush=True)
                print(*killing.tally.problems, sep="", flush=True)
    return every


def run(minutes: float, wanted: list[str]) -> None:
    begun = time.perf_counter()
    cases = [case for case in CASES if not wanted or case.name in wanted]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(SIDES) as pool:
        sides = [
            pool.submit(side, cases[k::SIDES], Path(folder), begun + 60 * minutes)
            for k in range(SIDES)
        ]
        found = {one.case.name: asdict(one.tally) for done in sides for one in done.result()}
    totals = {
        name: sum(
            one[name] if isinstance(one[name], int) else len(one[name]) for one in found.values()
        )
        for name in asdict(Tally())
        if name not in ("seconds", "steps")
    }
    spent = round((time.perf_counter() - begun) / 60, 1)
    commands = {case.name: found[case.name] for case in cases}
    about = {"minutes": spent, "totals": totals, "commands": commands}
    print(save("faults", "make faults", about), totals)


if __name__ == "__main__":
    run(float(sys.argv[1]) if len(sys.argv) > 1 else 38, sys.argv[2:])
