"""The ranks of an executor, the tasks for them, and the thread between both."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ._channel import MAIN, Channel, addresses_towards, decode, encode
from ._events import Event
from ._launch import Launch
from ._launcher import LauncherProcess
from ._result import LaunchFailed, Rank, Result

if TYPE_CHECKING:
    from ._channel import Buffer

_HELLO_LIMIT = 1 << 16
_HELLO_SECONDS = 10


class RanksLost(BrokenExecutor):
    """The ranks of an executor have ended. Its text is the launcher's own."""

    __module__ = "wireup"

    def __init__(self, message: str, result: Optional[Result] = None) -> None:
        super().__init__(message)
        #: How their launch ended.
        self.result = result


class RankTraceback(Exception):
    """Traceback of an exception in a rank: the cause of the one that is raised here."""

    __module__ = "wireup"

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(eq=False)
class _Task:
    """A function with its arguments, on its way."""

    number: int
    #: ``"all"`` or ``"one"``.
    kind: str
    parts: "List[Buffer]"
    future: "Future[Any]"
    #: Ranks that run it.
    running: "set[int]" = field(default_factory=set)
    values: "Dict[int, Any]" = field(default_factory=dict)
    has_failed: bool = False


#: A future to complete, when the lock is free: its callbacks may submit.
_Completion = Callable[[], None]


