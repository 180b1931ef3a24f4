"""The launcher's executable, and the words of its command lines."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, Mapping, Optional, Sequence

    from ._types import Option, Word

_RESERVED = {
    "json": "the package reads the status stream itself; iterate over the launch",
    "control": "the package sends signals itself; use Launch.send_signal",
    "detach": "a launch of this package ends with its process; use `wireup run --detach`",
    "stdin": "use the argument `stdin`",
}

#: Attributes of spawned jobs whose names are PMIx's alone.
_INFO_KEYS = {"independent": "pmix.spchildsep", "spawn_timeout": "pmix.sp.time"}
_HOST_KEYS = ("host", "hosts", "add_host")


def find_program() -> str:
    """Return the path of the ``wireup`` executable.

    It is ``$WIREUP_LAUNCHER``, or the one that was installed with this package, or the first one in ``PATH``.
    """
    if named := os.environ.get("WIREUP_LAUNCHER"):
        return named
    import sysconfig

    installed = os.path.join(sysconfig.get_path("scripts"), "wireup")
    if os.path.isfile(installed):
        return installed
    import shutil

    # Of an installation by `pip install --user` or into another prefix.
    found = shutil.which("wireup") or shutil.which("wireup", path=os.path.dirname(sys.executable))
    if found is None:
        raise FileNotFoundError(
            f"wireup not found: neither {installed} exists nor a `wireup` in PATH; install it with `pip install wireup`, "
            "or set WIREUP_LAUNCHER to its path"
        )
    return found


def option_words(options: Mapping[str, Option]) -> "list[str]":
    """Return the words that ask ``wireup run`` for these options: ``bind_to="core"`` is ``--bind-to=core``."""
    words = []
    for name, value in options.items():
        if remedy := _RESERVED.get(name):
            raise TypeError(f"option {name!r} is not available from Python: {remedy}")
        flag = "--" + name.replace("_", "-") if len(name) > 1 else "-" + name
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
            continue
        if isinstance(value, (str, int, float, os.PathLike)):
            values: "list[str]" = [os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
        else:
            values = command_words(value)
            if name == "hosts":
                values = [",".join(values)]
        for text in values:
            words += [flag, text] if len(name) == 1 else [f"{flag}={text}"]
    return words


def info_texts(infos: Mapping[str, Option]) -> "dict[str, str]":
    """Return info keys of a spawn with their values as texts: ``bind_to="core"``, ``hosts=["n1", "n2"]``, ``independent=True``."""
    texts = {}
    for name, value in infos.items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, (str, int, float, os.PathLike)):
            text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        else:
            text = ("," if name in _HOST_KEYS else "\n").join(command_words(value))
        texts[_INFO_KEYS.get(name, name)] = text
    return texts


def command_words(command: Iterable[Word]) -> "list[str]":
    """Return the words of a command."""
    if isinstance(command, (str, os.PathLike)):
        raise TypeError(f"command {os.fspath(command)!r} is one word: pass a list of words, as shlex.split returns it")
    return [os.fspath(word) for word in command]


def environment(variables: Optional[Mapping[str, str]]) -> "tuple[dict[str, str], list[str]]":
    """Return the environment of the launcher and the words that pass ``variables`` on to ranks.

    The values stay out of the command line, which others can read.
    """
    checked = checked_variables(variables)
    return {**os.environ, **checked}, [word for name in checked for word in ("-x", name)]


def checked_variables(variables: Optional[Mapping[str, str]]) -> "dict[str, str]":
    """Return variables whose names are possible."""
    checked = dict(variables or {})
    for name in checked:
        if not name or "=" in name or "," in name or name.endswith("*"):
            raise ValueError(f"invalid variable name {name!r} in env")
    return checked
