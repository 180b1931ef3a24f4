"""Parsl: a launcher that starts the workers of a block with wireup."""

from __future__ import annotations

import shlex
from typing import Mapping, Optional

from parsl.launchers.base import Launcher

from ._program import find_program, option_words
from ._types import Option


class WireupLauncher(Launcher):
    """Starts a command on each place of a block: ``LocalProvider(launcher=WireupLauncher())``.

    Inside an allocation of a batch system the hosts are those of the allocation, as for ``wireup run``.
    """

    def __init__(self, debug: bool = True, options: Optional[Mapping[str, Option]] = None) -> None:
        """Keep the options.

        :param options: options of ``wireup run``, as ``{"hosts": "n1,n2"}``
        """
        super().__init__(debug=debug)
        self.options = dict(options or {})

    def __call__(self, command: str, tasks_per_node: int, nodes_per_block: int, script_dir: str = "") -> str:
        """Return the command of the shell that runs ``command`` on all places."""
        # Workers are plain processes; an MPI program that one starts has a launch of its own.
        options: "dict[str, Option]" = {"pmi": "none", **self.options, "n": tasks_per_node * nodes_per_block}
        if nodes_per_block > 1:
            options.update(nodes=nodes_per_block, ppn=tasks_per_node)
        return shlex.join([find_program(), "run", *option_words(options), "sh", "-c", command])
