"""State of a rank of an executor, in a module that both import quickly."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

#: Data of a rank of an executor, which stays between its functions: these are often copies, with copies of their globals.
rank_data: "Dict[str, Any]" = {}

#: Whether a rank imports the executor's script, which must not start executors then.
is_importing = False