class Pool:
    """The ranks, the tasks, and the thread between them. It does not refer to the executor, which may be forgotten."""

    def __init__(
        self,
        launcher: LauncherProcess,
        start: "Callable[[], LauncherProcess]",
        output: "Optional[Callable[[Event], None]]",
        must_restart: bool,
        grace: float,
        marks: bool,
    ) -> None:
        self._launch = Launch(launcher, keep_output=False)
        self._start = start
        self._output = output or _print_output
        self._must_restart = must_restart
        self._grace = grace
        self._marks = marks
        self._lock = threading.Lock()
        self._queue: "Deque[_Task]" = deque()
        self._tasks: "Dict[int, _Task]" = {}
        self._numbers = itertools.count()
        self._channels: "Dict[int, Channel]" = {}
        self._error: Optional[RanksLost] = None
        self._is_closing = False
        self._must_end = False
        self.ready = threading.Event()
        self._reset()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        # The socket for the ranks and its directory exist while ranks connect: a script that is killed later leaves no file.
        self._listener: Optional[socket.socket] = None
        self._directory: "Optional[tempfile.TemporaryDirectory[str]]" = None
        self._key: Optional[bytes] = None
        self.thread = threading.Thread(target=self._run, name="wireup-executor", daemon=True)
        self.thread.start()

    def _reset(self) -> None:
        """Forget the ranks of a launch."""
        self._channels.clear()
        self._size = 0
        # Ranks that run nothing.
        self._idle: "set[int]" = set()
        # Why ranks cannot serve.
        self._refused: Optional[str] = None
        self._must_interrupt = self._must_restart_now = False
        # When ranks that do not leave a task are interrupted, and when the launch is terminated; why, if it is.
        self._interrupt_at: Optional[float] = None
        self._kill_at: Optional[float] = None
        self._reason: Optional[str] = None
        self._is_killed = self._is_ending = False
        self.ready.clear()

    # Called by any thread.

    def submit(self, kind: str, function: "Callable[..., Any]", args: "Tuple[Any, ...]", kwargs: "Mapping[str, Any]") -> "Future[Any]":
        future: "Future[Any]" = Future()
        parts = encode((function, args, dict(kwargs)))
        with self._lock:
            if self._is_closing:
                raise RuntimeError("cannot submit after shutdown")
            self.check()
            self._queue.append(_Task(next(self._numbers), kind, parts, future))
            self._dispatch()
        return future

    def check(self) -> None:
        """Raise the error of ranks that have ended."""
        if self._error is not None:
            raise RanksLost(str(self._error), self._error.result) from self._error.__cause__

    def interrupt(self) -> None:
        with self._lock:
            self._must_interrupt = True
        self._wake()

    def restart(self) -> None:
        with self._lock:
            self._reason = "the ranks were restarted"
            self._must_restart_now, self._kill_at = True, 0
        self._wake()

    def close(self, cancel: bool, now: bool) -> None:
        completions: "List[_Completion]" = []
        with self._lock:
            self._is_closing = True
            self._must_end |= now
            if cancel or now:
                completions = [functools.partial(self._cancel, task) for task in self._queue]
                self._queue.clear()
        self._complete(completions)
        self._wake()

    def ranks(self) -> "Tuple[Rank, ...]":
        return self._launch.ranks

    def launch(self) -> Launch:
        return self._launch

    def running_ranks(self) -> "List[int]":
        with self._lock:
            return sorted(rank for task in self._tasks.values() for rank in task.running)

    @staticmethod
    def _cancel(task: _Task) -> None:
        if task.future.cancel():
            task.future.set_running_or_notify_cancel()

    @staticmethod
    def _complete(completions: "Iterable[_Completion]") -> None:
        for completion in completions:
            completion()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"w")

    def _dispatch(self) -> None:
        """Send the tasks at the front of the queue to ranks that are idle. The lock is held."""
        must_wait = self._error is not None or self._kill_at is not None or self._is_killed
        while self._queue and self._size and not must_wait:
            task = self._queue[0]
            if not self._idle or task.kind == "all" and len(self._idle) < self._size:
                break
            self._queue.popleft()
            if not task.future.set_running_or_notify_cancel():
                continue
            ranks = sorted(self._idle) if task.kind == "all" else [min(self._idle)]
            control = pickle.dumps((task.kind, task.number))
            self._tasks[task.number] = task
            task.running.update(ranks)
            self._idle.difference_update(ranks)
            for rank in ranks:
                # Of a rank that has died the launcher will tell.
                with contextlib.suppress(OSError):
                    self._channels[rank].send([control, *task.parts])
            task.parts = []

    # The thread.

    def _run(self) -> None:
        try:
            while self._serve_launch():
                self._launch = Launch(self._start(), keep_output=False)
        except BaseException as error:  # raised where results are waited for
            failure = RanksLost(f"the executor failed: {error!r}")
            failure.__cause__ = error
            self._break(failure)
        finally:
            # Nothing of it is left, whatever has failed.
            self._launch.close()
            self._release()
            self.ready.set()

    def _release(self) -> None:
        with self._lock:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1
        self._stop_listening()

    def _break(self, error: RanksLost) -> None:
        """Fail all tasks, and those that are still to come."""
        with self._lock:
            self._error = error
            tasks = [*self._tasks.values(), *self._queue]
            self._tasks.clear()
            self._queue.clear()
        for task in tasks:
            self._fail(task, error)

    @staticmethod
    def _fail(task: _Task, error: BaseException) -> None:
        if not task.future.cancelled() and not task.has_failed:
            task.future.set_exception(error)

    def _serve_launch(self) -> bool:
        """Serve the ranks of one launch to its end; return whether another one is to follow."""
        launch = self._launch
        with selectors.DefaultSelector() as selector:
            selector.register(launch.fileno(), selectors.EVENT_READ, "launch")
            selector.register(self._wake_read, selectors.EVENT_READ, "wake")
            try:
                while launch.result is None:
                    for key, _ in selector.select(self._next_timeout()):
                        if key.data == "launch":
                            self._on_events(launch, selector)
                        elif key.data == "wake":
                            os.read(self._wake_read, 1 << 10)
                        elif key.data == "listener":
                            self._accept(selector)
                        else:
                            self._on_message(key.data, selector)
                    self._on_time(launch)
            finally:
                for channel in self._channels.values():
                    channel.close()
                self._stop_listening()
        return self._on_end(launch.result)

    def _next_timeout(self) -> Optional[float]:
        moments = [moment for moment in (self._interrupt_at, self._kill_at) if moment is not None]
        return max(0, min(moments) - time.monotonic()) if moments else None

    def _on_events(self, launch: Launch, selector: selectors.BaseSelector) -> None:
        for event in launch.next_events(0):
            if event.kind == "job" and event.state == "planned":
                self._listen(launch, event, selector)
            elif event.kind in ("output", "warning"):
                self._output(event)

    def _listen(self, launch: Launch, planned: Event, selector: selectors.BaseSelector) -> None:
        """Open the socket that the ranks can reach, and send them its address."""
        hosts = {node["host"] for node in planned.fields["nodes"]}
        is_here = planned.fields["virtual_nodes"] or hosts == {os.uname().nodename}
        path = ""
        addresses: "List[Tuple[str, int]]" = []
        if is_here:
            self._directory = tempfile.TemporaryDirectory(prefix="wireup-executor-")
            path = os.path.join(self._directory.name, "socket")
            self._listener, self._key = socket.socket(socket.AF_UNIX), None
            self._listener.bind(path)
        else:
            self._listener, self._key = socket.create_server(("", 0)), os.urandom(32)
            port = self._listener.getsockname()[1]
            addresses = [(address, port) for address in addresses_towards(hosts)]
        self._listener.listen(1024)
        selector.register(self._listener, selectors.EVENT_READ, "listener")
        config = {
            "socket": path,
            "addresses": addresses,
            "key": self._key,
            "main": _main_module(),
            "marks": self._marks,
        }
        launch.write(pickle.dumps(config))
        launch.close_stdin()
        with self._lock:
            self._size = planned.fields["size"]

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _accept(self, selector: selectors.BaseSelector) -> None:
        assert self._listener is not None
        connection, _ = self._listener.accept()
        connection.settimeout(_HELLO_SECONDS)
        try:
            channel = Channel(connection, self._key)
            rank, refusal = pickle.loads(channel.receive(_HELLO_LIMIT)[0])
        except (OSError, EOFError, ValueError):
            # Not one of the ranks: they have the key, or access to the directory.
            connection.close()
            return
        channel.settimeout(None)
        selector.register(channel, selectors.EVENT_READ, rank)
        with self._lock:
            self._channels[rank] = channel
            are_all_here = len(self._channels) == self._size
        if are_all_here:
            selector.unregister(self._listener)
            self._stop_listening()
        with self._lock:
            if refusal is not None:
                self._refused = refusal
                return
            self._idle.add(rank)
            is_ready = are_all_here and self._refused is None
            self._dispatch()
        if is_ready:
            self.ready.set()

    def _on_message(self, rank: int, selector: selectors.BaseSelector) -> None:
        channel = self._channels[rank]
        try:
            control, *payload = channel.receive()
        except (OSError, EOFError, ValueError):
            selector.unregister(channel)
            self._on_lost(rank)
            return
        status, task = pickle.loads(control)
        reply = _decode_reply(rank, status, payload)
        with self._lock:
            self._idle.add(rank)
            completions = self._on_reply(rank, reply, self._tasks[task])
            self._dispatch()
        self._complete(completions)

    def _on_reply(self, rank: int, reply: Any, task: _Task) -> "List[_Completion]":
        """Take what a function has returned or raised on a rank. The lock is held."""
        completions: "List[_Completion]" = []
        task.running.discard(rank)
        if not isinstance(reply, _Failure):
            task.values[rank] = reply
        elif not task.has_failed:
            task.has_failed = True
            completions.append(functools.partial(task.future.set_exception, reply.error))
            if task.running:
                # They may wait for it in MPI.
                self._interrupt_at = time.monotonic() + self._grace
                self._reason = f"rank {rank} failed in a function, which {{ranks}} did not leave within {{seconds:g}} s"
        if not task.running:
            del self._tasks[task.number]
            if not task.has_failed:
                values = [task.values[number] for number in sorted(task.values)]
                completions.append(functools.partial(task.future.set_result, values if task.kind == "all" else values[0]))
            if not self._tasks and not self._must_restart_now:
                self._interrupt_at = self._kill_at = self._reason = None
        return completions

    def _on_lost(self, rank: int) -> None:
        """Expect the end of a launch that a rank has left."""
        with self._lock:
            self._idle.discard(rank)
            if self._kill_at is None and not self._is_killed:
                self._kill_at = time.monotonic() + self._grace
                self._reason = f"rank {rank} closed its connection to the executor"

    def _on_time(self, launch: Launch) -> None:
        """Do what a deadline, another thread or the end of the last task asks for."""
        now = time.monotonic()
        with self._lock:
            running = sorted(rank for task in self._tasks.values() for rank in task.running)
            is_late = self._interrupt_at is not None and now >= self._interrupt_at
            must_interrupt = running and (self._must_interrupt or is_late)
            self._must_interrupt = False
            if must_interrupt:
                # Once more later: the first one is ignored by a rank that has not received its function yet.
                self._interrupt_at = now + self._grace / 2 if self._kill_at is None else None
                self._kill_at = self._kill_at or now + self._grace
                self._reason = self._reason or "{ranks} did not leave a function within {seconds:g} s after an interrupt"
            must_kill = self._kill_at is not None and now >= self._kill_at and not self._is_killed
            if must_kill:
                self._is_killed, self._kill_at = True, None
                names = f"rank {running[0]}" if len(running) == 1 else f"ranks {', '.join(map(str, running))}"
                self._reason = (self._reason or "").format(ranks=names, seconds=self._grace)
            is_done = self._is_closing and not self._queue and not self._tasks
            must_end = (is_done or self._must_end) and not self._is_ending
            self._is_ending |= must_end
            # Then ranks finalize MPI and exit.
            can_finalize = is_done and 0 < self._size == len(self._idle)
            if must_end and can_finalize:
                self._kill_at = now + self._grace
        if must_interrupt:
            launch.send_signal(signal.SIGINT, running)
        if must_end and can_finalize:
            for channel in self._channels.values():
                channel.end()
        elif must_kill or must_end:
            launch.terminate()

    def _on_end(self, result: Result) -> bool:
        """Judge the end of a launch."""
        text = self._refused or (self._reason if self._is_killed and self._reason else None)
        if text is None:
            try:
                result.check()
                text = "the ranks have exited"
            except LaunchFailed as failure:
                text = str(failure)
        error = RanksLost(text, result)
        with self._lock:
            running = list(self._tasks.values())
            self._tasks.clear()
            # Ranks that could not start will not start the next time.
            must_restart = self._must_restart and self.ready.is_set() or self._must_restart_now
            must_restart = must_restart and not self._must_end and (not self._is_closing or bool(self._queue))
            self._reset()
        for task in running:
            self._fail(task, error)
        if not must_restart:
            self._break(error)
        return must_restart


