#!/usr/bin/env python3
"""Measures wireup.MPIExecutor beside mpi4py's MPIPoolExecutor and Dask-MPI: start, a task's round trip, an array's.

    PYTHONPATH=python bench/executor.py [RANKS [ROUNDS]]

Run it with a Python that has mpi4py, numpy, dask-mpi and an MPI. MPIPoolExecutor gets its workers from `wireup run` (python -m
mpi4py.futures), as it does without MPI_Comm_spawn. Dask-MPI has a rank for its scheduler, one for the script and RANKS workers. The
medians of each column are in milliseconds; the measurements alternate.
"""

import functools
import os
import statistics
import subprocess
import sys
import time


def measure(submit):
    """Print how long the first task, a later one and one with an array of 8 MB take."""
    import numpy

    start = float(os.environ["BENCH_STARTED"])
    submit(abs, -1).result()
    first = time.time() - start

    def median(count, *task):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            submit(*task).result()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    print(first * 1000, median(200, abs, -1) * 1000, median(5, numpy.negative, numpy.zeros(1_000_000)) * 1000, flush=True)


def main():
    kind = os.environ.get("BENCH_KIND")
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    if kind == "wireup":
        import wireup

        with wireup.MPIExecutor(n=ranks, oversubscribe=True) as executor:
            measure(executor.submit_one)
    elif kind == "mpi4py":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            measure(executor.submit)
    elif kind == "dask-mpi":
        import warnings

        from dask_mpi import initialize
        from distributed import Client

        warnings.filterwarnings("ignore", message="Sending large graph")
        initialize(nthreads=1, dashboard=False, nanny=False)
        with Client() as client:
            # Without a key of its own a repeated call has the result of the first one.
            measure(functools.partial(client.submit, pure=False))
    else:
        launcher = os.environ.get("WIREUP_LAUNCHER", "wireup")
        run = [launcher, "run", "--oversubscribe", "-n"]
        commands = {
            "wireup": [sys.executable],
            "mpi4py": [*run, str(ranks + 1), sys.executable, "-m", "mpi4py.futures"],
            "dask-mpi": [*run, str(ranks + 2), sys.executable],
        }
        found = {kind: [] for kind in commands}
        for _ in range(rounds):
            for kind, command in commands.items():
                env = {**os.environ, "BENCH_KIND": kind, "BENCH_STARTED": str(time.time())}
                done = subprocess.run([*command, __file__, *sys.argv[1:]], env=env, stdout=subprocess.PIPE, text=True, check=True)
                found[kind].append([float(word) for word in done.stdout.split()])
        print(f"{'':10} {'first result':>14} {'round trip':>12} {'8 MB there and back':>22}")
        for kind, rows in found.items():
            first, trip, array = (statistics.median(column) for column in zip(*rows))
            print(f"{kind:10} {first:14.0f} {trip:12.2f} {array:22.1f}")


if __name__ == "__main__":
    main()
