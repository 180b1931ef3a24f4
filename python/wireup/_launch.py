"""Launches: ``wireup run`` as a child process whose status stream is read and whose ranks get signals and input."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Deque, Iterable, Iterator, Mapping, Optional, Sequence, Type, Union

from ._events import Event, LineSplitter, parse
from ._launcher import LauncherProcess
from ._program import checked_variables, command_words, info_texts, option_words
from ._result import Rank, RankTable, Result, Timeline
from ._spawned import SpawnedJob, SpawnFailed
from ._types import Option, Word

if TYPE_CHECKING:
    import asyncio

_CHUNK = 1 << 16
#: Longest line that the launcher reads as a command.
_COMMAND_MAX = 1 << 20


@dataclass(frozen=True)
class App:
    """One program of a job with several: ``run([App(["./master"], n=1), App(["./worker"], n=3)])``."""

    __module__ = "wireup"

    command: Sequence[Word]
    n: int = 1
    #: Options of ``wireup run`` for this program alone, as ``{"wdir": "/tmp"}``.
    options: Mapping[str, Option] = field(default_factory=dict)

    def words(self) -> "list[str]":
        return ["-n", str(self.n), *option_words(self.options), *command_words(self.command)]

    def spawn_fields(self, env: "Mapping[str, str]") -> "dict[str, object]":
        command = command_words(self.command)
        if not command:
            raise ValueError("command is empty; name a program")
        return {"command": command, "n": self.n, "env": env, "infos": info_texts(self.options)}


Command = Union[Sequence[Word], Sequence[App]]


class Launch:
    """A launch that runs. :func:`launch` starts it.

    A context manager, plain (``with``) or for asyncio (``async with``): at its end a launch that still runs is terminated, and
    nothing of it is left. Iterating yields its events until its end; so does ``async for``. No thread is involved: output is
    read while events or the end are waited for, and ranks that write more than pipes hold wait for that.

    If this process ends in any way, the launch ends too.
    """

    __module__ = "wireup"

    def __init__(self, launcher: LauncherProcess, *, keep_output: bool) -> None:
        self._keep_output = keep_output
        self._splitter = LineSplitter()
        self._events: Deque[Event] = deque()
        self._lines: "list[bytes]" = []
        self._ranks = RankTable()
        self._result_event: Optional[Event] = None
        self._result: Optional[Result] = None
        self._job: Optional[str] = None
        self._unsent: Deque[memoryview] = deque()
        self._must_close_input = False
        self._at_end = False
        self._is_running = False
        self._spawn_count = 0
        self._spawn_replies: "dict[int, Event]" = {}
        self._waiters: "list[asyncio.Future[None]]" = []
        self._is_input_watched = False
        self._launcher = launcher
        self._process = launcher.process
        assert self._process.stdout is not None
        self._stdout = self._process.stdout.fileno()

    # What is known of it.

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._process.pid

    @property
    def job(self) -> Optional[str]:
        """Name of the job, as ``wireup ps`` shows it; ``None`` until it is planned."""
        return self._job

    @property
    def ranks(self) -> "tuple[Rank, ...]":
        """Ranks of the initial job, as far as events have been read; empty until the job is planned."""
        return self._ranks.job()

    def spawned(self) -> "dict[int, tuple[Rank, ...]]":
        """Ranks of each spawned job, by its number."""
        return self._ranks.spawned()

    @property
    def result(self) -> Optional[Result]:
        """How it ended; ``None`` while it runs."""
        return self._result

    def timeline(self) -> Timeline:
        """Return what has happened so far, the output left out."""
        return Timeline(tuple(self._lines))

    def fileno(self) -> int:
        """Return the descriptor that is readable when events have arrived."""
        return self._stdout

    # Signals and input.

    def send_signal(self, signum: int, ranks: Optional[Iterable[int]] = None) -> None:
        """Send a signal to ranks, or to all.

        Without ``ranks``, SIGHUP, SIGINT, SIGQUIT and SIGTERM end the launch, as if ``wireup run`` had received them. After
        the end this does nothing.
        """
        self._send_signal(signum, ranks)

    def _send_signal(self, signum: int, ranks: Optional[Iterable[int]], **job: int) -> None:
        command: "dict[str, object]" = {"signal": int(signum), **job}
        if ranks is not None:
            command["ranks"] = list(ranks)
        self._command(command)

    def _command(self, command: "Mapping[str, object]") -> None:
        line = json.dumps(command).encode() + b"\n"
        if len(line) > _COMMAND_MAX:
            raise ValueError(f"command to the launcher has {len(line)} bytes; at most {_COMMAND_MAX} are read")
        if self._launcher.control >= 0:
            # The launcher may be at its end.
            with contextlib.suppress(BrokenPipeError):
                while line:
                    line = line[os.write(self._launcher.control, line) :]

    def terminate(self) -> None:
        """End all ranks: SIGTERM, and SIGKILL after the time of ``grace``."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all ranks."""
        self.send_signal(signal.SIGKILL)

    def write(self, data: Union[str, bytes]) -> None:
        """Send input to the ranks that ``stdin`` names.

        It never blocks: what does not fit into the pipe is sent while events or the end are waited for.
        """
        if self._process.stdin is None:
            raise ValueError("launch has no standard input; start it with stdin=RANK or stdin='all'")
        if self._must_close_input:
            raise ValueError("standard input of the launch is closed")
        self._unsent.append(memoryview(data.encode() if isinstance(data, str) else data))
        self._send_input()
        if self._waiters:
            self._watch()

    def close_stdin(self) -> None:
        """End the input."""
        self._must_close_input = True
        self._send_input()

    def _send_input(self) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            while self._unsent:
                sent = os.write(stdin.fileno(), self._unsent[0])
                self._unsent[0] = self._unsent[0][sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            # Its reader has ended.
            self._unsent.clear()
        self._unwatch_input()
        if self._must_close_input:
            stdin.close()

    def _waits_to_send(self) -> bool:
        return bool(self._unsent)

    # Further jobs.

    def spawn(
        self, command: "Command", *, n: Optional[int] = None, env: Optional[Mapping[str, str]] = None, **infos: Option
    ) -> SpawnedJob:
        """Start a job in the launch, on its hosts, and return it when its ranks run.

        The ranks are those of a job of their own, without a parent: they reach others by names that these publish. Raises
        :class:`SpawnFailed` if the job cannot be started; the launch continues then.

        :param command: the program and its arguments, or a list of :class:`App`
        :param n: number of ranks, 1 by default
        :param env: variables to set for the ranks
        :param infos: info keys of docs/spawn.md: ``host="n1"`` (or a list), ``bind_to="core"``, ``wdir="/tmp"``, ``mpi="impi"``, …;
            ``independent=True`` for a job that may outlive the initial job
        """
        fields = _spawn_fields(command, n, env, infos)
        self._advance(lambda: self._is_running)
        number = self._request_spawn(fields)
        self._advance(lambda: number in self._spawn_replies)
        return self._spawned_job(number)

    async def spawn_async(
        self, command: "Command", *, n: Optional[int] = None, env: Optional[Mapping[str, str]] = None, **infos: Option
    ) -> SpawnedJob:
        """Do the same as :meth:`spawn` in an event loop, also while another task iterates over the events."""
        fields = _spawn_fields(command, n, env, infos)
        await self._advance_async(lambda: self._is_running)
        number = self._request_spawn(fields)
        await self._advance_async(lambda: number in self._spawn_replies)
        return self._spawned_job(number)

    def _request_spawn(self, fields: "Mapping[str, object]") -> int:
        self._spawn_count += 1
        self._command({"spawn": {"request": self._spawn_count, **fields}})
        return self._spawn_count

    def _spawned_job(self, number: int) -> SpawnedJob:
        reply = self._spawn_replies.pop(number, None)
        if reply is None:
            assert self._result is not None
            self._result.check()
            raise SpawnFailed(f"launch {self._job} has ended")
        if "spawned_job" not in reply.fields:
            raise SpawnFailed(reply.fields["message"])
        return SpawnedJob(self, reply.fields["spawned_job"])

    # Reading the status stream.

    def _read(self) -> None:
        """Take what has arrived, or the end of the stream."""
        data = os.read(self._stdout, _CHUNK)
        if not data:
            self._at_end = True
        for line in self._splitter.feed(data):
            event = parse(line)
            if event.kind != "output":
                self._lines.append(line)
            if event.kind == "result":
                self._result_event = event
            if event.kind == "job" and event.state == "planned":
                self._job = event.fields["job"]
            if event.kind == "job" and event.state == "running":
                self._is_running = True
            if event.kind == "spawn_reply":
                self._spawn_replies[event.fields["request"]] = event
            self._ranks.on_event(event, self._keep_output)
            self._events.append(event)

    def _poll(self, timeout: Optional[float]) -> bool:
        """Wait for the stream, and send input meanwhile; return whether it has advanced."""
        poll = select.poll()
        poll.register(self._stdout, select.POLLIN)
        if self._waits_to_send() and self._process.stdin is not None:
            poll.register(self._process.stdin.fileno(), select.POLLOUT)
        ready = [descriptor for descriptor, _ in poll.poll(None if timeout is None else max(0, timeout) * 1000)]
        if self._waits_to_send():
            self._send_input()
        if self._stdout in ready:
            self._read()
        return bool(ready)

    def _finish(self) -> Result:
        """Make the result of a launcher that has exited, and release its descriptors."""
        if self._result is not None:
            return self._result
        code = self._process.wait()
        messages = self._launcher.messages()
        fields: Mapping[str, Any] = self._result_event.fields if self._result_event else {}
        if code < 0:
            # Only SIGKILL does that.
            code = 128 - code
            messages += f"wireup: the launcher (pid {self.pid}) was killed by signal {code - 128}\n"
        self._result = Result(
            exit_code=code,
            ranks=self._ranks.job(),
            spawned=self._ranks.spawned(),
            cause=fields.get("cause"),
            messages=messages,
            timeline=self.timeline(),
            job=fields.get("job"),
        )
        self._launcher.release()
        return self._result

    def _advance(self, is_done: "Callable[[], bool]", deadline: Optional[float] = None) -> bool:
        """Read events, which remain for the iteration, until something is done, the launch ends or the time has passed."""
        while not self._at_end and not is_done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._poll(left)
        if self._at_end:
            self._finish()
        return True

    def next_events(self, timeout: Optional[float] = None) -> "list[Event]":
        """Wait for events and return those that have arrived; an empty list at the end, or when ``timeout`` has passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._events and not self._at_end:
            left = None if deadline is None else deadline - time.monotonic()
            if not self._poll(left) and left is not None:
                break
        events = list(self._events)
        self._events.clear()
        if self._at_end:
            self._finish()
        return events

    def __iter__(self) -> Iterator[Event]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._at_end:
                self._finish()
                return
            self._poll(None)

    def wait(self, timeout: Optional[float] = None, *, check: bool = True) -> Result:
        """Wait for the end and return the result; events that were not iterated over are skipped.

        Raises :class:`LaunchFailed` if the launch failed and ``check`` is true, and :class:`TimeoutError` if it has not ended
        after ``timeout`` seconds; it goes on then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._result is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"launch {self._job or self.pid} has not ended after {timeout} s")
            self.next_events(left)
        return self._result.check() if check else self._result

    # The same for asyncio.

    async def _poll_async(self) -> None:
        """Wait for the stream in the event loop, and send input meanwhile."""
        import asyncio

        loop = asyncio.get_running_loop()
        ready: "asyncio.Future[None]" = loop.create_future()
        self._waiters.append(ready)
        self._watch()
        try:
            await ready
        finally:
            self._waiters.remove(ready)
            if not self._waiters:
                self._unwatch()
        if not self._at_end:
            self._poll(0)

    def _watch(self) -> None:
        """Have the event loop wake all tasks that wait for the stream."""
        import asyncio

        loop = asyncio.get_running_loop()
        loop.add_reader(self._stdout, self._wake)
        if self._process.stdin is not None and self._waits_to_send():
            loop.add_writer(self._process.stdin.fileno(), self._wake)
            self._is_input_watched = True

    def _unwatch(self) -> None:
        import asyncio

        asyncio.get_running_loop().remove_reader(self._stdout)
        self._unwatch_input()

    def _unwatch_input(self) -> None:
        if self._is_input_watched and self._process.stdin is not None:
            import asyncio

            asyncio.get_running_loop().remove_writer(self._process.stdin.fileno())
            self._is_input_watched = False

    def _wake(self) -> None:
        self._unwatch()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _advance_async(self, is_done: "Callable[[], bool]") -> None:
        while not self._at_end and not is_done():
            await self._poll_async()
        if self._at_end:
            await self._finish_async()

    async def _finish_async(self) -> Result:
        import asyncio

        # The stream ends with the process, but for what the kernel still has to do.
        while self._process.poll() is None:
            await asyncio.sleep(0.001)
        return self._finish()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._at_end:
                await self._finish_async()
                return
            await self._poll_async()

    async def wait_async(self, *, check: bool = True) -> Result:
        """Wait for the end in an event loop, as :meth:`wait` does; ``asyncio.wait_for`` gives it a limit."""
        async for _ in self:
            pass
        result = await self._finish_async()
        return result.check() if check else result

    # The end.

    def close(self) -> Result:
        """Terminate the launch if it still runs, and wait for its end.

        A Ctrl-C meanwhile makes it end sooner.
        """
        if self._result is None:
            self.terminate()
        while True:
            try:
                return self.wait(check=False)
            except KeyboardInterrupt:
                self.send_signal(signal.SIGINT)

    async def close_async(self) -> Result:
        """Do the same as :meth:`close` in an event loop."""
        if self._result is None:
            self.terminate()
        return await self.wait_async(check=False)

    def __enter__(self) -> "Launch":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.send_signal(signal.SIGINT)
        self.close()

    async def __aenter__(self) -> "Launch":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close_async()

    def __del__(self) -> None:
        if self._result is None:
            warnings.warn(f"launch {self._job or self.pid} was not waited for", ResourceWarning, source=self)
            # subprocess reaps it later.
            self._launcher.release()

    def __repr__(self) -> str:
        state = "running" if self._result is None else f"ended with exit code {self._result.exit_code}"
        return f"<Launch {self._job or self.pid}: {state}>"


