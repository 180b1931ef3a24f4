"""Several hosts on this machine with an agent on each, for hosts.py.

The hosts are those of tests/lab: network, processes and files of their own, real TCP in between.
Whatever launcher is measured, it is started on the first of them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START_LIMIT = 60.0


class Unavailable(Exception):
    """Why there cannot be hosts."""


class Cluster:
    """Hosts with agents. `close` ends everything."""

    def __init__(self, target, count):
        target = os.path.abspath(target)
        self.wireup = os.path.join(target, "bench", "installed", "wireup")
        self.lab_program = os.path.join(target, "release", "lab")
        self.dir = tempfile.mkdtemp(prefix="hosts-", dir=os.path.join(target, "bench"))
        # The lab is a stand-in for ssh under this name.
        self.ssh = os.path.join(self.dir, "rsh")
        os.symlink(self.lab_program, self.ssh)
        self.lab = self.worker = None
        self.group = control_group()
        try:
            self.start(count)
        except BaseException:
            self.close()
            raise

    def start(self, count):
        # Below /tmp and the like every host has files of its own.
        needed = {os.path.dirname(HERE), os.path.dirname(os.path.dirname(self.dir))}
        share = [word for path in needed if private(path) for word in ("--share", path)]
        self.lab = subprocess.Popen(
            [self.lab_program, str(count), *share], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=self.join_group,
        )
        self.hosts, self.first = [], []
        for _ in range(count):
            words = self.lab.stdout.readline().split()
            if len(words) < 5:
                raise Unavailable(self.lab.communicate()[1].strip() or "the lab ended")
            self.hosts.append(words[0])
            self.first.append(int(words[4]))
        self.spaces = [os.readlink(f"/proc/{pid}/ns/pid") for pid in self.first]
        self.worker = subprocess.Popen(
            ["nsenter", "--all", "--target", str(self.first[0]), sys.executable,
             os.path.join(HERE, "worker.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=self.join_group,
        )
        self.start_agents()
        self.expected = set(self.processes())

    def start_agents(self):
        pki = os.path.join(self.dir, "pki")
        names = [word for host in self.hosts for word in ("--name", host)]
        for words in (["init"], ["issue", *names]):
            done = subprocess.run([self.wireup, "pki", "--dir", pki, *words], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"wireup pki {words[0]}: {done.stderr.strip()}")
        logs = {host: os.path.join(self.dir, f"{host}.log") for host in self.hosts}
        for host in self.hosts:
            self.on_host(host, f"{self.wireup} agent --tls {pki}/{host} </dev/null >{logs[host]} 2>&1 &")
        deadline = time.monotonic() + START_LIMIT
        for host, log in logs.items():
            while " serves node " not in read(log):
                if time.monotonic() > deadline:
                    raise Unavailable(f"the agent of {host} does not serve: {read(log).strip()}")
                time.sleep(0.02)

    def on_host(self, host, line):
        """Runs a line of the shell there, without waiting for it."""
        self.lab.stdin.write(f"{host} {line}\n")
        self.lab.stdin.flush()

    def run(self, argv, env=None, limit=30.0, output=os.devnull):
        """Milliseconds, exit code and milliseconds of processor time of a command on the first host.

        All three are None when it had to be ended. Returns when nothing of it runs any more.
        """
        before = self.processor_time()
        self.begin(argv, output, env, limit)
        answer = self.finish()
        if answer["took"] is None:
            self.clear()
            return None, None, None
        self.await_quiet(5.0)
        after = self.processor_time()
        used = None if before is None or after is None else after - before
        return answer["took"], answer["code"], used

    def begin(self, argv, output, env=None, limit=120.0):
        """Starts a command on the first host; `finish` waits for it."""
        order = {"argv": argv, "env": env or {}, "limit": limit, "output": output}
        self.worker.stdin.write(json.dumps(order) + "\n")
        self.worker.stdin.flush()

    def finish(self):
        return json.loads(self.worker.stdout.readline())

    def await_quiet(self, patience):
        """Waits until only what belongs to the hosts runs there, or ends the rest."""
        deadline = time.monotonic() + patience
        while set(self.processes()) - self.expected:
            if time.monotonic() > deadline:
                self.clear()
                return
            time.sleep(0.005)

    def clear(self):
        for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + patience
            asked = set()
            while extra := set(self.processes()) - self.expected:
                for pid in extra - asked:
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        pass
                asked |= extra
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)

    def processes(self, executable=None):
        """What runs on the hosts, as this machine numbers it, without their first processes."""
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in self.first:
                continue
            try:
                if os.readlink(f"/proc/{entry}/ns/pid") not in self.spaces or has_ended(entry):
                    continue
                if executable and os.path.basename(os.readlink(f"/proc/{entry}/exe")) != executable:
                    continue
            except OSError:
                # It has ended.
                continue
            yield int(entry)

    def join_group(self):
        if self.group:
            with open(os.path.join(self.group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(os.getpid()))

    def processor_time(self):
        """Milliseconds of processor time of everything on the hosts; None when it is not counted."""
        if not self.group:
            return None
        with open(os.path.join(self.group, "cpu.stat"), encoding="ascii") as file:
            return int(file.readline().split()[1]) / 1000

    def close(self):
        for child in (self.worker, self.lab):
            if child is None:
                continue
            try:
                child.stdin.close()
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self.group:
            # The kernel lets go of what has ended a moment later. The last steps' groups are their agents' to remove, which were killed.
            deadline = time.monotonic() + 10
            while True:
                try:
                    for made, _, _ in os.walk(self.group, topdown=False):
                        os.rmdir(made)
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        print(f"note: {self.group}: {error}", file=sys.stderr)
                        break
                    time.sleep(0.05)
        shutil.rmtree(self.dir, ignore_errors=True)


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def has_ended(pid):
    """Whether only its parent has to collect it: the worker does not, after a command that hung."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"Z"


def private(path):
    return any(os.path.commonpath([path, top]) == top for top in ("/tmp", "/run", "/dev/shm"))


def control_group():
    """A control group of our own that counts processor time, where that can be had."""
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if fields[2] != "cgroup2":
                continue
            try:
                return tempfile.mkdtemp(prefix="wireup-bench-", dir=fields[1])
            except OSError:
                return None
    return None
