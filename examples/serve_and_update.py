"""Serve a model, ask it over HTTP, update it with new rows while it is served, and go back.

python examples/serve_and_update.py [FOLDER]        (needs pip install "fieldwise[serve]")
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fieldwise import FieldwiseClassifier, load_flights
from fieldwise.updating import update_saved
from fieldwise.updating.versions import rollback


@contextmanager
def served(model: Path) -> Iterator[str]:
    """What `fieldwise serve` does, while this lasts; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fieldwise", "serve", str(model), "--port", str(port)]
    process = subprocess.Popen([*command, "--poll", "0.1"], stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def ask(url: str, body: Any = None, seconds: float = 60) -> Any:
    """The answer to a question, once somebody answers."""
    asked = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError) as error:
            is_refusal = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if is_refusal or time.monotonic() > end:
                raise
            time.sleep(0.1)


def wait_for_another(address: str, old: str, seconds: float = 60) -> str:
    """The id of the model that takes the place of one."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now: str = ask(f"{address}/ready")["model"]
        if now != old:
            return now
        time.sleep(0.1)
    raise TimeoutError("the server did not take up the new model")


def main(folder: Path) -> None:
    flights = load_flights().rename({"late": "y"}).sample(26_000, seed=0, shuffle=True)
    first, later = flights.head(20_000), flights.tail(6_000)
    model = folder / "served.model"
    clf = FieldwiseClassifier(epochs=2, learning_rate=0.05)
    clf.fit(first.drop("y"), first["y"]).model_.save(model, overwrite=True)

    rows = later.drop("y").head(2).to_dicts()
    with served(model) as address:
        before = ask(f"{address}/ready")["model"]
        answer = ask(f"{address}/predict?explain=true", {"rows": rows})
        for row, found in zip(rows, answer["predictions"], strict=True):
            why = found["explanation"]["contributions"]
            most = max(why, key=lambda part: abs(part["contribution"]))
            print(
                f"{row['carrier']} {row['flight']} to {row['dest']}: {found['prediction']:.3f}, "
                f"mostly because {most['field']} is {most['value']}"
            )

        # The rows of the days after: the server takes up the new model by itself.
        about, version = update_saved(model, later)
        held_out = [round(about[when]["logloss"], 4) for when in ("before", "after")]
        print(
            f"updated with {about['rows']:,} rows; on held-out ones {held_out[0]} -> {held_out[1]}"
        )
        after = wait_for_another(address, before)
        now = ask(f"{address}/predict", {"rows": rows})["predictions"]
        print("the same two now:", ", ".join(f"{one['prediction']:.3f}" for one in now))

        rollback(model, version)
        print("rolled back to the first:", wait_for_another(address, after) == before)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
    place.mkdir(exist_ok=True)
    main(place)
