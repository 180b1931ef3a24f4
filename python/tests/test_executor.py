"""Executors whose workers are ranks: mpi4py and an MPI are needed; cloudpickle and numpy are used if they are there."""

import concurrent.futures
import importlib.util
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import wireup
from support import CleanCase, running, wait_until
from wireup._channel import Channel, connect, decode, encode

HAS_CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None
HAS_NUMPY = importlib.util.find_spec("numpy") is not None


def allreduce(comm, value):
    return comm.rank, comm.allreduce(value)


def raise_on_rank(comm, number, text):
    if comm.rank == number:
        raise ValueError(text)
    return comm.rank


def wait_for_failed_rank(comm):
    if comm.rank == 1:
        raise ValueError("one rank fails")
    # Not in MPI, so that an interrupt reaches it.
    time.sleep(1000)


def never_leave(comm):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("in function", flush=True)
    time.sleep(1000)


def keep(comm, value):
    wireup.rank_data["value"] = value + comm.rank


def kept(comm):
    return wireup.rank_data["value"]


def sleep_here(seconds):
    time.sleep(seconds)
    return os.getpid()


def load_slowly(path):
    pathlib.Path(path).touch()
    time.sleep(1)
    wireup.rank_data["is loaded"] = True
    return 0


class SlowLoad:
    """An argument whose unpickling takes a second, as large imports do."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return load_slowly, (self.path,)


def is_loaded():
    return wireup.rank_data.get("is loaded", False)


def print_both(comm):
    print("out of", comm.rank)
    print("err of", comm.rank, file=sys.stderr)


def end_slowly(comm):
    def on_signal(_signum, _frame):
        time.sleep(1)
        os._exit(0)

    signal.signal(signal.SIGTERM, on_signal)


class Unfriendly(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(one)


def raise_unfriendly():
    raise Unfriendly(1, 2)


class Executor(CleanCase):
    def executor(self, **options):
        return wireup.MPIExecutor(n=2, **options)

    def test_functions_run_on_all_ranks_or_on_one(self):
        with self.executor() as executor:
            self.assertEqual(executor.submit(allreduce, 3).result(), [(0, 6), (1, 6)])
            self.assertEqual(list(executor.map(pow, range(20), itertools.repeat(2))), [x**2 for x in range(20)])
            self.assertEqual(list(executor.map(pow, range(7), range(7), chunksize=3)), [x**x for x in range(7)])
            self.assertEqual(executor.submit_one(sorted, [2, 1], reverse=True).result(), [2, 1])
            pids = set(executor.map(sleep_here, [0.2] * 4))
            self.assertEqual(pids, {rank.pid for rank in executor.ranks})

    def test_functions_wait_for_ranks_in_order(self):
        with self.executor() as executor:
            futures = [executor.submit_one(sleep_here, 0.1), executor.submit(allreduce, 1), executor.submit_one(sleep_here, 0)]
            order = []
            for future in futures:
                future.add_done_callback(order.append)
            concurrent.futures.wait(futures)
            self.assertIs(order[0], futures[0])

    def test_exception_has_traceback_of_rank(self):
        with self.executor() as executor:
            with self.assertRaisesRegex(ValueError, "no such luck") as caught:
                executor.submit(raise_on_rank, 1, "no such luck").result()
            text = str(caught.exception.__cause__)
            self.assertIn("rank 1:", text)
            self.assertIn("in raise_on_rank", text)
            self.assertNotIn("_worker.py", text)
            # The ranks go on.
            self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])
            with self.assertRaisesRegex(RuntimeError, "Unfriendly: 1|cannot be unpickled"):
                executor.submit_one(raise_unfriendly).result()

    def test_output_is_printed_or_given(self):
        events = []
        with self.executor(output=events.append) as executor:
            executor.submit(print_both).result()
        output = {(event.rank, event.stream): event.text for event in events if event.kind == "output"}
        expected = {(0, "stdout"): "out of 0\n", (1, "stdout"): "out of 1\n", (0, "stderr"): "err of 0\n", (1, "stderr"): "err of 1\n"}
        self.assertEqual(output, expected)

    def test_executor_that_serves_has_no_files(self):
        """A script that is killed cannot remove them."""
        with self.executor() as executor:
            for _ in range(2):
                executor.submit(allreduce, 1).result()
                self.assertEqual(list(pathlib.Path(tempfile.gettempdir()).glob("wireup-executor-*")), [])
                executor.restart()

    def test_function_after_restart_runs_on_new_ranks(self):
        with self.executor() as executor:
            executor.submit(end_slowly).result()
            before = {rank.pid for rank in executor.ranks}
            executor.restart()
            # The ranks have the signal by then.
            time.sleep(0.3)
            self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])
            self.assertEqual(before & {rank.pid for rank in executor.ranks}, set())

    def test_dead_rank_fails_executor_with_text_of_launcher(self):
        with self.executor() as executor:
            executor.wait_ready()
            future, waiting = executor.submit_one(os._exit, 3), executor.submit(allreduce, 1)
            with self.assertRaisesRegex(wireup.RanksLost, r"rank \d \(.*\) exited with code 3") as caught:
                future.result()
            self.assertEqual(caught.exception.result.cause["kind"], "rank_failed")
            for call in [waiting.result, lambda: executor.submit(allreduce, 1)]:
                with self.assertRaisesRegex(concurrent.futures.BrokenExecutor, "exited with code 3"):
                    call()

    def test_ranks_are_restarted_if_asked(self):
        with self.executor(on_failure="restart") as executor:
            executor.wait_ready()
            before = {rank.pid for rank in executor.ranks}
            future, waiting = executor.submit_one(os._exit, 3), executor.submit(allreduce, 1)
            with self.assertRaises(wireup.RanksLost):
                future.result()
            self.assertEqual(waiting.result(), [(0, 2), (1, 2)])
            self.assertEqual(before & {rank.pid for rank in executor.ranks}, set())

    def test_ranks_that_wait_for_failed_rank_are_interrupted(self):
        with self.executor(grace=5) as executor:
            # Both ranks have imported this file then.
            executor.submit(allreduce, 1).result()
            with self.assertRaisesRegex(ValueError, "one rank fails"):
                executor.submit(wait_for_failed_rank).result()
            self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])

    def test_interrupt_reaches_functions(self):
        with self.executor() as executor:
            executor.wait_ready()
            future = executor.submit_one(sleep_here, 1000)
            executor.interrupt()
            with self.assertRaises(KeyboardInterrupt):
                future.result()
            self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])

    def test_interrupt_waits_for_imports_of_function(self):
        with tempfile.TemporaryDirectory() as directory, wireup.MPIExecutor(n=1) as executor:
            file = pathlib.Path(directory, "is loading")
            future = executor.submit_one(sleep_here, SlowLoad(str(file)))
            wait_until(file.exists)
            executor.interrupt()
            with self.assertRaises(KeyboardInterrupt):
                future.result()
            self.assertTrue(executor.submit_one(is_loaded).result())

    def test_ranks_that_ignore_interrupt_are_ended(self):
        started = threading.Semaphore(0)
        with self.executor(grace=0.2, output=lambda _: started.release()) as executor:
            future = executor.submit(never_leave)
            for _ in range(2):
                started.acquire()
            executor.interrupt()
            with self.assertRaisesRegex(wireup.RanksLost, "ranks 0, 1 did not leave a function within 0.2 s"):
                future.result()

    def test_restart_makes_new_ranks(self):
        with self.executor(grace=0.2) as executor:
            executor.wait_ready()
            future = executor.submit(never_leave)
            executor.restart()
            with self.assertRaisesRegex(wireup.RanksLost, "the ranks were restarted"):
                future.result()
            self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])

    def test_shutdown_ends_ranks_and_cancels_if_asked(self):
        executor = self.executor()
        executor.wait_ready()
        pids = [rank.pid for rank in executor.ranks]
        first, second = executor.submit(allreduce, 1), executor.submit_one(sleep_here, 0)
        executor.shutdown()
        self.assertEqual(first.result(), [(0, 2), (1, 2)])
        self.assertIn(second.result(), pids)
        self.assertFalse(any(map(running, pids)))
        with self.assertRaisesRegex(RuntimeError, "after shutdown"):
            executor.submit(allreduce, 1)
        executor = self.executor()
        executor.wait_ready()
        futures = [executor.submit_one(sleep_here, 1) for _ in range(4)]
        executor.shutdown(cancel_futures=True)
        self.assertEqual([future.cancelled() for future in futures], [False, False, True, True])

    def test_shutdown_before_start_ends_launch(self):
        with self.executor() as executor:
            pass
        with self.assertRaises(RuntimeError):
            executor.submit(allreduce, 1)

    def test_forgotten_executor_ends(self):
        executor = self.executor()
        executor.wait_ready()
        pids = [rank.pid for rank in executor.ranks]
        del executor
        wait_until(lambda: not any(map(running, pids)))

    def test_ranks_without_mpi_are_refused_with_remedy(self):
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "mpi4py").mkdir()
            pathlib.Path(directory, "mpi4py/__init__.py").write_text("raise ImportError('hidden')")
            sys.path.insert(0, directory)
            try:
                with self.executor() as executor:
                    with self.assertRaisesRegex(wireup.RanksLost, "cannot load MPI with mpi4py: hidden; install both"):
                        executor.wait_ready()
            finally:
                sys.path.remove(directory)

    def test_refused_launch_fails_executor(self):
        with wireup.MPIExecutor(n=2, no_such_option=True, on_failure="restart") as executor:
            with self.assertRaisesRegex(wireup.RanksLost, "--no-such-option"):
                executor.submit(allreduce, 1).result()
        with self.assertRaises(ValueError):
            wireup.MPIExecutor(n=2, on_failure="continue")

    def test_virtual_nodes_are_served(self):
        with self.executor(virtual_nodes=2) as executor:
            self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])

    def test_other_hosts_are_reached_by_tcp(self):
        # Of a host whose name is not this machine's.
        with unittest.mock.patch("os.uname", return_value=unittest.mock.Mock(nodename="elsewhere")):
            with self.executor() as executor:
                self.assertEqual(executor.submit(allreduce, 1).result(), [(0, 2), (1, 2)])

    def test_data_of_ranks_stays(self):
        with self.executor() as executor:
            executor.submit(keep, 3).result()
            self.assertEqual(executor.submit(kept).result(), [3, 4])

    @unittest.skipUnless(HAS_NUMPY, "numpy is not installed")
    def test_arrays_arrive_writable_without_copy(self):
        import numpy

        with self.executor() as executor:
            array = executor.submit_one(numpy.arange, 1_000_000).result()
            self.assertTrue(array.flags.writeable)
            # Its memory is that into which the message was received.
            owner = array
            while isinstance(owner, numpy.ndarray):
                owner = owner.base
            self.assertIsInstance(memoryview(owner).obj, bytearray)
            total = executor.submit_one(numpy.sum, array).result()
            self.assertEqual(total, 499_999_500_000)

    @unittest.skipUnless(HAS_CLOUDPICKLE, "cloudpickle is not installed")
    def test_lambdas_are_sent(self):
        offset = 10
        with self.executor() as executor:
            self.assertEqual(executor.submit(lambda comm: comm.rank + offset).result(), [10, 11])


class Scripts(CleanCase):
    def run_script(self, text, *words, **options):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "script.py")
            path.write_text(textwrap.dedent(text))
            # Without cloudpickle, whatever is installed.
            pathlib.Path(directory, "cloudpickle.py").write_text("raise ImportError")
            return subprocess.run([sys.executable, path, *words], capture_output=True, text=True, timeout=100, **options)

    def test_functions_of_script_are_found_without_cloudpickle(self):
        done = self.run_script("""
            import wireup
            class Value:
                def __init__(self, value):
                    self.value = value
            def double(comm, value):
                return Value(2 * value.value)
            if __name__ == "__main__":
                with wireup.MPIExecutor(n=2) as executor:
                    print([value.value for value in executor.submit(double, Value(4)).result()])
                    print(isinstance(executor.submit(double, Value(4)).result()[0], Value))
        """)
        self.assertEqual(done.stdout, "[8, 8]\nTrue\n", done.stderr)

    def test_script_without_guard_is_refused_without_cloudpickle(self):
        done = self.run_script("""
            import wireup
            def double(value):
                return 2 * value
            with wireup.MPIExecutor(n=2) as executor:
                print(executor.submit_one(double, 4).result())
        """)
        self.assertIn("cannot start an executor in a rank", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_script_without_shutdown_completes_functions_and_ends(self):
        done = self.run_script("""
            import wireup
            executor = wireup.MPIExecutor(n=2)
            executor.submit_one(print, "hello")
        """)
        self.assertEqual((done.returncode, done.stdout), (0, "hello\n"), done.stderr)

    def test_ctrl_c_ends_ranks(self):
        script = """
