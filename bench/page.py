#!/usr/bin/env python3
"""How long a browser takes until the page of `--report` stands: from the navigation to the end of its script.

    bench/page.py --wireup target/release/wireup [--ranks 1024,16384] [--times 5]

Makes a record of so many ranks on hosts of 64, its page with `wireup report`, and opens that in Chromium without a window.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile


def record(ranks):
    hosts = max(1, ranks // 64)
    at = 0

    def line(**fields):
        nonlocal at
        at += 50
        return json.dumps({"time": "t", "ms": at // 1000, "us": at, **fields}) + "\n"

    nodes = [{"node": node, "host": f"n{node}", "ranks": ranks // hosts} for node in range(hosts)]
    yield line(event="job", state="planned", version=1, job="wide", pid=1, size=ranks, offered=["pmix"], nodes=nodes, apps=[])
    for state in ("started", "connected", "finalized", "ended"):
        for rank in range(ranks):
            node = rank * hosts // ranks
            yield line(event="rank", state=state, rank=rank, node=node, host=f"n{node}", app=0, pid=rank + 1)
    for generation in range(100):
        last = [{"node": hosts - 1, "host": f"n{hosts - 1}", "behind_us": 8000}]
        yield line(event="fence", kind="pmix", participants="wide[*]", generation=generation, ranks=ranks, nodes=hosts,
                   spread_us=9000, own_us=90, last=last)


class Browser:
    """Chromium, driven over the pipes of its DevTools protocol."""

    def __init__(self, directory):
        command = 'exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run ' \
                  f'--user-data-dir={directory}/profile --remote-debugging-pipe 3<&0 4>&1 </dev/null >/dev/null 2>&1'
        self.child = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      env={**os.environ, "HOME": directory})
        self.sent, self.session, self.rest = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.child.stdin.write(json.dumps(message).encode() + b"\0")
        self.child.stdin.flush()
        while True:
            while b"\0" not in self.rest:
                self.rest += self.child.stdout.read1(1 << 16)
            one, self.rest = self.rest.split(b"\0", 1)
            answer = json.loads(one)
            if answer.get("id") == self.sent:
                return answer["result"]

    def open(self, page):
        self.call("Page.navigate", url=f"file://{page}")
        ready = "new Promise(done => { const look = () => document.documentElement?.dataset.ready " \
                "? done(performance.now()) : setTimeout(look, 1); look(); })"
        return self.call("Runtime.evaluate", expression=ready, awaitPromise=True)["result"]["value"]

    def end(self):
        self.child.kill()
        self.child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wireup", required=True)
    parser.add_argument("--ranks", default="1024,16384")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    print("| ranks | page | until it stands, ms: median (least to most) |\n|---:|---:|---|")
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as directory:
            page = f"{directory}/page.html"
            subprocess.run([options.wireup, "report", "-", "-o", page], input="".join(record(ranks)), text=True, check=True)
            browser = Browser(directory)
            times = [browser.open(page) for _ in range(options.times)]
            browser.end()
            size = os.path.getsize(page) / 1e6
            print(f"| {ranks} | {size:.1f} MB | {statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f}) |")


if __name__ == "__main__":
    main()
