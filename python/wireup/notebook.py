"""Cells of a notebook on MPI ranks: ``%load_ext wireup``, then ``%%mpi -n 4`` and ``%wireup``."""

from __future__ import annotations

import base64
import concurrent.futures
import html
import importlib
import os
import re
import shlex
import signal
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _cell
from ._events import Event
from ._launch import Launch
from ._pool import RanksLost, RankTraceback
from ._worker import END_OF_TASK
from .executor import MPIExecutor

_REFRESH_SECONDS = 0.3
# For output that has been written to come here.
_OUTPUT_SECONDS = 5
# A group of ranks with more lines is folded, like all groups but the first.
_MOST_OPEN_LINES = 40
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_HELP = """\
%%mpi [-n N] [--OPTION[=VALUE]...]   run the cell on N ranks, which stay; options are those of `wireup run`
%wireup status                       the ranks with their hosts and pids
%wireup report [FILE]                the timeline of their launch, here or in a file
%wireup restart                      end them and start new ones; variables are lost
%wireup stop                         end them"""


class _CellOutput:
    """Output of the ranks since a cell began, and how many streams have ended with it. Two threads use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._texts: "Dict[Tuple[int, str], str]" = {}
        self._ended = 0
        self.version = 0

    def on_event(self, event: Event) -> None:
        with self._changed:
            self.version += 1
            if event.kind == "warning" or event.rank is None:
                key, text = (-1, "stderr"), f"wireup: warning: {event.text}\n" if event.kind == "warning" else event.text
            else:
                key, text = (event.rank, event.stream or "stdout"), event.text
            # Read with what came before: a mark may have come in pieces.
            text = self._texts.get(key, "") + text
            count = text.count(END_OF_TASK)
            if count:
                text = text.replace(END_OF_TASK, "")
                self._ended += count
                self._changed.notify_all()
            self._texts[key] = text

    def clear(self) -> None:
        with self._changed:
            self._texts.clear()
            self._ended = 0

    def wait_for_end(self, streams: int, timeout: float) -> bool:
        """Wait until so many streams have ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended >= streams, timeout)

    def texts(self) -> "Dict[Tuple[int, str], str]":
        with self._changed:
            return {key: _as_terminal(text) for key, text in self._texts.items() if text}


def _as_terminal(text: str) -> str:
    """Return the text that a terminal shows in the end, without colours."""
    # The start of a mark whose rest has not come.
    text = _ANSI.sub("", text).split("\x1e", 1)[0]
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def rank_list(ranks: "Sequence[int]") -> str:
    """Return ranks in words: ``rank 3``, ``ranks 0-2,5``."""
    runs: "List[List[int]]" = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ("rank " if len(ranks) == 1 else "ranks ") + ",".join("-".join(map(str, run)) for run in runs)


class CellView:
    """What is shown of a cell: output and values by rank, equal ones together."""

    def __init__(self, size: int, texts: "Mapping[Tuple[int, str], str]", values: "Sequence[_cell.CellValue]") -> None:
        self._general = texts.get((-1, "stderr"), "")
        contents: "Dict[Tuple[str, str, str], List[int]]" = {}
        for rank in range(size):
            value = values[rank].text if values else None
            content = (texts.get((rank, "stdout"), ""), texts.get((rank, "stderr"), ""), value or "")
            if any(content):
                contents.setdefault(content, []).append(rank)
        self._groups = [(ranks, content) for content, ranks in contents.items()]
        self._is_one = len(self._groups) == 1 and len(self._groups[0][0]) == size
        self._html = values[0].html if values and self._is_one else None

    def is_empty(self) -> bool:
        return not self._groups and not self._general

    def text(self) -> str:
        parts = [self._general] if self._general else []
        for ranks, content in self._groups:
            body = "\n".join(part.rstrip("\n") for part in content if part)
            parts.append(body if self._is_one else f"{rank_list(ranks)}:\n{body}")
        return "\n".join(parts)

    def page(self, status: str) -> str:
        parts = [f"<pre style='color:#b35900'>{html.escape(self._general)}</pre>"] if self._general else []
        for number, (ranks, (stdout, stderr, value)) in enumerate(self._groups):
            body = f"<pre>{html.escape(stdout)}</pre>" if stdout else ""
            body += f"<pre style='color:#b30000'>{html.escape(stderr)}</pre>" if stderr else ""
            if value:
                body += self._html or f"<pre>{html.escape(value)}</pre>"
            lines = sum(part.rstrip("\n").count("\n") + 1 for part in (stdout, stderr, value) if part)
            if self._is_one and lines <= _MOST_OPEN_LINES:
                parts.append(body)
                continue
            is_open = " open" if number == 0 and lines <= _MOST_OPEN_LINES else ""
            title = f"{rank_list(ranks)}: {lines} line{'s' if lines > 1 else ''}"
            parts.append(f"<details{is_open} class='wireup-ranks'><summary>{title}</summary>{body}</details>")
        if status:
            parts.append(f"<div style='opacity:.6'>{html.escape(status)}</div>")
        return "".join(parts)


