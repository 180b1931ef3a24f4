"""Messages between an executor and its ranks: lists of buffers on a socket, large ones without copies.

One machine: a Unix socket in a directory of the user's. Other hosts: TCP, where each message has a MAC with a key that the ranks got
through the launcher; it is not encrypted.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import pickle
import socket
import struct
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, List, Optional, Sequence, Union

    Buffer = Union[bytes, bytearray, memoryview]
    #: A message, or a pickled object with its buffers.
    Parts = Sequence[Buffer]

#: Name of the executor's script as a module of the ranks; not `__main__`, so that it only defines what it has.
MAIN = "__wireup_main__"

_MAC_SIZE = 32
_MOST_PARTS = 1 << 20
# sendmsg takes no more at once (IOV_MAX).
_MOST_VECTORS = 1024


@functools.lru_cache(maxsize=None)
def _dumps() -> "Callable[..., bytes]":
    try:
        dumps: "Callable[..., bytes]" = importlib.import_module("cloudpickle").dumps
    except ImportError:
        return pickle.dumps
    return dumps


class _NamePickler(pickle.Pickler):
    """Pickles functions and classes by name, which the other side cannot find in a script."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ in (None, "__main__", MAIN):
            raise pickle.PicklingError(f"{value!r} is defined in a script")
        return NotImplemented


def encode(value: Any) -> "List[Buffer]":
    """Pickle an object; its large buffers (arrays) are parts of their own.

    cloudpickle, if there is one, is imported for what pickle cannot send; the import takes longer than most tasks.
    """
    buffers: "list[pickle.PickleBuffer]" = []
    if "cloudpickle" not in sys.modules:
        file = io.BytesIO()
        try:
            _NamePickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
            return [file.getbuffer(), *(buffer.raw() for buffer in buffers)]
        except Exception:  # whatever the object's own methods raise
            buffers.clear()
    data = _dumps()(value, protocol=5, buffer_callback=buffers.append)
    return [data, *(buffer.raw() for buffer in buffers)]


def decode(parts: Parts, unpickler: "Callable[..., pickle.Unpickler]" = pickle.Unpickler) -> Any:
    """Return the object that these parts are of."""
    return unpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


class Channel:
    """One end of a connection between executor and rank."""

    def __init__(self, connection: socket.socket, key: Optional[bytes] = None, is_rank: bool = False) -> None:
        self._socket = connection
        self._key = key
        self._counts = [0, 0]
        self._names = (b"rank", b"executor") if is_rank else (b"executor", b"rank")
        self._nonce = b""
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if key is not None:
            # A nonce of each end: messages of another connection are not accepted on this one.
            own = os.urandom(16)
            connection.sendall(own)
            other = bytes(self._receive_exactly(16))
            self._nonce = own + other if is_rank else other + own

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def end(self) -> None:
        """End the connection for both sides; the descriptor stays until :meth:`close`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def settimeout(self, seconds: Optional[float]) -> None:
        """Limit the time of each call."""
        self._socket.settimeout(seconds)

    def _mac(self, direction: int, parts: "Iterable[Buffer]") -> bytes:
        import hashlib

        assert self._key is not None
        mac = hashlib.blake2b(self._nonce, key=self._key, digest_size=_MAC_SIZE)
        mac.update(self._names[direction] + struct.pack("!Q", self._counts[direction]))
        self._counts[direction] += 1
        for part in parts:
            mac.update(part)
        return mac.digest()

    def send(self, parts: Parts) -> None:
        """Send a message."""
        views = [memoryview(part).cast("B") for part in parts]
        header = struct.pack(f"!I{len(views)}Q", len(views), *map(len, views))
        vectors = [memoryview(header), *(view for view in views if view)]
        if self._key is not None:
            vectors.append(memoryview(self._mac(0, vectors)))
        while vectors:
            sent = self._socket.sendmsg(vectors[:_MOST_VECTORS])
            done = 0
            while done < len(vectors) and sent >= len(vectors[done]):
                sent -= len(vectors[done])
                done += 1
            del vectors[:done]
            if sent:
                vectors[0] = vectors[0][sent:]

    def receive(self, limit: Optional[int] = None) -> "List[bytearray]":
        """Receive a message of at most ``limit`` bytes. Raises :class:`EOFError` at the end."""
        header = self._receive_exactly(4)
        (count,) = struct.unpack("!I", header)
        if count > _MOST_PARTS or limit is not None and 8 * count > limit:
            raise ValueError(f"invalid message: it has {count} parts")
        lengths = self._receive_exactly(8 * count)
        sizes = struct.unpack(f"!{count}Q", lengths)
        if limit is not None and sum(sizes) > limit:
            raise ValueError(f"invalid message of {sum(sizes)} bytes: at most {limit} are allowed")
        parts = [self._receive_exactly(size) for size in sizes]
        if self._key is not None:
            import hmac

            expected = self._mac(1, [header + lengths, *parts])
            if not hmac.compare_digest(expected, self._receive_exactly(_MAC_SIZE)):
                raise ValueError("invalid message: wrong MAC")
        return parts

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise EOFError("the connection has ended")
            view = view[count:]
        return data


def connect(path: str, addresses: "Iterable[Sequence[Any]]", key: Optional[bytes]) -> Channel:
    """Connect a rank with its executor: to a Unix socket, or to the first address that answers."""
    if key is None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        return Channel(connection, is_rank=True)
    errors = []
    for host, port in addresses:
        try:
            connection = socket.create_connection((host, port), timeout=10)
        except OSError as error:
            errors.append(f"{host}: {error}")
            continue
        channel = Channel(connection, key, is_rank=True)
        channel.settimeout(None)
        return channel
    raise ConnectionError(f"cannot connect to the executor: {'; '.join(errors)}")


def addresses_towards(hosts: "Iterable[str]") -> "list[str]":
    """Return this machine's addresses from which these hosts are reached, and its name."""
    found = []
    for host in hosts:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the kernel chooses the address.
            probe.connect((host, 9))
            found.append(str(probe.getsockname()[0]))
    return list(dict.fromkeys([*(address for address in found if not address.startswith("127.")), socket.gethostname()]))
