"""Executes a command in a terminal of JupyterLab, by the requests that its page sends, and prints what the terminal shows.

    jupyter_terminal.py COMMAND

JupyterLab is that of the environment of this Python. The exit code is the command's.
"""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

SECONDS = 600

# What the terminal shows at the end; the echo of the command has no number here.
END = re.compile(r"ended with (\d+)")


async def server_of(directory):
    """Returns the address of the server and its token, as it writes them when it serves."""
    while True:
        for file in pathlib.Path(directory).glob("jpserver-*.json"):
            try:
                server = json.loads(file.read_text())
            except ValueError:
                continue
            return server["url"], server["token"]
        await asyncio.sleep(0.1)


async def execute(directory, command):
    """Returns what the terminal shows of the command, and its exit code."""
    url, token = await server_of(directory)
    headers = {"Authorization": "token " + token}
    request = HTTPRequest(url + "api/terminals", method="POST", body="{}", headers=headers)
    name = json.loads((await AsyncHTTPClient().fetch(request)).body)["name"]
    address = url.replace("http", "ws", 1) + "terminals/websocket/" + name
    terminal = await websocket_connect(HTTPRequest(address, headers=headers))
    await terminal.write_message(json.dumps(["stdin", command + '; echo "ended with $?"\r']))
    shown = ""
    while not (end := END.search(shown)):
        message = await terminal.read_message()
        assert message is not None, shown
        kind, *values = json.loads(message)
        if kind == "stdout":
            shown += values[0]
    return shown, int(end[1])


def main(command):
    with tempfile.TemporaryDirectory() as directory:
        os.environ.update(JUPYTER_RUNTIME_DIR=directory, SHELL="/bin/sh")
        words = ["lab", "--no-browser", "--ip=127.0.0.1", "--port=0", "--ServerApp.root_dir=" + directory]
        server = subprocess.Popen([sys.executable, "-m", "jupyter", *words])
        try:
            shown, code = asyncio.run(asyncio.wait_for(execute(directory, command), SECONDS))
        finally:
            server.terminate()
            server.wait()
    print(shown)
    return code


sys.exit(main(sys.argv[1]))
