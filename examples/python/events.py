"""Follows a launch while it runs, and talks with one of its ranks."""

import wireup

with wireup.launch(["sh", "-c", "echo ready; read word; echo got $word"], n=2, stdin=1) as job:
    for event in job:
        if event.kind == "output":
            print(event.rank, event.text, end="")
            if (event.rank, event.text) == (1, "ready\n"):
                job.write("hello\n")
                job.close_stdin()
