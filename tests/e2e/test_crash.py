"""A rank dies: it is named, all ranks go on from memory, and the result is that of an undisturbed run, bit for bit."""
import unittest

from harness import Run, RunTest, ddp, free_port

# Rank 1 asks a server of its own, which nobody runs, while the others wait for it in a collective.
OWN_CONNECTION = """import socket, sys, torch, torch.distributed as dist, lockstep
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
server = ("127.0.0.1", int(sys.argv[1]))
def asks():
    socket.create_connection(server)
def asks_where_torch_finds_nothing():
    try:
        torch.load("/nowhere/cache.pt")
    except FileNotFoundError:
        socket.create_connection(server)
def asks_in_another_process():
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        pool.submit(socket.create_connection, server).result()
dist.init_process_group("gloo")
ckpt = lockstep.Checkpoint({"weights": torch.zeros(1)})
for step in range(ckpt.restore() + 1, 5):
    if dist.get_rank() == 1 and step == int(sys.argv[2]):
        globals()[sys.argv[3]]()
    dist.all_reduce(torch.ones(1))
    ckpt.step(step)
"""

# The connections of rank 1 break in the first two epochs, and nobody is to blame; how the program tells what it then meets: argv[1].
CUT_OFF = """import os, socket, sys, torch, torch.distributed as dist, lockstep
dist.init_process_group("gloo")
ckpt = lockstep.Checkpoint({"weights": torch.zeros(1)})
def cut():
    for fd in os.listdir("/proc/self/fd"):
        try:
            link = socket.socket(fileno=os.dup(int(fd)))
            if link.family in (socket.AF_INET, socket.AF_INET6) and int(os.environ["MASTER_PORT"]) not in (link.getsockname()[1], link.getpeername()[1]):
                link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def goes_wrong():
    raise ValueError("of its own")
for step in range(ckpt.restore() + 1, 5):
    if dist.get_rank() == 1 and step == 3 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 2 and sys.argv[1] != "own":
        cut()
    try:
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 1 and step == 3 and sys.argv[1] == "own":
            raise RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer")
    except RuntimeError as error:
        if sys.argv[1] == "from":
            raise RuntimeError(f"training failed in step {step}") from error
        if sys.argv[1] == "value":
            raise ValueError(f"training failed in step {step}") from error
        if sys.argv[1] == "within":
            raise RuntimeError(f"training failed in step {step}")
        goes_wrong()
    ckpt.step(step)
"""


class Crash(RunTest):
    def test_undisturbed(self):
        run = Run(self, "ddp.py", *ddp())
        run.finish()
        self.assertEqual([], run.incidents(), run)
        self.assertEqual(1, run.epoch(), run)
        run.assert_undisturbed_result()

    def test_each_rank_killed(self):
        run = Run(self, "ddp.py", *ddp(faults=[f"kill:{rank}:{5 + 5 * rank}:forward:{rank + 1}" for rank in range(4)]))
        run.finish()
        self.assert_repaired(run, [0, 1, 2, 3], {"crash"})
        self.assert_steps_lost(run, [5, 10, 15, 20])
        run.assert_undisturbed_result()

    def test_killed_at_each_place(self):
        places = ["update", "loss", "saved"]
        faults = [f"kill:{index}:{5 + 5 * index}:{place}:{index + 1}" for index, place in enumerate(places)]
        run = Run(self, "ddp.py", *ddp(faults=faults))
        run.finish()
        self.assert_repaired(run, [0, 1, 2], {"crash"})
        run.assert_undisturbed_result()

    def test_survivors_finish_their_copies(self):
        """Rank 2 dies right behind its copy of step 5, while rank 1 has yet to make its own: nothing is done again.

        Rank 0 makes step 5 long, since what it is worth to wait depends on what would be lost.
        """
        run = Run(self, "ddp.py", *ddp(faults=["sleep3:0:5:forward:1", "nap400:1:5:loss:1", "kill:2:5:saved:1"]))
        run.finish()
        self.assert_repaired(run, [2], {"crash"})
        self.assertEqual(6, min(line["step"] for line in run.steps() if line["epoch"] == 2), run)
        run.assert_undisturbed_result()

    def test_code_that_can_t_be_compiled(self):
        script = self.folder() / "broken.py"
        script.write_text("import os\n\ndef f(:\n")
        for how in ("zygote", "exec"):
            run = Run(self, str(script), ranks=1, options=["--start-method", how])
            run.finish(1)
            self.assertIn("SyntaxError at broken.py:3", run.stderr(), run)

    def test_a_connection_of_the_program_is_no_lost_peer(self):
        """At the first step it ends the job at once, later when it comes again: nobody searches for a machine."""
        script = self.folder() / "own.py"
        script.write_text(OWN_CONNECTION)
        for step, epochs, how, line in ((0, 1, "asks", 6), (3, 2, "asks", 6), (0, 1, "asks_where_torch_finds_nothing", 11),
                                        (3, 2, "asks_where_torch_finds_nothing", 11), (0, 1, "asks_in_another_process", 14)):
            run = Run(self, str(script), str(free_port()), str(step), how, ranks=3)
            run.finish(1)
            self.assertEqual([["1"]] * epochs, run.suspects(), run)
            self.assertEqual(epochs, run.epoch(), run)
            self.assertIn(f"ConnectionRefusedError at own.py:{line} in {how}", run.status()["verdict"], run)
            self.assertIn("this is in the program, not in the machine", run.status()["verdict"], run)

    def test_a_lost_peer_told_in_other_words_blames_nobody(self):
        script = self.folder() / "cut.py"
        script.write_text(CUT_OFF)
        for how in ("from", "value", "within"):
            run = Run(self, str(script), how, ranks=3)
            run.finish()
            self.assertEqual(3, run.epoch(), run)
            for incident in run.incidents():
                self.assertIn("a lost connection is secondary: the cause behind it is unknown", incident["evidence"], run)

    def test_an_error_of_its_own_after_a_lost_peers_is_the_programs(self):
        script = self.folder() / "own.py"
        script.write_text(CUT_OFF)
        run = Run(self, str(script), "own", ranks=3)
        run.finish(1)
        self.assertEqual([["1"]] * 2, run.suspects(), run)
        self.assertIn("ValueError at own.py:13 in goes_wrong struck twice at step 3: this is in the program", run.status()["verdict"], run)

    def test_other_ways_to_die(self):
        run = Run(self, "ddp.py", *ddp(faults=["abort:1:5:forward:1", "exit3:2:10:forward:2", "raise:3:15:update:3"]))
        run.finish()
        self.assert_repaired(run, [1, 2, 3], {"crash", "exit"})
        symptoms = [incident["symptom"] for incident in run.faults()]
        self.assertEqual(["crash", "exit", "exit"], symptoms, run)
        for text, incident in zip(["SIGABRT", "exit code 3", "ValueError"], run.faults()):
            self.assertIn(text, incident["headline"], run)
        run.assert_undisturbed_result()

    def assert_steps_lost(self, run, died_in):
        """A rank that dies in step s has finished s - 1, as have all others; where they went on, the job's log says."""
        for epoch, (step, incident) in enumerate(zip(died_in, run.faults()), 2):
            went_on = min(line["step"] for line in run.steps() if line["epoch"] == epoch)
            self.assertEqual(step - went_on, incident["steps_lost"], f"incident {incident['id']}\n{run}")


if __name__ == "__main__":
    unittest.main()
