"""Dask: a cluster whose workers are the ranks of one launch."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Dict, Mapping, Optional

from distributed.core import Status
from distributed.deploy.spec import ProcessInterface, SpecCluster
from distributed.scheduler import Scheduler

from ._launch import Launch, start_launch
from ._types import Option

_logger = logging.getLogger("distributed.wireup")
# Each worker has the name that the cluster expects: that of the launch, and its rank.
_WORKER = 'exec "$0" -m distributed.cli.dask_worker "$@" --no-nanny --name "$WIREUP_DASK_NAME-$WIREUP_RANK"'


class WireupWorkers(ProcessInterface):
    """The workers: a launch whose processes are Dask's workers."""

    def __init__(self, scheduler: str, name: object, n: int, nthreads: int, options: "Mapping[str, Option]") -> None:
        super().__init__(scheduler=scheduler, name=name)
        self._name = str(name)
        self._words = ["sh", "-c", _WORKER, sys.executable, scheduler, "--nthreads", str(nthreads)]
        self._n = n
        self._options = options
        self._launch: Optional[Launch] = None
        self._is_closing = False
        self._reader: "Optional[asyncio.Task[None]]" = None

    async def start(self) -> None:
        """Start the launch, and return when all workers run; raise :class:`wireup.LaunchFailed` if they cannot."""
        env = {"WIREUP_DASK_NAME": self._name}
        self._launch = start_launch(self._words, n=self._n, env=env, keep_output=False, options=self._options)
        running = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(self._launch, running))
        try:
            await running
        except BaseException:
            await self._launch.close_async()
            raise
        await super().start()

    async def _read(self, launch: Launch, running: "asyncio.Future[None]") -> None:
        async for event in launch:
            if event.kind == "job" and event.state == "running":
                running.set_result(None)
            elif event.kind == "output":
                _logger.debug("worker %s: %s", event.rank, event.text.rstrip("\n"))
            elif event.kind == "warning":
                _logger.warning("%s", event.text)
            elif event.kind == "rank" and event.state == "ended" and not self._is_closing:
                _logger.warning("worker %s has ended: code %s, signal %s", event.rank, event.fields["code"], event.fields["signal"])
        result = await launch.wait_async(check=False)
        if not running.done():
            try:
                result.check()
                raise RuntimeError("the workers ended before all of them were running")
            except Exception as error:  # for those who wait for the start
                running.set_exception(error)
        self.status = Status.closed
        self._event_finished.set()

    async def close(self) -> None:
        """End the launch."""
        self._is_closing = True
        if self._launch is not None and self._reader is not None:
            self._launch.terminate()
            await self._reader
        await super().close()


class WireupCluster(SpecCluster):
    """A scheduler in this process and ``n`` workers: ``Client(WireupCluster(n=4, hosts="n1:2,n2:2"))``.

    wireup is what a nanny is elsewhere: it ends the workers with the cluster, whatever becomes of this process. If one dies, the
    others go on (``on_failure="continue"``).
    """

    def __init__(
        self,
        n: int,
        *,
        nthreads: int = 1,
        host: Optional[str] = None,
        options: Optional[Mapping[str, Option]] = None,
        asynchronous: bool = False,
        **launch_options: Option,
    ) -> None:
        """Start the cluster.

        :param n: number of workers
        :param nthreads: threads of each
        :param host: address at which the workers reach the scheduler; by default this machine alone, or with ``hosts`` or a
            ``hostfile`` the address that Dask chooses
        :param launch_options: options of ``wireup run``
        """
        all_options: "Dict[str, Option]" = {"pmi": "none", "on_failure": "continue", **(options or {}), **launch_options}
        if host is None:
            host = "" if {"hosts", "hostfile"} & set(all_options) else "127.0.0.1"
        scheduler = {"cls": Scheduler, "options": {"host": host, "port": 0, "dashboard_address": None, "dashboard": False}}
        worker = {
            "cls": WireupWorkers,
            "options": {"n": n, "nthreads": nthreads, "options": all_options},
            "group": [f"-{rank}" for rank in range(n)],
        }
        super().__init__(workers={f"wireup-{os.getpid()}": worker}, scheduler=scheduler, asynchronous=asynchronous, name="WireupCluster")
