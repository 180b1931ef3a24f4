"""libEnsemble: an executor whose tasks are launches."""

from __future__ import annotations

import shlex
import socket
from typing import Any, Mapping, Optional, Tuple

from libensemble.executors.mpi_executor import MPIExecutor
from libensemble.executors.mpi_runner import MPICH_MPIRunner

from ._program import find_program, option_words
from ._types import Option


class WireupRunner(MPICH_MPIRunner):
    """How libEnsemble writes the command line of ``wireup run``."""

    def __init__(self, options: "Mapping[str, Option]", platform_info: Any = None) -> None:
        super().__init__(run_command=shlex.join([find_program(), "run", *option_words(options)]), platform_info=platform_info)
        # One SIGTERM ends a launch with all it has started.
        self.subgroup_launch = False
        self.mpi_command = [
            self.run_command,
            "-x {env}",
            "--hostfile {machinefile}",
            "--hosts {hostlist}",
            "-n {num_procs}",
            "--ppn {procs_per_node}",
            "{extra_args}",
        ]

    def express_spec(self, *args: Any, **kwargs: Any) -> "Tuple[Optional[str], Optional[str]]":
        """Return the hosts of a task; none for this machine alone, which needs no agent then."""
        hosts, machinefile = super().express_spec(*args, **kwargs)
        own = {socket.gethostname(), socket.gethostname().split(".")[0], "localhost"}
        return None if hosts and set(hosts.split(",")) <= own else hosts, machinefile


class WireupExecutor(MPIExecutor):
    """Runs applications as launches: ``Executor`` of libEnsemble, in place of its ``MPIExecutor``."""

    def __init__(self, options: "Optional[Mapping[str, Option]]" = None) -> None:
        """Keep the options.

        :param options: options of ``wireup run`` for all tasks, as ``{"oversubscribe": True}``; ``extra_args`` of a task follow
        """
        self._options = dict(options or {})
        super().__init__(custom_info={"mpi_runner": "custom", "runner_name": find_program()})

    def _create_mpi_runner_obj(self, *_: Any) -> WireupRunner:
        return WireupRunner(self._options, self.platform_info)
