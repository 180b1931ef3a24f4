#!/usr/bin/env python3
"""An allocator for wireup: gives nodes and slots of a pool to launches that ask for them.

    allocator.py SOCKET NODE:SLOTS[,NODE:SLOTS]...
    wireup run --allocator SOCKET ...

Every launch connects once and is served by a task of its own. What a launch may have is a matter of
policy; this one gives what is free, makes requests wait until something is, and takes back what a
launch held when its connection ends. docs/allocations.md describes the lines.
"""

import asyncio
import json
import os
import sys

VERSION = 1


class Pool:
    """Free slots, and the holders of the others."""

    def __init__(self, nodes):
        self.free = nodes
        self.held = {}
        self.last = 0
        self.changed = asyncio.Condition()

    def choose(self, wanted):
        """What is free of what is wanted, or nothing."""
        named = {host["name"]: host.get("slots") for host in wanted.get("hosts", [])}
        names = [name for name in self.free if not named or name in named]
        if "slots" not in wanted:
            count = wanted.get("nodes", len(named))
            chosen = {name: named.get(name) or self.free[name] for name in names}
            chosen = {name: slots for name, slots in chosen.items() if 0 < slots <= self.free[name]}
            return dict(list(chosen.items())[:count]) if 0 < count <= len(chosen) else {}
        left, chosen = wanted["slots"], {}
        for name in names:
            some = min(left, self.free[name])
            if some:
                chosen[name] = some
                left -= some
        return chosen if left == 0 else {}

    def take(self, owner, identifier, chosen):
        if identifier is None:
            self.last += 1
            identifier = f"pool-{self.last}"
        shares = self.held.setdefault((owner, identifier), {})
        for name, slots in chosen.items():
            self.free[name] -= slots
            shares[name] = shares.get(name, 0) + slots
        return identifier

    def give_back(self, owner, identifier):
        shares = self.held.pop((owner, identifier), {})
        for name, slots in shares.items():
            self.free[name] += slots
        return shares


def shares(chosen):
    return [{"name": name, "slots": slots} for name, slots in chosen.items()]


class Launch:
    """One connection."""

    def __init__(self, pool, writer):
        self.pool = pool
        self.writer = writer
        self.waiting = {}

    def answer(self, kind, **fields):
        self.writer.write(json.dumps({kind: fields}).encode() + b"\n")

    async def notify(self):
        async with self.pool.changed:
            self.pool.changed.notify_all()

    async def grow(self, request):
        """Gives what is asked for as soon as it is free."""
        async with self.pool.changed:
            while not (chosen := self.pool.choose(request)):
                await self.pool.changed.wait()
            identifier = self.pool.take(self, request.get("id"), chosen)
        self.answer("granted", number=request["number"], id=identifier, nodes=shares(chosen))

    async def request(self, request):
        number, identifier = request["number"], request.get("id")
        if request["directive"] in ("new", "extend"):
            if request["directive"] == "extend" and identifier is None:
                self.answer("refused", number=number, reason="a launch keeps the nodes it was given")
            elif request.get("infos", {}).get("pmix.alloc.queue") == "closed":
                self.answer("refused", number=number, reason="queue closed is closed")
            else:
                self.waiting[number] = asyncio.ensure_future(self.grow(request))
        elif request["directive"] == "release" and identifier is not None:
            back = self.pool.give_back(self, identifier)
            if back:
                self.answer("granted", number=number, id=identifier, nodes=shares(back))
            else:
                self.answer("refused", number=number, reason=f"there is no allocation {identifier}")
            await self.notify()
        else:
            # What the launch does with its own nodes does not concern this pool.
            self.answer("granted", number=number)

    async def line(self, message):
        (kind, fields), = message.items()
        if kind == "hello" and fields["version"] != VERSION:
            raise ValueError(f"version {fields['version']} is not spoken here")
        if kind == "request":
            await self.request(fields)
        elif kind == "cancel" and fields["number"] in self.waiting:
            self.waiting.pop(fields["number"]).cancel()
        elif kind == "ended":
            self.pool.give_back(self, fields["id"])
            await self.notify()

    async def end(self):
        for task in self.waiting.values():
            task.cancel()
        for owner, identifier in list(self.pool.held):
            if owner is self:
                self.pool.give_back(self, identifier)
        await self.notify()
        self.writer.close()


async def main(path, nodes):
    pool = Pool(nodes)

    async def serve(reader, writer):
        launch = Launch(pool, writer)
        try:
            while line := await reader.readline():
                await launch.line(json.loads(line))
        except (ValueError, KeyError, ConnectionError) as error:
            print(f"allocator: {error}", file=sys.stderr)
        finally:
            await launch.end()

    if os.path.exists(path):
        os.unlink(path)
    server = await asyncio.start_unix_server(serve, path, limit=16 << 20)
    os.chmod(path, 0o600)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    given = (node.split(":") for node in sys.argv[2].split(","))
    try:
        asyncio.run(main(sys.argv[1], {name: int(slots) for name, slots in given}))
    except KeyboardInterrupt:
        pass
