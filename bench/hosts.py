"""The section "Several hosts": launchers, fences and memory on the hosts of a lab.

Other launchers reach the hosts through a stand-in for ssh. It is a part of what they cost here, and a
different one from a login's: the report says how much.
"""

import os
import statistics
import time

from cluster import Cluster, Unavailable
from run import partakers, pss_kib, shuffled

TITLE = "Several hosts"


class Launcher:
    """A way to start so many ranks of a program on each of some hosts."""

    def __init__(self, name, command, list_option, env=None, after=()):
        self.name, self.command, self.list_option = name, command, list_option
        self.env, self.after = env or {}, list(after)

    def argv(self, hosts, per_host, program):
        listed = ",".join(f"{host}:{per_host}" for host in hosts)
        ranks = str(len(hosts) * per_host)
        return [*self.command, self.list_option, listed, *self.after, "-n", ranks, *program]

    def with_settings(self, name, settings):
        """The same with variables, under another name."""
        return Launcher(name, ["env", *settings, *self.command], self.list_option, self.env, self.after)


class Measured:
    """Samples of one size, by launcher: wall and processor time, and what went wrong."""

    def __init__(self, names):
        self.wall = {name: [] for name in names}
        self.processor = {name: [] for name in names}
        self.wrong = {name: [] for name in names}

    def add(self, name, took, code, used):
        if took is None:
            self.wrong[name].append("hang")
        elif code != 0:
            self.wrong[name].append(f"code {code}")
        else:
            self.wall[name].append(took)
            if used is not None:
                self.processor[name].append(used)

    def cell(self, name):
        middle = median(self.wall[name])
        parts = [] if middle is None else [short(middle)]
        for what in sorted(set(self.wrong[name])):
            parts.append(f"{what} ×{self.wrong[name].count(what)}")
        return ", ".join(parts) or "–"

    def ratio(self, samples, peers):
        """Our median divided by the best other one."""
        best = min((m for m in map(median, (samples[peer] for peer in peers)) if m), default=None)
        ours = median(samples["wireup"])
        return f"{ours / best:.2f}" if ours and best else "–"


def median(samples):
    return statistics.median(samples) if samples else None


