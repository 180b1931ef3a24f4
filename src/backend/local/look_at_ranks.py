# Runs in gdb. Looks at processes one after another and prints a line of JSON for each: attaches, does
# what is asked for and lets go.
#
# WIREUP_LOOK is "stacks", "python" (only frames of Python, where there are some), "core" or "dump", WIREUP_RANKS a list
# of RANK:PID with commas between them, and WIREUP_PLACE where cores go, or the file of the dump, whose program is
# WIREUP_PROGRAM.

import json
import os
import shutil
import subprocess

import gdb

FRAMES_MAX = 128
WORDS_MAX = 200


def place(frame):
    """A frame in words: its function, and where that is."""
    name = frame.name() or "??"
    found = frame.find_sal()
    if found.symtab is not None:
        where = f"{os.path.basename(found.symtab.filename)}:{found.line}"
    else:
        where = os.path.basename(gdb.solib_name(frame.pc()) or "")
    return f"{name} ({where})"[:WORDS_MAX] if where else name[:WORDS_MAX]


def stack():
    """The frames of the first thread, outermost first."""
    frames, frame = [], gdb.newest_frame()
    while frame is not None and len(frames) < FRAMES_MAX:
        frames.append(place(frame))
        try:
            frame = frame.older()
        except gdb.error:
            break
    # Below main is what every program has.
    for index, words in enumerate(frames):
        if words == "main" or words.startswith("main "):
            frames = frames[: index + 1]
            break
    return frames[::-1]


def runs_python(pid):
    """Whether a process has an interpreter of Python in it."""
    try:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
            return True
        with open(f"/proc/{pid}/maps", errors="replace") as maps:
            return any("/libpython" in line for line in maps)
    except OSError:
        return False


def python_stack(pid):
    """The Python frames of a process by py-spy, or why there are none."""
    spy = shutil.which("py-spy")
    if spy is None:
        return None, "py-spy not found in PATH; install it there (pip install py-spy)"
    words = [spy, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"py-spy: {error}"[:WORDS_MAX]
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        return None, f"py-spy: {text.splitlines()[-1] if text else done.returncode}"[:WORDS_MAX]
    threads = json.loads(done.stdout)
    threads.sort(key=lambda thread: thread.get("os_thread_id") != pid)
    frames = threads[0]["frames"][:FRAMES_MAX] if threads else []
    words = [f"{f['name']} ({f['short_filename']}:{f['line']})"[:WORDS_MAX] for f in frames]
    return words[::-1] or None, None if words else "py-spy found none"


def python_stack_of_gdb():
    """The same from gdb's own support for Python, if that is loaded."""
    try:
        text = gdb.execute("py-bt", to_string=True)
    except gdb.error:
        return None
    frames = []
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("File ") and ", in " in words:
            file, rest = words[len("File ") :].split(", line ", 1)
            number, name = rest.split(", in ", 1)
            name = name.split(" ", 1)[0]
            frames.append(f"{name} ({os.path.basename(file.strip(chr(34)))}:{number})")
    # "most recent call first"
    return frames[::-1] or None


def called_by_python(frames):
    """The frames inside the innermost function of Python."""
    for index in reversed(range(len(frames))):
        if frames[index].startswith(("_PyEval_EvalFrame", "PyEval_EvalFrame")):
            return frames[index + 1 :]
    return []


def dump(rank, pid):
    path = os.path.join(os.environ["WIREUP_PLACE"], f"core.{rank}.{pid}")
    # A core has all that the rank has in memory: it is for its user alone, whatever had this name before.
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        gdb.execute(f"generate-core-file {path}", to_string=True)
    except gdb.error:
        os.unlink(path)
        raise
    return [path]


def stack_of_dump():
    try:
        gdb.execute(f"file {os.environ['WIREUP_PROGRAM']}", to_string=True)
    except gdb.error:
        pass  # A script: the core is its interpreter's.
    gdb.execute(f"core-file {os.environ['WIREUP_PLACE']}", to_string=True)
    return stack()


def look(what, rank, pid):
    """What is found in a process, and why that is not what was asked for."""
    if what == "dump":
        return stack_of_dump(), None
    python, frames, note = what != "core" and runs_python(pid), None, None
    if python:
        frames, note = python_stack(pid)
    if frames is not None and what == "python":
        return frames, None
    gdb.execute(f"attach {pid}", to_string=True)
    try:
        if what == "core":
            return dump(rank, pid), None
        if python and frames is None:
            frames = python_stack_of_gdb()
        if frames is None:
            return stack(), note and f"no frames of Python: {note}"
        return frames + (called_by_python(stack()) if what == "stacks" else []), None
    finally:
        gdb.execute("detach", to_string=True)


def main():
    os.umask(0o077)
    for setting in ("pagination off", "confirm off", "debuginfod enabled off", "width 0"):
        try:
            gdb.execute(f"set {setting}")
        except gdb.error:
            pass
    for word in os.environ["WIREUP_RANKS"].split(","):
        rank, pid = word.split(":")
        said = {"rank": int(rank)}
        try:
            said["found"], said["note"] = look(os.environ["WIREUP_LOOK"], rank, int(pid))
        except Exception as error:
            said["error"] = str(error).strip().splitlines()[-1] if str(error) else repr(error)
        os.write(LINES, json.dumps(said).encode() + b"\n")


LINES = int(os.environ["WIREUP_LINES"])
main()
