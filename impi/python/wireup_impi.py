"""A process of any MPI, or of none, takes part in an IMPI job: libwireup_impi for Python.

    world = wireup_impi.World()
    world.send([1, 2, 3], to=5, tag=7)              # 64-bit integers; floats go as doubles, bytes as bytes
    data, source, tag = world.recv()
    total = world.allreduce([world.rank])
    world.close()

Data are bytes, or sequences of int or of float: all processes of one collective give the same kind and length.
"""

import array
import ctypes
import os

ANY = -1
BYTE, INT64, DOUBLE = 0, 7, 10
SUM, PROD, MIN, MAX, BAND, BOR, BXOR, LAND, LOR = range(9)


class Error(RuntimeError):
    """What wireup_impi_error says."""


class _Status(ctypes.Structure):
    _fields_ = [
        ("source", ctypes.c_int),
        ("tag", ctypes.c_int),
        ("bytes", ctypes.c_uint64),
        ("cancelled", ctypes.c_int),
    ]


def _library():
    here = os.path.dirname(os.path.abspath(__file__))
    # An installed module is in share/wireup/python of a prefix.
    libraries = os.path.join(here, "..", "..", "..", "lib")
    places = (here, libraries, os.path.join(libraries, "wireup"))
    files = (os.path.join(place, "libwireup_impi.so") for place in places)
    found = next(filter(os.path.exists, files), "libwireup_impi.so")
    lib = ctypes.CDLL(os.environ.get("WIREUP_IMPI_LIBRARY") or found)
    lib.wireup_impi_open.restype = ctypes.c_void_p
    lib.wireup_impi_error.restype = ctypes.c_char_p
    for start in (lib.wireup_impi_isend, lib.wireup_impi_issend, lib.wireup_impi_irecv):
        start.restype = ctypes.c_uint64
    return lib


def _pack(data):
    """The data as a ctypes buffer, its elements, and their type."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        raw, kind, count = bytes(data), BYTE, len(data)
    else:
        values = list(data)
        code, kind = ("d", DOUBLE) if any(isinstance(value, float) for value in values) else ("q", INT64)
        raw, count = array.array(code, values).tobytes(), len(values)
    return ctypes.create_string_buffer(raw, max(len(raw), 1)), count, kind


def _unpack(raw, kind):
    if kind == BYTE:
        return raw
    values = array.array("d" if kind == DOUBLE else "q")
    values.frombytes(raw)
    return values.tolist()


_WIDTH = {BYTE: 1, INT64: 8, DOUBLE: 8}


class World:
    """The world of all clients; this process is `rank` of `size`."""

    def __init__(self):
        self._lib = _library()
        self._world = ctypes.c_void_p(self._lib.wireup_impi_open())
        if not self._world:
            raise Error(self._lib.wireup_impi_error().decode())
        self.rank = self._lib.wireup_impi_rank(self._world)
        self.size = self._lib.wireup_impi_size(self._world)
        self.clients = self._lib.wireup_impi_clients(self._world)

    def client_of(self, rank):
        return self._call("client_of", rank)

    def send(self, data, to, tag=0, synchronous=False):
        buffer, count, kind = _pack(data)
        self._call("ssend" if synchronous else "send", buffer, ctypes.c_size_t(count), kind, to, tag)

    def probe(self, source=ANY, tag=ANY):
        """Waits for a message: its source, tag and length in bytes."""
        status = _Status()
        self._call("probe", source, tag, ctypes.byref(status))
        return status.source, status.tag, status.bytes

    def recv(self, source=ANY, tag=ANY, kind=INT64):
        """The next message as (data, source, tag); `kind` says what the sender sent."""
        source, tag, length = self.probe(source, tag)
        buffer, status = ctypes.create_string_buffer(max(length, 1)), _Status()
        count = ctypes.c_size_t(length // _WIDTH[kind])
        self._call("recv", buffer, count, kind, source, tag, ctypes.byref(status))
        return _unpack(buffer.raw[: status.bytes], kind), status.source, status.tag

    def barrier(self):
        self._call("barrier")

    def bcast(self, data, root=0):
        """The root's data; the others give data of the same kind and length."""
        return self._in_place("bcast", data, root)

    def reduce(self, data, op=SUM, root=0):
        return self._in_place("reduce", data, op, root)

    def allreduce(self, data, op=SUM):
        return self._in_place("allreduce", data, op)

    def scan(self, data, op=SUM):
        return self._in_place("scan", data, op)

    def gather(self, data, root=0):
        return self._collect("gather", data, root)

    def allgather(self, data):
        return self._collect("allgather", data)

    def scatter(self, data, count, kind=INT64, root=0):
        """`count` elements of the root's data, which the others may leave out."""
        own = ctypes.create_string_buffer(max(count * _WIDTH[kind], 1))
        source = _pack(data)[0] if self.rank == root else None
        self._call("scatter", source, ctypes.c_size_t(count), kind, own, root)
        return _unpack(own.raw[: count * _WIDTH[kind]], kind)

    def alltoall(self, data):
        """Part `r` of the data goes to process `r`; what they sent, in the order of ranks."""
        buffer, count, kind = _pack(data)
        result = ctypes.create_string_buffer(max(count * _WIDTH[kind], 1))
        self._call("alltoall", buffer, ctypes.c_size_t(count // self.size), kind, result)
        return _unpack(result.raw[: count * _WIDTH[kind]], kind)

    def close(self):
        """A barrier of all, then leaves."""
        world, self._world = self._world, None
        if self._lib.wireup_impi_close(world) != 0:
            raise Error(self._lib.wireup_impi_error().decode())

    def _call(self, name, *arguments):
        result = getattr(self._lib, f"wireup_impi_{name}")(self._world, *arguments)
        if result < 0:
            raise Error(self._lib.wireup_impi_error().decode())
        return result

    def _in_place(self, name, data, *arguments):
        buffer, count, kind = _pack(data)
        self._call(name, buffer, ctypes.c_size_t(count), kind, *arguments)
        return _unpack(buffer.raw[: count * _WIDTH[kind]], kind)

    def _collect(self, name, data, *root):
        buffer, count, kind = _pack(data)
        result = ctypes.create_string_buffer(max(self.size * count * _WIDTH[kind], 1))
        self._call(name, buffer, ctypes.c_size_t(count), kind, result, *root)
        if root and root[0] != self.rank:
            return None
        return _unpack(result.raw[: self.size * count * _WIDTH[kind]], kind)