def short(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


class Hosts:
    """Everything of the section. `bench` prints, and knows what is installed."""

    def __init__(self, bench):
        self.bench, self.emit = bench, bench.emit
        self.quick = bench.options.quick
        # Few processes are many on a machine of a few cores: three samples would say little.
        self.repeats = max(bench.options.repeats, 5)
        self.counts = [2, 8] if self.quick else [2, 4, 8, 16]
        self.per_host = [1, 4]
        self.cluster = None

    def all(self):
        try:
            self.cluster = Cluster(self.bench.target, max(self.counts))
        except (Unavailable, OSError) as error:
            self.bench.note(f"several hosts are left out: {error}")
            return
        try:
            self.idle_before = self.wake_ups()
            self.describe()
            self.launches()
            self.fences()
            self.memory()
        finally:
            self.cluster.close()

    # ---- launchers ---------------------------------------------------------------------------

    def ours(self, *options):
        return Launcher("wireup", [self.cluster.wireup, "run", *options], "--hosts")

    def hydra(self):
        if "mpich5" not in self.bench.mpis:
            return []
        command = [self.bench.mpis["mpich5"][1], "-launcher", "ssh", "-launcher-exec", self.cluster.ssh]
        return [Launcher("Hydra 5.0", command, "-hosts")]

    def open_mpis(self):
        found = []
        if "openmpi5" in self.bench.mpis:
            programs = os.path.dirname(self.bench.mpis["openmpi5"][1])
            command = [os.path.join(programs, "prterun"), "--allow-run-as-root", "--prefix", os.path.dirname(programs),
                       "--map-by", ":OVERSUBSCRIBE", "--prtemca", "plm_ssh_agent", self.cluster.ssh]
            found.append(Launcher("prterun 5", command, "--host"))
        if "openmpi4" in self.bench.mpis:
            command = [self.bench.mpis["openmpi4"][1], "--allow-run-as-root", "--oversubscribe", "--mca",
                       "plm_rsh_agent", self.cluster.ssh]
            found.append(Launcher("mpirun 4.1", command, "--host"))
        return found

    # ---- how long ----------------------------------------------------------------------------

    def describe(self):
        self.emit(f"\n## {TITLE}\n")
        self.emit("Hosts are network, process and mount namespaces of this machine (`tests/lab`), with real TCP and")
        self.emit("TLS between them; all of them share its cores. wireup's agents run, as they do on a cluster; the")
        self.emit(f"other launchers start a daemon on each other host through a stand-in for ssh: {self.stand_in()}.")
        self.emit("Their figures include that; a login by ssh was not measured. All launchers are started on the")
        self.emit("first host, which has ranks too.")
        self.emit("\"÷ best peer\" compares with the best of the others in the same line: wall time, and the processor")
        self.emit("time of all processes on all hosts. Load average at the start: "
                  f"{os.getloadavg()[0]:.1f}. srun is measured on one machine only.")

    def stand_in(self):
        """What reaching another host takes beyond a command on this one, in words."""
        commands = {"near": ["/bin/true"], "far": [self.cluster.ssh, self.cluster.hosts[1], "/bin/true"]}
        found = {name: [self.cluster.run(argv) for _ in range(11)][1:] for name, argv in commands.items()}
        wall, used = (median([run[i] for run in found["far"] if run[i] is not None]) for i in (0, 2))
        near_wall, near_used = (median([run[i] for run in found["near"] if run[i] is not None]) for i in (0, 2))
        words = f"{wall - near_wall:.1f} ms for a command"
        return words if used is None else f"{words} and {used - near_used:.1f} ms of processor time"

    def launches(self):
        goal = "Goal: at most 0.7 × the best peer."
        plain = os.path.join(self.bench.programs, "plain")
        everybody = [self.ours(), *self.hydra(), *self.open_mpis()]
        self.compare("Empty program", "Goal: at most 0.55 × the best peer.", everybody, ["/bin/true"])
        pmi = [self.ours(), *self.hydra()]
        self.compare("PMI-1 wire-up", f"One put of 200 bytes, barrier, 32 gets. {goal}", pmi,
                     [os.path.join(plain, "pmi_wireup"), "-q"])
        self.compare("PMI-2 wire-up", f"One put of 200 bytes, fence, 32 gets. {goal}", pmi,
                     [os.path.join(plain, "pmi2_wireup"), "-q"])
        for name, (directory, _) in self.bench.pmix.items():
            self.compare(f"PMIx wire-up, {self.bench.pmix_title(name)}",
                         f"One put of 200 bytes, commit, fence with data, 32 gets. {goal}",
                         [self.ours(), *self.open_mpis()], [os.path.join(directory, "pmix_wireup"), "-q"])

    def compare(self, title, text, launchers, program):
        names = [launcher.name for launcher in launchers]
        self.emit(f"\n### {title}\n")
        self.emit(f"Wall time in ms, median of {self.repeats} or more. {text}\n")
        headings = ["hosts × ranks", *names, "÷ best peer", "processor time ÷ best peer"]
        self.emit("| " + " | ".join(headings) + " |")
        self.emit("|---" * len(headings) + "|")
        for count in self.counts:
            for per_host in self.per_host:
                row = self.measure(launchers, self.cluster.hosts[:count], per_host, program)
                cells = [row.cell(name) for name in names]
                cells += [row.ratio(row.wall, names[1:]), row.ratio(row.processor, names[1:])]
                self.emit(f"| {count} × {per_host} | " + " | ".join(cells) + " |")

    def measure(self, launchers, hosts, per_host, program):
        """Rounds of all in turn, after one that is not counted, and more of those that are short; who hangs is
        asked no more."""
        row = Measured([launcher.name for launcher in launchers])
        limit = 10 + len(hosts) * per_host * 0.15
        turn = -1
        while names := partakers(turn, self.repeats, row.wall):
            for launcher in shuffled(launchers, turn):
                if launcher.name not in names or "hang" in row.wrong[launcher.name]:
                    continue
                result = self.cluster.run(launcher.argv(hosts, per_host, program), launcher.env, limit)
                if turn >= 0 or result[0] is None:
                    row.add(launcher.name, *result)
            turn += 1
        return row

    # ---- fences ------------------------------------------------------------------------------

    def fences(self):
        """One PMI-1 barrier after the other, without and with data."""
        rounds = 50 if self.quick else 200
        tree = self.ours("--tree-width", "2")
        tree.name = "wireup, tree of 2"
        launchers = [self.ours(), tree, *self.hydra()]
        launchers[0].name = "wireup, star"
        self.emit("\n### Fences\n")
        self.emit(f"One PMI-1 barrier in µs: median of {rounds} rounds in a job, and of 3 jobs. With 4 KiB, every rank puts "
                  "that before. Goal without data: at "
                  "most 1.5 × Hydra 5, which does not encrypt.\n")
        names = [launcher.name for launcher in launchers]
        self.emit("| hosts × ranks | data | " + " | ".join(names) + " |")
        self.emit("|---" * (2 + len(names)) + "|")
        program = os.path.join(os.path.abspath(self.bench.target), "bench", "fences")
        found = {}
        sizes = [(count, 1) for count in self.counts] + [(self.counts[-1], 4)]
        for count, per_host in sizes:
            for data in (0, 4096):
                hosts = self.cluster.hosts[:count]
                samples = {name: [] for name in names}
                for _ in range(3):
                    for launcher in launchers:
                        argv = launcher.argv(hosts, per_host, [program, str(rounds), str(data)])
                        samples[launcher.name] += self.printed(argv)
                for name in names:
                    found[count, per_host, data, name] = median(samples[name])
                cells = [f"{median(samples[name]):.0f}" if samples[name] else "–" for name in names]
                self.emit(f"| {count} × {per_host} | {data // 1024} KiB | " + " | ".join(cells) + " |")
        self.slopes(found, names)

    def printed(self, argv):
        output = os.path.join(self.cluster.dir, "output")
        took, code, _ = self.cluster.run(argv, limit=60.0, output=output)
        with open(output, encoding="utf-8", errors="replace") as file:
            text = file.read()
        try:
            return [float(text)] if took is not None and code == 0 else []
        except ValueError:
            return []

    def slopes(self, found, names):
        """What a host, a rank and a KiB add, from the ends of the table."""
        few, many = self.counts[0], self.counts[-1]

        def added(name, one, other, by):
            a, b = found[(*one, name)], found[(*other, name)]
            return f"{(b - a) / by:.1f}" if a and b else "–"

        self.emit("\nCost of a barrier, in µs; a KiB of each rank's goes to all hosts.\n")
        self.emit("| | " + " | ".join(names) + " |")
        self.emit("|---" * (1 + len(names)) + "|")
        lines = (
            ("by a host", (few, 1, 0), (many, 1, 0), many - few),
            ("by a rank", (many, 1, 0), (many, 4, 0), 3 * many),
            ("by a KiB in all", (many, 1, 0), (many, 1, 4096), 4 * many),
        )
        for what, one, other, by in lines:
            self.emit(f"| {what} | " + " | ".join(added(name, one, other, by) for name in names) + " |")

    # ---- memory ------------------------------------------------------------------------------

    def memory(self):
        count, per_host = self.counts[-1], 4
        hosts, ranks = self.cluster.hosts[:count], count * per_host
        self.emit("\n### Memory and idle agents\n")
        self.emit(f"MiB of all processes but ranks and the stand-in for ssh, on {count} hosts with {per_host} ranks each, wired up "
                  "and waiting: Pss, in which the hosts share programs and libraries as they would not on real "
                  "ones, and in parentheses the mean Rss of one process.\n")
        self.emit("| launcher | first host: launcher | daemon of a host | its step or the like |")
        self.emit("|---|---|---|---|")
        program = [os.path.join(self.bench.programs, "plain", "pmi_wireup"), "-w"]
        kinds = {
            "wireup": ("wireup", "wireup-agent"),
            "Hydra 5.0": ("mpiexec.hydra", "hydra_pmi_proxy"),
        }
        for launcher in [self.ours(), *self.hydra()]:
            self.emit(self.weigh(launcher, hosts, per_host, ranks, program, kinds[launcher.name]))
        self.idle()

    def weigh(self, launcher, hosts, per_host, ranks, program, kinds):
        output = os.path.join(self.cluster.dir, "output")
        argv = launcher.argv(hosts, per_host, program)
        weighed = {}
        # What an earlier command has printed is not to be taken for its.
        with open(output, "wb"):
            pass
        self.cluster.begin(argv, output, launcher.env)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(output, "rb") as file:
                if file.read().count(b"\n") >= ranks:
                    break
            time.sleep(0.05)
        for pid in self.cluster.processes():
            weighed.setdefault(self.kind(pid), []).append((pss_kib(pid), rss_kib(pid)))
        self.cluster.clear()
        self.cluster.finish()

        def cell(kind):
            found = weighed.get(kind)
            if not found:
                return "–"
            pss = sum(pss for pss, _ in found) / 1024 / (len(hosts) if kind != kinds[0] else 1)
            return f"{pss:.1f} ({statistics.mean(rss for _, rss in found) / 1024:.1f})"

        return f"| {launcher.name} | {cell(kinds[0])} | {cell(kinds[1])} | {cell('step')} |"

    @staticmethod
    def kind(pid):
        """The program's name; a step of wireup, with its guard, is one of its own, its helper the agent's."""
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return None
        own = {b"step": "step", b"steps": "wireup-agent"}
        return own.get(words[1], name) if name == "wireup" and len(words) > 1 else name

    def wake_ups(self):
        """Wake-ups of an agent in a second, on average."""
        seconds = 5.0
        before = self.switches()
        time.sleep(seconds)
        after = self.switches()
        common = before.keys() & after.keys()
        return sum(after[pid] - before[pid] for pid in common) / seconds / max(len(common), 1)

    def switches(self):
        found = {}
        for pid in self.cluster.processes("wireup-agent"):
            total = 0
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as file:
                    for line in file:
                        if line.startswith("voluntary_ctxt_switches"):
                            total += int(line.split()[1])
            found[pid] = total
        return found

    def idle(self):
        agents = list(self.cluster.processes("wireup-agent"))
        # Nothing else of wireup's runs now.
        helpers = list(self.cluster.processes("wireup"))
        mean = [[f"{statistics.mean(map(kib, pids)) / 1024:.1f}" for kib in (pss_kib, rss_kib)]
                for pids in (agents, helpers)]
        self.emit("\nAn idle agent and the helper its steps are forked from, means of all. Goals: 10 MiB and one wake-up a "
                  "second. Connections to other agents are kept, and watched, for 10 s after a launch.\n")
        self.emit("| agent: Pss, MiB | Rss, MiB | helper: Pss, MiB | Rss, MiB | wake-ups a second, fresh | "
                  "the same after launches, connections open |")
        self.emit("|---|---|---|---|---|---|")
        cells = [*mean[0], *mean[1], f"{self.idle_before:.2f}", f"{self.wake_ups():.2f}"]
        self.emit("| " + " | ".join(cells) + " |")


def rss_kib(pid):
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
