"""executorlib: an executor whose functions run on the ranks of launches."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, List, Mapping, Optional

from executorlib.api import SubprocessSpawner
from executorlib.executor.base import BaseExecutor
from executorlib.standalone.inputcheck import validate_number_of_cores
from executorlib.task_scheduler.interactive.blockallocation import BlockAllocationTaskScheduler
from executorlib.task_scheduler.interactive.dependency import DependencyTaskScheduler
from executorlib.task_scheduler.interactive.onetoone import OneProcessTaskScheduler

from ._program import find_program, option_words
from ._types import Option


class WireupSpawner(SubprocessSpawner):
    """Starts the processes of a function with wireup."""

    def __init__(self, options: "Mapping[str, Option]", *, gpus_per_core: int = 0, **resources: Any) -> None:
        super().__init__(**resources)
        self._options = options
        self._gpus_per_core = gpus_per_core

    def generate_command(self, command_lst: "List[str]") -> "List[str]":
        """Return the command that runs a command on all cores of a function."""
        options: "dict[str, Option]" = {
            # A function on one core does not use MPI.
            "pmi": "none" if self._cores == 1 else None,
            "oversubscribe": self._openmpi_oversubscribe,
            "cpus_per_rank": self._threads_per_core if self._threads_per_core > 1 else None,
            "gpus_per_rank": self._gpus_per_core or None,
            **self._options,
            "n": self._cores,
        }
        return [find_program(), "run", *option_words(options), *command_lst]


class WireupExecutor(BaseExecutor):
    """Runs functions as launches, in place of ``executorlib.SingleNodeExecutor``, also on other hosts."""

    def __init__(
        self,
        max_workers: Optional[int] = None,
        max_cores: Optional[int] = None,
        resource_dict: "Optional[Mapping[str, Any]]" = None,
        hostname_localhost: Optional[bool] = None,
        block_allocation: bool = False,
        init_function: "Optional[Callable[[], Mapping[str, Any]]]" = None,
        options: "Optional[Mapping[str, Option]]" = None,
    ) -> None:
        """Keep the options. The other arguments are those of ``executorlib.SingleNodeExecutor``.

        :param options: options of ``wireup run``, as ``{"hosts": "n1:4,n2:4"}``
        """
        resources = {"cores": 1, "cwd": None, **(resource_dict or {}), "hostname_localhost": hostname_localhost}
        spawner = partial(WireupSpawner, options or {})
        if block_allocation:
            number = validate_number_of_cores(
                max_cores=max_cores, max_workers=max_workers, cores_per_worker=resources["cores"], set_local_cores=True
            )
            resources["init_function"] = init_function
            scheduler = BlockAllocationTaskScheduler(max_workers=number, executor_kwargs=resources, spawner=spawner)
        else:
            scheduler = OneProcessTaskScheduler(
                max_cores=max_cores, max_workers=max_workers, executor_kwargs=resources, spawner=spawner
            )
        super().__init__(executor=DependencyTaskScheduler(executor=scheduler, max_cores=max_cores))
