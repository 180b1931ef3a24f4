"""Goes on with new ranks when one has died."""

import os

import wireup


def size(comm):
    return comm.size


if __name__ == "__main__":
    with wireup.MPIExecutor(n=2, on_failure="restart") as executor:
        executor.wait_ready()
        dying = executor.submit_one(os._exit, 3)
        try:
            dying.result()
        except wireup.RanksLost as loss:
            print("lost:", loss)
        print("sizes:", executor.submit(size).result())
