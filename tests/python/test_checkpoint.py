"""lockstep.Checkpoint against a starter of the test's own: what is saved after a crash comes back bit for bit, and its steps are counted on."""
import copy
import gc
import io
import os
import subprocess
import sys
import unittest
import warnings
import weakref
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import PACKAGE, Starter, adam, digest, in_worker, lbfgs, lockstep, momentum, nn, torch, train


class Resume(Starter):
    def check_equal(self, make_optimizer, **options):
        self.starter.start_epoch(1)
        _, undisturbed = self.work(lambda: train(make_optimizer, 12, **options))
        self.starter.start_epoch(2)
        self.assertIsNone(self.work(lambda: train(make_optimizer, 12, die_in=8, **options)))
        newest = max(self.starter.done())
        self.starter.start_epoch(3, restore=newest)
        last, resumed = self.work(lambda: train(make_optimizer, 12, **options))
        self.assertEqual((2, last), newest)
        self.assertEqual(resumed, undisturbed)
        return last

    def test_adam(self):
        self.assertEqual(self.check_equal(adam), 7)

    def test_adam_copied_beside(self):
        with mock.patch("lockstep.checkpoint._SMALL", 0):
            self.assertIn(self.check_equal(adam), (6, 7))  # the copy of step 7 may or may not have ended before the kill

    def test_momentum(self):
        self.check_equal(momentum)

    def test_lbfgs(self):
        self.check_equal(lbfgs)

    def test_modules_that_torch_has_compiled(self):
        def make(kind):
            net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
            return torch.jit.script(net) if kind == "scripted" else torch.jit.trace(net, torch.ones(2, 3), check_trace=False)

        def save(kind):
            net = make(kind)
            optimizer = momentum(net.parameters())
            ckpt = lockstep.Checkpoint({"net": net, "optimizer": optimizer})
            for i in range(2):
                net(torch.randn(2, 3)).sum().backward()
                optimizer.step()
                ckpt.step(i)
            return digest(net.state_dict())

        def restore(kind):
            net = make(kind)
            lockstep.Checkpoint({"net": net, "optimizer": momentum(net.parameters())}).restore()
            return digest(net.state_dict())

        for kind in ("scripted", "traced"):
            with self.subTest(kind):
                self.starter.start_epoch(1)
                saved = self.work(save, kind)
                self.starter.start_epoch(2, restore=(1, 1))
                self.assertEqual(saved, self.work(restore, kind))

    def test_modules_that_are_not_made_yet(self):
        def make():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # lazy modules are new, torch says
                return nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())

        def save():
            net = make()
            net(torch.ones(3, 5))
            lockstep.Checkpoint({"net": net}).step(0)
            return net.state_dict()

        def restore():
            net = make()
            lockstep.Checkpoint({"net": net}).restore()
            found = {key: value.clone() for key, value in net.state_dict().items()}
            net(torch.ones(3, 5))
            return found

        self.starter.start_epoch(1)
        saved = self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertEqual(digest(saved), digest(self.work(restore)))

    def test_every_third_step(self):
        self.assertEqual(self.check_equal(adam, every=3), 5)

    def test_not_lazy(self):
        self.assertEqual(self.check_equal(adam, lazy=False), 7)