import signal, time, wireup
signal.signal(signal.SIGINT, signal.default_int_handler)
with wireup.MPIExecutor(n=2) as executor:
    executor.wait_ready()
    future = executor.submit_one(time.sleep, 1000)
    print(*(rank.pid for rank in executor.ranks), flush=True)
    future.result()
"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            pids = [int(word) for word in child.stdout.readline().split()]
            self.assertEqual(len(pids), 2)
            child.send_signal(signal.SIGINT)
            _, stderr = child.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", stderr)
        self.assertFalse(any(map(running, pids)))


class Channels(CleanCase):
    def pair(self, keys):
        """Two ends of a TCP connection with keys."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            ends = []
            address = server.getsockname()
            thread = threading.Thread(target=lambda: ends.append(connect("", [("127.0.0.1", 1), address], keys[1])))
            thread.start()
            here = Channel(server.accept()[0], keys[0])
            thread.join()
        self.addCleanup(here.close)
        return here, ends[0]

    def test_large_messages_pass_whole(self):
        here, there = self.pair([b"k" * 32] * 2)
        message = [b"", os.urandom(3_000_000), *([b"x"] * 3000)]
        thread = threading.Thread(target=here.send, args=[message])
        thread.start()
        self.assertEqual(there.receive(), message)
        thread.join()
        there.send(encode({"a": 1}))
        self.assertEqual(decode(here.receive()), {"a": 1})
        with self.assertRaisesRegex(ValueError, "message of"):
            there.send([b"x" * 100])
            here.receive(limit=50)
        there.close()
        here.close()

    def test_message_with_other_key_is_refused(self):
        here, there = self.pair([b"k" * 32, b"l" * 32])
        there.send([b"hello"])
        with self.assertRaisesRegex(ValueError, "wrong MAC"):
            here.receive()
        there.close()
        here.close()

    def test_repeated_message_is_refused(self):
        here, there = self.pair([b"k" * 32] * 2)
        there.send([b"hello"])
        there._counts[0] = 0
        there.send([b"hello"])
        here.receive()
        with self.assertRaisesRegex(ValueError, "wrong MAC"):
            here.receive()
        there.close()
        here.close()


if __name__ == "__main__":
    unittest.main()
