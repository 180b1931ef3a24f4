"""What the tests of the package share."""

import os
import pathlib
import threading
import time
import unittest


def running(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=30):
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.01)


def _descriptors():
    names = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            names[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass
    return names


class CleanCase(unittest.TestCase):
    """A test that leaves no thread, descriptor or child process."""

    def setUp(self):
        self.descriptors = set(_descriptors())
        self.threads = threading.active_count()

    def tearDown(self):
        self.assertEqual(threading.active_count(), self.threads)
        left = {name: target for name, target in _descriptors().items() if name not in self.descriptors}
        self.assertEqual(left, {})
        children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        self.assertEqual(children, "")
