"""Integrates for pi in pieces, which spawned workers compute."""

from mpi4py.futures import MPIPoolExecutor

PIECES, STEPS = 32, 20_000


def piece(number):
    width = 1.0 / (PIECES * STEPS)
    middles = ((number * STEPS + step + 0.5) * width for step in range(STEPS))
    return sum(4.0 / (1.0 + x * x) * width for x in middles)


if __name__ == "__main__":
    with MPIPoolExecutor(max_workers=2) as pool:
        print(f"pi {sum(pool.map(piece, range(PIECES))):.12f}", flush=True)
