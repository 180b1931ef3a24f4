"""Makes one job of two programs."""

import wireup

master = wireup.App(["sh", "-c", "echo master"])
workers = wireup.App(["sh", "-c", "echo worker $WIREUP_RANK"], n=2, options={"wdir": "/"})
print(*wireup.run([master, workers], oversubscribe=True).stdout.values(), sep="", end="")
