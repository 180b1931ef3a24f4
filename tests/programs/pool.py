"""Work for a pool of processes that mpi4py spawns, one pool for each rank, which prints one line."""

import os
import sys

from mpi4py.futures import MPIPoolExecutor

WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 4


def work(number):
    return number * number, (os.uname().nodename, os.getpid())


if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=WORKERS) as pool:
        pool.bootup(wait=True)
        results = list(pool.map(work, range(64)))
        count = pool.num_workers
    total = sum(square for square, _ in results)
    others = {worker for _, worker in results}
    others.discard((os.uname().nodename, os.getpid()))
    hosts = ",".join(sorted({host for host, _ in others}))
    rank = os.environ["WIREUP_RANK"]
    print(
        f"pool rank={rank} sum={total} workers={count} processes={len(others)} hosts={hosts}",
        flush=True,
    )
