"""Jobs that are started in a launch that runs."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Iterable, Optional

from ._result import JobRanks, Rank

if TYPE_CHECKING:
    from ._launch import Launch


class SpawnFailed(Exception):
    """A job was not started in a launch. Its text is the launcher's own."""

    __module__ = "wireup"


class SpawnedJob(JobRanks):
    """A job that :meth:`Launch.spawn` has started."""

    __module__ = "wireup"

    def __init__(self, launch: "Launch", number: int) -> None:
        self._launch = launch
        #: Number of the job in its launch, from 1: :attr:`Event.spawned_job` of its ranks.
        self.number = number

    @property
    def ranks(self) -> "tuple[Rank, ...]":
        """Ranks of the job, as far as events have been read."""
        return self._launch.spawned()[self.number]

    def has_ended(self) -> bool:
        """Whether all ranks have ended, as far as events have been read."""
        return all(rank.state in ("ended", "not_started") for rank in self.ranks)

    def send_signal(self, signum: int, ranks: Optional[Iterable[int]] = None) -> None:
        """Send a signal to ranks of the job, or to all of them. After the end this does nothing."""
        self._launch._send_signal(signum, ranks, spawned_job=self.number)

    def terminate(self) -> None:
        """Send SIGTERM to all ranks."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all ranks."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: Optional[float] = None) -> "dict[int, Optional[int]]":
        """Wait for the end of all ranks and return their exit codes; events remain for the iteration over the launch.

        A rank that fails ends the launch as those of the initial job do, and :meth:`Launch.wait` raises then. Raises
        :class:`TimeoutError` if the job has not ended after ``timeout`` seconds; it goes on then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._launch._advance(self.has_ended, deadline):
            raise TimeoutError(f"job {self.number} of launch {self._launch.job} has not ended after {timeout} s")
        return self.exit_codes

    async def wait_async(self) -> "dict[int, Optional[int]]":
        """Wait for the end of all ranks in an event loop, as :meth:`wait` does."""
        await self._launch._advance_async(self.has_ended)
        return self.exit_codes

    def __repr__(self) -> str:
        return f"<SpawnedJob {self.number} of {self._launch!r}: {len(self.ranks)} ranks>"