class Numbers(Starter):
    """Of steps, as a script counts them."""

    LENGTH, SAID = 5, "step 0 comes after step 4: Lockstep counts on, and calls it step 5"

    def epochs(self, die_at=None):
        """Four epochs of five steps, whose numbers begin anew in each: (what restore() gave, the steps that this process made)."""
        progress, made = {"epoch": 0}, []
        ckpt = lockstep.Checkpoint({"progress": progress})
        last = found = ckpt.restore()
        for epoch in range(progress["epoch"], 4):
            progress["epoch"] = epoch
            for i in range(last + 1, self.LENGTH):
                if (epoch, i) == die_at:
                    return found, made
                made.append((epoch, i))
                ckpt.step(i)
            last = -1
        return found, made

    def test_one_that_begins_anew_with_each_epoch(self):
        everything = [(epoch, i) for epoch in range(4) for i in range(self.LENGTH)]
        self.starter.start_epoch(1)
        (found, first), stderr = in_worker(self.epochs, (2, 3))
        self.assertEqual((-1, everything[:13], f"lockstep: {self.SAID}\n"), (found, first, stderr))
        self.assertEqual((12, {(1, 11), (1, 12)}), (self.starter.field(24), self.starter.done()))
        self.starter.start_epoch(2, restore=(1, 12))
        found, second = self.work(self.epochs)
        self.assertEqual((2, everything[13:]), (found, second))
        self.assertEqual((19, {(2, 18), (2, 19)}), (self.starter.field(24), self.starter.done()))

    def test_a_script_that_goes_back_in_itself(self):
        def work():
            ckpt = lockstep.Checkpoint({"v": [1]})
            for i in (0, 1, 2, 1, 2, 2):
                ckpt.step(i)

        self.starter.start_epoch(1)
        self.assertIn("step 1 comes after step 2: Lockstep counts on, and calls it step 3", in_worker(work)[1])
        self.assertEqual(5, self.starter.field(24), "one that is told twice is another")

    def test_steps_alone_that_fall_are_said_once(self):
        def work():
            for i in (0, 1, 2, 0, 1, 0):
                lockstep.step(i)

        self.starter.start_epoch(1)
        self.assertRegex(in_worker(work)[1], "^lockstep: step 0 comes after step 2: count steps over all epochs of the data, .*\n$")

    def test_one_that_has_stepped_ends_with_its_function(self):
        """A restartable function that is left must take along all that it made, process groups too, without a collector."""
        def work():
            gc.disable()
            ckpt = lockstep.Checkpoint({"v": [1]})
            ckpt.restore()
            ckpt.step(0)
            known = weakref.ref(ckpt)
            del ckpt
            return known() is None

        self.starter.start_epoch(1)
        self.assertTrue(self.work(work))

    def test_two_that_take_turns_are_refused(self):
        def work():
            first, second = (lockstep.Checkpoint({"v": [1]}) for _ in range(2))
            first.step(0)
            second.step(0)
            try:
                first.step(1)
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        self.assertIn("two Checkpoints take turns", in_worker(work)[0])

    def stages(self):
        """What restore() gave in each of two stages of three steps."""
        found = []
        for _ in range(2):
            ckpt = lockstep.Checkpoint({"v": [1]})
            found.append(ckpt.restore())
            for i in range(3):
                ckpt.step(i)
        return found

    def test_one_after_another_counts_on_and_is_given_nothing_old(self):
        self.starter.start_epoch(1)
        found, stderr = in_worker(self.stages)
        self.assertEqual(([-1, -1], {(1, 4), (1, 5)}), (found, self.starter.done()))
        self.assertIn("step 0 comes after step 2: Lockstep counts on, and calls it step 3", stderr)
        self.starter.start_epoch(2, restore=(1, 5))
        found, stderr = in_worker(self.stages)
        self.assertEqual([2, -1], found)
        self.assertIn("the checkpoint of step 5 was saved by a later Checkpoint than this script's first", stderr)
        self.assertIn("made after another one has stepped gives nothing back", stderr)

    def test_one_that_has_stepped_does_not_go_back(self):
        def work():
            ckpt = lockstep.Checkpoint({"v": [1]})
            found = [ckpt.restore()]
            ckpt.step(found[0] + 1)
            try:
                found.append(ckpt.restore())
            except lockstep.CheckpointError as error:
                found.append(str(error))
            return found

        self.starter.start_epoch(1)
        self.assertEqual([-1, -1], self.work(work))
        self.starter.start_epoch(2, restore=(1, 0))
        found = self.work(work)
        self.assertEqual(0, found[0])
        self.assertIn("restore() after step()", found[1])

    def test_numbers_that_are_none_of_a_step(self):
        def work(*numbers):
            ckpt = lockstep.Checkpoint({"v": [1]})
            ckpt.restore()
            try:
                for number in numbers:
                    ckpt.step(number)
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        for number in (1 << 63, -1 << 63):
            self.assertEqual(f"step({number}): expected a number of steps from 0 on, of at most 63 bits", self.work(work, number))
        self.assertEqual((None, "lockstep: step -1 is below 0, where steps begin: Lockstep counts on, and calls it step 0\n"), in_worker(work, -1, 0))
        self.assertEqual({(1, 0), (1, 1)}, self.starter.done())

    def test_one_that_does_not_restore_is_told(self):
        def work():
            lockstep.Checkpoint({"v": [1]}).step(0)

        self.starter.start_epoch(1)
        self.work(work)
        self.starter.start_epoch(2, restore=(1, 0))
        _, said = in_worker(work)
        self.assertRegex(said, r"^lockstep: this script has not called restore\(\) and begins at step 0, though there is a checkpoint of step 0: .*\n$")
        self.assertEqual({(1, 0), (2, 0)}, self.starter.done())

    def test_one_on_trial_that_does_not_restore_ends_before_it_saves(self):
        def work():
            ckpt = lockstep.Checkpoint({"v": [1]})
            try:
                ckpt.step(0)
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        with mock.patch.dict(os.environ, LOCKSTEP_ON_TRIAL="1"):
            self.assertIsNone(self.work(work), "there is nothing to restore yet")
            self.starter.start_epoch(2, restore=(1, 0))
            self.assertRegex(self.work(work), r"^this script has not called restore\(\) .* of step 0: a version on trial does not overwrite that\. Call ")
        self.assertEqual({(1, 0)}, self.starter.done())

    def test_one_that_goes_on_by_itself_overwrites_nothing(self):
        def work():
            lockstep.Checkpoint({"v": [1]}).step(1)

        self.starter.start_epoch(1)
        self.work(lambda: lockstep.Checkpoint({"v": [1]}).step(0))
        with mock.patch.dict(os.environ, LOCKSTEP_ON_TRIAL="1"):
            self.starter.start_epoch(2, restore=(1, 0))
            self.assertEqual((None, ""), in_worker(work))
        self.assertEqual({(1, 0), (2, 1)}, self.starter.done())


