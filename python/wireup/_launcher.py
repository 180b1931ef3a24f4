"""The launcher as a child process. An executor starts it before it imports what it needs to serve ranks."""

from __future__ import annotations

import os
import subprocess

from ._program import environment, find_program, option_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Optional, Sequence, Union

    from ._types import Option, Word


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
        variables, env_words = environment(env)
        job_words = [*option_words(options), *env_words, *app_words]
        program = find_program()
        # Its messages are few; a file in memory needs no reader meanwhile.
        self._messages = os.memfd_create("wireup-messages", os.MFD_CLOEXEC)
        control, self.control = os.pipe()
        words = [program, "run", "--json", "-", "--control", f"fd:{control}", "--no-progress"]
        words.append(f"--stdin={'none' if stdin is None else stdin}")
        try:
            self.process = subprocess.Popen(
                [*words, *job_words],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                env=variables,
                cwd=cwd,
                bufsize=0,
                pass_fds=(control,),
                # A terminal's Ctrl-C is this process's to handle; it may want to end the launch or only to interrupt its ranks.
                start_new_session=True,
            )
        except BaseException:
            os.close(self.control)
            os.close(self._messages)
            raise
        finally:
            os.close(control)
        if self.process.stdin is not None:
            os.set_blocking(self.process.stdin.fileno(), False)

    def messages(self) -> str:
        """Return what it has written to standard error."""
        return os.pread(self._messages, os.fstat(self._messages).st_size, 0).decode(errors="replace")

    def release(self) -> None:
        """Close the pipes, which ends a launcher that still runs."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        if self.control >= 0:
            os.close(self.control)
            os.close(self._messages)
            self.control = -1
