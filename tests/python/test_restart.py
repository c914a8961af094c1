"""What @lockstep.restartable looks at when it leaves a function, in forked processes too."""
import os
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from lockstep import _restart


class Threads(unittest.TestCase):
    def test_those_of_the_interpreter_are_ours_after_a_fork(self):
        started = threading.Event()
        ends, told = os.pipe()
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=started.wait)
            thread.start()
            ours = {str(number) for number in _restart._our_threads()}
            os.write(told, b"all" if set(os.listdir("/proc/self/task")) <= ours else b"some")
            started.set()
            thread.join()
            os._exit(0)
        os.close(told)
        self.addCleanup(os.close, ends)
        self.assertEqual(b"all", os.read(ends, 10))
        self.assertEqual((child, 0), os.waitpid(child, 0))

    def test_a_thread_that_runs_is_told_from_none(self):
        self.assertTrue(_restart._runs(threading.get_native_id()), "it looks at itself")
        self.assertFalse(_restart._runs(2**30), "there is none")


if __name__ == "__main__":
    unittest.main()
