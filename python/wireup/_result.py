"""The state of ranks, and how a launch ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from ._events import Event
from ._program import find_program
from ._types import Word


@dataclass(eq=False)
class Rank:
    """A rank of a launch: live in :class:`Launch`, final in :class:`Result`."""

    __module__ = "wireup"

    rank: int
    #: Number of its job if that was spawned; ``None`` for the initial job.
    spawned_job: Optional[int] = None
    host: Optional[str] = None
    node: Optional[int] = None
    pid: Optional[int] = None
    #: ``"planned"``, ``"started"``, ``"connected"``, ``"finalized"``, ``"ended"`` or ``"not_started"``.
    state: str = "planned"
    #: Exit code; ``None`` while it runs, and for a rank that a signal ended.
    code: Optional[int] = None
    #: Number of the signal that ended it.
    signal: Optional[int] = None
    #: Kind of its own failure (``"rank_failed"``, ``"ended_by_rank"``, …); ``None`` after a normal end. Known with the result.
    cause: Optional[str] = None
    #: Output so far.
    stdout_bytes: bytearray = field(default_factory=bytearray, repr=False)
    stderr_bytes: bytearray = field(default_factory=bytearray, repr=False)

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 are replaced."""
        return self.stderr_bytes.decode(errors="replace")

    @property
    def exit_code(self) -> Optional[int]:
        """Exit code as a shell shows it: 128 and the number for a signal; ``None`` if it is not known."""
        return self.code if self.signal is None else 128 + self.signal


class JobRanks:
    """Exit codes and output of a job, by rank."""

    if TYPE_CHECKING:

        @property
        def ranks(self) -> "tuple[Rank, ...]": ...

    @property
    def exit_codes(self) -> "dict[int, Optional[int]]":
        """Exit code of each rank, as :attr:`Rank.exit_code`."""
        return {rank.rank: rank.exit_code for rank in self.ranks}

    @property
    def stdout(self) -> "dict[int, str]":
        """Standard output of each rank as text, as far as events have been read; complete at the end of the launch."""
        return {rank.rank: rank.stdout for rank in self.ranks}

    @property
    def stderr(self) -> "dict[int, str]":
        """Standard error of each rank as text, on the same terms."""
        return {rank.rank: rank.stderr for rank in self.ranks}


class LaunchFailed(Exception):
    """A launch failed, or was refused. Its text is the launcher's own."""

    __module__ = "wireup"

    def __init__(self, message: str, result: "Result") -> None:
        super().__init__(message)
        #: How the launch ended, with the output of the ranks.
        self.result = result

    def __reduce__(self) -> "tuple[Any, ...]":
        return type(self), (self.args[0], self.result)


