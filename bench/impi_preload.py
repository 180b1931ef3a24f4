#!/usr/bin/env python3
"""Measures what the IMPI library for unchanged programs costs on a communicator inside a client.

    bench/impi_preload.py [--wireup PATH] [--rounds 2000] [MPI ...]

MPIs are those of scripts/mpi-env, by default mpich4 and openmpi4. Two launches make an IMPI job of three ranks; the two ranks of
the first one run bench/impi_preload.c, which calls each function with and without the library in turn. Prints, for each function
and size, the lower quartiles of both times and their difference. Exits with 1 if a difference is above 1 %.
"""

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 1.0
KEY = {"IMPI_AUTH_KEY": "5678"}


def compiled(mpi):
    compiler = subprocess.run([ROOT / "scripts/mpi-env", "--compiler", mpi], capture_output=True, text=True, check=True)
    command, *words = shlex.split(compiler.stdout)
    program = ROOT / "target/bench" / f"impi_preload-{mpi}"
    program.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([command, "-O2", "-o", program, ROOT / "bench/impi_preload.c", *words], check=True)
    return program


def measured(wireup, mpi, rounds):
    """Lines of function, bytes, nanoseconds without and with the library."""
    program = compiled(mpi)
    environment = {**os.environ, **KEY}
    server = subprocess.Popen([wireup, "impi", "server", "2", "--address", "127.0.0.1"], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    address = server.stdout.readline().strip()
    command = [wireup, "run", "--no-config", "--oversubscribe"]
    clients = [subprocess.Popen([*command, "-n", str(ranks), "--impi", f"{address},client={client}", program, str(rounds)],
                                env=environment, text=True, stdout=subprocess.PIPE)
               for client, ranks in enumerate([2, 1])]
    output = [client.communicate()[0] for client in clients][0]
    server.terminate()
    server.wait()
    if any(client.returncode for client in clients):
        sys.exit(f"{program} failed")
    return [line.split() for line in output.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--wireup", type=Path, default=ROOT / "target/debug/wireup")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("mpi", nargs="*", default=["mpich4", "openmpi4"])
    args = parser.parse_args()
    worst = 0.0
    for mpi in args.mpi:
        print(f"{mpi:<12} {'bytes':>8} {'PMPI, us':>10} {'MPI, us':>10} {'difference':>11}")
        for function, size, direct, through in measured(args.wireup, mpi, args.rounds):
            difference = (float(through) / float(direct) - 1) * 100
            worst = max(worst, difference)
            print(f"{function:<12} {size:>8} {float(direct) / 1e3:>10.3f} {float(through) / 1e3:>10.3f} {difference:>9.2f} %")
    if worst > MOST:
        sys.exit(f"the library costs {worst:.2f} %, more than {MOST} %")


if __name__ == "__main__":
    main()
