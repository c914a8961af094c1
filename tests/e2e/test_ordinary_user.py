"""The same without root: as `nobody` where we are root, else as whoever we are."""
import os
import unittest

import test_watcher
from harness import NOBODY, QUICK_LIMITS, Run, RunTest, ddp

UID = NOBODY if os.geteuid() == 0 else None
# To each rank once. What stands still is to be looked into, for which the own processes may be traced or not.
FAULTS = [
    ["kill:0:5:forward:1", "native-gil:1:10:forward:2", "native:2:15:forward:3", "stop:3:20:forward:4"],
    ["stop:0:5:forward:1", "abort:1:10:forward:2", "gil:2:15:forward:3", "native:3:20:forward:4"],
    ["native:0:5:forward:1", "stop:1:10:forward:2", "kill:2:15:forward:3", "native-gil:3:20:forward:4"],
    ["gil:0:5:forward:1", "native:1:10:forward:2", "stop:2:15:forward:3", "abort:3:20:forward:4"],
]
SYMPTOMS = {"kill": "crash", "abort": "crash", "stop": "stopped", "native": "not_entered", "gil": "spinning", "native-gil": "spinning"}


class OrdinaryUser(RunTest):
    uid = UID

    def test_faults_of_each_rank(self):
        for faults in FAULTS:
            with self.subTest(faults):
                run = Run(self, "ddp.py", *ddp(faults=faults), options=QUICK_LIMITS)
                run.finish()
                symptoms = [SYMPTOMS[fault.partition(":")[0]] for fault in faults]
                self.assert_repaired(run, range(4), set(symptoms))
                self.assertEqual(symptoms, [incident["symptom"] for incident in run.faults()], run)
                self.assertEqual(os.geteuid() if UID is None else UID, run.out.stat().st_uid, run)
                run.assert_undisturbed_result()


class Watcher(test_watcher.WatcherTest):
    uid = UID

    def test_killed_and_resumed(self):
        self.assert_killed_and_resumed()

    @unittest.skipUnless(UID, "it takes two users")
    def test_is_not_resumed_by_another(self):
        """What root makes there would be closed to the run's own user."""
        run = self.start_long_job()
        self.kill_watcher(run)
        run.uid = None
        self.assertEqual(2, run.resume().wait(30), run)
        self.assertIn(f"{run.dir} belongs to uid {UID}: go on with it as that user", run.stderr(), run)
        run.uid = UID
        run.resume()
        run.wait_for_step(run.steps()[-1]["step"] + 5)
        self.assertEqual(0, run.ask("stop").returncode, run)
        run.finish(1)

    @unittest.skipUnless(UID, "it takes two users")
    def test_that_may_not_be_asked_is_not_gone(self):
        run = self.start_long_job()
        os.chown(run.dir / "control.sock", 0, 0)
        for command in "status", "incidents", "stop":
            answer = run.ask(command)
            self.assertEqual((2, True), (answer.returncode, "Permission denied" in answer.stderr), answer)


if __name__ == "__main__":
    unittest.main()
