"""What a hostile user says to the agent of his machine: hostile.py ATTACK VERSION NODE ADDRESS."""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

ATTACK, VERSION, NODE, ADDRESS = sys.argv[1:]
BODY = 256 * 1024
CARRIED, CONTROL = 0, 1
NOBODY, LAUNCHER = 0xFFFFFFFE, 0xFFFFFFFF
MIB = 1 << 20


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def text(word):
    word = word if isinstance(word, bytes) else word.encode()
    return varint(len(word)) + word


def members(nodes):
    return varint(len(nodes)) + b"".join(text(name) + text(at) for name, at in nodes)


def opening(launch, nodes, star, description):
    spread = members(nodes) + varint(0) + varint(star) + varint(32)
    return varint(0) + varint(int(VERSION)) + text(launch) + text("") + spread + text(description)


def question(nodes):
    return varint(2) + varint(int(VERSION)) + members(nodes)


def meeting():
    return varint(3) + varint(int(VERSION)) + text("")


def frame(to, kind, more, body):
    return struct.pack("<IIIBB", 10 + len(body), to, LAUNCHER, kind, more) + body


class Agent:
    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect("/run/wireup/agent.sock")

    def ask(self, message):
        while True:
            body, message = message[:BODY], message[BODY:]
            self.socket.sendall(frame(NOBODY, CONTROL, bool(message), body))
            if not message:
                return

    def heard(self):
        """Until it ends the connection."""
        got = b""
        try:
            while piece := self.socket.recv(1 << 16):
                got = (got + piece)[-(1 << 20):]
        except OSError:
            pass
        return got


def quietly(what):
    try:
        return what()
    except OSError:
        return b""


def together(count, what):
    threads = [threading.Thread(target=quietly, args=(lambda n=n: what(n),)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def others(count):
    return [(f"m{n}", f"{ADDRESS}:1") for n in range(count)]


def questions():
    def ask(n):
        agent = Agent()
        agent.ask(question(others(100_000 if n % 4 == 0 else 16_000)))
        said = agent.heard()
        if n % 4 == 0:
            print("16384 nodes" in said.decode(errors="replace"), flush=True)

    together(8, ask)


def openings():
    def ask(n):
        agent = Agent()
        nodes = [(NODE, f"{ADDRESS}:7437")]
        nodes += others(4_000 if n % 4 == 0 else 0)
        agent.ask(opening(f"large{n}", nodes, 4096, b"x" * (1 * MIB if n % 4 == 0 else 60 * MIB)))
        agent.socket.settimeout(10)
        agent.heard()

    together(16, ask)


def meetings():
    def meet(n):
        agent = Agent()
        agent.ask(meeting())
        unfinished = frame(NOBODY, CARRIED, True, b"x" * BODY)
        for _ in range(1200):
            agent.socket.sendall(unfinished)
        print("all taken", flush=True)
        agent.heard()

    together(9, meet)


def steps():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                with open(f"/proc/{pid}/comm", "rb") as name:
                    if name.read() == b"wireup-step\n":
                        yield int(pid)
        except OSError:
            pass


def stopped():
    # A process of its own, which waits for no other thread: a step must be stopped before it reads.
    attacker = os.getpid()
    stopping = os.fork()
    if stopping == 0:
        while os.getppid() == attacker:
            for pid in steps():
                quietly(lambda: os.kill(pid, signal.SIGSTOP))
        os._exit(0)

    def send(n):
        agent = Agent()
        agent.ask(opening(f"stopped{n}", [(NODE, f"{ADDRESS}:7437")], 32, b"x" * (8 * MIB)))
        one = frame(0, CARRIED, False, b"x" * BODY)
        for _ in range(2000):
            agent.socket.sendall(one)

    together(12, send)
    os.kill(stopping, signal.SIGKILL)
    os.waitpid(stopping, 0)
    for pid in steps():
        quietly(lambda: os.kill(pid, signal.SIGKILL))
    while list(steps()):
        time.sleep(0.05)


def grpc(method, message):
    """The status of a call, by curl: it has no other message."""
    prefixed = b"\0" + struct.pack(">I", len(message)) + message
    words = ["curl", "-s", "-o", "/dev/null", "-D", "-", "--http2-prior-knowledge", "--data-binary", "@-"]
    words += ["--unix-socket", "/run/wireup/agent.sock", "-H", "content-type: application/grpc", "-H", "te: trailers"]
    words += [f"http://localhost/wireup.v1.NodeAgent/{method}"]
    return subprocess.run(words, input=prefixed, stdout=subprocess.PIPE, check=False).stdout.decode()


def programs():
    # Each program is x with one rank: seven bytes.
    count = 500_000
    job = b"\x0a\x05\x0a\x01x\x18\x01" * count
    large = b"\x28" + varint(count) + b"\x38" + varint(count) + b"\x6a" + varint(len(job)) + job

    def ask(n):
        if "500000 programs" in grpc("LaunchProcesses", b"\x0a\x03l%02d" % n + large).replace("%20", " "):
            print("refused", flush=True)

    together(16, ask)


def queries():
    """Of another user, until standard input ends."""
    slowest = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        began = time.monotonic()
        assert "HTTP/2 200" in grpc("Query", b"")
        slowest = max(slowest, time.monotonic() - began)
        print("answered", flush=True)
    print(f"slowest {slowest:.3f}", flush=True)


globals()[ATTACK]()
print("done", flush=True)
