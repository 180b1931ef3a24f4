"""Tells where the time of a launch went, and writes it as a page and as a trace."""

import pathlib
import tempfile

import wireup

timeline = wireup.run(["true"], n=2, virtual_nodes=2).timeline
print(timeline.summary())
with tempfile.TemporaryDirectory() as directory:
    timeline.write_page(f"{directory}/launch.html")
    timeline.write_trace(f"{directory}/launch.json")
    print(*sorted(path.name for path in pathlib.Path(directory).iterdir()))