@dataclass(eq=False)
class Timeline:
    """When what happened in a launch: its status stream without the output."""

    __module__ = "wireup"

    #: Lines of the stream.
    lines: Sequence[bytes] = field(repr=False)

    @property
    def records(self) -> "list[Mapping[str, Any]]":
        """The lines as objects."""
        return [json.loads(line) for line in self.lines]

    def _report(self, *words: str) -> str:
        command = [find_program(), "report", "-", *words]
        done = subprocess.run(command, input=b"\n".join([*self.lines, b""]), capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(message_text(done.stderr.decode(errors="replace")))
        return done.stdout.decode()

    def summary(self) -> str:
        """Return in a few lines where the time went, as ``wireup report`` prints it."""
        return self._report()

    def write_page(self, path: Word) -> None:
        """Write a page for a browser, as ``--report`` does."""
        self._report("-o", os.fspath(path))

    def write_trace(self, path: Word) -> None:
        """Write a trace that Perfetto shows, as ``--report FILE.json`` does."""
        self._report("-o", f"trace:{os.fspath(path)}")

    def page(self) -> str:
        """Return the page for a browser as text."""
        with tempfile.TemporaryDirectory(prefix="wireup-report-") as directory:
            path = os.path.join(directory, "report.html")
            self.write_page(path)
            with open(path, encoding="utf-8") as page:
                return page.read()


@dataclass(eq=False)
class Result(JobRanks):
    """How a launch ended."""

    __module__ = "wireup"

    #: Exit code of ``wireup run``.
    exit_code: int
    #: Ranks of the initial job, in order.
    ranks: "tuple[Rank, ...]"
    #: Ranks of each spawned job, by its number.
    spawned: "dict[int, tuple[Rank, ...]]"
    #: First failure with ``kind``, ``message`` and the fields that docs/status.md lists; ``None`` after a normal end.
    cause: Optional[Mapping[str, Any]]
    #: What the launcher wrote to standard error.
    messages: str
    timeline: Timeline
    #: Name of the job; ``None`` if the launch was refused.
    job: Optional[str] = None

    def check(self) -> "Result":
        """Return this result of a launch that succeeded; raise :class:`LaunchFailed` for another."""
        if self.exit_code == 0 and self.cause is None:
            return self
        error = LaunchFailed(self._failure_text(), self)
        failed = self._first_failed_rank()
        if failed is not None and failed.stderr_bytes and sys.version_info >= (3, 11):
            tail = "\n".join(failed.stderr.splitlines()[-20:])
            error.add_note(f"end of the standard error of rank {failed.rank}:\n{tail}")
        raise error

    def _failure_text(self) -> str:
        if self.cause is not None:
            return str(self.cause["message"])
        return message_text(self.messages) or f"wireup ended with exit code {self.exit_code} and gave no reason"

    def _first_failed_rank(self) -> Optional[Rank]:
        cause = self.cause or {}
        ranks = self.spawned.get(cause.get("spawned_job", -1), ()) if "spawned_job" in cause else self.ranks
        return next((rank for rank in ranks if rank.rank == cause.get("rank")), None)


def message_text(stderr: str) -> str:
    """Return the launcher's messages without the prefix that names it."""
    prefix = "wireup: "
    return "\n".join(line[len(prefix) :] if line.startswith(prefix) else line for line in stderr.splitlines())


class RankTable:
    """The ranks of all jobs of a launch, as its events describe them."""

    def __init__(self) -> None:
        self._jobs: "dict[Optional[int], dict[int, Rank]]" = {None: {}}

    def on_event(self, event: Event, keep_output: bool) -> None:
        """Bring the ranks up to date."""
        if event.kind == "output":
            if keep_output and event.rank is not None:
                rank = self._get(event.spawned_job, event.rank)
                (rank.stdout_bytes if event.stream == "stdout" else rank.stderr_bytes).extend(event.data)
        elif event.kind == "rank":
            self._update(event.spawned_job, event.fields)
        elif event.kind == "job" and event.state == "planned":
            for number in range(event.fields.get("size", 0)):
                self._get(None, number)
        elif event.kind == "spawned":
            for number in range(event.fields.get("size", 0)):
                self._get(event.spawned_job, number)
        elif event.kind == "result":
            for fields in event.fields.get("ranks", ()):
                self._update(fields.get("spawned_job"), fields).cause = fields.get("cause")

    def _get(self, spawned_job: Optional[int], number: int) -> Rank:
        ranks = self._jobs.setdefault(spawned_job, {})
        if number not in ranks:
            ranks[number] = Rank(number, spawned_job)
        return ranks[number]

    def _update(self, spawned_job: Optional[int], fields: Mapping[str, Any]) -> Rank:
        rank = self._get(spawned_job, fields["rank"])
        for name in ("host", "node", "pid", "state", "code", "signal"):
            if fields.get(name) is not None:
                setattr(rank, name, fields[name])
        return rank

    def job(self, spawned_job: Optional[int] = None) -> "tuple[Rank, ...]":
        """Return the ranks of a job in order."""
        return tuple(rank for _, rank in sorted(self._jobs.get(spawned_job, {}).items()))

    def spawned(self) -> "dict[int, tuple[Rank, ...]]":
        """Return the ranks of each spawned job."""
        return {number: self.job(number) for number in self._jobs if number is not None}
