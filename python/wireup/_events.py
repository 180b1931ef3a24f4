"""The events of a launch, as lines of its status stream (docs/status.md)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Mapping, Optional


@dataclass(frozen=True)
class Event:
    """Something that happened in a launch: one line of the status stream."""

    __module__ = "wireup"

    #: ``"job"``, ``"rank"``, ``"output"``, ``"node"``, ``"spawned"``, ``"fence"``, ``"warning"``, ``"result"``, …
    kind: str
    #: Microseconds since the start of the launch.
    us: int
    #: All fields of the line.
    fields: Mapping[str, Any]

    @property
    def rank(self) -> Optional[int]:
        """Rank that the event is about."""
        return self.fields.get("rank")

    @property
    def spawned_job(self) -> Optional[int]:
        """Number of the spawned job that the rank belongs to; ``None`` for the initial job."""
        return self.fields.get("spawned_job")

    @property
    def state(self) -> Optional[str]:
        """New state of a rank (``"started"``, ``"connected"``, ``"ended"``, …) or job (``"running"``, ``"ending"``, …)."""
        return self.fields.get("state")

    @property
    def stream(self) -> Optional[str]:
        """``"stdout"`` or ``"stderr"``, of output."""
        return self.fields.get("stream")

    @property
    def data(self) -> bytes:
        """Bytes of output."""
        if "base64" in self.fields:
            return base64.b64decode(self.fields["base64"])
        text: str = self.fields.get("text", "")
        return text.encode()

    @property
    def text(self) -> str:
        """Text of output, or of a warning."""
        text: Optional[str] = self.fields.get("text", self.fields.get("message"))
        return self.data.decode(errors="replace") if text is None else text


class LineSplitter:
    """Cuts what is read from a status stream into its lines."""

    def __init__(self) -> None:
        self._parts: "list[bytes]" = []

    def feed(self, data: bytes) -> "list[bytes]":
        """Take further bytes; return the lines that are whole now."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts = []
        if rest:
            self._parts.append(rest)
        return lines


def parse(line: bytes) -> Event:
    """Parse one line of a status stream."""
    fields = json.loads(line)
    return Event(fields["event"], fields["us"], fields)
