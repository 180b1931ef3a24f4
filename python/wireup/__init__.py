"""Launches MPI programs from Python: a face of the ``wireup`` command that is installed with it.

    >>> import wireup
    >>> result = wireup.run(["./app", "input.dat"], n=4)
    >>> result.exit_codes, result.stdout[0]
"""

from typing import Any as _Any

from ._events import Event
from ._launch import App, Launch, launch, run
from ._result import LaunchFailed, Rank, Result, Timeline
from .executor import MPIExecutor, RanksLost

__all__ = ["App", "Event", "Launch", "LaunchFailed", "MPIExecutor", "Rank", "RanksLost", "Result", "Timeline", "launch", "run"]


def load_ipython_extension(shell: _Any) -> None:
    """Give a notebook ``%%mpi`` and ``%wireup``: for ``%load_ext wireup``."""
    from .notebook import register

    register(shell)


for _name in __all__:
    # Messages and documentation name what is public, not the file that has it.
    globals()[_name].__module__ = __name__
del _name
