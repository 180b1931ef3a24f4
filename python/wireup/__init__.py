"""Launches MPI programs from Python: a face of the ``wireup`` command that is installed with it.

    >>> import wireup
    >>> result = wireup.run(["./app", "input.dat"], n=4)
    >>> result.exit_codes, result.stdout[0]
"""

from typing import Any as _Any

from ._events import Event
from ._launch import App, Launch, launch, run
from ._result import LaunchFailed, Rank, Result, Timeline
from ._worker import rank_data
from .executor import MPIExecutor, RanksLost, RankTraceback

__all__ = [
    "App",
    "Event",
    "Launch",
    "LaunchFailed",
    "MPIExecutor",
    "Rank",
    "RankTraceback",
    "RanksLost",
    "Result",
    "Timeline",
    "launch",
    "rank_data",
    "run",
]


def load_ipython_extension(shell: _Any) -> None:
    """Give a notebook ``%%mpi`` and ``%wireup``: for ``%load_ext wireup``."""
    from .notebook import register

    register(shell)


for _public in (App, Event, Launch, LaunchFailed, MPIExecutor, Rank, RankTraceback, RanksLost, Result, Timeline, launch, run):
    # Messages and documentation name what is public, not the file that has it.
    _public.__module__ = __name__
