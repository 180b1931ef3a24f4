"""Types of arguments. The modules that an executor needs to start its launch name them without importing `typing`."""

from __future__ import annotations

import os
from typing import Sequence, Union

Word = Union[str, "os.PathLike[str]"]
#: Value of an option of ``wireup run``: ``True`` for one without a value, a sequence for one that is repeated (``hosts``: joined
#: by commas), ``None`` and ``False`` for one that is not given.
Option = Union[None, bool, int, float, Word, Sequence[Word]]
