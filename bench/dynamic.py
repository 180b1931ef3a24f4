"""The section "Dynamic processes": spawns, connections, names, groups and events.

Programs measure themselves and print what they saw, so that what a launch costs is not in it; for
spawns the whole launch is measured too. On one node, and on hosts of a lab (see hosts.py) with
options that spread the ranks over them.
"""

import os
import statistics
import subprocess
import tempfile

from cluster import Cluster, Unavailable
from hosts import Hosts, Launcher, short
from run import Run, leftovers_end, shuffled

TITLE = "Dynamic processes"
SO_SET = ", so set"
HOSTS = 4
CHILDREN = 4

# What an MPI needs to be able to spawn, under any launcher.
NEEDS = {
    "mpich5": {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"},
    "impi": {"I_MPI_FABRICS": "shm:ofi"},
}


def fields(text):
    """The KEY=VALUE words of the first line that tells times."""
    for line in text.splitlines():
        if "us=" in line or "_p50=" in line:
            return dict(word.split("=", 1) for word in line.split() if "=" in word)
    return {}


class OneNode:
    """Runs on this machine as it is."""

    title = "one node"

    def __init__(self, bench):
        self.bench = bench
        self.dir = tempfile.mkdtemp(prefix="dynamic-", dir=os.path.join(bench.target, "bench"))
        self.output = os.path.join(self.dir, "output")

    def argv(self, command, ranks, program):
        return [*command, "-n", str(ranks), *program]

    def contestants(self, mpi, settings=()):
        bench = self.bench
        found = [("wireup", [bench.wireup, "run", "--oversubscribe"])]
        others = [(name, command[:-1]) for name, command in self.others(mpi)]
        return found + others + [(name + SO_SET, ["env", *settings, *command]) for name, command in others if settings]

    def others(self, mpi):
        bench = self.bench
        peers = {contestant.name: contestant.command for contestant in bench.open_mpis()}
        if mpi == "openmpi4":
            return [("mpirun 4.1", peers["mpirun 4.1"])]
        if mpi == "openmpi5":
            return [("prterun 5", peers["prterun 5"])]
        if mpi.startswith("pmix"):
            return list(peers.items())
        return [({"mpich5": "Hydra 5.0", "impi": "Intel"}[mpi], bench.own_launcher(mpi))]

    def run(self, argv, env, limit):
        """Milliseconds of a launch and what it printed, or what went wrong."""
        run = Run(argv, env, self.output)
        took, code = run.wait(limit)
        if took is None or not leftovers_end(run, 2.0):
            run.end()
        with open(self.output, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if took is None:
            return None, "hang"
        return (took, text) if code == 0 else (None, f"code {code}")

    def close(self):
        subprocess.run(["rm", "-rf", self.dir], check=False)


class ManyHosts:
    """Runs on hosts with agents; other launchers get there through a stand-in for ssh."""

    title = f"{HOSTS} hosts"

    def __init__(self, bench):
        self.cluster = Cluster(bench.target, HOSTS)
        self.hosts = Hosts(bench)
        self.hosts.cluster = self.cluster
        self.output = os.path.join(self.cluster.dir, "output")

    def argv(self, launcher, ranks, program):
        # One slot of each host for the ranks, the rest for those they spawn.
        per_host = max(2, -(-(ranks + CHILDREN) // HOSTS))
        argv = launcher.argv(self.cluster.hosts, per_host, program)
        at = len(argv) - len(program) - 1
        spread = ["--map-by", "node"]
        return [*argv[:at], str(ranks), *spread, *program] if launcher.name != "Hydra 5.0" \
            else [*argv[:at], str(ranks), "-ppn", "1", *program]

    def contestants(self, mpi, settings=()):
        ours = [("wireup", self.hosts.ours("--oversubscribe"))]
        peers = {launcher.name: launcher for launcher in [*self.hosts.hydra(), *self.hosts.open_mpis()]}
        wanted = {"openmpi4": ["mpirun 4.1"], "openmpi5": ["prterun 5"], "mpich5": ["Hydra 5.0"]}
        names = wanted.get(mpi, [] if mpi == "impi" else ["prterun 5", "mpirun 4.1"])
        others = [peers[name] for name in names if name in peers]
        told = [peer.with_settings(peer.name + SO_SET, settings) for peer in others if settings]
        return ours + [(peer.name, peer) for peer in others + told]

    def run(self, argv, env, limit):
        with open(self.output, "wb"):
            pass
        took, code, _ = self.cluster.run(argv, env, limit, self.output)
        with open(self.output, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if took is None:
            return None, "hang"
        return (took, text) if code == 0 else (None, f"code {code}")

    def close(self):
        self.cluster.close()


class Dynamic:
    """Everything of the section. `bench` prints, and knows what is installed."""

    def __init__(self, bench):
        self.bench, self.emit = bench, bench.emit
        self.rounds = max(bench.options.repeats, 3)
        self.quick = bench.options.quick

    def all(self):
        self.emit(f"\n## {TITLE}\n")
        self.emit("All times but those of whole launches are measured inside the programs. On several hosts (of")
        self.emit("`tests/lab`, with agents; other launchers start their daemons through a stand-in for ssh) each host")
        self.emit("has one rank. The time of a spawn includes the child's own `MPI_Init`, which is most of it.")
        places = [OneNode(self.bench)]
        try:
            places.append(ManyHosts(self.bench))
        except (Unavailable, OSError) as error:
            self.bench.note(f"several hosts are left out: {error}")
        try:
            self.spawns(places)
            self.connections(places)
            self.services(places)
        finally:
            for place in places:
                place.close()

    def environment(self, mpi):
        env = dict(item.split("=", 1) for item in self.bench.mpis[mpi][3:])
        return {**env, **NEEDS.get(mpi, {})}

    def measure(self, place, contestants, ranks, program, env, keys, limit=60.0):
        """For each contestant: medians of the launch and of what the program told of each key, or why not."""
        found = {name: {"wrong": []} for name, _ in contestants}
        for turn in range(-1, self.rounds):
            for name, command in shuffled(contestants, turn):
                cell = found[name]
                if "hang" in cell["wrong"]:
                    continue
                took, text = place.run(place.argv(command, ranks, program), env, limit)
                told = fields(text) if took is not None else {}
                if not all(key in told for key in keys):
                    cell["wrong"].append(text if took is None else "no figures")
                elif turn >= 0:
                    cell.setdefault("launch", []).append(took)
                    for key in keys:
                        cell.setdefault(key, []).append(float(told[key]))
        return found

    @staticmethod
    def cell(cell, key, scale=1.0):
        wrong = sorted(set(cell["wrong"]))
        parts = [short(statistics.median(cell[key]) * scale)] if key in cell else []
        return ", ".join(parts + [f"{what} ×{cell['wrong'].count(what)}" for what in wrong]) or "–"

    @staticmethod
    def ratio(found, key):
        ours = found["wireup"].get(key)
        peers = [statistics.median(cell[key]) for name, cell in found.items()
                 if name != "wireup" and not name.endswith(SO_SET) and key in cell]
        return f"{statistics.median(ours) / min(peers):.2f}" if ours and peers else "–"

    def table(self, title, text, headings):
        self.emit(f"\n### {title}\n")
        self.emit(text + "\n")
        self.emit("| " + " | ".join(headings) + " |")
        self.emit("|---" * len(headings) + "|")

    def rows(self, places, kinds, ranks_of, program_of, env_of, keys, scale, whole):
        for place in places:
            for kind in kinds:
                contestants = place.contestants(kind)
                ranks = ranks_of(place)
                found = self.measure(place, contestants, ranks, program_of(kind), env_of(kind), keys)
                peers = ", ".join(name for name, _ in contestants[1:]) or "–"
                cells = []
                for key in [*keys, "launch"] if whole else keys:
                    by = 1.0 if key == "launch" else scale
                    others = [self.cell(found[name], key, by) for name, _ in contestants[1:]]
                    cells += [self.cell(found["wireup"], key, by), " / ".join(others) or "–", self.ratio(found, key)]
                self.emit(f"| {place.title} | {kind} | {peers} | " + " | ".join(cells) + " |")

    # ---- what is measured --------------------------------------------------------------------

    def spawns(self, places):
        times = 3 if self.quick else 9
        kinds = [name for name in ("openmpi4", "openmpi5", "mpich5", "impi") if name in self.bench.mpis]
        self.table("MPI_Comm_spawn and merge",
                   f"A rank spawns {CHILDREN} children, merges with them and adds up: ms, median of {times} spawns in a "
                   f"launch and of {self.rounds} launches; and the whole launch that spawns once. Goals: at most 0.7 × "
                   f"prterun 5 and mpirun 4.1, 0.9 × Hydra 5. \"{SO_SET[2:]}\" is the peer with the variables that wireup sets for "
                   "Open MPI (docs/mpi-settings.md); the ratio is to the peer without.",
                   ["where", "MPI", "peer", "wireup", "peer's", "ratio", "launch, wireup", "peer's", "ratio"])
        for place in places:
            for mpi in kinds:
                program = [os.path.join(self.bench.programs, mpi, "spawn"), f"children={CHILDREN}", "quiet=1"]
                contestants = place.contestants(mpi, self.bench.settings(mpi, program[0]))
                peers = ", ".join(name for name, _ in contestants[1:]) or "–"
                env = self.environment(mpi)
                many = self.measure(place, contestants, 1, [*program, f"times={times}"], env, ["us"], 120.0)
                once = self.measure(place, contestants, 1, program, env, ["us"])
                cells = []
                for found, key, scale in ((many, "us", 1e-3), (once, "launch", 1.0)):
                    others = [self.cell(found[name], key, scale) for name, _ in contestants[1:]]
                    cells += [self.cell(found["wireup"], key, scale), " / ".join(others) or "–", self.ratio(found, key)]
                self.emit(f"| {place.title} | {mpi} | {peers} | " + " | ".join(cells) + " |")
        kinds = list(self.bench.pmix)
        self.table("PMIx_Spawn",
                   "Two programs of 2 ranks and 1, no MPI: ms from the call to its answer, median.",
                   ["where", "client", "peers", "wireup", "peers'", "ratio"])
        rounds = "5" if self.quick else "20"
        self.rows(places, kinds, lambda place: 2,
                  lambda kind: [os.path.join(self.bench.programs, kind, "pmix_spawn"), "family", rounds],
                  lambda kind: {}, ["us"], 1e-3, False)

    def connections(self, places):
        kinds = [name for name in ("openmpi4", "openmpi5", "mpich5", "impi") if name in self.bench.mpis]
        times = "5" if self.quick else "20"
        self.table("MPI_Comm_accept and connect",
                   "Two halves of a job of 4 ranks connect, merge and add up: ms, median. On one node there are more "
                   "ranks than cores; waiting ranks of MPICH 5 yield their cores (docs/mpi-settings.md), which costs "
                   "time if no rank computes.",
                   ["where", "MPI", "peer", "wireup", "peer's", "ratio"])
        self.rows(places, kinds, lambda place: 4,
                  lambda mpi: [os.path.join(self.bench.programs, mpi, "meet"), "halves", "bench", times],
                  self.environment, ["us"], 1e-3, False)

    def services(self, places):
        kinds = list(self.bench.pmix)
        rounds = "100" if self.quick else "1000"
        for title, text, program, name in (
            ("Publish and lookup", "One rank publishes a value, another one waits for it and reads it: µs. Goals: at "
             "most 1.0 × the best peer on one node, 1.5 × on 4 hosts.",
             "pmix_store_bench", "half"),
            ("Group construct and destruct", "All 4 ranks make a group with a context id, and end it: µs. Goal: at "
             "most 0.9 × the best peer.",
             "pmix_group_bench", "pair"),
            ("Events", "From `PMIx_Notify_event` at one rank to the handler of another: µs.",
             "pmix_event_bench", "half"),
        ):
            self.table(title, text, ["where", "client", "peers"] +
                       [f"{word} {p}" + ("" if word != "wireup" else " %") for p in (50, 90, 99)
                        for word in ("wireup", "peers'", "ratio")])
            self.rows(places, kinds, lambda place: 4,
                      lambda kind, program=program: [os.path.join(self.bench.programs, kind, program), rounds],
                      lambda kind: {}, [f"{name}_p{p}" for p in (50, 90, 99)], 1.0, False)