class Marks(Starter):
    """What the script is at is told by hooks of DistributedDataParallel; they go nowhere with the model."""

    def hooked(self):
        from torch.nn.parallel import DistributedDataParallel

        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        return DistributedDataParallel(nn.Linear(3, 2))

    def test_steps_tell_their_parts_and_saved_models_have_idle_hooks(self):
        def work():
            model = self.hooked()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            ckpt = lockstep.Checkpoint({"model": model, "optimizer": optimizer})
            ckpt.restore()
            marked = []
            client = ckpt._client
            mark, client.mark = client.mark, lambda part: (marked.append(part), mark(part))[1]
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            ckpt.step(0)
            assert marked == [lockstep._client.FORWARD, lockstep._client.BACKWARD, lockstep._client.OPTIMIZER, lockstep._client.OTHER,
                              lockstep._client.DATA], marked
            file = io.BytesIO()
            torch.save(model, file)
            assert b"lockstep" not in file.getvalue()
            for copied in (copy.deepcopy(model.module), torch.load(io.BytesIO(file.getvalue()))):
                copied(torch.ones(1, 3))
            assert len(marked) == 5, marked
            torch.distributed.destroy_process_group()

        self.starter.start_epoch(1)
        self.work(work)


class Alone(unittest.TestCase):
    """Not launched by Lockstep."""

    def python(self, script, **environment):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
        return subprocess.run([sys.executable, "-c", script], env={**clean, "PYTHONPATH": PACKAGE, **environment}, text=True,
                              capture_output=True, check=True)

    def test_everything_is_a_no_op_and_torch_is_not_imported(self):
        done = self.python("import lockstep, sys\n"
                           "c = lockstep.Checkpoint({'anything': 3})\n"
                           "print(c.restore(), c.step(0), lockstep.step(1), 'torch' in sys.modules)")
        self.assertEqual((done.stdout, done.stderr), ("-1 None None False\n", ""))

    def test_importing_loads_no_other_module(self):
        done = self.python("import os, sys; before = set(sys.modules)\nimport lockstep\nprint(sorted(set(sys.modules) - before))")
        self.assertEqual(done.stdout, "['lockstep']\n")

    def test_submodules_come_when_they_are_named(self):
        done = self.python("import lockstep\nprint(lockstep.feed.Loader.__name__, lockstep.reshape.open.__name__, lockstep.stage.Stream.__name__)\n"
                           "from lockstep import feed, stage\nprint(feed is lockstep.feed, hasattr(lockstep, 'feeds'))")
        self.assertEqual((done.stdout, done.stderr), ("Loader open Stream\nTrue False\n", ""))

    def test_a_missing_library_is_said_once(self):
        done = self.python("import lockstep\nfor i in range(3): lockstep.step(i)\nprint(lockstep.Checkpoint({}).restore())",
                           LOCKSTEP_RUN="/nonexistent", LOCKSTEP_CLIENT_LIB="/nonexistent.so")
        self.assertEqual(done.stdout, "-1\n")
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("lockstep: this process goes on without Lockstep: /nonexistent.so", done.stderr)


if __name__ == "__main__":
    unittest.main()
