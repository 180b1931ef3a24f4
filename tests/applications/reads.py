"""Prints short reads, without errors, of a random genome of so many bases, always the same."""

import random
import sys

length = int(sys.argv[1])

generator = random.Random(31)
genome = "".join(generator.choice("ACGT") for _ in range(length))
complement = str.maketrans("ACGT", "TGCA")
for number in range(length * 2 // 5):
    start = generator.randrange(len(genome) - 100)
    read = genome[start : start + 100]
    if number % 2:
        read = read[::-1].translate(complement)
    print(f">{number}\n{read}")
