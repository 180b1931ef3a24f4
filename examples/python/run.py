"""Runs a program and shows exit code and output of each rank."""

import wireup

result = wireup.run(["sh", "-c", "echo this is rank $WIREUP_RANK of $WIREUP_SIZE"], n=2)
for rank in result.ranks:
    print(rank.rank, rank.exit_code, rank.stdout, end="")
