#!/usr/bin/env python3
"""Shows what a message between hosts costs: wake-ups, barriers and launches of two builds and of Hydra, and the floor.

    bench/messages.py [--target DIR] [--before DIR] [--hosts 2,8] [--jobs 9] [--rounds 200]

DIR has what scripts/bench leaves in its target: bench/installed, bench/fences and release/lab. Hosts are those of
tests/lab; all contestants take turns. Needs root, and perf for the wake-ups. On a busy machine it measures what an
idle one would show under `chrt -f 1`.
"""

import argparse
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from cluster import Cluster
from hosts import median
from run import shuffled

ROOT = Path(__file__).resolve().parent.parent
EMPTY = ["/bin/true"]
WAKE_UP = re.compile(r"comm=(\S.*?) pid=")
# Links of bench/hops.c. A barrier of two hosts goes from the rank of the second host to the first host and back.
WAYS = {
    "8 hops over Unix sockets": "u" * 8,
    "8 hops over TCP": "t" * 8,
    "barrier over agents with two threads each": "uuutuuuutuuu",
    "barrier over agents with one thread each": "uutuutuu",
    "barrier over steps that are connected": "uttu",
}
# Names of threads: ranks, steps, agents with their threads, the launcher and Hydra's processes.
COUNTED = ("fences", "wireup-step", "wireup-agent", "network", "wireup", "hydra_pmi_proxy", "mpiexec.hydra")


class Contestant:
    """A launcher on the hosts of a cluster."""

    def __init__(self, cluster, fences, launcher, list_option):
        self.cluster, self.fences = cluster, fences
        self.launcher, self.list_option = launcher, list_option

    def argv(self, count, program):
        hosts = ",".join(f"{host}:1" for host in self.cluster.hosts[:count])
        return [*self.launcher, self.list_option, hosts, "-n", str(count), *program]

    def run(self, count, program):
        """The milliseconds of a launch, and what it has printed."""
        output = os.path.join(self.cluster.dir, "output")
        argv = self.argv(count, program)
        took, code, _ = self.cluster.run(argv, limit=60.0, output=output)
        text = Path(output).read_text(encoding="utf-8", errors="replace")
        if code != 0:
            raise SystemExit(f"{argv}: exit code {code}: {text.strip()}")
        return took, text


def floor(place):
    """Microseconds of a message that processes pass on without work: of a hop, and of the way of a barrier."""
    path = f"{place}/hops"
    subprocess.run(["cc", "-std=gnu11", "-O2", ROOT / "bench/hops.c", "-o", path], check=True)
    print("| way of a message | µs | on one core |\n|---|---|---|")
    for title, links in WAYS.items():
        cells = []
        for prefix in ([], ["taskset", "-c", "0"]):
            runs = [subprocess.run([*prefix, path, "5000", links], check=True, capture_output=True, text=True) for _ in range(5)]
            cells.append(f"{median([float(run.stdout) for run in runs]):.0f}")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


def wake_ups(contestants, count, rounds, place):
    """How often a barrier wakes each kind of process, on all hosts together."""
    print(f"\n| wake-ups of a barrier, {count} hosts | " + " | ".join(COUNTED) + " | all |\n|---" + "|---" * (len(COUNTED) + 1) + "|")
    for name, contestant in contestants.items():
        # The difference of two numbers of rounds is without start and end.
        found = []
        for number in (rounds, 3 * rounds):
            data = f"{place}/perf.data"
            (order, orders), (replies, reply) = os.pipe(), os.pipe()
            perf = ["perf", "record", "-q", "-B", "-N", "-a", "-o", data, "-m", "8M", "-e", "sched:sched_wakeup", "--delay=-1"]
            with subprocess.Popen([*perf, f"--control=fd:{order},{reply}"], pass_fds=(order, reply)) as recorder:
                os.write(orders, b"enable\n")
                os.read(replies, 16)
                try:
                    contestant.run(count, [contestant.fences, str(number), "0"])
                finally:
                    recorder.terminate()
            for fd in (order, orders, replies, reply):
                os.close(fd)
            script = ["perf", "script", "-i", data, "-F", "trace"]
            lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
            found.append(Counter(match[1] for match in map(WAKE_UP.search, lines) if match))
        each = [(found[1][kind] - found[0][kind]) / (2 * rounds) for kind in COUNTED]
        print(f"| {name} | " + " | ".join(f"{cell:.1f}" for cell in [*each, sum(each)]) + " |", flush=True)


def compare(contestants, counts, jobs, rounds):
    print("\n| hosts | work | " + " | ".join(contestants) + " |\n|---|---" + "|---" * len(contestants) + "|")
    for count in counts:
        for title, data, turns in (("barrier, µs", 0, jobs), ("barrier with 4 KiB, µs", 4096, jobs), ("empty launch, ms", None, 5 * jobs)):
            samples = {name: [] for name in contestants}
            for turn in range(turns):
                for name in shuffled(list(contestants), turn):
                    contestant = contestants[name]
                    program = EMPTY if data is None else [contestant.fences, str(rounds), str(data)]
                    took, text = contestant.run(count, program)
                    samples[name].append(took if data is None else float(text))
            cells = [f"{median(samples[name]):.{1 if data is None else 0}f}" for name in contestants]
            print(f"| {count} | {title} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default=str(ROOT / "target"))
    parser.add_argument("--before")
    parser.add_argument("--hosts", default="2,8")
    parser.add_argument("--jobs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    counts = [int(count) for count in args.hosts.split(",")]
    clusters, contestants = {}, {}
    try:
        for name, target in (("before", args.before), ("wireup", args.target)):
            if target:
                clusters[name] = cluster = Cluster(target, max(counts))
                fences = os.path.join(os.path.abspath(target), "bench", "fences")
                contestants[name] = Contestant(cluster, fences, [cluster.wireup, "run"], "--hosts")
        mpis = os.environ.get("WIREUP_MPI_DIR", f"/var/tmp/wireup-mpi-{os.getuid()}")
        hydra = f"{mpis}/mpich5/bin/mpiexec.hydra"
        if os.path.exists(hydra):
            command = [hydra, "-launcher", "ssh", "-launcher-exec", cluster.ssh]
            contestants["Hydra 5"] = Contestant(cluster, fences, command, "-hosts")
        with tempfile.TemporaryDirectory() as place:
            floor(place)
            wake_ups(contestants, counts[0], args.rounds, place)
        compare(contestants, counts, args.jobs, args.rounds)
    finally:
        for cluster in clusters.values():
            cluster.close()


if __name__ == "__main__":
    main()
