"""A job in a running launch: clients that look up the port of a server."""

import sys

import wireup

SERVER = """
from mpi4py import MPI
port = MPI.Open_port()
MPI.Publish_name("sum", port)
print("ready", flush=True)
clients = MPI.COMM_SELF.Accept(port)
print("sum", clients.reduce(None, root=MPI.ROOT))
clients.Disconnect()
MPI.Unpublish_name("sum", port)
"""
CLIENT = """
from mpi4py import MPI
server = MPI.COMM_WORLD.Connect(MPI.Lookup_name("sum"))
server.reduce(MPI.COMM_WORLD.rank + 1, root=0)
server.Disconnect()
"""
# MPICH and Intel MPI connect jobs over libfabric.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER": "tcp;ofi_rxm"}

with wireup.launch([sys.executable, "-c", SERVER], n=1, env=NETWORK, oversubscribe=True) as launch:
    next(event for event in launch if event.text == "ready\n")
    print(launch.spawn([sys.executable, "-c", CLIENT], n=3).wait())
    print(launch.wait().stdout[0], end="")
