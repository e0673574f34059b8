"""The command that serves a model over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["serve"]

MEGABYTE = 1_000_000


def serve(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="The folder of a model; new versions there are picked up."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every interface.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
    max_body: Annotated[float, typer.Option(help="Most megabytes of JSON in a request.")] = 8,
    max_rows: Annotated[int, typer.Option(min=1, help="Most rows of JSON in a request.")] = 10_000,
    max_batch_body: Annotated[
        float, typer.Option(help="Most megabytes of a table in a request.")
    ] = 128,
    max_batch_rows: Annotated[
        int, typer.Option(min=1, help="Most rows of a table in a request.")
    ] = 1_000_000,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 30,
    header_timeout: Annotated[
        float, typer.Option(help="Seconds its headers may take to arrive.")
    ] = 10,
    poll: Annotated[
        float, typer.Option(help="Seconds between checks for a new version of the model.")
    ] = 1,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every request.")] = False,
) -> None:
    """Serve a model over HTTP, with a page to try rows.

    fieldwise serve clicks.model
    fieldwise serve clicks.model --port 9000 --workers 4

    Where the variable FIELDWISE_TOKEN is set, requests need it as a bearer token.
    """
    from ..serve.limits import Limits
    from ..serve.run import LOOPBACK, run_server

    limits = Limits(
        max_body=int(max_body * MEGABYTE),
        max_rows=max_rows,
        max_batch_body=int(max_batch_body * MEGABYTE),
        max_batch_rows=max_batch_rows,
        seconds=timeout,
        header_seconds=header_timeout,
    )
    if host not in LOOPBACK and not os.environ.get("FIELDWISE_TOKEN"):
        typer.echo(
            f"warning: {host} may be reached by others, and no token is set (FIELDWISE_TOKEN)",
            err=True,
        )
    run_server(
        model,
        host=host,
        port=port,
        workers=workers,
        limits=limits,
        poll=poll,
        access_log=access_log,
    )
