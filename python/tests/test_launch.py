"""Launches of plain programs: no MPI and no package is needed."""

import ast
import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import wireup
from support import CleanCase, running, wait_until

PACKAGE = pathlib.Path(wireup.__file__).parent
RANK = "$WIREUP_RANK"


def sh(script):
    return ["sh", "-c", script]


class Run(CleanCase):
    def test_returns_exit_codes_and_output_by_rank(self):
        result = wireup.run(sh(f"echo out {RANK}; echo err {RANK} >&2"), n=3, oversubscribe=True)
        self.assertEqual(result.exit_code, 0)
        self.assertEqual(result.exit_codes, {0: 0, 1: 0, 2: 0})
        self.assertEqual(result.stdout, {rank: f"out {rank}\n" for rank in range(3)})
        self.assertEqual(result.stderr[2], "err 2\n")
        self.assertEqual([rank.state for rank in result.ranks], ["ended"] * 3)
        self.assertTrue(all(rank.pid and rank.host for rank in result.ranks))
        self.assertIsNone(result.cause)

    def test_failure_has_text_of_launcher_and_output_of_rank(self):
        with self.assertRaises(wireup.LaunchFailed) as caught:
            wireup.run(sh(f"echo reason >&2; exit $((5 * {RANK}))"), n=2, exit_policy="max")
        error = caught.exception
        self.assertRegex(str(error), r"^rank 1 \(.*\) exited with code 5")
        self.assertEqual(error.result.exit_codes, {0: 0, 1: 5})
        self.assertEqual(error.result.ranks[1].cause, "rank_failed")
        self.assertEqual(error.result.cause["kind"], "rank_failed")
        if sys.version_info >= (3, 11):
            self.assertEqual(error.__notes__, ["end of the standard error of rank 1:\nreason"])

    def test_signal_of_rank_is_in_result(self):
        result = wireup.run(sh("kill -SEGV $$"), n=1, check=False)
        self.assertEqual((result.ranks[0].code, result.ranks[0].signal), (None, signal.SIGSEGV))
        self.assertEqual(result.exit_codes, {0: 139})

    def test_refused_launch_has_text_of_launcher(self):
        for command, options, text, code in [
            (["./no-such-program"], {}, 'program "./no-such-program" not found', 127),
            (["true"], {"no_such_option": 1}, "unexpected argument '--no-such-option'", 125),
        ]:
            with self.assertRaisesRegex(wireup.LaunchFailed, text) as caught:
                wireup.run(command, n=2, **options)
            self.assertEqual(caught.exception.result.exit_code, code)
            self.assertEqual(caught.exception.result.ranks, ())
            self.assertFalse(str(caught.exception).startswith("wireup:"))

    def test_input_larger_than_pipes_is_read_while_output_is(self):
        data = bytes(range(256)) * 8192
        result = wireup.run(["cat"], n=1, input=data)
        self.assertEqual(bytes(result.ranks[0].stdout_bytes), data)

    def test_input_goes_to_all_ranks(self):
        result = wireup.run(["cat"], n=2, input="text", stdin="all")
        self.assertEqual(result.stdout, {0: "text", 1: "text"})

    def test_ranks_have_no_input_by_default(self):
        self.assertEqual(wireup.run(["cat"], n=2).stdout, {0: "", 1: ""})

    def test_variables_reach_ranks_without_command_line(self):
        with wireup.launch(sh('echo "$SECRET_WORD"; read line'), n=1, env={"SECRET_WORD": "a b\nc"}, stdin=0) as job:
            for event in job:
                if event.kind == "output":
                    break
            command = pathlib.Path(f"/proc/{job.pid}/cmdline").read_bytes()
            job.close_stdin()
            self.assertEqual(job.wait(check=False).stdout[0], "a b\nc\n")
        self.assertNotIn(b"a b", command)

    def test_options_become_words_of_command_line(self):
        result = wireup.run(sh("echo $WIREUP_NODE"), n=4, virtual_nodes=2, map_by="node", oversubscribe=True, label=None)
        self.assertEqual(list(result.stdout.values()), ["0\n", "1\n", "0\n", "1\n"])
        self.assertEqual([rank.node for rank in result.ranks], [0, 1, 0, 1])

    def test_apps_are_programs_of_one_job(self):
        result = wireup.run([wireup.App(["echo", "one"]), wireup.App(["pwd"], n=2, options={"wdir": "/usr"})], oversubscribe=True)
        self.assertEqual(result.stdout, {0: "one\n", 1: "/usr\n", 2: "/usr\n"})

    def test_wrong_arguments_are_refused_before_start(self):
        for arguments, options in [("true", {}), ([], {}), ([wireup.App(["true"])], {"n": 2}), (["true"], {"json": "x"})]:
            with self.assertRaises((TypeError, ValueError)):
                wireup.run(arguments, **options)
        with self.assertRaisesRegex(ValueError, "invalid variable name 'A,B'"):
            wireup.run(["true"], env={"A,B": "1"})

    def test_missing_launcher_is_named_with_remedy(self):
        with unittest.mock.patch.dict(os.environ, {"PATH": ""}), unittest.mock.patch("sys.executable", "/nonexistent/python"):
            os.environ.pop("WIREUP_LAUNCHER", None)
            with unittest.mock.patch("sysconfig.get_path", return_value="/nonexistent"):
                with self.assertRaisesRegex(FileNotFoundError, "pip install wireup"):
                    wireup.run(["true"])

    def test_timeline_is_shown_and_written(self):
        timeline = wireup.run(["true"], n=2).timeline
        self.assertEqual(timeline.records[0]["event"], "job")
        self.assertEqual(timeline.records[-1]["event"], "result")
        self.assertIn("2 ranks on 1 host", timeline.summary())
        self.assertIn("<html", timeline.page())
        with tempfile.TemporaryDirectory() as directory:
            timeline.write_trace(pathlib.Path(directory, "trace.json"))
            self.assertIn("traceEvents", pathlib.Path(directory, "trace.json").read_text())
            with self.assertRaisesRegex(RuntimeError, "nonexistent"):
                timeline.write_page("/nonexistent/page.html")


