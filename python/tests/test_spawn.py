"""Jobs that are started in a running launch, with MPI."""

import asyncio
import sys
import unittest

import wireup
from support import CleanCase

# The first job accepts a connection from each job that comes, by a name that it publishes.
SERVER = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
port = MPI.Open_port() if world.rank == 0 else None
if world.rank == 0:
    MPI.Publish_name("meeting", port)
    print("published", flush=True)
for _ in range(int(sys.argv[1])):
    clients = world.Accept(port)
    both = clients.Merge(False)
    assert both.allreduce(1) == world.size + clients.remote_size
    both.Free()
    clients.Disconnect()
if world.rank == 0:
    MPI.Unpublish_name("meeting", port)
    MPI.Close_port(port)
"""
CLIENT = """
from mpi4py import MPI
world = MPI.COMM_WORLD
assert MPI.Comm.Get_parent() == MPI.COMM_NULL
port = MPI.Lookup_name("meeting") if world.rank == 0 else None
servers = world.Connect(port)
both = servers.Merge(True)
print(world.rank, world.size, both.allreduce(1), flush=True)
both.Free()
servers.Disconnect()
"""
# Networks over which MPICH and Intel MPI connect jobs (docs/spawn.md).
ENV = {"MPIR_CVAR_CH4_NETMOD": "ofi", "I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER": "tcp;ofi_rxm"}


def server(jobs, **options):
    command = [sys.executable, "-c", SERVER, str(jobs)]
    return wireup.launch(command, n=2, env=ENV, oversubscribe=True, timeout=100, **options)


class Spawn(CleanCase):
    def test_spawned_job_connects_with_initial_job(self):
        for options in [{}, {"virtual_nodes": 2}]:
            with self.subTest(options), server(1, **options) as launch:
                for event in launch:
                    if event.text == "published\n":
                        break
                job = launch.spawn([sys.executable, "-c", CLIENT], n=2)
                self.assertEqual(job.wait(60), {0: 0, 1: 0})
                launch.wait()
                self.assertEqual(job.stdout, {0: "0 2 4\n", 1: "1 2 4\n"})

    def test_jobs_are_spawned_while_events_are_awaited(self):
        async def main():
            async with server(2) as launch:
                published = asyncio.get_running_loop().create_future()

                async def read():
                    async for event in launch:
                        if event.text == "published\n":
                            published.set_result(None)

                reader = asyncio.create_task(read())
                await published
                jobs = []
                for n in (1, 2):
                    jobs.append(await launch.spawn_async([sys.executable, "-c", CLIENT], n=n))
                    await jobs[-1].wait_async()
                await reader
                await launch.wait_async()
                return [job.stdout for job in jobs]

        self.assertEqual(asyncio.run(main()), [{0: "0 1 3\n"}, {0: "0 2 4\n", 1: "1 2 4\n"}])


if __name__ == "__main__":
    unittest.main()
