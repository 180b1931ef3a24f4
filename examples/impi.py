"""Two MPI jobs of different MPIs in one world: each reduces with its own MPI, and then all with each other.

    export IMPI_AUTH_KEY=5678
    exec {output}< <(wireup impi -server 2); read -r server <&$output
    wireup run --impi $server,client=0 -n 2 python3 impi.py &    # with MPICH
    wireup run --impi $server,client=1 -n 2 python3 impi.py      # with Open MPI

docs/impi.md says what Python needs to find wireup_impi and the MPIs.
"""

import wireup_impi
from mpi4py import MPI

world = wireup_impi.World()
inside = MPI.COMM_WORLD.allreduce(world.rank)
lowest = MPI.COMM_WORLD.allreduce(world.rank, op=MPI.MIN)

# Exchange: the first process of each launch with the first of the next.
firsts = world.allgather([lowest])
if world.rank == lowest:
    order = sorted(set(firsts))
    place = order.index(lowest)
    world.send([inside], to=order[(place + 1) % len(order)], tag=1)
    got, source, _ = world.recv(tag=1)
    print(f"{MPI.Get_library_version().split()[0]}: inside {inside}, from process {source}: {got[0]}", flush=True)

# Reduction over all.
total = world.allreduce([world.rank])[0]
assert total == world.size * (world.size - 1) // 2, total
if world.rank == lowest:
    print(f"process {world.rank} of {world.size}: sum {total}", flush=True)
world.close()
