#!/usr/bin/env python3
"""Measures wireup.MPIExecutor beside mpi4py's MPIPoolExecutor and Dask-MPI: start, a task's round trip, an array's.

    [MPIEXEC="mpiexec --oversubscribe"] PYTHONPATH=python bench/executor.py [RANKS [ROUNDS]]

Run it with a Python that has mpi4py, numpy, dask-mpi and an MPI. The first result counts from the start of the command that a user
types: `python SCRIPT` for MPIExecutor, and for the pool both ways of mpi4py: `wireup run -n RANKS+1 python -m mpi4py.futures
SCRIPT`, where script and workers start together, and `wireup run -n 1 python SCRIPT`, which starts the workers with MPI_Comm_spawn.
With MPIEXEC that launcher starts the pool, too. Dask-MPI has a rank for its scheduler, one for the script and RANKS workers. The
medians of each column are in milliseconds; the measurements alternate.
"""

# Other modules are imported after the first result, whose time would have their imports in it.
import os
import sys
import time


def measure(submit):
    """Print how long the first task, a later one and one with an array of 8 MB take."""
    submit(abs, -1).result()
    first = time.time() - float(os.environ["BENCH_STARTED"])

    import statistics

    import numpy

    def median(count, *task):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            submit(*task).result()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    print(first * 1000, median(200, abs, -1) * 1000, median(5, numpy.negative, numpy.zeros(1_000_000)) * 1000, flush=True)


def main():
    script = os.environ.get("BENCH_SCRIPT")
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    if script == "wireup":
        import wireup

        with wireup.MPIExecutor(n=ranks, oversubscribe=True) as executor:
            measure(executor.submit_one)
    elif script == "mpi4py":
        from mpi4py.futures import MPIPoolExecutor

        with MPIPoolExecutor() as executor:
            measure(executor.submit)
    elif script == "dask-mpi":
        import functools
        import warnings

        from dask_mpi import initialize
        from distributed import Client

        warnings.filterwarnings("ignore", message="Sending large graph")
        initialize(nthreads=1, dashboard=False, nanny=False)
        with Client() as client:
            # Without a key of its own a repeated call has the result of the first one.
            measure(functools.partial(client.submit, pure=False))
    else:
        compare(ranks, rounds)


def compare(ranks, rounds):
    """Run the commands in turn and print the medians of their measurements."""
    import shlex
    import statistics
    import subprocess

    launcher = os.environ.get("WIREUP_LAUNCHER", "wireup")
    launchers = {"wireup run": [launcher, "run", "--oversubscribe"]}
    if "MPIEXEC" in os.environ:
        launchers["mpiexec"] = shlex.split(os.environ["MPIEXEC"])
    commands = {"MPIExecutor": ("wireup", [sys.executable])}
    for name, words in launchers.items():
        commands[f"pool, {name}"] = "mpi4py", [*words, "-n", str(ranks + 1), sys.executable, "-m", "mpi4py.futures"]
        commands[f"pool, {name}, spawned"] = "mpi4py", [*words, "-n", "1", sys.executable]
    commands["dask-mpi"] = "dask-mpi", [*launchers["wireup run"], "-n", str(ranks + 2), sys.executable]
    found = {name: [] for name in commands}
    # As the modules of an installed package: compiled before.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["MPI4PY_FUTURES_MAX_WORKERS"] = str(ranks)
    for _ in range(rounds):
        for name, (script, command) in commands.items():
            env = {**os.environ, "BENCH_SCRIPT": script, "BENCH_STARTED": str(time.time())}
            done = subprocess.run([*command, __file__, *sys.argv[1:]], env=env, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append([float(word) for word in done.stdout.split()])
    print(f"{'':26} {'first result':>14} {'round trip':>12} {'8 MB there and back':>22}")
    for name, rows in found.items():
        first, trip, array = (statistics.median(column) for column in zip(*rows))
        print(f"{name:26} {first:14.0f} {trip:12.2f} {array:22.1f}")


if __name__ == "__main__":
    main()
