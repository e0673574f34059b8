"""Training with several processes: workers share the columns, and exchange one float per sample and
output.

    grid      which worker has which columns    meeting   how workers find each other
    peers     their communication               run       training on all of them
    shards    their checkpoints                 ray       the same on a Ray cluster
    planning  memory and time, estimated
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .grid import Grid, share_columns
    from .meeting import joined, world
    from .peers import TorchPeers
    from .run import train_sharded, train_table

_WHERE = {
    "Grid": ".grid",
    "TorchPeers": ".peers",
    "joined": ".meeting",
    "share_columns": ".grid",
    "train_sharded": ".run",
    "train_table": ".run",
    "world": ".meeting",
}

__all__ = [
    "Grid",
    "TorchPeers",
    "joined",
    "share_columns",
    "train_sharded",
    "train_table",
    "world",
]

__getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return __all__
