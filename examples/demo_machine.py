"""The demo's last act: a machine is lost. The same training runs on two machines while a third stands by; all processes of the second die at once,
as when it loses power. The third takes its place, with what the first one kept of the lost one's state in its memory. Machines are process trees of
this one."""
import contextlib
import socket

from demo_job import Job, say

NAMED = [("node_lost", ["b"])]


def run(flags):
    """The first machine's job, once it is done."""
    address, ranks = f"127.0.0.1:{free_port()}", flags.ranks // 2
    say(f"two machines of {ranks} ranks train, a third stands by; the second will lose power")
    with contextlib.ExitStack() as machines:
        def machine(name, quiet, *words):
            return machines.enter_context(Job(flags, "machine_" + name, quiet, ranks, ["--node-name", name, *words]))

        together = ["--nnodes", "2", "--rdzv-endpoint", address]
        first = machine("a", False, "--node-rank", "0", "--standbys", "1", *together)
        second = machine("b", True, "--node-rank", "1", *together)
        first.wait_for_step(0)
        spare = machine("c", True, "--coordinator", address)
        first.wait_for(lambda status: status["standbys"] == ["c"])
        ranks_then = first.wait_for_step(flags.steps // 2)
        if ranks_then is not None:
            first.say_above_view("machine b loses power (kill -KILL of all its processes)", ranks_then)
            second.power_off()
        for job in (first, spare):
            job.end_well()
    return first


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]
