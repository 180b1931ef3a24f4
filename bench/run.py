"""Starting one command and timing it to its end, or saying that it hangs.

Leaves to others what is run and what is done with the figures.
"""

import os
import random
import select
import signal
import statistics
import time

MARK = "WIREUP_BENCH_RUN"


class Run:
    """One command under observation. Its own session, stdin from /dev/null, output to `output`."""

    serial = 0

    def __init__(self, argv, env=None, output=os.devnull):
        Run.serial += 1
        # Every descendant inherits the mark, so that what a launcher leaves behind can be found.
        self.mark = f"{MARK}={os.getpid()}-{Run.serial}"
        environment = dict(os.environ)
        environment.update(env or {})
        name, value = self.mark.split("=")
        environment[name] = value
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self.start = time.perf_counter()
        self.pid = os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setsid=True)

    def wait(self, limit):
        """Milliseconds and exit code, or None and None when it has not ended within `limit` s."""
        fd = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(limit * 1000):
                return None, None
            took = (time.perf_counter() - self.start) * 1000
        finally:
            os.close(fd)
        _, status = os.waitpid(self.pid, 0)
        return took, os.waitstatus_to_exitcode(status)

    def end(self):
        """Ends what still runs of this command: SIGTERM, two seconds, SIGKILL."""
        for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            for pid in self.processes():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + patience
            while time.monotonic() < deadline:
                self.reap()
                if not self.processes():
                    return
                time.sleep(0.02)

    def reap(self):
        try:
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            pass

    def processes(self):
        """The command and everything that came of it, by parentage or by the inherited mark."""
        parent, found = {}, set()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            pid = int(entry)
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if fields[0] == b"Z":
                    continue
                parent[pid] = int(fields[1])
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if self.mark.encode() in file.read().split(b"\0"):
                        found.add(pid)
            except OSError:
                continue
        if self.pid in parent:
            found.add(self.pid)
        grown = True
        while grown:
            more = {pid for pid, above in parent.items() if above in found} - found
            grown = bool(more)
            found |= more
        return found


def leftovers_end(run, grace):
    """True when everything of an ended command is gone within `grace` seconds."""
    deadline = time.monotonic() + grace
    while run.processes():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def pss_kib(pid):
    """Proportional set size of a process in KiB; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


# Contestants that take less ms are measured so many times as often: what is short is shaken most.
SHORT = [(100.0, 5), (20.0, 20)]


def partakers(turn, repeats, samples):
    """Who takes part in a round, given all samples so far by contestant: all in the first ones, then those
    that always came to an end in a short time. None when it is enough."""
    if turn < repeats:
        return set(samples)
    below = next((below for below, more in SHORT if turn < repeats * more), 0.0)
    short = {name for name, times in samples.items()
             if len(times) == turn and statistics.median(times) < below}
    return short if len(short) > 1 else set()


def shuffled(contestants, turn):
    """The contestants in the random order of a round, the same in every measurement. Each follows each of the others
    now and then: who always comes after the largest finds the processor's caches full of it."""
    return random.Random(turn).sample(contestants, len(contestants))