def _main_module() -> "Dict[str, str]":
    """Return where ranks find the script that runs here, for functions that it defines."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return {"module": str(spec.name)}
    path = getattr(main, "__file__", None)
    return {"path": os.path.abspath(path)} if path else {}


class _ExecutorUnpickler(pickle.Unpickler):
    """Finds what the ranks have from the script that runs here."""

    def find_class(self, module: str, name: str) -> Any:
        return super().find_class("__main__" if module == MAIN else module, name)


@dataclass(frozen=True)
class _Failure:
    """What a function has raised, in place of what it returns."""

    error: BaseException


def _decode_reply(rank: int, status: str, payload: "Sequence[Buffer]") -> Any:
    if status == "failed":
        return _Failure(_decode_failure(rank, payload))
    try:
        return decode(payload, _ExecutorUnpickler)
    except Exception as error:  # whatever the types of the value raise
        return _Failure(error)


def _decode_failure(rank: int, payload: "Sequence[Buffer]") -> BaseException:
    try:
        text, error = decode(payload, _ExecutorUnpickler)
    except Exception as unpickling:  # whatever the exception's type raises
        text, error = f"rank {rank} raised an exception that cannot be unpickled: {unpickling}\n", None
    raised = error if isinstance(error, BaseException) else RuntimeError(f"exception of rank {rank}: {text.splitlines()[-1]}")
    raised.__cause__ = RankTraceback(f"rank {rank}:\n{text}")
    return raised


def _print_output(event: Event) -> None:
    if event.kind == "warning":
        print(f"wireup: warning: {event.text}", file=sys.stderr)
    else:
        stream = sys.stdout if event.stream == "stdout" else sys.stderr
        stream.write(event.text)
        stream.flush()