class Live(CleanCase):
    def test_events_arrive_while_ranks_run(self):
        with wireup.launch(["cat"], n=2, stdin=1) as job:
            job.write("first\n")
            for event in job:
                if event.kind == "output":
                    self.assertEqual((event.rank, event.stream, event.text), (1, "stdout", "first\n"))
                    break
            self.assertEqual(job.ranks[1].stdout, "first\n")
            self.assertTrue(running(job.ranks[1].pid))
            self.assertIsNone(job.result)
            self.assertTrue(job.job)
            job.write(b"second\n")
            job.close_stdin()
            self.assertEqual(job.wait().stdout[1], "first\nsecond\n")

    def test_signal_reaches_one_rank(self):
        script = "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.01; done"
        with wireup.launch(sh(script), n=2, no_kill_on_bad_exit=True) as job:
            ready = set()
            for event in job:
                if event.text == "ready\n":
                    ready.add(event.rank)
                if len(ready) == 2:
                    job.send_signal(signal.SIGUSR1, [1])
                    break
            for event in job:
                if event.kind == "rank" and event.state == "ended":
                    break
        self.assertEqual(job.result.stdout, {0: "ready\n", 1: "ready\ngot\n"})
        self.assertEqual(job.result.ranks[0].signal, signal.SIGTERM)

    def test_end_of_block_ends_ranks(self):
        with wireup.launch(["sleep", "1000"], n=2) as job:
            for event in job:
                if event.state == "running":
                    break
            pids = [job.pid, *(rank.pid for rank in job.ranks)]
        self.assertEqual([pid for pid in pids if running(pid)], [])
        self.assertEqual(job.result.cause["kind"], "interrupted")

    def test_wait_has_limit_and_goes_on(self):
        with wireup.launch(["sleep", "1000"], n=1) as job:
            with self.assertRaises(TimeoutError):
                job.wait(0.2)
            self.assertIsNone(job.result)
            job.kill()
            with self.assertRaisesRegex(wireup.LaunchFailed, "SIGKILL"):
                job.wait()

    def test_killed_launcher_is_reported(self):
        with wireup.launch(["sleep", "1000"], n=1) as job:
            job.next_events()
            os.kill(job.pid, signal.SIGKILL)
            with self.assertRaisesRegex(wireup.LaunchFailed, "killed by signal 9"):
                job.wait()

    def test_forgotten_launch_ends(self):
        job = wireup.launch(["sleep", "1000"], n=1)
        pid = job.pid
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del job
        self.assertIn("was not waited for", str(caught[0].message))
        wait_until(lambda: not running(pid))
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    def test_failed_start_releases_descriptors(self):
        with self.assertRaises(FileNotFoundError):
            wireup.launch(["true"], cwd="/nonexistent")

    def test_result_can_be_pickled(self):
        import pickle

        with self.assertRaises(wireup.LaunchFailed) as caught:
            wireup.run(["false"], n=1)
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual(str(copy), str(caught.exception))
        self.assertEqual(copy.result.exit_codes, {0: 1})


