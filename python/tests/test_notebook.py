"""Notebooks that nbclient runs with a real kernel. They need ipykernel, nbclient, matplotlib, mpi4py and an MPI."""

import os
import pathlib
import re
import signal
import tempfile
import threading
import unittest

import nbclient
import nbformat

from support import running, wait_until
from wireup._events import Event
from wireup._worker import END_OF_TASK
from wireup.notebook import CellView, _CellOutput, parse_options, rank_list

LOAD = "%load_ext wireup"


class Notebook:
    """A kernel in which cells are run one after the other."""

    def __init__(self):
        self.notebook = nbformat.v4.new_notebook()
        self.client = nbclient.NotebookClient(self.notebook, timeout=120, kernel_name="python3", allow_errors=True)

    def __enter__(self):
        self.context = self.client.setup_kernel()
        self.context.__enter__()
        self.run(LOAD)
        return self

    def __exit__(self, *error):
        self.context.__exit__(*error)

    def run(self, source):
        """Run a cell and return its outputs."""
        cell = nbformat.v4.new_code_cell(source)
        self.notebook.cells.append(cell)
        self.client.execute_cell(cell, len(self.notebook.cells) - 1)
        return cell.outputs

    def text(self, source):
        """Run a cell that has no error and return the text of its output."""
        outputs = self.run(source)
        errors = ["\n".join(output["traceback"]) for output in outputs if output["output_type"] == "error"]
        if errors:
            raise AssertionError("\n".join(errors))
        return "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"] for output in outputs)

    def shown(self):
        """Return the page of the last cell as it is now."""
        outputs = self.notebook.cells[-1].get("outputs", [])
        return "".join(output["data"].get("text/html", "") for output in outputs if output["output_type"] == "display_data")

    def pids(self):
        return [int(pid) for pid in re.findall(r"pid (\d+)", self.text("%wireup status"))]


