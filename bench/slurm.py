"""A Slurm of our own, on this machine as its one node, for measuring `srun`.

Everything it needs is in a directory of its own; nothing of a Slurm that may be installed and
configured here is touched. `close` ends it.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time

START_LIMIT = 30.0

CONFIGURATION = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Unavailable(Exception):
    """Why there cannot be one."""


class Slurm:
    """A controller, a node's daemon and an allocation in which steps are started."""

    def __init__(self, target):
        needed = ("munged", "slurmctld", "slurmd", "srun", "salloc")
        if missing := [name for name in needed if shutil.which(name) is None]:
            raise Unavailable(f"{', '.join(missing)} not installed")
        if os.geteuid() != 0:
            raise Unavailable("its daemon wants to run as root")
        self.dir = tempfile.mkdtemp(prefix="slurm-", dir=os.path.join(os.path.abspath(target), "bench"))
        self.children = []
        self.env = {"SLURM_CONF": os.path.join(self.dir, "slurm.conf")}
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self):
        controller, daemon = free_ports(2)
        host = socket.gethostname().split(".")[0]
        with open(self.env["SLURM_CONF"], "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(host=host, dir=self.dir, controller=controller, daemon=daemon,
                                            cpus=len(os.sched_getaffinity(0))))
        for name in ("state", "spool"):
            os.mkdir(os.path.join(self.dir, name))
        key = os.path.join(self.dir, "munge.key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(128))
        # munged allows only root to be able to change what is above its socket.
        self.child("munged", "--foreground", "--force", "--key-file", key, "--socket", f"{self.dir}/munge.socket",
                   "--pid-file", f"{self.dir}/munge.pid", "--seed-file", f"{self.dir}/munge.seed",
                   "--log-file", f"{self.dir}/munge.log")
        self.wait("munged", lambda: os.path.exists(f"{self.dir}/munge.socket"))
        self.child("slurmctld", "-D", "-i", "-f", self.env["SLURM_CONF"])
        self.child("slurmd", "-D", "-N", host, "-f", self.env["SLURM_CONF"])
        self.wait("the node", lambda: "idle" in self.ask("sinfo", "-h", "-o", "%T").stdout)
        told = self.ask("salloc", "-N", "1", "--no-shell", "--exclusive").stderr
        words = told.split()
        numbers = [word for word in words if word.isdigit()]
        if not numbers:
            raise Unavailable(f"salloc: {told.strip()}")
        self.command = ["srun", f"--jobid={numbers[-1]}", "--overlap", "--overcommit"]

    def child(self, *argv):
        with open(os.path.join(self.dir, f"{argv[0]}.out"), "wb") as output:
            self.children.append(subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **self.env}))

    def ask(self, *argv):
        return subprocess.run(argv, capture_output=True, text=True, timeout=START_LIMIT, check=False,
                              env={**os.environ, **self.env})

    def wait(self, what, there):
        deadline = time.monotonic() + START_LIMIT
        while not there():
            dead = [child.args[0] for child in self.children if child.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise Unavailable(f"{what} does not come up" + (f", {dead[0]} has ended" if dead else ""))
            time.sleep(0.1)

    def close(self):
        for child in reversed(self.children):
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def free_ports(count):
    """Ports on which no process listens now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