def _spawn_fields(
    command: Command, n: Optional[int], env: Optional[Mapping[str, str]], infos: Mapping[str, Option]
) -> "dict[str, object]":
    """Return the fields of a command that adds a job."""
    variables = checked_variables(env)
    apps = _apps(command, n) or [App(command_words(command), 1 if n is None else n)]  # type: ignore[arg-type]
    fields: "dict[str, object]" = {"apps": [app.spawn_fields(variables) for app in apps], "infos": info_texts(infos)}
    try:
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"spawn has a word that is not UTF-8: {error.object[error.start : error.end]!r}") from None
    return fields


def _apps(command: Command, n: Optional[int]) -> "list[App]":
    """Return the programs of a command, or none if it is the words of one."""
    apps = [app for app in command if isinstance(app, App)]
    if apps and (len(apps) != len(command) or n is not None):
        raise TypeError("invalid command: with App, give only App objects, each with its own n")
    return apps


def _job_words(command: Command, n: Optional[int]) -> "list[str]":
    """Return the words that describe the programs."""
    apps = _apps(command, n)
    if not apps:
        words = command_words(command)  # type: ignore[arg-type] # without an App, all are words
        if not words:
            raise ValueError("command is empty; name a program")
        return words if n is None else ["-n", str(n), *words]
    words = apps[0].words()
    for app in apps[1:]:
        words += [":", *app.words()]
    return words


