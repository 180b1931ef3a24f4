"""Computes pi with a function that all ranks run together."""

import wireup


def pi(comm, steps):
    width = 1 / steps
    own = sum(4 / (1 + ((index + 0.5) * width) ** 2) for index in range(comm.rank, steps, comm.size))
    return comm.allreduce(own * width)


if __name__ == "__main__":
    with wireup.MPIExecutor(n=2) as executor:
        print(f"{executor.submit(pi, 100_000).result()[0]:.6f}")
