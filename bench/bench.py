"""Compares launchers: interleaved medians and ratios, all in one run. Called by scripts/bench.

Every size of every workload is run by all contestants in turn, each round in another order, so that a load
that comes and goes falls on all alike. Absolute times are this machine's: read the ratios.
"""

import argparse
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

from dynamic import TITLE as DYNAMIC, Dynamic
from hosts import TITLE as HOSTS, Hosts
from run import Run, leftovers_end, partakers, pss_kib, shuffled
from slurm import Slurm, Unavailable

HANGS_TO_GIVE_UP = 2


class Contestant:
    """A way to start N ranks of a program."""

    def __init__(self, name, command, kind="peer", env=None):
        self.name, self.command, self.kind, self.env = name, command, kind, env or {}

    def argv(self, ranks, program):
        return [*self.command, str(ranks), *program]


class Row:
    """The samples of one size of one workload, by contestant."""

    def __init__(self):
        self.samples, self.hangs, self.failures, self.left = {}, {}, {}, {}

    def add(self, name, took, code):
        self.samples.setdefault(name, [])
        if took is None:
            self.hangs[name] = self.hangs.get(name, 0) + 1
        elif code != 0:
            self.failures[name] = self.failures.get(name, 0) + 1
        else:
            self.samples[name].append(took)

    def median(self, name):
        samples = self.samples.get(name)
        return statistics.median(samples) if samples else None

    def cell(self, name):
        median = self.median(name)
        parts = [] if median is None else [f"{median:.1f}" if median < 100 else f"{median:.0f}"]
        for count, what in ((self.hangs, "hang"), (self.failures, "fail"), (self.left, "left over")):
            if count.get(name):
                parts.append(f"{what} ×{count[name]}")
        return ", ".join(parts) or "–"


