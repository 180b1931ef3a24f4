"""Runs commands on the host it was started on and times them there. Called by cluster.py.

Each line of input is a command: {"argv": [...], "env": {...}, "limit": seconds, "output": path}.
Each line of output says how it went: {"took": milliseconds, "code": exit code}, nulls when the
command had not ended after its limit; what it left behind is for the caller to end.
"""

import json
import sys

from run import Run


def main():
    for line in sys.stdin:
        order = json.loads(line)
        run = Run(order["argv"], order["env"], order["output"])
        took, code = run.wait(order["limit"])
        print(json.dumps({"took": took, "code": code}), flush=True)


if __name__ == "__main__":
    main()