class Cells(unittest.TestCase):
    def test_cells_keep_variables_and_show_output_by_rank(self):
        with Notebook() as notebook:
            self.assertEqual(notebook.text("%%mpi -n 2\nx = comm.allreduce(rank + 1)\nprint('same', x)"), "same 3")
            outputs = notebook.run("%%mpi\nprint('rank is', rank)\nx + rank")
            self.assertEqual(outputs[0]["data"]["text/plain"], "rank 0:\nrank is 0\n3\nrank 1:\nrank is 1\n4")
            page = outputs[0]["data"]["text/html"]
            self.assertRegex(page, r"(?s)<details open [^>]*><summary>rank 0: 2 lines.*<details class[^>]*><summary>rank 1: 2 lines")
            self.assertEqual(notebook.text("import wireup.notebook as w\nw.session.push(y=[1])\nw.session.pull('x')"), "[3, 3]")
            self.assertEqual(notebook.text("%%mpi\ny"), "[1]")
            pids = notebook.pids()
            self.assertEqual(len(pids), 3)
            self.assertIn("new ranks are started", notebook.text("%%mpi --virtual-nodes 2 -n 2\nrank"))
            self.assertFalse(any(map(running, pids)))
            pids = notebook.pids()
        # The kernel has ended, and its ranks with it.
        wait_until(lambda: not any(map(running, pids)))

    def test_running_cell_shows_progress(self):
        with Notebook() as notebook, tempfile.TemporaryDirectory() as directory:
            notebook.run("%%mpi -n 2\nimport pathlib, time")
            pages = []

            def watch():
                try:
                    for rank, state in enumerate([r"[0-9]+ s: ranks 0-1 running", r"[0-9]+ s: rank 1 running"]):
                        wait_until(lambda: re.search(f"(?s)begin 0.*begin 1.*{state}", notebook.shown()))
                        pages.append(notebook.shown())
                        pathlib.Path(directory, str(rank)).touch()
                finally:
                    pathlib.Path(directory, "0").touch()
                    pathlib.Path(directory, "1").touch()

            thread = threading.Thread(target=watch)
            thread.start()
            awaited = f"pathlib.Path({directory!r}, str(rank))"
            outputs = notebook.run(f"%%mpi\nprint('begin', rank, flush=True)\nwhile not {awaited}.exists():\n    time.sleep(0.01)\nrank")
            thread.join()
            self.assertEqual(len(pages), 2)
            for page in pages:
                self.assertRegex(page, r"(?s)begin 0.*begin 1.* s: ")
            # The end takes the place of the progress.
            self.assertNotIn("running", outputs[0]["data"]["text/html"])
            self.assertEqual(outputs[0]["data"]["text/plain"], "rank 0:\nbegin 0\n0\nrank 1:\nbegin 1\n1")

    def test_traceback_of_failing_rank_is_shown(self):
        with Notebook() as notebook:
            outputs = notebook.run("%%mpi -n 2\nprint('before')\nif rank == 1:\n    1 / 0\n")
            error = outputs[-1]
            self.assertEqual((error["output_type"], error["ename"]), ("error", "ZeroDivisionError"))
            self.assertEqual(error["traceback"][0], "rank 1:")
            self.assertIn("    1 / 0", "\n".join(error["traceback"]))
            self.assertNotIn("_cell.py", "\n".join(error["traceback"]))
            self.assertIn("before", outputs[0]["data"]["text/plain"])
            self.assertEqual(notebook.run("%%mpi\n1 +")[-1]["ename"], "SyntaxError")
            # Ranks and variables are the same.
            self.assertEqual(notebook.text("%%mpi\nsize"), "2")

    def test_interrupt_ends_cell_and_keeps_ranks(self):
        with Notebook() as notebook:
            notebook.run("%%mpi -n 2\nimport time, os\nx = 5")
            with tempfile.TemporaryDirectory() as directory:
                began = [pathlib.Path(directory, str(rank)) for rank in range(2)]
                thread = threading.Thread(target=self._interrupt, args=[notebook, began])
                thread.start()
                # The interrupt may come at the end of open: the traceback has the same line.
                source = f"%%mpi\nprint('in cell', flush=True)\nos.open({directory!r} + f'/{{rank}}', os.O_CREAT); time.sleep(1000)"
                outputs = notebook.run(source)
                thread.join()
            self.assertEqual(outputs[-1]["ename"], "KeyboardInterrupt")
            # Python 3.11 marks the part of a line below it.
            lines = [line for line in outputs[-1]["traceback"][:-1] if line.strip(" ~^")]
            self.assertIn("time.sleep(1000)", lines[-1])
            self.assertEqual(notebook.text("%%mpi\nx"), "5")

    @staticmethod
    def _interrupt(notebook, began):
        wait_until(lambda: all(file.exists() for file in began))
        pid = notebook.client.km.provisioner.process.pid
        os.kill(pid, signal.SIGINT)

    def test_dead_ranks_are_reported_and_replaced(self):
        with Notebook() as notebook:
            outputs = notebook.run("%%mpi -n 2\nimport os\nx = 1\nif rank == 1:\n    os._exit(3)\ncomm.barrier()")
            text = "\n".join(outputs[-1]["traceback"])
            self.assertRegex(text, r"RanksLost: rank 1 \(.*exited with code 3")
            self.assertIn("variables are lost", text)
            self.assertEqual(notebook.text("%%mpi\n'x' in globals()"), "False")

    def test_figures_of_rank_0_are_shown(self):
        with Notebook() as notebook:
            outputs = notebook.run("%%mpi -n 2\nimport matplotlib.pyplot as plt\nplt.plot([rank, 1])\nNone")
            images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
            self.assertEqual(len(images), 1)
            self.assertEqual(len(notebook.run("%%mpi\nNone")), 1)

    def test_commands_show_restart_and_stop(self):
        with Notebook() as notebook:
            self.assertIn("no ranks are running", notebook.run("%wireup report")[-1]["evalue"])
            notebook.run("%%mpi -n 2\nx = 1")
            report = notebook.run("%wireup report")[-1]["data"]
            self.assertIn("<iframe", report["text/html"])
            self.assertIn("2 ranks", report["text/plain"])
            before = notebook.pids()
            notebook.text("%wireup restart")
            self.assertFalse(any(map(running, before)))
            self.assertEqual(notebook.text("%%mpi\n'x' in globals(), size"), "(False, 2)")
            before = notebook.pids()
            notebook.text("%wireup stop")
            self.assertFalse(any(map(running, before)))
            self.assertIn("unknown command", notebook.run("%wireup dance")[-1]["evalue"])


class Views(unittest.TestCase):
    def test_options_of_line_are_parsed(self):
        self.assertEqual(parse_options("-n 4 --hosts=a,b --oversubscribe --bind-to core"), {
            "n": 4, "hosts": "a,b", "oversubscribe": True, "bind_to": "core"})
        self.assertEqual(parse_options("-n4"), {"n": 4})
        for line in ["4", "-n", "-n x", "./app"]:
            with self.assertRaises(ValueError):
                parse_options(line)

    def test_ranks_are_listed_in_runs(self):
        self.assertEqual([rank_list(ranks) for ranks in ([3], [0, 1, 2, 5], [1, 3])], ["rank 3", "ranks 0-2,5", "ranks 1,3"])

    def test_marks_are_found_in_pieces(self):
        output = _CellOutput()
        for text in ["text", END_OF_TASK[:5]]:
            output.on_event(Event("output", 0, {"rank": 0, "stream": "stdout", "text": text}))
        self.assertEqual(output.texts(), {(0, "stdout"): "text"})
        self.assertFalse(output.wait_for_end(1, 0))
        output.on_event(Event("output", 0, {"rank": 0, "stream": "stdout", "text": END_OF_TASK[5:]}))
        self.assertTrue(output.wait_for_end(1, 0))

    def test_text_of_ranks_is_escaped(self):
        view = CellView(2, {(1, "stderr"): "<script>\n"}, ())
        self.assertIn("&lt;script&gt;", view.page(""))
        self.assertEqual(view.text(), "rank 1:\n<script>")


if __name__ == "__main__":
    unittest.main()
