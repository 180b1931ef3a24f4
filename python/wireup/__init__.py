"""Launches MPI programs from Python: a face of the ``wireup`` command that is installed with it.

    >>> import wireup
    >>> result = wireup.run(["./app", "input.dat"], n=4)
    >>> result.exit_codes, result.stdout[0]
"""

from __future__ import annotations

import importlib as _importlib

# Without the module `typing`, whose import takes longer than the start of a launch. Checkers of types know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any as _Any

    from ._events import Event
    from ._launch import App, Launch, launch, run
    from ._pool import RanksLost, RankTraceback
    from ._rank import rank_data
    from ._result import LaunchFailed, Rank, Result, Timeline
    from ._spawned import SpawnedJob, SpawnFailed
    from .executor import MPIExecutor

# Imported when they are first used: a rank of an executor needs none of what launches do.
_MODULES = {
    "App": "_launch",
    "Event": "_events",
    "Launch": "_launch",
    "LaunchFailed": "_result",
    "MPIExecutor": "executor",
    "Rank": "_result",
    "RankTraceback": "_pool",
    "RanksLost": "_pool",
    "Result": "_result",
    "SpawnFailed": "_spawned",
    "SpawnedJob": "_spawned",
    "Timeline": "_result",
    "launch": "_launch",
    "rank_data": "_rank",
    "run": "_launch",
}

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
    "SpawnFailed",
    "SpawnedJob",
    "Timeline",
    "launch",
    "rank_data",
    "run",
]


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *_MODULES})


def load_ipython_extension(shell: _Any) -> None:
    """Give a notebook ``%%mpi`` and ``%wireup``: for ``%load_ext wireup``."""
    from .notebook import register

    register(shell)
