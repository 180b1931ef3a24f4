#!/usr/bin/env python3
"""What it costs to look at a launch: wire-up with nothing turned on, and with each way to look, in turn.

    bench/overhead.py [--wireup PATH] [--before PATH] [--ranks 128] [--repeats 30] [-- PROGRAM ...]

PROGRAM is one whose ranks meet, print a line and end: wire-up is the time until the last line, and the report is written after
it. Without it `pmi_wireup` of scripts/test-programs. --before is another build, for what
everything off costs. Prints medians and the differences to the first line; needs an idle machine. Exits with 1 if --report
costs more than 3 %.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 3.0


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def taken(command):
    """Seconds until the last output, and until the end."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        last = begun
        while os.read(running.stdout.fileno(), 1 << 16):
            last = time.perf_counter()
    if running.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {running.returncode}")
    return last - begun, time.perf_counter() - begun


def measured(contestants, repeats):
    """The medians of each, measured in turn, so that what disturbs one disturbs all."""
    times = {name: [] for name in contestants}
    for turn in range(repeats + 2):
        for name, command in contestants.items():
            took = taken(command())
            if turn > 1:
                times[name].append(took)
    return {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}


def shown(title, medians):
    base = next(iter(medians.values()))
    print(f"\n{title:<42} until the last output        whole")
    for name, row in medians.items():
        columns = (f"{value * 1e3:9.2f} ms {over(value, of):+7.2f} %" for value, of in zip(row, base))
        print(f"  {name:<36}", *columns)
    return {name: over(row[0], base[0]) for name, row in medians.items()}


def over(value, base):
    return (value / base - 1) * 100 if base else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    installed = ROOT / "target/bench/installed/wireup"
    parser.add_argument("--wireup", type=Path, default=installed)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("program", nargs="*")
    args = parser.parse_args()
    program = args.program or [str(ROOT / "target/test-programs/plain/pmi_wireup")]
    os.environ.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    with tempfile.TemporaryDirectory() as place:
        run = [args.wireup, "run", "--no-config", "--oversubscribe", "-n", str(args.ranks)]
        ways = {
            "off": [],
            "--json": ["--json", f"{place}/stream"],
            "--report -": ["--report", "-"],
            "--report": ["--report", f"{place}/page.html"],
            "--report trace:": ["--report", f"trace:{place}/trace.json"],
        }
        contestants = {name: (lambda more=more: [*run, *more, *program]) for name, more in ways.items()}
        contestants["--metrics"] = lambda: [*run, "--metrics", f"127.0.0.1:{free_port()}", *program]
        contestants["off again"] = contestants["off"]
        costs = shown(f"{args.ranks} ranks of {program[0]}", measured(contestants, args.repeats))
        if args.before:
            builds = {"before": args.before, "now": args.wireup}
            for title, words in (
                ("wireup --version", ["--version"]),
                ("one rank of true", ["run", "--no-config", "-n", "1", "true"]),
                (f"{args.ranks} ranks", ["run", "--no-config", "--oversubscribe", "-n", str(args.ranks), *program]),
            ):
                both = {name: (lambda build=build, words=words: [build, *words]) for name, build in builds.items()}
                shown(title, measured(both, args.repeats))
    print(f"\n--report costs {costs['--report']:.2f} % of wire-up; off against itself {costs['off again']:+.2f} %")
    return int(costs["--report"] > MOST)


if __name__ == "__main__":
    sys.exit(main())