class Bench:
    def __init__(self, options):
        self.options = options
        self.target = options.target
        self.programs = os.path.join(self.target, "test-programs")
        self.out = []
        self.notes = []
        self.mpis = dict(self.table("mpis.tsv"))
        # One that brings a loader has a C library of its own, which would be measured too.
        self.pmix = {name: fields for name, fields in self.table("pmix.tsv") if len(fields) == 2}
        self.wireup = self.find_wireup()
        self.slurm = None

    def table(self, name):
        with open(os.path.join(self.programs, name), encoding="utf-8") as file:
            for line in file:
                fields = line.rstrip("\n").split("\t")
                yield fields[0], fields[1:]

    def find_wireup(self):
        path = os.path.join(self.target, "bench", "installed", "wireup")
        try:
            probe = subprocess.run(
                [path, "run", "-n", "1", "/bin/echo", "alive"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            self.note(f"wireup is left out: {error}")
            return None
        if probe.returncode != 0 or probe.stdout != "alive\n":
            self.note(f"wireup is left out: `wireup run -n 1 /bin/echo alive` ended with code "
                      f"{probe.returncode}, output {probe.stdout!r}, {probe.stderr[:200]!r}")
            return None
        return path

    def note(self, text):
        self.notes.append(text)
        print(f"note: {text}", file=sys.stderr)

    def emit(self, text=""):
        self.out.append(text)
        print(text, flush=True)

    # ---- contestants -------------------------------------------------------------------------

    def ours(self):
        if not self.wireup:
            return []
        options = ["run", "--oversubscribe", "-n"]
        before = [Contestant("before", [self.options.before, *options], "informed")] if self.options.before else []
        return [Contestant("wireup", [self.wireup, *options], "wireup"), *before]

    def floor(self, *options):
        return [Contestant("floor", [os.path.join(self.target, "bench", "floor"), *options], "floor")]

    def hydras(self):
        names = {"mpich5": "Hydra 5.0", "mpich4": "Hydra 4.0"}
        return [Contestant(title, [self.mpis[mpi][1], "-n"]) for mpi, title in names.items() if mpi in self.mpis]

    def open_mpis(self):
        found = []
        if "openmpi5" in self.mpis:
            prterun = os.path.join(os.path.dirname(self.mpis["openmpi5"][1]), "prterun")
            found.append(Contestant("prterun 5", [prterun, "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "-n"]))
        if "openmpi4" in self.mpis:
            found.append(Contestant("mpirun 4.1", self.own_launcher("openmpi4")))
        return found

    def intel(self):
        return [Contestant("Intel", [self.mpis["impi"][1], "-n"])] if "impi" in self.mpis else []

    def srun(self, title, *options):
        """Steps of `srun` in an allocation, which need no decision of the controller; for the tables that are wanted."""
        if not self.wanted(title):
            return []
        if self.slurm is None:
            try:
                self.slurm = Slurm(self.target)
            except (Unavailable, OSError, subprocess.SubprocessError) as error:
                self.note(f"srun is left out: {error}")
                self.slurm = False
        if not self.slurm:
            return []
        return [Contestant("srun", [*self.slurm.command, *options, "-n"], env=self.slurm.env)]

    def own_launcher(self, mpi):
        launcher = self.mpis[mpi][1]
        if mpi.startswith("openmpi"):
            return [launcher, "--allow-run-as-root", "--oversubscribe", "-n"]
        return [launcher, "-n"]

    def own_and_ours(self, mpi, name):
        """Program of an MPI, its own launcher and wireup as contestants, and the settings that wireup makes."""
        environment = dict(item.split("=", 1) for item in self.mpis[mpi][3:])
        program = os.path.join(self.target, "bench", f"{mpi}-{name}")
        contestants = self.ours() + [Contestant("own launcher", self.own_launcher(mpi))]
        text = ""
        if settings := self.settings(mpi, program):
            contestants.append(Contestant("own launcher, so set", ["env", *settings, *self.own_launcher(mpi)], "informed"))
            text = f" wireup sets {' and '.join(f'`{setting}`' for setting in settings)} (docs/mpi-settings.md); so does the last."
        for contestant in contestants:
            contestant.env = environment
        return program, contestants, text

    def settings(self, mpi, program):
        """What wireup sets for the Open MPI of a program, as `NAME=VALUE`: none for other MPIs."""
        if not self.wireup or not mpi.startswith("openmpi"):
            return []
        told = subprocess.run([self.wireup, "run", "-v", "-n", "1", program], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False)
        return re.findall(r"^wireup: setting: (OMPI_MCA_\S+), for Open MPI", told.stderr, re.MULTILINE)

    # ---- measuring ---------------------------------------------------------------------------

    def measure(self, contestants, ranks, program, patience=None):
        """`repeats` rounds after one that is not counted, and more of those that are short. A contestant that
        hangs twice is dropped.

        What has not ended after `patience` seconds hangs; by default they grow with the ranks.
        """
        row, limit = Row(), patience or 15 + ranks * 0.15
        for contestant in contestants:
            row.samples[contestant.name] = []
        turn = -1
        while names := partakers(turn, self.options.repeats, row.samples):
            for contestant in shuffled(contestants, turn):
                if contestant.name not in names or row.hangs.get(contestant.name, 0) >= HANGS_TO_GIVE_UP:
                    continue
                run = Run(contestant.argv(ranks, program), contestant.env)
                took, code = run.wait(limit)
                if took is None or not leftovers_end(run, 2.0):
                    if took is not None:
                        row.left[contestant.name] = row.left.get(contestant.name, 0) + 1
                    run.end()
                # The first round warms the caches; a hang counts in it all the same.
                if turn >= 0 or took is None:
                    row.add(contestant.name, took, code)
            turn += 1
        return row

    def wanted(self, title):
        return not self.options.only or any(text in title for text in self.options.only)

    def compare(self, title, goal, contestants, sizes, program, patience=None):
        """One table: a line for each size, a column for each contestant, then the ratios."""
        if not self.wanted(title):
            return
        if not contestants:
            return
        names = [contestant.name for contestant in contestants]
        ours = next((c.name for c in contestants if c.kind == "wireup"), None)
        floor = next((c.name for c in contestants if c.kind == "floor"), None)
        peers = [c.name for c in contestants if c.kind == "peer"]
        informed = [c.name for c in contestants if c.kind == "informed"]
        # Each ratio: its heading, and what it divides by. Without wireup the best peer is divided.
        ratios = []
        if floor and (ours or peers):
            ratios.append((f"{ours or 'best peer'} ÷ {floor}", lambda row, best: row.median(floor)))
        if ours and peers:
            ratios.append(("wireup ÷ " + (peers[0] if len(peers) == 1 else "best peer"), lambda row, best: best))
        if ours:
            ratios += [(f"wireup ÷ {name}", lambda row, best, name=name: row.median(name)) for name in informed]
        self.emit(f"\n## {title}\n")
        self.emit(f"Wall time in ms, median of {self.options.repeats} or more. {goal}\n")
        self.emit("| ranks | " + " | ".join(names + [heading for heading, _ in ratios]) + " |")
        self.emit("|---" * (1 + len(names) + len(ratios)) + "|")
        for ranks in sizes:
            row = self.measure(contestants, ranks, program, patience)
            best = min((row.median(peer) for peer in peers if row.median(peer)), default=None)
            mine = row.median(ours) if ours else best
            cells = [row.cell(name) for name in names]
            for _, base_of in ratios:
                base = base_of(row, best)
                cells.append(f"{mine / base:.2f}" if mine and base else "–")
            self.emit(f"| {ranks} | " + " | ".join(cells) + " |")

    def memory(self, title, contestants, program, ranks):
        """Pss of a launcher's own processes while all ranks are wired up and wait."""
        if not self.wanted(title):
            return
        self.emit(f"\n## {title}\n")
        self.emit(f"Pss in MiB of all processes but ranks, while {ranks} ranks are wired up and wait.\n")
        self.emit("| launcher | all its processes | of that the PMIx sidecar |")
        self.emit("|---|---|---|")
        output = os.path.join(self.target, "bench", "memory.out")
        executable = os.path.realpath(program[0])
        for contestant in contestants:
            run = Run(contestant.argv(ranks, program), contestant.env, output)
            try:
                cells = self.weigh(run, output, executable, ranks)
            finally:
                run.end()
            self.emit(f"| {contestant.name} | {cells[0]} | {cells[1]} |")

    def weigh(self, run, output, executable, ranks):
        deadline = time.monotonic() + 60
        while True:
            with open(output, "rb") as file:
                if file.read().count(b"\n") >= ranks:
                    break
            if time.monotonic() > deadline:
                return "hang", "–"
            time.sleep(0.05)
        total = sidecar = 0
        for pid in run.processes():
            try:
                path = os.path.realpath(os.readlink(f"/proc/{pid}/exe"))
            except OSError:
                continue
            if path == executable:
                continue
            kib = pss_kib(pid)
            total += kib
            if os.path.basename(path) == "wireup-pmix-host":
                sidecar += kib
        return f"{total / 1024:.1f}", f"{sidecar / 1024:.1f}" if sidecar else "–"

    # ---- the report --------------------------------------------------------------------------

    def version(self, *argv, pattern=r"\d+\.\d+[.\w]*"):
        try:
            text = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return "?"
        found = re.search(pattern, text.stdout + text.stderr)
        return found.group(0) if found else "?"

    def heading(self):
        cpu = "?"
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    cpu = line.split(":", 1)[1].strip()
                    break
        try:
            with open("/proc/sys/kernel/sched_autogroup_enabled", encoding="ascii") as file:
                autogroup = file.read().strip()
        except OSError:
            autogroup = "absent"
        self.emit("# Benchmarks\n")
        self.emit("`scripts/bench --write` makes this page. The contestants of a line ran in turn, in random order;")
        self.emit("only ratios are comparable between machines. \"hang\" is a launcher that had to be killed;")
        self.emit("\"left over\" means that processes of the job outlived it by more than two seconds.\n")
        self.emit(f"- Machine: {len(os.sched_getaffinity(0))} cores, {cpu}, Linux {platform.release()}, "
                  f"sched_autogroup_enabled {autogroup}, load average at the start {os.getloadavg()[0]:.1f}")
        if self.wireup:
            commit = self.version("git", "describe", "--always", "--dirty", "--exclude", "*", pattern=r"\S+")
            self.emit(f"- wireup {self.version(self.wireup, '--version')}, commit {commit}")
        versions = []
        for mpi, (_, launcher, *_) in self.mpis.items():
            versions.append(f"{os.path.basename(launcher)} of {mpi}: {self.version(launcher, '--version')}")
        self.emit(f"- Peers: {', '.join(versions)}")
        self.emit("- Floor: parallel posix_spawn with a session for each rank, and one thread that answers PMI-1 and "
                  "PMI-2 (`bench/floor.c`); for PMIx a minimal one-process host (`bench/pmix_floor.c`)")

    def pmix_clients(self, program, contestants):
        """Says which libpmix the clients load under each contestant: it decides the data store."""
        output = os.path.join(self.target, "bench", "pmix.out")
        seen = {}
        for contestant in contestants:
            run = Run(contestant.argv(1, [program]), contestant.env, output)
            run.wait(20)
            run.end()
            with open(output, encoding="utf-8", errors="replace") as file:
                found = re.search(r'lib=(\S+) version="OpenPMIx ([^" ]+)', file.read())
            seen.setdefault(found.groups() if found else ("?", "?"), []).append(contestant.name)
        # Where the wheels are installed is no part of the result.
        return "; ".join(f"Clients under {', '.join(names)} load "
                         f"{re.sub(r'^.*/wireup-mpi-[0-9]+/', '', path)} ({version})"
                         for (path, version), names in seen.items())

    def all(self):
        quick = self.options.quick
        self.heading()
        self.compare("Empty program", "Goals: at most 0.55 / 0.5 / 0.6 / 0.55 × Hydra 5 and "
                     "1.4 / 1.2 / 1.12 / 1.1 × floor with 1 / 8 / 32 / 128 ranks.",
                     self.ours() + self.floor() + self.hydras() + self.open_mpis() + self.intel() + self.srun("Empty program"),
                     [1, 8, 32] if quick else [1, 8, 32, 128, 512], ["/bin/true"])
        plain = os.path.join(self.programs, "plain", "pmi_wireup")
        self.compare("PMI-1 wire-up", "One put of 200 bytes, barrier, 32 gets. Goals: at most 0.75 / 0.8 / 0.8 × Hydra 5 with 8 / 32 / 128 ranks.",
                     self.ours() + self.floor("--pmi") + self.hydras() + self.intel() + self.srun("PMI-1 wire-up", "--mpi=pmi2"),
                     [8, 32] if quick else [8, 32, 128, 512], [plain, "-q"])
        # Both Hydras stop for ever from 256 ranks on: with less patience, the row that shows it costs a minute.
        self.compare("PMI-2 wire-up", "One put of 200 bytes, fence, 32 gets. Goals: at most 0.6 / 0.5 / 0.4 × Hydra 5 with 8 / 32 / 128 ranks.",
                     self.ours() + self.floor("--pmi") + self.hydras() + self.srun("PMI-2 wire-up", "--mpi=pmi2"),
                     [8, 32] if quick else [8, 32, 128, 512],
                     [os.path.join(self.programs, "plain", "pmi2_wireup"), "-q"], patience=15)
        for name, (directory, _) in self.pmix.items():
            program = os.path.join(directory, "pmix_wireup")
            host = Contestant("C host", [os.path.join(self.target, "bench", f"{name}-floor")], "floor")
            title = f"PMIx wire-up, {self.pmix_title(name)}"
            contestants = self.ours() + [host] + self.open_mpis() + self.srun(title, "--mpi=pmix")
            if not self.wanted(title):
                continue
            loaded = self.pmix_clients(program, contestants)
            self.compare(title,
                         "One put of 200 bytes, commit, fence with data, 32 gets. Goals: at most 0.6 / 0.6 / "
                         f"0.5 / 0.4 × the best peer with 1 / 8 / 32 / 128 ranks. {loaded}.",
                         contestants, [1, 8, 32] if quick else [1, 8, 32, 128], [program, "-q"])
        for mpi in self.mpis:
            program, contestants, settings = self.own_and_ours(mpi, "mpi_init")
            if self.slurm is not False and mpi == "mpich5":
                contestants += self.srun(f"MPI_Init and MPI_Finalize, {mpi}", "--mpi=pmi2")
            self.compare(f"MPI_Init and MPI_Finalize, {mpi}", "Goals: never slower than the MPI's own launcher; "
                         f"jobs a second one after the other, which are 1000 by the time: twice those of the best "
                         f"peer.{settings}", contestants, [2, 4] if quick else [2, 4, 8], [program])
        for mpi in self.mpis:
            program, contestants, settings = self.own_and_ours(mpi, "collectives")
            ranks = 2 * len(os.sched_getaffinity(0))
            self.compare(f"More ranks than cores, {mpi}", "200 times Bcast, Allreduce (512 bytes) and Barrier, with start and end. Goal: "
                         f"never slower than the MPI's own launcher.{settings}", contestants, [ranks // 2, ranks], [program], patience=60)
        ranks = 32 if quick else 128
        self.memory("Memory, PMI-1", self.ours() + self.hydras() + self.intel(), [plain, "-w"], ranks)
        for name, (directory, _) in self.pmix.items():
            self.memory(f"Memory, PMIx, {self.pmix_title(name)}", self.ours() + self.open_mpis(),
                        [os.path.join(directory, "pmix_wireup"), "-w"], ranks)
        if self.wireup and self.wanted(HOSTS):
            Hosts(self).all()
        if self.wireup and self.wanted(DYNAMIC):
            Dynamic(self).all()
        for text in self.notes:
            self.emit(f"\nNote: {text}")

    @staticmethod
    def pmix_title(name):
        return {"pmix4": "system libpmix", "pmix5": "Open MPI 5's libpmix"}.get(name, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="cargo's target directory")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md; with --only, the heading stays")
    parser.add_argument("--repeats", type=int, help="rounds that count (default 9, quick 3)")
    parser.add_argument("--before", metavar="WIREUP", help="another build of wireup: a column of its own in the tables of one machine")
    parser.add_argument("--only", action="append", help="only tables whose title contains this text")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 9)
    bench = Bench(options)
    # What it has started for its peers ends with it, also when it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        bench.all()
    finally:
        if bench.slurm:
            bench.slurm.close()
    if options.write:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        os.makedirs(os.path.join(root, "docs"), exist_ok=True)
        path = os.path.join(root, "docs", "benchmarks.md")
        text = "\n".join(bench.out) + "\n"
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                text = replaced(file.read(), text, keep_heading=bool(options.only))
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def sections(text):
    """What is before the first section, and the sections by their titles, in order."""
    first, *rest = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return first, dict(zip(rest[::2], rest[1::2]))


def replaced(text, new, keep_heading):
    """A report with some sections measured again; the others, of other scripts too, stay as they were."""
    (heading, known), (new_heading, made) = sections(text), sections(new)
    known.update(made)
    heading = heading if keep_heading else new_heading
    bodies = [f"## {title}\n{body.rstrip()}\n" for title, body in known.items()]
    return "\n".join([heading.rstrip() + "\n", *bodies])


if __name__ == "__main__":
    main()
