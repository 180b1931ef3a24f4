"""Which functions of `wireup` a launch executes, for src/startup.order. See scripts/startup-order."""

import collections
import os
import re
import subprocess
import sys
import tempfile

HEAD = """\
# What a launch executes, which the build links together; made by scripts/startup-order.
# Functions of Rust, with a * where no two builds have the same, and objects of the C library.
"""


def executed(wireup, args):
    """The functions, by their names in the symbol table, that a run enters in the launcher."""
    with tempfile.NamedTemporaryFile(prefix="wireup-startup-") as profile:
        command = ["valgrind", "--quiet", "--tool=callgrind", "--demangle=no",
                   f"--callgrind-out-file={profile.name}", wireup, "run", "--oversubscribe", *args]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)}: {run.stderr.decode()}")
        text = profile.read().decode()
    # Recursion is counted apart, behind a quote.
    return {name.partition("'")[0] for name in re.findall(r"^c?fn=\(\d+\) (\S+)$", text, re.M)}


def functions(wireup):
    """The size in bytes of every function."""
    table = subprocess.run(["nm", "--print-size", wireup], stdout=subprocess.PIPE, check=True, text=True).stdout
    rows = (line.split() for line in table.splitlines())
    return {row[3]: int(row[1], 16) for row in rows if len(row) == 4 and row[2] in "tTwW"}


def objects():
    """In which object of the C library a function is."""
    libc = subprocess.run(["cc", "-print-file-name=libc.a"], stdout=subprocess.PIPE, check=True, text=True).stdout
    table = subprocess.run(["nm", "--print-file-name", "--defined-only", libc.strip()], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, check=True, text=True).stdout
    rows = re.findall(r":([^:]+\.o):[0-9a-f]+ [tTwWi] (\S+)$", table, re.M)
    return {name: place for place, name in reversed(rows)}


def pattern(name):
    """A function of Rust as the next build may have it too; empty for one of C."""
    if re.search(r"17h[0-9a-f]{16}E", name):
        return re.sub(r"17h[0-9a-f]{16}E.*$", "17h*", name)
    if name.startswith("_R"):
        return re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", name)
    return ""


def ordered(runs, sizes, where):
    """The names to place, what the first run needs first."""
    whole, part = collections.Counter(), collections.Counter()
    for name, size in sizes.items():
        whole[pattern(name)] += size
    for name in set().union(*runs):
        part[pattern(name)] += sizes.get(name, 0)
    # Generic functions share a name: those of which most is for others come last.
    own, others = [], []
    for run in runs:
        for name in sorted({pattern(name) for name in run if pattern(name) and name in sizes}):
            (own if part[name] * 2 >= whole[name] else others).append(name)
        own += sorted({where[name] for name in run if name in sizes and name in where})
    return list(dict.fromkeys(own + others))


def main():
    wireup, programs, order = sys.argv[1:]

    def program(*path):
        return os.path.join(programs, *path)

    lines = [
        ["-n", "1", "/bin/true"],
        ["-n", "8", program("plain", "pmi_wireup"), "-q"],
        ["-n", "8", program("plain", "pmi2_wireup"), "-q"],
        ["-n", "2", program("openmpi4", "hello")],
    ]
    names = ordered([executed(wireup, line) for line in lines], functions(wireup), objects())
    with open(order, "w", encoding="ascii") as file:
        file.write(HEAD + "".join(f"{name}\n" for name in names))
    print(f"{order}: {len(names)} names")


if __name__ == "__main__":
    main()
