"""Adapters with the real packages: parsl, distributed, dask-mpi, libensemble, executorlib."""

import logging
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import wireup
from support import running, wait_until

_directory = None


def setUpModule():
    """Have a directory for what these packages leave in that for temporary files."""
    global _directory
    _directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = _directory.name


def tearDownModule():
    tempfile.tempdir = None
    del os.environ["TMPDIR"]
    _directory.cleanup()


def rank_and_pid(_):
    import time

    time.sleep(0.05)
    return os.environ.get("WIREUP_RANK"), os.getpid()


def place(factor):
    from mpi4py import MPI

    return factor * MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, os.getpid()


class Parsl(unittest.TestCase):
    def test_workers_of_block_are_ranks(self):
        import parsl
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider

        from wireup.parsl import WireupLauncher

        # Parsl looks for its own scripts there.
        path = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        with tempfile.TemporaryDirectory() as directory, unittest.mock.patch.dict(os.environ, path):
            launcher = WireupLauncher(options={"oversubscribe": True})
            provider = LocalProvider(launcher=launcher, init_blocks=1, min_blocks=1, max_blocks=1)
            executor = HighThroughputExecutor(
                label="ranks", address="127.0.0.1", max_workers_per_node=1, provider=provider, encrypted=False
            )
            with parsl.load(Config(executors=[executor], run_dir=directory, usage_tracking=0)):
                app = parsl.python_app(rank_and_pid)
                results = [future.result(timeout=100) for future in [app(number) for number in range(4)]]
            self.assertEqual({rank for rank, _ in results}, {"0"})
            wait_until(lambda: not any(running(pid) for _, pid in results))

    def test_command_line_has_places_of_block(self):
        from wireup.parsl import WireupLauncher

        line = WireupLauncher(options={"hosts": "a,b"})("echo 'x y'", 4, 2)
        self.assertRegex(line, r" run --pmi=none --hosts=a,b -n 8 --nodes=2 --ppn=4 sh -c 'echo '\"'\"'x y'\"'\"''$")


class Dask(unittest.TestCase):
    def test_workers_are_ranks_and_end_with_cluster(self):
        from distributed import Client

        from wireup.dask import WireupCluster

        with WireupCluster(2, oversubscribe=True) as cluster, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            results = client.gather(client.map(rank_and_pid, range(20)))
            self.assertEqual({rank for rank, _ in results}, {"0", "1"})
            names = {str(worker["name"]) for worker in client.scheduler_info()["workers"].values()}
            self.assertEqual({name.rsplit("-", 1)[1] for name in names}, {"0", "1"})
        self.assertFalse(any(running(pid) for _, pid in results))

    def test_others_go_on_without_dead_worker(self):
        from distributed import Client

        from wireup.dask import WireupCluster

        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        with WireupCluster(2, oversubscribe=True) as cluster, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            pids = {pid for _, pid in client.gather(client.map(rank_and_pid, range(20)))}
            self.assertEqual(len(pids), 2)
            dead = pids.pop()
            os.kill(dead, 9)
            later = client.gather(client.map(rank_and_pid, range(20, 40)))
            self.assertEqual({pid for _, pid in later}, pids)

    def test_refused_launch_has_text_of_launcher(self):
        from wireup.dask import WireupCluster

        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        with self.assertRaisesRegex((wireup.LaunchFailed, RuntimeError), "no-such-option|[Cc]luster failed"):
            WireupCluster(2, no_such_option=True)


    def test_dask_mpi_runs_on_ranks(self):
        script = """
from dask_mpi import initialize
from distributed import Client
if __name__ == "__main__":
    initialize(nthreads=1, dashboard=False, nanny=False)
    with Client() as client:
        client.wait_for_workers(2)
        print(sum(client.gather(client.map(abs, range(-20, 0)))))
"""
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "script.py")
            path.write_text(script)
            result = wireup.run([sys.executable, path], n=4, cwd=directory, oversubscribe=True, timeout=100)
        self.assertEqual(result.stdout, {0: "", 1: "210\n", 2: "", 3: ""})


class LibEnsemble(unittest.TestCase):
    def test_tasks_are_launches(self):
        from wireup.libensemble import WireupExecutor

        with tempfile.TemporaryDirectory() as directory:
            app = pathlib.Path(directory, "app.sh")
            app.write_text("#!/bin/sh\necho rank $WIREUP_RANK of $WIREUP_SIZE $1\n")
            app.chmod(0o755)
            here = os.getcwd()
            os.chdir(directory)
            try:
                executor = WireupExecutor(options={"oversubscribe": True})
                executor.register_app(full_path=str(app), app_name="app")
                task = executor.submit(app_name="app", num_procs=3, app_args="word", extra_args="--label", stdout="out", wait_on_start=False)
                task.wait(timeout=60)
                self.assertEqual((task.state, task.errcode), ("FINISHED", 0))
                lines = sorted(pathlib.Path(task.workdir or directory, "out").read_text().splitlines())
                self.assertEqual(lines, [f"[{rank}] rank {rank} of 3 word" for rank in range(3)])
                app.write_text("#!/bin/sh\nfile=pid-$WIREUP_RANK\necho $$ >$file.part && mv $file.part $file; exec sleep 1000\n")
                task = executor.submit(app_name="app", num_procs=2, stdout="out")
                wait_until(lambda: all(pathlib.Path(f"pid-{rank}").exists() for rank in range(2)))
                task.kill()
                pids = [int(pathlib.Path(f"pid-{rank}").read_text()) for rank in range(2)]
                wait_until(lambda: not any(map(running, pids)))
            finally:
                os.chdir(here)


class Executorlib(unittest.TestCase):
    def test_functions_run_on_ranks_of_launches(self):
        from wireup.executorlib import WireupExecutor

        options = {"oversubscribe": True}
        with WireupExecutor(max_cores=4, hostname_localhost=True, options=options) as executor:
            one = executor.submit(rank_and_pid, None)
            two = executor.submit(place, 5, resource_dict={"cores": 2})
            (rank, first), places = one.result(timeout=60), two.result(timeout=60)
        self.assertEqual(rank, "0")
        self.assertEqual([place[:2] for place in places], [(0, 2), (5, 2)])
        wait_until(lambda: not any(map(running, [first, *(pid for *_, pid in places)])))

    def test_processes_of_block_remain(self):
        from wireup.executorlib import WireupExecutor

        options, resources = {"oversubscribe": True}, {"cores": 2}
        with WireupExecutor(
            max_workers=1, resource_dict=resources, block_allocation=True, hostname_localhost=True, options=options
        ) as executor:
            results = [executor.submit(place, number).result(timeout=60) for number in (1, 2)]
        self.assertEqual([result[1][0] for result in results], [1, 2])
        self.assertEqual(*([pid for *_, pid in result] for result in results))


if __name__ == "__main__":
    unittest.main()
