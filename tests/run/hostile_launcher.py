"""A launcher of another user that attacks whoever inspects its job.

Run by a copy of Python that is called wireup, as `wireup run`, where this file is called run. Its one rank sleeps.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys

JOB = f"wireup-{os.getpid():016x}"
FORGED = "\x1b[2J\u009b2J\nwireup: forged"

rank = subprocess.Popen(
    ["sleep", "1000"],
    env=os.environ | {"WIREUP_JOB_ID": JOB, "WIREUP_RANK": "0", "WIREUP_SIZE": "1"},
    start_new_session=True,
)


def end(*_):
    rank.kill()
    rank.wait()
    sys.exit(0)


def record(number, pid):
    return {
        "job": 0,
        "rank": number,
        "host": FORGED,
        "pid": pid,
        "executable": FORGED,
        "state": "running",
    }


signal.signal(signal.SIGTERM, end)
digest = hashlib.sha256(f"wireup control {JOB}".encode()).hexdigest()[:32]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(f"\0wireup/control/{digest}")
listener.listen(16)
print("ready", flush=True)
silent = []
while True:
    caller, _ = listener.accept()
    request = json.loads(caller.makefile("rb").readline())
    wish = request["wish"]
    if wish == "table":
        # A process of the system, unless one rank is asked for.
        others = [] if request["ranks"] else [record(1, 1)]
        answer = {"processes": [record(0, rank.pid), *others]}
        caller.sendall(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
    elif wish == "usage":
        try:
            while True:
                caller.sendall(b" " * 65536)
        except OSError:
            pass
    elif "stacks" in wish:
        caller.sendall(json.dumps({"refused": FORGED}).encode() + b"\n")
    else:
        silent.append(caller)
