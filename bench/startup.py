"""Which functions of `wireup` a launch executes, for src/startup.order. See scripts/startup-order."""

import os
import re
import subprocess
import sys
import tempfile

HEAD = """\
# What a launch executes, which the build links together; made by scripts/startup-order.
# Functions of Rust, with a * for the number of a crate, and objects of the C library.
"""

# What callgrind does not see: what the launcher's children execute before they are another program, its
# guard while it waits, how the C library finds the kernel's clock, and where C begins.
UNSEEN = re.compile(r"^_R.*(5agent5spawn10child_main|8launcher5guard5watch|8launcher5guard6charge)")
UNSEEN_PLACES = [
    "main", "dl-lookup.o", "dl-object.o", "dl-setup_hash.o", "dup2.o", "execve.o", "prctl.o", "pthread_mutex_lock.o",
    "pthread_mutex_unlock.o", "setrlimit64.o", "setsid.o", "sigfillset.o", "sigprocmask.o", "strcmp-[ae]v*.o",
]
# In the C library's names of functions for some processors.
VARIANT = re.compile(r"-(sse|avx|evex).*\.o$")


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
    """All functions by name."""
    table = subprocess.run(["nm", "--print-size", wireup], stdout=subprocess.PIPE, check=True, text=True).stdout
    rows = (line.split() for line in table.splitlines())
    return {row[3] for row in rows if len(row) == 4 and row[2] in "tTwWi"}


def objects():
    """In which object of the C library a function is; other recent processors take another of its kind."""
    libc = subprocess.run(["cc", "-print-file-name=libc.a"], stdout=subprocess.PIPE, check=True, text=True).stdout
    table = subprocess.run(["nm", "--print-file-name", "--defined-only", libc.strip()], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, check=True, text=True).stdout
    rows = re.findall(r":([^:]+\.o):[0-9a-f]+ [tTwWi] (\S+)$", table, re.M)
    return {name: VARIANT.sub("-[ae]v*.o", place) for place, name in reversed(rows)}


def pattern(name):
    """A function of Rust as every build has it; empty for one of C. See .cargo/config.toml."""
    if not name.startswith("_R"):
        return ""
    # Of several copies each but the first has a number at its end.
    return re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", name.partition(".")[0])


def ordered(runs, known, where):
    """The names to place, what the first run needs first."""
    names = []
    for run in runs:
        own = [name for name in run if name in known]
        names += sorted({pattern(name) for name in own if pattern(name)})
        names += sorted({where[name] for name in own if name in where})
    return list(dict.fromkeys(names))


def main():
    wireup, programs, order = sys.argv[1:]

    def program(*path):
        return os.path.join(programs, *path)

    # The first two are the shortest run: callgrind is so slow that a quick rank ends before it is looked at.
    lines = [
        ["-n", "1", "/bin/true"],
        ["-n", "1", "sleep", "3"],
        ["-n", "8", program("plain", "pmi_wireup"), "-q"],
        ["-n", "8", program("plain", "pmi2_wireup"), "-q"],
        ["-n", "2", program("openmpi4", "hello")],
    ]
    known = functions(wireup)
    runs = [executed(wireup, line) for line in lines]
    runs[0] |= set(filter(UNSEEN.match, known))
    names = dict.fromkeys(UNSEEN_PLACES + ordered(runs, known, objects()))
    with open(order, "w", encoding="ascii") as file:
        file.write(HEAD + "".join(f"{name}\n" for name in names))
    print(f"{order}: {len(names)} names")


if __name__ == "__main__":
    main()