def start_launch(
    command: Command,
    *,
    n: Optional[int],
    stdin: Union[None, int, str] = None,
    env: Optional[Mapping[str, str]],
    cwd: Optional[Word] = None,
    keep_output: bool = True,
    options: Mapping[str, Option],
) -> Launch:
    """Start a launch with these options of ``wireup run``."""
    launcher = LauncherProcess(_job_words(command, n), stdin=stdin, env=env, cwd=cwd, options=options)
    return Launch(launcher, keep_output=keep_output)


def launch(
    command: Command,
    *,
    n: Optional[int] = None,
    stdin: Union[None, int, str] = None,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Word] = None,
    keep_output: bool = True,
    **options: Option,
) -> Launch:
    """Start a launch and return it while it runs.

    :param command: the program and its arguments, or a list of :class:`App`
    :param n: number of ranks
    :param stdin: rank that reads what :meth:`Launch.write` sends, or ``"all"``; otherwise ranks have no input
    :param env: variables to set for the ranks, on every host
    :param cwd: directory in which the launcher runs; that of the ranks too unless ``wdir`` is given
    :param keep_output: whether the ranks' output is kept in :attr:`Launch.ranks`; it is in the events anyway
    :param options: any option of ``wireup run``: ``hosts="n1:4,n2:4"`` (or a list), ``virtual_nodes=2``, ``bind_to="core"``,
        ``timeout=90``, ``oversubscribe=True``, ``on_failure="continue"``, …
    """
    return start_launch(command, n=n, stdin=stdin, env=env, cwd=cwd, keep_output=keep_output, options=options)


def run(
    command: Command,
    *,
    n: Optional[int] = None,
    input: Union[None, str, bytes] = None,
    stdin: Union[None, int, str] = None,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[Word] = None,
    check: bool = True,
    **options: Option,
) -> Result:
    """Run a program as the ranks of a job, wait for its end, and return exit codes and output by rank.

    Arguments are those of :func:`launch`; ``input`` is what rank 0, or the ranks that ``stdin`` names, read. Raises
    :class:`LaunchFailed` with the launcher's own text unless ``check`` is false. Ctrl-C ends the launch.
    """
    if stdin is None and input is not None:
        stdin = 0
    with start_launch(command, n=n, stdin=stdin, env=env, cwd=cwd, options=options) as job:
        if input is not None:
            job.write(input)
        job.close_stdin()
        return job.wait(check=check)
