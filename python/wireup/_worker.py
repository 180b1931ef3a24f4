"""A rank of an executor: runs the functions that it is sent, until the connection ends."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import types

from . import _rank
from ._channel import MAIN, connect, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

    from ._channel import Buffer, Channel

#: Follows the output of each task where the executor wants to know its end.
END_OF_TASK = "\x1ewireup-end-of-task\x1e"


class _Interrupts:
    """Raises SIGINT in the function of a task. An import for the task is completed first: modules do not survive half of it."""

    def __init__(self) -> None:
        self._is_running = self._is_pending = False
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, _signum: int, _frame: Optional[types.FrameType]) -> None:
        if self._is_running:
            raise KeyboardInterrupt
        self._is_pending = True

    def on_task(self) -> None:
        """Forget a signal that came before the task."""
        self._is_pending = False

    def start_function(self) -> None:
        """Let signals interrupt, as one that has come since the task was received does now."""
        self._is_running = True
        if self._is_pending:
            raise KeyboardInterrupt

    def end_function(self) -> None:
        self._is_running = False


def _unpickler(main: Mapping[str, str]) -> "Callable[..., pickle.Unpickler]":
    """Return an unpickler that finds what the executor's script defines, which is imported when it is first needed."""

    def import_main() -> types.ModuleType:
        if MAIN not in sys.modules:
            module = types.ModuleType(MAIN)
            sys.modules[MAIN] = module
            import runpy

            _rank.is_importing = True
            try:
                if "module" in main:
                    contents = runpy.run_module(main["module"], run_name=MAIN, alter_sys=True)
                elif "path" in main:
                    contents = runpy.run_path(main["path"], run_name=MAIN)
                else:
                    raise pickle.UnpicklingError(
                        "function is defined in an interactive session and can only be sent with cloudpickle: pip install cloudpickle"
                    )
            except BaseException:
                del sys.modules[MAIN]
                raise
            finally:
                _rank.is_importing = False
            module.__dict__.update(contents)
            sys.modules["__main__"] = module
        return sys.modules[MAIN]

    class MainUnpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module == "__main__":
                value: Any = import_main()
                for part in name.split("."):
                    value = getattr(value, part)
                return value
            return super().find_class(module, name)

    return MainUnpickler


def _encode_failure(error: BaseException) -> "List[Buffer]":
    """Return an exception with its traceback, without the package's own frames."""
    import traceback

    trace = traceback.TracebackException(type(error), error, error.__traceback__)
    here = os.path.dirname(__file__)
    trace.stack[:] = [frame for frame in trace.stack if os.path.dirname(frame.filename) != here]
    text = "".join(trace.format())
    try:
        return encode((text, error.with_traceback(None)))
    except Exception:  # whatever its attributes raise
        return encode((text, None))


def serve(channel: Channel, comm: Any, config: Mapping[str, Any], interrupts: _Interrupts) -> None:
    """Run tasks until the executor closes the connection."""
    unpickler = _unpickler(config["main"])
    while True:
        try:
            control, *payload = channel.receive()
        except (EOFError, ConnectionResetError):
            return
        interrupts.on_task()
        kind, task = pickle.loads(control)
        status = "failed"
        try:
            function, args, kwargs = decode(payload, unpickler)
            interrupts.start_function()
            value = function(comm, *args, **kwargs) if kind == "all" else function(*args, **kwargs)
            interrupts.end_function()
            reply = encode(value)
            del function, args, kwargs, value
            status = "done"
        except BaseException as error:  # the executor raises it
            interrupts.end_function()
            reply = _encode_failure(error)
        for stream in (sys.stdout, sys.stderr):
            if config["marks"]:
                stream.write(END_OF_TASK)
            stream.flush()
        channel.send([pickle.dumps((status, task)), *reply])


def call_each(function: "Callable[..., Any]", calls: "Sequence[Tuple[Any, ...]]") -> "List[Any]":
    """Call a function with each of these arguments."""
    return [function(*args) for args in calls]


def main(sys_path: "List[str]") -> None:
    """Serve the executor whose address and settings come from standard input."""
    interrupts = _Interrupts()
    sys.path[:] = sys_path
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a TextIOWrapper at the start
    rank = int(os.environ["WIREUP_RANK"])
    comm, refusal = _load_mpi(rank)
    config: Dict[str, Any] = pickle.load(sys.stdin.buffer)
    channel = connect(config["socket"], config["addresses"], config["key"])
    channel.send([pickle.dumps((rank, refusal))])
    if refusal is None:
        serve(channel, comm, config, interrupts)


def _load_mpi(rank: int) -> "Tuple[Any, Optional[str]]":
    """Return the communicator of all ranks, and why this one cannot serve."""
    try:
        from mpi4py import MPI
    except BaseException as error:  # the executor raises it
        return None, f"rank {rank} cannot load MPI with mpi4py: {error}; install both for {sys.executable}, such as mpi4py and mpich with pip"
    comm = MPI.COMM_WORLD
    if comm.size == int(os.environ["WIREUP_SIZE"]):
        return comm, None
    library = MPI.Get_library_version().splitlines()[0].strip()
    return comm, f"rank {rank} runs alone: its MPI, {library}, did not find the launcher"