class Session:
    """The ranks of a notebook."""

    def __init__(self) -> None:
        self._executor: Optional[MPIExecutor] = None
        self._options: "Dict[str, Any]" = {}
        self._output = _CellOutput()
        self._cells = 0

    # The ranks.

    def executor(self, options: "Optional[Dict[str, Any]]" = None) -> MPIExecutor:
        """Return the executor, which is started if there is none with these options."""
        if self._executor is not None and options and options != self._options:
            print("wireup: new ranks are started with the changed options; variables of the former ranks are lost")
            self.stop()
        if self._executor is None:
            self._options = options or self._options
            self._output.clear()
            # The kernel's own backend would draw for a kernel that the ranks are not.
            self._executor = MPIExecutor(
                on_failure="restart", output=self._output.on_event, env={"MPLBACKEND": "agg"}, _marks=True, **self._options
            )
        return self._executor

    def stop(self) -> None:
        """End the ranks."""
        if self._executor is not None:
            self._executor._pool.close(True, now=True)
            self._executor.shutdown()
            self._executor = None

    def launch(self) -> Launch:
        """Return the launch of the ranks."""
        if self._executor is None:
            raise RuntimeError("no ranks are running; start them with a cell that begins with %%mpi -n 4")
        return self._executor._pool.launch()

    def restart(self) -> None:
        """End the ranks and start new ones."""
        self.stop()
        self.push()

    # Variables.

    def push(self, **variables: Any) -> None:
        """Set variables on all ranks."""
        self._call(_cell.push, variables)

    def pull(self, name: str) -> "List[Any]":
        """Return a variable of each rank, by rank."""
        return self._call(_cell.pull, name)

    def _call(self, function: "Callable[..., Any]", *args: Any) -> "List[Any]":
        executor = self.executor()
        self._output.clear()
        values: "List[Any]" = executor.submit(function, *args).result()
        # Their marks are not to be taken for those of the next cell.
        self._output.wait_for_end(2 * len(values), _OUTPUT_SECONDS)
        return values

    # Cells.

    def run_cell(self, options: "Dict[str, Any]", source: str) -> None:
        """Run a cell on all ranks, and show output, values, figures or the traceback of the rank that has failed."""
        self._cells += 1
        name = f"<mpi cell {self._cells}>"
        compile(source, name, "exec")
        executor = self.executor(options)
        self._output.clear()
        with _Interrupts() as interrupts:
            future = executor.submit(_cell.run, source, name)
            handle = _display({"text/plain": "", "text/html": ""}, display_id=True)
            self._wait(executor, future, handle, interrupts)
            error = future.exception()
            values: "Sequence[_cell.CellValue]" = () if error else future.result()
            self._show(executor, handle, values, "")
            for figure in values[0].figures if values else ():
                _display({"image/png": base64.b64encode(figure).decode(), "text/plain": "<figure of rank 0>"})
        if error is not None:
            _set_traceback(error)
            raise error

    def _show(self, executor: MPIExecutor, handle: Any, values: "Sequence[_cell.CellValue]", status: str) -> None:
        view = CellView(len(executor.ranks), self._output.texts(), values)
        handle.update({"text/plain": view.text(), "text/html": view.page(status)}, raw=True)

    def _wait(
        self, executor: MPIExecutor, future: "concurrent.futures.Future[Any]", handle: Any, interrupts: "_Interrupts"
    ) -> None:
        """Wait until all ranks have left the cell and all output has come, and show it meanwhile."""
        start = time.monotonic()
        shown = (-1, -1)
        while True:
            is_done = bool(concurrent.futures.wait([future], _REFRESH_SECONDS).done)
            if is_done and isinstance(future.exception(), RanksLost):
                return
            running = executor._pool.running_ranks()
            if is_done and not running:
                self._output.wait_for_end(2 * len(executor.ranks), _OUTPUT_SECONDS)
                return
            if interrupts.take():
                # The second one does not wait for ranks that ignore the first.
                if interrupts.count == 1:
                    executor.interrupt()
                else:
                    executor.restart()
            if is_done:
                # Others have not left the cell in which one has failed.
                time.sleep(_REFRESH_SECONDS)
            seconds = int(time.monotonic() - start)
            if shown != (seconds, self._output.version):
                shown = (seconds, self._output.version)
                state = f"{rank_list(running)} running" if running else "ranks are started"
                self._show(executor, handle, (), f"{seconds} s: {state}")


