"""Reads the table of processes that a launcher shows to debuggers, and attaches to each of them.

For gdb: `gdb -batch -x mpir.py --args wireup run ...` starts the launcher as a debugger does that knows
MPIR, and `gdb -batch -x mpir.py -p PID` attaches to a running one. Prints a line for each process.
"""

import os

import gdb

def value(text):
    return gdb.parse_and_eval(text)


def table():
    """Host, executable and pid of every process."""
    size = int(value("MPIR_proctable_size"))
    entries = value(f"MPIR_proctable[0]@{size}")
    for number in range(size):
        entry = entries[number]
        host, executable = entry["host_name"].string(), entry["executable_name"].string()
        yield number, host, executable, int(entry["pid"])


def state_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b") ", 1)[1][:1].decode()


def look_at(number, host, executable, pid):
    """Attaches to a process, looks at it and lets go of it."""
    if host != os.uname().nodename:
        print(f"process={number} host={host} executable={executable} pid={pid} was=elsewhere")
        return
    before = state_of(pid)
    launcher = gdb.selected_inferior()
    gdb.execute("add-inferior -no-connection", to_string=True)
    added = max(gdb.inferiors(), key=lambda inferior: inferior.num)
    gdb.execute(f"inferior {added.num}", to_string=True)
    gdb.execute(f"attach {pid}", to_string=True)
    frame, in_main = gdb.newest_frame(), False
    while frame is not None and not in_main:
        in_main = frame.name() == "main"
        frame = frame.older()
    print(
        f"process={number} host={host} executable={executable} pid={pid} was={before} "
        f"in_main={int(in_main)}",
        flush=True,
    )
    gdb.execute("detach", to_string=True)
    gdb.execute(f"inferior {launcher.num}", to_string=True)
    gdb.execute(f"remove-inferiors {added.num}", to_string=True)


def read():
    gdb.execute("set language c")
    state = int(value("MPIR_debug_state"))
    print(f"debug_state={state}", flush=True)
    for name in ("MPIR_i_am_starter", "MPIR_partial_attach_ok", "MPIR_acquired_pre_main"):
        value(f"&{name}")
    for process in list(table()):
        look_at(*process)


for setting in ("pagination off", "confirm off", "debuginfod enabled off", "language c"):
    gdb.execute(f"set {setting}")

if gdb.selected_inferior().pid:
    read()
    gdb.execute("detach")
else:
    gdb.execute("tbreak main")
    gdb.execute("run")
    gdb.execute("set language c")
    gdb.execute("set var MPIR_being_debugged = 1")
    gdb.execute("break MPIR_Breakpoint")
    gdb.execute("continue")
    # It is called again when processes were spawned.
    while gdb.selected_inferior().pid:
        read()
        gdb.execute("continue")
    code = gdb.parse_and_eval("$_exitcode")
    print(f"launcher exited with {code}", flush=True)
