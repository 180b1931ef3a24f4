"""A notebook in JupyterLab, in Chromium without a window. It needs jupyterlab, websocket-client, matplotlib, mpi4py and an MPI."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import nbformat
import websocket

CELLS = [
    "%load_ext wireup",
    "%%mpi -n 2\nx = comm.allreduce(rank)\nprint('hello from', rank)",
    "%%mpi\nimport matplotlib.pyplot as plt\nplt.plot([rank, 2, 3])\nNone",
    "%wireup report",
    "%%mpi\nimport time\nfor _ in range(100_000):\n    time.sleep(0.01)",
    "%%mpi\nif rank == 1:\n    1 / 0",
    "%%mpi\n'x is', x",
]

SETTINGS = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--LabApp.expose_app_in_browser=True", "--LabApp.news_url="]
CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-crash-reporter"]


def eventually(get, seconds=60):
    """Return the first true value."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError, http.client.HTTPException, StopIteration):
            if value := get():
                return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.1)


@contextlib.contextmanager
def program(command, **options):
    """A program that is ended with its process group."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


class Page:
    """A page of Chromium, over its DevTools protocol."""

    def __init__(self, address):
        self.socket = websocket.create_connection(address, timeout=60)
        self.count = 0

    def call(self, method, **params):
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.count:
                return answer["result"]

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait_for(self, expression):
        try:
            eventually(lambda: self.value(expression))
        except AssertionError:
            raise AssertionError(f"never true: {expression}\n{self.value('document.body.innerText')}") from None

    def wait_for_text(self, text):
        self.wait_for(f"document.querySelector('.jp-Notebook').innerText.includes({text!r})")

    def execute(self, command):
        # The promise is of the end of a cell.
        self.value(f"void jupyterapp.commands.execute('{command}')")


class JupyterLab(unittest.TestCase):
    def test_cells_run_on_ranks_and_show_output_figures_report_and_failures(self):
        with contextlib.ExitStack() as stack:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
            notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
            (directory / "root").mkdir()
            nbformat.write(notebook, directory / "root/cells.ipynb")
            names = {"HOME": "", "TMPDIR": "", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime"}
            env = {**os.environ, **{name: str(directory / value) for name, value in names.items()}}
            log = stack.enter_context(open(directory / "log", "w"))
            lab = [sys.executable, "-m", "jupyterlab", *SETTINGS, f"--ServerApp.root_dir={directory}/root"]
            stack.enter_context(program(lab, env=env, stdout=log, stderr=log))
            server = json.loads(eventually(lambda: next((directory / "runtime").glob("jpserver-*.json")).read_text()))
            eventually(lambda: urllib.request.urlopen(f"{server['url']}api?token={server['token']}"))
            browser = ["chromium", *CHROMIUM, f"--user-data-dir={directory}/profile", "--remote-debugging-port=0"]
            browser += ["--remote-allow-origins=*", f"{server['url']}lab/tree/cells.ipynb?token={server['token']}"]
            stack.enter_context(program(browser, env=env, stdout=log, stderr=log))
            port = eventually(lambda: (directory / "profile/DevToolsActivePort").read_text().splitlines())[0]
            pages = lambda: json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
            page = Page(eventually(lambda: next(page for page in pages() if page["type"] == "page"))["webSocketDebuggerUrl"])
            stack.callback(page.socket.close)
            self.run_cells(page)

    def run_cells(self, page):
        page.wait_for("typeof jupyterapp == 'object' && [...jupyterapp.shell.widgets('main')].some(w => w.sessionContext?.session)")
        page.value(
            "for (const widget of jupyterapp.shell.widgets('main')) if (widget.sessionContext)"
            " { jupyterapp.shell.activateById(widget.id); widget.content.activeCellIndex = 0 }"
        )
        for shown in [None, "hello from 0", "figure", "report", "running"]:
            page.execute("notebook:run-cell-and-select-next")
            if shown == "figure":
                page.wait_for("!!document.querySelector('.jp-OutputArea-output img')")
            elif shown == "report":
                page.wait_for("!!document.querySelector('iframe.wireup-report')")
            elif shown:
                page.wait_for_text(shown)
        folded = page.value("[...document.querySelectorAll('details.wireup-ranks')].map(details => details.open)")
        self.assertEqual(folded, [True, False])
        page.execute("notebook:interrupt-kernel")
        page.wait_for_text("KeyboardInterrupt")
        for shown in ["ZeroDivisionError: division by zero", "('x is', 1)"]:
            page.execute("notebook:run-cell-and-select-next")
            page.wait_for_text(shown)


if __name__ == "__main__":
    unittest.main()