class Spawn(CleanCase):
    def launch(self, **options):
        return wireup.launch(["cat"], n=1, stdin=0, oversubscribe=True, **options)

    def test_job_runs_beside_initial_one(self):
        with self.launch(env={"WORD": "launch"}) as launch:
            job = launch.spawn(sh(f"echo {RANK} $WIREUP_SPAWNED_JOB $WORD $OTHER $PWD"), n=2, env={"OTHER": "a b\nc"}, wdir="/usr")
            self.assertEqual((job.number, len(job.ranks)), (1, 2))
            self.assertEqual(job.wait(30), {0: 0, 1: 0})
            self.assertIsNone(launch.result)
            launch.close_stdin()
            launch.wait()
        self.assertEqual(job.stdout, {rank: f"{rank} 1 launch a b c /usr\n" for rank in range(2)})

    def test_apps_have_infos_of_their_own(self):
        with self.launch() as launch:
            apps = [wireup.App(sh("echo one")), wireup.App(["pwd"], n=2, options={"wdir": "/usr"})]
            job = launch.spawn(apps)
            job.wait(30)
            launch.close_stdin()
            launch.wait()
        self.assertEqual(job.stdout, {0: "one\n", 1: "/usr\n", 2: "/usr\n"})

    def test_refused_job_leaves_launch_running(self):
        with self.launch() as launch:
            for command, infos, text in [
                (["./no-such-program"], {}, "no-such-program"),
                (["true"], {"no_such_key": 1}, "no_such_key"),
                (["true"], {"hosts": ["nowhere"]}, "nowhere"),
            ]:
                with self.assertRaisesRegex(wireup.SpawnFailed, text):
                    launch.spawn(command, **infos)
            self.assertIsNone(launch.result)
            launch.close_stdin()
            self.assertEqual(launch.wait().exit_code, 0)
            with self.assertRaisesRegex(wireup.SpawnFailed, "has ended"):
                launch.spawn(["true"])

    def test_wrong_arguments_are_refused_before_request(self):
        with self.launch() as launch:
            for command, options in [("true", {}), ([], {}), (["a\udcff"], {}), (["x" * (1 << 20)], {}), (["true"], {"env": {"A,B": "1"}})]:
                with self.assertRaises((TypeError, ValueError)):
                    launch.spawn(command, **options)
            launch.close_stdin()
            self.assertEqual(launch.wait().spawned, {})

    def test_request_before_ranks_run_is_refused(self):
        # The launcher finds it in the pipe when it starts.
        control, commands = os.pipe()
        os.write(commands, b'{"spawn":{"request":9,"apps":[{"command":["true"],"n":1}]}}\n')
        command = [os.environ["WIREUP_LAUNCHER"], "run", "--json", "-", "--control", f"fd:{control}", "-n", "1", "true"]
        done = subprocess.run(command, pass_fds=[control], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        os.close(control)
        os.close(commands)
        self.assertRegex(done.stdout, '"spawn_reply","request":9,"message":".*wait for state running')

    def test_failed_rank_of_job_fails_launch(self):
        with self.launch() as launch:
            job = launch.spawn(sh("exit 3"))
            self.assertEqual(job.wait(30), {0: 3})
            with self.assertRaisesRegex(wireup.LaunchFailed, "exited with code 3"):
                launch.wait(30)

    def test_signal_reaches_rank_of_job(self):
        script = "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.01; done"
        with self.launch() as launch:
            first, second = launch.spawn(sh(script), n=2), launch.spawn(sh(script), n=2)
            wait_until(lambda: launch.next_events() and all(list(job.stdout.values()) == ["ready\n"] * 2 for job in (first, second)))
            second.send_signal(signal.SIGUSR1, [1])
            with self.assertRaises(TimeoutError):
                second.wait(0.2)
            for job in (first, second):
                job.send_signal(signal.SIGUSR1)
                self.assertEqual(job.wait(30), {0: 0, 1: 0})
            launch.close_stdin()
            launch.wait()
        self.assertEqual(second.stdout, {0: "ready\ngot\n", 1: "ready\ngot\n"})

    def test_independent_job_outlives_initial_one(self):
        script = "while kill -0 $0 2>/dev/null; do sleep 0.01; done; sleep $1; echo last"
        for independent, delay in ((True, "0.6"), (False, "1000")):
            with self.launch(grace=0.2) as launch:
                next(event for event in launch if event.state == "running")
                job = launch.spawn([*sh(script), str(launch.ranks[0].pid), delay], independent=independent)
                launch.close_stdin()
                launch.wait(check=False)
            self.assertEqual(job.stdout, {0: "last\n" if independent else ""})


class Interrupt(CleanCase):
    def interrupted(self, script):
        """Run a script, send it SIGINT when it has printed pids of ranks, and return its end."""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            pids = [int(word) for word in child.stdout.readline().split()]
            self.assertTrue(pids and all(map(running, pids)))
            child.send_signal(signal.SIGINT)
            _, stderr = child.communicate(timeout=60)
        return child.returncode, stderr, pids

    def test_ctrl_c_ends_launch(self):
        script = """
import signal, wireup
signal.signal(signal.SIGINT, signal.default_int_handler)
with wireup.launch(["sleep", "1000"], n=2) as job:
    for event in job:
        if event.state == "running":
            print(*(rank.pid for rank in job.ranks), flush=True)
"""
        code, stderr, pids = self.interrupted(script)
        self.assertEqual(code, -signal.SIGINT, stderr)
        self.assertIn("KeyboardInterrupt", stderr)
        self.assertEqual([pid for pid in pids if running(pid)], [])

    def test_ctrl_c_ends_asyncio_launch(self):
        script = """
import asyncio, signal, wireup
signal.signal(signal.SIGINT, signal.default_int_handler)
async def main():
    async with wireup.launch(["sleep", "1000"], n=2) as job:
        async for event in job:
            if event.state == "running":
                print(*(rank.pid for rank in job.ranks), flush=True)
asyncio.run(main())
"""
        code, stderr, pids = self.interrupted(script)
        self.assertIn("KeyboardInterrupt", stderr)
        self.assertEqual([pid for pid in pids if running(pid)], [])

    def test_killed_python_ends_launch(self):
        script = """
import wireup
with wireup.launch(["sleep", "1000"], n=2) as job:
    for event in job:
        if event.state == "running":
            print(job.pid, *(rank.pid for rank in job.ranks), flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
            pids = [int(word) for word in child.stdout.readline().split()]
            child.kill()
        wait_until(lambda: not any(map(running, pids)))


class Asyncio(CleanCase):
    def test_events_are_iterated_with_async_for(self):
        async def main():
            async with wireup.launch(["cat"], n=1, stdin=0) as job:
                job.write("x" * 1_000_000)
                job.close_stdin()
                size = 0
                async for event in job:
                    size += len(event.data) if event.kind == "output" else 0
            return size, job.result.exit_code

        self.assertEqual(asyncio.run(main()), (1_000_000, 0))

    def test_launches_run_at_once(self):
        async def one(number):
            async with wireup.launch(sh("read x; echo $x"), n=1, stdin=0) as job:
                job.write(f"{number}\n")
                return (await job.wait_async()).stdout[0]

        async def main():
            return await asyncio.gather(*map(one, range(3)))

        self.assertEqual(asyncio.run(main()), ["0\n", "1\n", "2\n"])

    def test_time_limit_ends_launch(self):
        async def main():
            async with wireup.launch(["sleep", "1000"], n=1) as job:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(job.wait_async(), 0.2)
            return job.result.cause["kind"]

        self.assertEqual(asyncio.run(main()), "interrupted")


class Sources(unittest.TestCase):
    def test_package_has_syntax_of_oldest_python(self):
        for path in PACKAGE.rglob("*.py"):
            ast.parse(path.read_text(), feature_version=(3, 9))

    def test_public_names_are_imported_when_used(self):
        for name in wireup.__all__:
            value = getattr(wireup, name)
            if isinstance(value, type):
                self.assertEqual(value.__module__, "wireup")
            self.assertIn(name, dir(wireup))
        with self.assertRaises(AttributeError):
            wireup.no_such_name

    def test_import_needs_no_package(self):
        names = "import sys, wireup; print(*(name.split('.')[0] for name in sys.modules))"
        done = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, check=True)
        further = set(done.stdout.split()) & {"numpy", "mpi4py", "IPython", "cloudpickle", "dask", "parsl", "libensemble"}
        self.assertEqual(further, set())


if __name__ == "__main__":
    unittest.main()
