#!/usr/bin/env python3
"""Makes a picture of real output, for scripts/pictures.

    pictures.py terminal OUTPUT.svg [--columns N] [--rows N] [--seconds N] COMMAND...
    pictures.py page PAGE.html OUTPUT.png [--width N] [--height N] [--section SELECTOR]

`terminal` executes each command on a terminal of its own and draws the prompts, the commands and what the terminals show.
A command is ended after --seconds, and the picture has the screen of that moment. `page` photographs a page in Chromium:
the top of it, or the section that has the element of the selector.
"""

import argparse
import base64
import fcntl
import html
import io
import os
import pathlib
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import time

SIZE, ADVANCE, LEADING, MARGIN = 14, 8.43, 19, 16
BACKGROUND, TEXT, PROMPT = "#1b2230", "#dfe5ec", "#7fd18c"
COLOURS = {
    "red": "#ff8078", "green": PROMPT, "brown": "#e8c77c", "blue": "#82b1ff", "magenta": "#d6a2e8", "cyan": "#7ad3d8",
    "black": "#7b8696", "white": TEXT,
}


def execute(command: str, columns: int, rows: int, seconds: float):
    """Executes a command line on a terminal of this size; returns its screen."""
    import pyte

    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execvp("bash", ["bash", "-c", command])
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([terminal], [], [], left)[0]:
            break
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            data = b""
        if not data:
            break
        stream.feed(data)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    return screen


def runs(row, columns: int):
    """Yields column, text and style of each part of a row that has one style."""
    start, text, style = 0, "", None
    for column in range(columns):
        cell = row[column]
        now = (cell.fg, cell.bold, cell.reverse)
        if now != style and text:
            yield start, text, style
            text = ""
        if not text:
            start, style = column, now
        text += cell.data
    yield start, text, style


def draw(commands: list[str], columns: int, rows: int, seconds: float) -> str:
    """Returns an SVG of these commands and what they show."""
    lines = []
    for command in commands:
        lines.append([(0, "$ ", ("prompt", True, False)), (2, command, ("default", True, False))])
        screen = execute(command, columns, rows, seconds)
        shown = [list(runs(screen.buffer[row], columns)) for row in range(rows)]
        while shown and not "".join(text for _, text, _ in shown[-1]).strip():
            shown.pop()
        lines += [*shown, []]
    lines.pop()
    width, height = columns * ADVANCE + 2 * MARGIN, len(lines) * LEADING + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
        f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="{SIZE}" fill="{TEXT}">',
    ]
    for number, line in enumerate(lines):
        y = MARGIN + number * LEADING + SIZE
        for column, text, (colour, bold, reverse) in line:
            if reverse:
                x, length = MARGIN + column * ADVANCE, len(text) * ADVANCE
                parts.append(f'<rect x="{x:.1f}" y="{y - SIZE}" width="{length:.1f}" height="{LEADING}" fill="{TEXT}"/>')
            elif not text.strip():
                continue
            column, text = column + len(text) - len(text.lstrip()), text.strip()
            if not text:
                continue
            fill = BACKGROUND if reverse else PROMPT if colour == "prompt" else COLOURS.get(colour)
            style = (f' fill="{fill}"' if fill else "") + (' font-weight="bold"' if bold else "")
            # Fonts differ in their widths; columns stay below each other.
            parts.append(
                f'<text x="{MARGIN + column * ADVANCE:.1f}" y="{y}" textLength="{len(text) * ADVANCE:.1f}"'
                f' xml:space="preserve"{style}>{html.escape(text, quote=False)}</text>'
            )
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def photograph(page: pathlib.Path, width: int, height: int, section: str | None) -> bytes:
    """Returns a PNG of the page's top, or of one section of it."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
    from page import Browser
    from PIL import Image

    with tempfile.TemporaryDirectory() as directory:
        browser = Browser(directory)
        try:
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
            media = [{"name": "prefers-color-scheme", "value": "light"}]
            browser.call("Emulation.setEmulatedMedia", media="screen", features=media)
            browser.open(page.resolve())
            clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
            if section:
                box = f"(() => {{ const box = document.querySelector({section!r}).closest('section').getBoundingClientRect(); " \
                      "return [box.top + scrollY, box.height]; })()"
                result = browser.call("Runtime.evaluate", expression=box, returnByValue=True)["result"]
                clip["y"], clip["height"] = result["value"]
            shot = browser.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        finally:
            browser.end()
    image = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    output = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(output, "png", optimize=True)
    return output.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    terminal = kinds.add_parser("terminal")
    terminal.add_argument("output", type=pathlib.Path)
    terminal.add_argument("commands", nargs="+")
    terminal.add_argument("--columns", type=int, default=100)
    terminal.add_argument("--rows", type=int, default=24)
    terminal.add_argument("--seconds", type=float, default=60)
    page = kinds.add_parser("page")
    page.add_argument("page", type=pathlib.Path)
    page.add_argument("output", type=pathlib.Path)
    page.add_argument("--width", type=int, default=1000)
    page.add_argument("--height", type=int, default=700)
    page.add_argument("--section")
    options = parser.parse_args()
    if options.kind == "terminal":
        options.output.write_text(draw(options.commands, options.columns, options.rows, options.seconds), encoding="utf-8")
    else:
        options.output.write_bytes(photograph(options.page, options.width, options.height, options.section))


if __name__ == "__main__":
    main()
