"""A rank of a notebook: runs cells in a namespace that stays."""

from __future__ import annotations

import ast
import io
import linecache
import sys
import types
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional

_main: Optional[types.ModuleType] = None


@dataclass(frozen=True)
class CellValue:
    """What a cell leaves on a rank, beside its output."""

    #: Text of the last expression; ``None`` if it has no value.
    text: Optional[str]
    html: Optional[str]
    #: PNG files of the figures that the cell has drawn, of rank 0 alone.
    figures: "List[bytes]"


def _namespace(comm: Any) -> "dict[str, Any]":
    global _main
    if _main is None:
        from mpi4py import MPI

        # What cells define can be pickled between the ranks.
        _main = sys.modules["__main__"] = types.ModuleType("__main__")
        _main.__dict__.update(comm=comm, rank=comm.rank, size=comm.size, MPI=MPI)
    return _main.__dict__


def run(comm: Any, source: str, name: str) -> CellValue:
    """Run a cell; its traceback shows it as the file ``name``."""
    namespace = _namespace(comm)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    value = None
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    if value is not None:
        namespace["_"] = value
    html = getattr(value, "_repr_html_", None)
    return CellValue(
        text=None if value is None else repr(value),
        html=html() if callable(html) and comm.rank == 0 else None,
        figures=_take_figures(comm.rank == 0),
    )


def _take_figures(must_draw: bool) -> "List[bytes]":
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures = []
    for number in pyplot.get_fignums() if must_draw else ():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", bbox_inches="tight")
        figures.append(file.getvalue())
    pyplot.close("all")
    return figures


def push(comm: Any, variables: "Mapping[str, Any]") -> None:
    """Set variables of the cells."""
    _namespace(comm).update(variables)


def pull(comm: Any, name: str) -> Any:
    """Return a variable of the cells."""
    return _namespace(comm)[name]
