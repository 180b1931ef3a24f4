"""An executor whose workers are the ranks of an MPI job: :class:`MPIExecutor`.

The start of the ranks takes longest. So this module has only the imports without which the launcher cannot be started; what serves
the ranks, `_pool`, is imported when it runs.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import weakref
from concurrent.futures import Executor

from . import _rank
from ._launcher import LauncherProcess
from ._program import command_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, TypeVar

    from ._events import Event
    from ._pool import Pool
    from ._result import Rank
    from ._types import Option, Word

    T = TypeVar("T")


class _OneRank(Executor):
    """Runs each function on one rank."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def submit(self, fn: "Callable[..., T]", /, *args: Any, **kwargs: Any) -> "Future[T]":
        return self._pool.submit("one", fn, args, kwargs)


class MPIExecutor(Executor):
    """Runs functions on the ranks of an MPI job, which it starts and keeps; the script itself needs no launcher.

        with wireup.MPIExecutor(n=4) as executor:
            sums = executor.submit(lambda comm, x: comm.allreduce(x), 1).result()     # [4, 4, 4, 4]
            squares = list(executor.map(pow, range(100), itertools.repeat(2)))

    The ranks need mpi4py and an MPI. Functions and arguments are pickled, by cloudpickle if it is installed: then functions of a
    notebook and lambdas can be sent too. Arrays of numpy are sent without a copy.

    What functions print is printed here. A rank that ends takes the others with it: functions that run get :class:`RanksLost`
    with the launcher's own text. With ``on_failure="restart"`` new ranks then run the functions that wait; otherwise these fail,
    and so does each further one.
    """

    __module__ = "wireup"

    def __init__(
        self,
        n: Optional[int] = None,
        *,
        on_failure: str = "abort",
        python: Optional[Word] = None,
        env: Optional[Mapping[str, str]] = None,
        output: "Optional[Callable[[Event], None]]" = None,
        grace: float = 5,
        _marks: bool = False,
        **options: Option,
    ) -> None:
        """Start the ranks; functions may be submitted before they are ready.

        :param n: number of ranks
        :param on_failure: ``"abort"`` or ``"restart"``
        :param python: interpreter of the ranks; this one's by default
        :param env: variables to set for the ranks
        :param output: called, in a thread of the executor, with each event of output in place of printing it
        :param grace: seconds after which ranks that do not leave a function in which another one has failed, or that was
            interrupted, are ended
        :param options: any option of ``wireup run``, as for :func:`wireup.launch`
        """
        if on_failure not in ("abort", "restart"):
            raise ValueError(f"invalid on_failure {on_failure!r}: use 'abort' or 'restart'")
        if _rank.is_importing:
            raise RuntimeError(
                "cannot start an executor in a rank, which imports this script to find its functions: put the start below "
                "`if __name__ == \"__main__\":`, or install cloudpickle"
            )
        package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
        program = f"import sys; sys.path.insert(0, {package!r}); from wireup._worker import main; main({sys.path!r})"
        words = command_words([sys.executable if python is None else python, "-c", program])
        if n is not None:
            words = ["-n", str(n), *words]
        start = functools.partial(LauncherProcess, words, stdin="all", env=env, options=options)
        launcher = start()
        try:
            from ._pool import Pool

            self._pool = Pool(launcher, start, output, on_failure == "restart", grace, _marks)
        except BaseException:
            launcher.release()
            raise
        self._one = _OneRank(self._pool)
        self._finalizer = weakref.finalize(self, _shut_down, self._pool)

    @property
    def ranks(self) -> "Tuple[Rank, ...]":
        """The ranks with their hosts and pids; empty until they are planned."""
        return self._pool.ranks()

    def wait_ready(self, timeout: Optional[float] = None) -> None:
        """Wait until all ranks are ready; raise :class:`RanksLost` if they cannot start."""
        if not self._pool.ready.wait(timeout):
            raise TimeoutError(f"the ranks were not ready within {timeout} s")
        self._pool.check()

    def submit(self, fn: "Callable[..., T]", /, *args: Any, **kwargs: Any) -> "Future[List[T]]":  # type: ignore[override]
        """Run ``fn(comm, *args, **kwargs)`` on all ranks; the future's result is the list of what they return, by rank.

        ``comm`` is mpi4py's communicator of all ranks. If it raises on one rank, the future has that exception at once.
        """
        return self._pool.submit("all", fn, args, kwargs)

    def submit_one(self, fn: "Callable[..., T]", /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run ``fn(*args, **kwargs)`` on one rank."""
        return self._one.submit(fn, *args, **kwargs)

    def map(
        self, fn: "Callable[..., T]", *iterables: "Iterable[Any]", timeout: Optional[float] = None, chunksize: int = 1
    ) -> "Iterator[T]":
        """Run ``fn`` for each element on one rank and return the results in order, as :meth:`Executor.map` does."""
        if chunksize < 1:
            raise ValueError(f"invalid chunksize {chunksize}: it must be at least 1")
        if chunksize == 1:
            return self._one.map(fn, *iterables, timeout=timeout)
        from ._worker import call_each

        calls = zip(*iterables)
        chunks = iter(lambda: tuple(itertools.islice(calls, chunksize)), ())
        return itertools.chain.from_iterable(self._one.map(functools.partial(call_each, fn), chunks, timeout=timeout))

    def interrupt(self) -> None:
        """Raise :class:`KeyboardInterrupt` in functions that run. Ranks that do not end then are ended (``grace``)."""
        self._pool.interrupt()

    def restart(self) -> None:
        """End the ranks and start new ones; functions that run fail."""
        self._pool.restart()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the ranks when all functions are done, or those that run with ``cancel_futures``."""
        self._finalizer.detach()
        self._pool.close(cancel_futures, now=False)
        if wait:
            self._pool.thread.join()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._pool.close(True, now=True)
        self.shutdown(wait=True)


def _shut_down(pool: Pool) -> None:
    """End the ranks of an executor without references, or at the end of the program."""
    pool.close(False, now=False)
    if threading.current_thread() is not pool.thread:
        pool.thread.join()
