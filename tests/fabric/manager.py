#!/usr/bin/env python3
"""A fabric manager for tests: serves the REST interface of docs/fabric.md on the listening socket that is its standard
input.

    manager.py DIRECTORY [TOKEN]

DIRECTORY/state.json has its services, all keys that it has made, and the requests so far. DIRECTORY/faults.json has what
goes wrong: a list of [METHOD or METHOD /auth, FAULT], each once. Faults: `lose` (served, and the connection is closed
without an answer), `drop` (closed without being served), `500`, `slow N` (served, and answered after N seconds), `keep` (a
DELETE that is answered and not done). DIRECTORY/nolist: services cannot be listed. DIRECTORY/tls.pem, a key and a
certificate: connections have TLS from then on.
"""

import json
import os
import secrets
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

DIRECTORY = Path(sys.argv[1])
TOKEN = sys.argv[2] if len(sys.argv) > 2 else None
ROOT = "/fabric/cxi/services"

lock = threading.Lock()
services, keys, log, bodies = {}, [], [], []


def save():
    state = {"services": services, "keys": keys, "log": log, "bodies": bodies}
    partial = DIRECTORY / "state.new"
    partial.write_text(json.dumps(state))
    partial.rename(DIRECTORY / "state.json")


def fault(what):
    path = DIRECTORY / "faults.json"
    wanted = json.loads(path.read_text()) if path.exists() else []
    for entry in wanted:
        if entry[0] == what:
            wanted.remove(entry)
            path.write_text(json.dumps(wanted))
            return entry[1]
    return ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        path = urlsplit(self.path)
        what = self.command + (" /auth" if path.path.endswith("/auth") else "")
        with lock:
            wrong = fault(what)
            log.append(f"{self.command} {self.path}{' ' + wrong if wrong else ''}")
            if body is not None:
                bodies.append(body)
            reply = None
            if TOKEN is not None and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                reply = (401, {"detail": "no valid token"})
            elif wrong == "500":
                reply = (500, {"detail": "the database is locked"})
            elif wrong != "drop":
                reply = self.do(path, body, wrong == "keep")
            save()
        if wrong.startswith("slow"):
            time.sleep(float(wrong.split()[1]))
        if reply is None or wrong == "lose":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            self.answer(*reply)
        except OSError:
            pass

    def do(self, path, body, keep):
        words = path.path.removeprefix(ROOT).strip("/").split("/")
        if self.command == "POST":
            again = self.headers.get("Idempotency-Key")
            for number, service in services.items():
                if again is not None and service["again"] == again:
                    return 200, {"id": number, "svc_id": 5, "vni": service["vni"]}
            number = str(len(keys) + 1)
            key = secrets.token_hex(16)
            keys.append(key)
            services[number] = {"name": body["name"], "key": key, "again": again, "vni": body.get("vni") or 1000 + len(keys)}
            return 201, {"id": number, "svc_id": 5, "vni": services[number]["vni"]}
        if words == [""]:
            if (DIRECTORY / "nolist").exists():
                return 405, None
            name = parse_qs(path.query).get("name", [""])[0]
            named = [{"id": number, "name": name, "vni": s["vni"], "svc_id": 5} for number, s in services.items() if s["name"] == name]
            return 200, {"services": named}
        service = services.get(words[0])
        if service is None:
            return 404, {"detail": "no such service"}
        if self.command == "GET":
            return 200, {"auth_key": service["key"], "svc_id": 5}
        if not keep:
            del services[words[0]]
        return 204, None

    do_GET = do_POST = do_DELETE = serve

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=os.dup(0))

    def get_request(self):
        connection, address = super().get_request()
        pair = DIRECTORY / "tls.pem"
        if pair.exists():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair)
            # The handshake is part of the first read, in the thread of the connection.
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def handle_error(self, request, client_address):
        # Clients that do not trust it close their connections.
        pass


save()
Server().serve_forever()
