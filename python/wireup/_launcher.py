"""The launcher as a child process.

An executor starts it before it imports what it needs to serve ranks. So this module has few imports: that of subprocess takes
longer than the start of a launch.
"""

from __future__ import annotations

import os
from _signal import SIGPIPE, SIGXFSZ  # type: ignore[import-not-found] # `signal` takes long to import, too

from ._program import environment, find_program, option_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Sequence, Tuple, Union

    from ._types import Option, Word

_CHANGE_DIRECTORY = ["/bin/sh", "-c", 'cd -P -- "$0" && exec "$@"']
# Launchers that nothing waits for any more, and that may still run.
_unreaped: "List[LauncherProcess]" = []


class LauncherProcess:
    """``wireup run`` with pipes: its status stream, commands, input of the ranks. It ends when the pipe for commands is closed."""

    def __init__(
        self,
        app_words: "Sequence[str]",
        *,
        stdin: "Union[None, int, str]",
        env: "Optional[Mapping[str, str]]",
        cwd: "Optional[Word]" = None,
        options: "Mapping[str, Option]",
    ) -> None:
        _unreaped[:] = [launcher for launcher in _unreaped if launcher.poll() is None]
        variables, env_words = environment(env)
        job_words = [*option_words(options), *env_words, *app_words]
        words = [find_program(), "run", "--json", "-", "--no-progress", f"--stdin={'none' if stdin is None else stdin}"]
        if cwd is not None:
            os.stat(os.path.join(cwd, "."))
            words = [*_CHANGE_DIRECTORY, os.path.abspath(cwd), *words]
        _occupy_standard_descriptors()
        # Its messages are few; a file in memory needs no reader meanwhile.
        self._messages = os.memfd_create("wireup-messages", os.MFD_CLOEXEC)
        #: Descriptors of the pipes; -1 if there is none, or none any more.
        self.stdout, stdout = os.pipe()
        control, self.control = os.pipe()
        input, self.stdin = os.pipe() if stdin is not None else (os.open(os.devnull, os.O_RDONLY), -1)
        self._code: Optional[int] = None
        inherited = _inheritable_descriptors()
        os.set_inheritable(control, True)
        actions: "List[Tuple[int, ...]]" = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in inherited]
        actions += [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate([input, stdout, self._messages])]
        try:
            #: Process id.
            self.pid = _spawn([*words, "--control", f"fd:{control}", *job_words], variables, actions)
        except BaseException:
            self.release()
            raise
        finally:
            for descriptor in (input, stdout, control):
                os.close(descriptor)
        if self.stdin >= 0:
            os.set_blocking(self.stdin, False)

    def poll(self) -> "Optional[int]":
        """Return the exit code, -N after signal N; ``None`` while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        code = self._wait(0)
        assert code is not None
        return code

    def _wait(self, options: int) -> "Optional[int]":
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                # The program ignores SIGCHLD, or has waited itself: the code is not known.
                pid, status = self.pid, 0
            if pid == self.pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def messages(self) -> str:
        """Return what it has written to standard error."""
        return os.pread(self._messages, os.fstat(self._messages).st_size, 0).decode(errors="replace")

    def close_stdin(self) -> None:
        """End the input of the ranks."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def release(self) -> None:
        """Close the pipes, which ends a launcher that still runs."""
        self.close_stdin()
        if self.control >= 0:
            for descriptor in (self.stdout, self.control, self._messages):
                os.close(descriptor)
            self.control = -1

    def forget(self) -> None:
        """End a launcher that nothing will wait for."""
        self.release()
        _unreaped.append(self)


def _spawn(words: "List[str]", variables: "Mapping[str, str]", actions: "Sequence[Tuple[int, ...]]") -> int:
    """Start a program in a session of its own, and return its process id.

    A terminal's Ctrl-C is this process's to handle; it may want to end the launch or only to interrupt its ranks.
    """
    # Python ignores these signals.
    ignored = [SIGPIPE, SIGXFSZ]
    try:
        return os.posix_spawnp(words[0], words, variables, file_actions=actions, setsigdef=ignored, setsid=True)
    except NotImplementedError:
        # Python was built with an older C library.
        return os.posix_spawnp("setsid", ["setsid", *words], variables, file_actions=actions, setsigdef=ignored)


def _occupy_standard_descriptors() -> None:
    """Open those that are closed, so that no pipe gets the number of one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _inheritable_descriptors() -> "List[int]":
    """Return the descriptors that a child would inherit, without the standard ones."""
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
        except OSError:
            # That of the directory, or one that another thread has closed.
            continue
    return found
