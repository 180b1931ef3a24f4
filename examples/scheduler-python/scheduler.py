#!/usr/bin/env python3
"""Runs a program through wireup's agents, the way a scheduler does.

    scheduler.py --agent unix:/run/wireup/agent.sock -n 4 -- ./app input.dat
    scheduler.py --tls DIR --uid 1000 --node n1@10.0.0.1:7437:2 --node n2@10.0.0.2:7437:2 -- ./app

What the ranks print and read is this program's own output and input. Changes of the job's state are
told on standard error. SIGINT and SIGUSR1 go to the ranks, SIGTERM ends the job, and the exit code
is the job's. docs/scheduler.md explains the calls.
"""

import argparse
import os
import queue
import signal
import sys
import threading
import uuid

import grpc
from wireup.v1 import node_agent_pb2 as pb
from wireup.v1 import node_agent_pb2_grpc as rpc
from wireup.v1 import types_pb2 as types


def arguments():
    parser = argparse.ArgumentParser(usage="%(prog)s [OPTIONS] -- PROGRAM [ARG]...")
    parser.add_argument("--agent", default="unix:/run/wireup/agent.sock", help="unix:PATH")
    parser.add_argument("-n", type=int, default=1, help="ranks on that agent's node")
    parser.add_argument("--node", action="append", default=[], metavar="NAME@HOST:PORT:RANKS")
    parser.add_argument("--tls", metavar="DIR", help="ca.pem, cert.pem and key.pem of a scheduler")
    parser.add_argument("--uid", type=int, help="as whom; needed by root's agents over TLS")
    parser.add_argument("--pmi", default="AUTO", choices=types.PmiMode.keys())
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("program", nargs="+")
    return parser.parse_args()


def channel(address, node, tls):
    """A connection to an agent; over TLS the agent has to be the one of the node."""
    if tls is None:
        # Otherwise the socket's path is sent as the name of the server, which cannot be one.
        return grpc.insecure_channel(address, [("grpc.default_authority", "localhost")])

    def read(name):
        with open(os.path.join(tls, name), "rb") as file:
            return file.read()

    credentials = grpc.ssl_channel_credentials(read("ca.pem"), read("key.pem"), read("cert.pem"))
    return grpc.secure_channel(
        address, credentials, [("grpc.ssl_target_name_override", node)]
    )


def peers_of(nodes):
    """The nodes of a launch, with consecutive ranks."""
    peers, first = [], 0
    for text in nodes:
        name, place = text.split("@", 1)
        address, ranks = place.rsplit(":", 1)
        peers.append(
            types.PeerInfo(
                node_id=name, grpc_address=address, first_rank=first, num_ranks=int(ranks)
            )
        )
        first += int(ranks)
    return peers


def launch(args, agents, peers, launch_id):
    """Tells every node of the launch, its head last: then all others know it."""
    for index, agent in reversed(list(enumerate(agents))):
        request = pb.LaunchProcessesRequest(
            launch_id=launch_id,
            entrypoint=args.program[0],
            args=args.program[1:],
            tasks_per_node=peers[index].num_ranks if peers else args.n,
            first_rank=peers[index].first_rank if peers else 0,
            world_size=sum(peer.num_ranks for peer in peers) if peers else args.n,
            env=dict(variable.split("=", 1) for variable in args.env),
            pmi_mode=types.PmiMode.Value(args.pmi),
            peers=peers,
            head_node_index=0,
            job=types.JobSpec(
                stdin=types.StdinTarget(rank=0), hold_output=True, cwd=os.fsencode(os.getcwd())
            ),
            run_as=types.RunAs(uid=args.uid) if args.uid is not None else None,
        )
        agent.LaunchProcesses(request, timeout=30)


def copy_input(launch_id):
    """Messages for the ranks' standard input."""
    yield pb.StdioInput(launch_id=launch_id)
    while data := os.read(0, 65536):
        yield pb.StdioInput(data=data)


def copy_output(head, launch_id):
    """Copies what the ranks print until they have ended."""
    for piece in head.Stdio(copy_input(launch_id)):
        to = sys.stdout if piece.stream == pb.STDIO_STREAM_STDOUT else sys.stderr
        to.buffer.write(piece.data)
        to.buffer.flush()


def follow(head, launch_id, events):
    """Puts every event of the launch into a queue; at last the error, if there is one."""
    try:
        for event in head.Watch(pb.WatchRequest(launch_id=launch_id)):
            events.put(event)
    except grpc.RpcError as error:
        events.put(error)


def say(line):
    """A line on standard error, in one piece: what ranks print there comes from another thread."""
    sys.stderr.buffer.write(f"{line}\n".encode())
    sys.stderr.buffer.flush()


def describe(event):
    """One line about an event."""
    kind = event.WhichOneof("event")
    if kind == "launch":
        return "launch " + pb.LaunchState.Name(event.launch.state).removeprefix("LAUNCH_STATE_")
    if kind == "rank":
        state = pb.RankState.Name(event.rank.state).removeprefix("RANK_STATE_")
        return f"rank {event.rank.rank} {state}"
    return "warning: " + event.warning


def main():
    args = arguments()
    peers = peers_of(args.node)
    addresses = [peer.grpc_address for peer in peers] or [args.agent]
    names = [peer.node_id for peer in peers] or [None]
    agents = [
        rpc.NodeAgentStub(channel(address, name, args.tls))
        for address, name in zip(addresses, names)
    ]
    launch_id = str(uuid.uuid4())
    launch(args, agents, peers, launch_id)
    head = agents[0]

    def pass_on(number, _):
        head.Signal(pb.SignalRequest(launch_id=launch_id, signal=number), timeout=30)

    def abort(*_):
        request = pb.AbortProcessesRequest(launch_id=launch_id, reason="the scheduler was ended")
        head.AbortProcesses(request, timeout=30)

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGUSR1, pass_on)
    signal.signal(signal.SIGTERM, abort)

    # A daemon: one that waits for input must not keep this program.
    output = threading.Thread(target=copy_output, args=(head, launch_id), daemon=True)
    output.start()
    # Everything comes to the main thread by a queue: signal handlers run nowhere else.
    events = queue.SimpleQueue()
    threading.Thread(target=follow, args=(head, launch_id, events), daemon=True).start()

    ranks = []
    while True:
        try:
            event = events.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(event, grpc.RpcError):
            raise event
        if event.WhichOneof("event") != "complete":
            say(describe(event))
            continue
        ranks.extend(event.complete.ranks)
        if not event.complete.more:
            break
    output.join()
    for rank in ranks:
        how = f"signal {rank.signal}" if rank.signaled else f"code {rank.exit_code}"
        say(f"rank {rank.rank}: {how}")
    if event.complete.error_message:
        say(event.complete.error_message)
    return event.complete.exit_code if event.complete.exit_code >= 0 else 125


if __name__ == "__main__":
    try:
        sys.exit(main())
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
