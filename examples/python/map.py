"""Spreads calls of a function over ranks, one rank each."""

import math

import wireup

if __name__ == "__main__":
    with wireup.MPIExecutor(n=2) as executor:
        numbers = [2**31 - 1, 2**31, 2**31 + 11]
        for number, root in zip(numbers, executor.map(math.isqrt, numbers, chunksize=2)):
            print(number, root)
