"""Work for a pool of processes that mpi4py spawns. Prints one line."""

import os
import sys

from mpi4py.futures import MPIPoolExecutor

WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 4


def work(number):
    return number * number, os.getpid()


if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=WORKERS) as pool:
        pool.bootup(wait=True)
        results = list(pool.map(work, range(64)))
        workers = pool.num_workers
    total = sum(square for square, _ in results)
    others = len({pid for _, pid in results} - {os.getpid()})
    print(f"pool rank=0 size=1 sum={total} workers={workers} processes={others}", flush=True)
