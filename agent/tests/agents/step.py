#!/usr/bin/env python3
"""Stands in for `wireup step`: does what the launcher's messages say, and tells it what comes.

Frames are those of core/src/link/frame.rs. It greets the launcher with "begun NODE NODES BYTES".
"""

import os
import signal
import socket
import struct
import sys
import time

if sys.argv[1:] != ["step"]:
    # It has no helper.
    sys.exit()
LAUNCHER, EVERY = 0xFFFFFFFF, 0xFFFFFFFE
link = socket.socket(fileno=3)
slow = False


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def read(count):
    data = bytearray()
    while len(data) < count:
        if slow:
            time.sleep(0.15)
        piece = link.recv(min(count - len(data), 1 << (17 if slow else 20)))
        if not piece:
            sys.exit(0)
        data += piece
    return bytes(data)


def frame():
    length, to, source, kind, more = struct.unpack("<IIIBB", read(14))
    return to, source, kind, more, read(length - 10)


def send(to, text, source=0, kind=0):
    body = text if isinstance(text, bytes) else text.encode()
    link.sendall(struct.pack("<IIIBB", 10 + len(body), to, source, kind, 0) + body)


def begin():
    body = b""
    while True:
        _, _, kind, more, piece = frame()
        assert kind == 1, "the first message is not for the step"
        body += piece
        if not more:
            break
    variant, at = varint(body, 0)
    assert variant == 0, "the first message is not Begin"
    _version, at = varint(body, at)
    node, at = varint(body, at)
    length, at = varint(body, at)
    at += length
    members, at = varint(body, at)
    for _ in range(2 * members):
        length, at = varint(body, at)
        at += length
    # The shape of the trees, and how long who may be silent.
    for _ in range(5):
        _, at = varint(body, at)
    described, at = varint(body, at)
    assert described == len(body) - at, "the description is cut"
    return node, members, described


def number(word):
    return {"every": EVERY, "launcher": LAUNCHER}.get(word) or int(word)


def main():
    global slow
    node, members, described = begin()
    send(LAUNCHER, f"begun {node} {members} {described} {os.getpid()} {os.getuid()}")
    while True:
        to, source, kind, more, body = frame()
        if kind == 1:
            sys.exit(0)  # Orphaned
        if kind == 2:
            if body == b"\0":
                send(EVERY, b"\1\0", kind=2)  # It lives.
            continue
        if source != LAUNCHER:
            text = body.decode() if len(body) < 200 else f"{len(body)} bytes"
            send(LAUNCHER, f"got {source} {text}")
            continue
        words = body.decode().split(" ", 2)
        match words[0]:
            case "send":
                send(number(words[1]), words[2])
            case "flood":
                to, count = words[1:]
                for _ in range(int(count)):
                    send(number(to), bytes(256 * 1024))
            case "burst":
                # Short messages with a number each, many in one write.
                count, length = map(int, body.decode().split()[1:])
                for first in range(0, count, 500):
                    frames = bytearray()
                    for number_ in range(first, min(first + 500, count)):
                        text = f"{number_} ".ljust(length).encode()
                        frames += struct.pack("<IIIBB", 10 + len(text), LAUNCHER, 0, 0, 0) + text
                    link.sendall(frames)
            case "lie":
                send(LAUNCHER, words[2], source=int(words[1]))
            case "exit":
                sys.exit(int(words[1]))
            case "say-and-exit":
                for count in range(100):
                    send(LAUNCHER, f"last {count}")
                sys.exit(0)
            case "other-version":
                send(0, b"\0" + bytes([int(words[1])]), kind=1)
                sys.exit(125)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "close":
                link.close()
                signal.pause()
            case "slow":
                slow = True
            case "ignore":
                pass
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                send(LAUNCHER, f"heard {body.decode()}")


main()