class _Interrupts:
    """Counts interrupts of the kernel, which an exception would let leave a message to the notebook half sent."""

    def __init__(self) -> None:
        self.count = 0
        self._taken = 0
        self._former: Any = None

    def __enter__(self) -> "_Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _on_signal(self, _signum: int, _frame: object) -> None:
        self.count += 1

    def take(self) -> bool:
        """Whether there was one since the last call."""
        is_new = self._taken < self.count
        self._taken = self.count
        return is_new


def _display(data: "Mapping[str, str]", **options: Any) -> Any:
    display: Any = importlib.import_module("IPython.display").display
    return display(data, raw=True, **options)


def _set_traceback(error: BaseException) -> None:
    """Have IPython show what happened on the rank, and not where it was noticed."""
    cause = error.__cause__
    if isinstance(cause, RankTraceback):
        lines = cause.text.rstrip("\n").split("\n")
    elif isinstance(error, RanksLost):
        lines = [f"RanksLost: {error}", "The next cell starts new ranks; variables are lost."]
    else:
        return
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined] # IPython looks for it


def parse_options(line: str) -> "Dict[str, Any]":
    """Return the options of a ``%%mpi`` line."""
    options: "Dict[str, Any]" = {}
    words = shlex.split(line)
    while words:
        word = words.pop(0)
        match = re.fullmatch(r"-n(\d+)|--?([a-z][a-z-]*)(?:=(.*))?", word, re.DOTALL)
        if match is None:
            raise ValueError(f"invalid word {word!r} in %%mpi; use -n N and options of `wireup run` as --NAME=VALUE")
        count, name, value = match.groups()
        if count is not None:
            name, value = "n", count
        elif value is None and words and not words[0].startswith("-"):
            value = words.pop(0)
        if name == "n":
            if not (value or "").isdigit():
                raise ValueError(f"invalid number of ranks {value!r} in %%mpi; use -n N")
            options["n"] = int(value)
        else:
            options[name.replace("-", "_")] = True if value is None else value
    return options


#: The ranks of this notebook.
session = Session()


def _run_line(line: str) -> None:
    """Carry out ``%wireup``."""
    command, *words = shlex.split(line) or ["help"]
    if command == "status":
        launch = session.launch()
        rows = [f"rank {rank.rank}  {rank.host}  pid {rank.pid}  {rank.state}" for rank in launch.ranks]
        print("\n".join([f"{launch.job}: wireup pid {launch.pid}", *rows]))
    elif command == "report":
        timeline = session.launch().timeline()
        if words:
            timeline.write_page(words[0])
            print(f"wrote {os.path.abspath(words[0])}")
        else:
            # A page of its own, whose script cannot reach the notebook.
            page = html.escape(timeline.page(), quote=True)
            frame = f'<iframe class="wireup-report" sandbox="allow-scripts" width="100%" height="600" srcdoc="{page}"></iframe>'
            _display({"text/html": frame, "text/plain": timeline.summary()})
    elif command == "restart":
        session.restart()
    elif command == "stop":
        session.stop()
    elif command == "help":
        print(_HELP)
    else:
        raise ValueError(f"unknown command {command!r} of %wireup; use one of:\n{_HELP}")


def register(shell: Any) -> None:
    """Give the magics to a shell of IPython."""
    shell.register_magic_function(lambda line, cell: session.run_cell(parse_options(line), cell), "cell", "mpi")
    shell.register_magic_function(_run_line, "line", "wireup")
