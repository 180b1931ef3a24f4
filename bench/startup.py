#!/usr/bin/env python3
"""Shows where the time of a launch of an empty program goes: before its first rank, during ranks, after the last one.

    bench/startup.py [--wireup PATH] [--before PATH] [--ranks 1] [--repeats 60] [--instructions]

Prints a table for wireup, another build of it (--before), Hydra 5 and the floor, launched in turn: medians of microseconds by
phase, system calls and page faults of the launcher's processes, and user instructions of the launcher, for x86-64. Needs perf
and root. On a busy machine it measures what an idle one would show under `chrt -f 1`.
"""

import argparse
import ctypes
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from signal import SIGTRAP

from run import shuffled

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = "/bin/true"
# Of ptrace(2), and the place of the instruction pointer in user_regs_struct, for x86-64.
PTRACE_TRACEME, PTRACE_SINGLESTEP, PTRACE_GETREGS, RIP = 0, 9, 12, 16
PHASES = ("before", "ranks", "after")
EXEC, EXIT, FORK = "sched:sched_process_exec", "sched:sched_process_exit", "sched:sched_process_fork"
COUNTED = {"exceptions:page_fault_user": "faults", "exceptions:page_fault_kernel": "faults", "raw_syscalls:sys_enter": "calls"}
EVENT = re.compile(r"\s*(\d+)/(\d+)\s+([\d.]+):\s+(\w+:\w+):\s*(.*)")


def events(commands, names):
    """What happens in each of these launches, one after the other: process, thread, seconds, name and text of each event."""
    with tempfile.TemporaryDirectory() as place:
        data, script = f"{place}/perf.data", f"{place}/launches"
        Path(script).write_text("".join(f"{shlex.join(command)} </dev/null\n" for command in commands), encoding="utf-8")
        perf = ["perf", "record", "-q", "-B", "-N", "-o", data, "-m", "8M", *(word for name in names for word in ("-e", name))]
        subprocess.run([*perf, "--", "sh", script], check=True)
        perf = ["perf", "script", "-i", data, "-F", "pid,tid,time,event,trace"]
        lines = subprocess.run(perf, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [match.groups() for match in map(EVENT.match, lines) if match]
    found = [(int(pid), int(tid), float(time), name, text) for pid, tid, time, name, text in found]
    shell = found[0][0]
    launchers = {int(text.rpartition("=")[2]) for pid, _, _, name, text in found if (pid, name) == (shell, FORK)}
    execs = {pid: at for at, (pid, _, _, name, _) in reversed([*enumerate(found)]) if pid in launchers and name == EXEC}
    starts = sorted(execs.values())
    return [found[start:end] for start, end in zip(starts, [*starts[1:], len(found)])]


def phases(launch, ranks):
    """Microseconds of each phase of a launch and, where they were recorded, its page faults and system calls."""
    launcher, _, start, _, _ = launch[0]
    first = [(pid, time) for pid, _, time, name, text in launch if name == EXEC and f"filename={PROGRAM} " in text]
    begun = dict(first)
    exits = [(pid, time) for pid, tid, time, name, _ in launch if name == EXIT and pid == tid]
    last = max((time for pid, time in exits if pid in begun), default=None)
    end = next((time for pid, time in exits if pid == launcher), None)
    if len(begun) != ranks or last is None or end is None:
        sys.exit(f"{launch[0][4]}: perf has lost events; take fewer ranks, or a quieter machine")
    marks = [start, min(begun.values()), last, end]
    row = Counter({f"µs {phase}": (b - a) * 1e6 for phase, a, b in zip(PHASES, marks, marks[1:])})
    for pid, _, time, name, _ in launch:
        # A rank counts until it executes its program.
        if time <= min(end, begun.get(pid, end)):
            phase = PHASES[sum(time > mark for mark in marks[1:3])]
            row[f"{COUNTED[name]} {phase}" if name in COUNTED else name] += 1
    return row


def instructions(command):
    """User instructions of a launcher without its children, which is stepped through: valgrind cannot run wireup."""
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.ptrace.restype = ctypes.c_long
    # Each step switches between this process and the launcher, which takes much longer from one processor to another.
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        libc.ptrace(PTRACE_TRACEME, 0, 0, 0)
        os.execvp(command[0], command)
    registers = (ctypes.c_ulong * 32)()
    count, last = 0, 0
    while os.WIFSTOPPED(status := os.waitpid(pid, 0)[1]):
        libc.ptrace(PTRACE_GETREGS, pid, 0, ctypes.addressof(registers))
        # A repeated string instruction stops after each of its rounds.
        count += registers[RIP] != last
        last = registers[RIP]
        signal = os.WSTOPSIG(status)
        libc.ptrace(PTRACE_SINGLESTEP, pid, 0, 0 if signal == SIGTRAP else signal)
    os.sched_setaffinity(0, processors)
    return count


def floor(place):
    path = f"{place}/floor"
    source = ROOT / "bench/floor.c"
    subprocess.run(["cc", "-std=gnu11", "-O2", "-pthread", source, "-o", path], check=True)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--wireup", default=str(ROOT / "target/bench/installed/wireup"))
    parser.add_argument("--before")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--instructions", action="store_true", help="count them too, which takes minutes")
    args = parser.parse_args()
    number = [str(args.ranks), PROGRAM]
    with tempfile.TemporaryDirectory() as place:
        contestants = {"wireup": [args.wireup, "run", "--oversubscribe", "-n", *number]}
        if args.before:
            contestants["before"] = [args.before, *contestants["wireup"][1:]]
        mpis = os.environ.get("WIREUP_MPI_DIR", f"/var/tmp/wireup-mpi-{os.getuid()}")
        hydra = f"{mpis}/mpich5/bin/mpiexec.hydra"
        if os.path.exists(hydra):
            contestants["Hydra 5"] = [hydra, "-n", *number]
        contestants["floor"] = [floor(place), *number]
        turns = [name for turn in range(args.repeats) for name in shuffled(list(contestants), turn)]
        commands = [contestants[name] for name in turns]
        rows = {name: [] for name in contestants}
        for name, launch in zip(turns, events(commands, [EXEC, EXIT, FORK]), strict=True):
            rows[name].append(phases(launch, args.ranks))
        counts = {name: [] for name in contestants}
        turns = [name for name in contestants for _ in range(5)]
        commands = [contestants[name] for name in turns]
        for name, launch in zip(turns, events(commands, [EXEC, EXIT, FORK, *COUNTED]), strict=True):
            counts[name].append(phases(launch, args.ranks))
        columns = [f"{what} {phase}" for what in ("µs", "faults", "calls") for phase in PHASES]
        print("| launcher |", " | ".join([*columns, "forks, threads", "user instructions"]), "|")
        print("|---|" + "---|" * (len(columns) + 2))
        for name, command in contestants.items():
            source = lambda column: rows[name] if column.startswith("µs") else counts[name]
            cells = [statistics.median(row[column] for row in source(column)) for column in [*columns, FORK]]
            # Hydra's launcher is a client of its proxy, which does not wait for one that is stepped through.
            counted = args.instructions and name != "Hydra 5"
            spent = f"{instructions(command):,}" if counted else "–"
            print(f"| {name} |", " | ".join([*(f"{value:.0f}" for value in cells), spent]), "|", flush=True)


if __name__ == "__main__":
    main()
