"""lockstep.Checkpoint against a starter of the test's own: what is saved after a crash comes back bit for bit, and what can't says so."""
import collections
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import types
import unittest
import warnings
import weakref
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import PACKAGE, Ema, FakeStarter, Starter, adam, digest, in_worker, lbfgs, lockstep, momentum, nn, torch, train

SUM = "checkpoint buffers: 4 ranks x 2 slots x 1.2 GB = 9.6 GB; 3.1 GB may be used"


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
        self.assertRegex(said, r"^lockstep: this script has not called restore\(\), though there is a checkpoint of step 0: .*\n$")
        self.assertEqual({(1, 0), (2, 0)}, self.starter.done())


class Saving(Starter):
    def setUp(self):
        super().setUp()
        self.starter.start_epoch(1)

    def test_tells_the_board(self):
        self.work(lambda: train(adam, 6))
        self.assertEqual(self.starter.field(24), 5)  # step
        self.assertEqual(self.starter.done(), {(1, 4), (1, 5)})
        self.assertEqual([self.starter.field(at) for at in (72, 80, 88)], [6, 0, 0])  # copies, skipped, torn
        self.assertFalse(self.starter.field(64, "d") != self.starter.field(64, "d"))  # a loss, not NaN

    def test_a_write_behind_the_optimizer_is_noticed_at_once(self):
        def clamp_always():
            return train_bypassing(steps=6, from_step=0)

        _, stderr = in_worker(clamp_always)
        self.assertEqual(stderr.count("\n"), 1)
        self.assertIn("net.weight was written between step() and optimizer.step", stderr)
        self.assertEqual(self.starter.field(88), 0)  # found out during the trial: nothing was torn
        self.assertEqual(self.starter.done(), {(1, 4), (1, 5)})

    def test_a_late_write_behind_the_optimizer_spoils_that_checkpoint_only(self):
        _, stderr = in_worker(lambda: train_bypassing(steps=9, from_step=6))
        self.assertEqual(stderr.count("\n"), 1)
        self.assertEqual(self.starter.field(88), 1)
        self.assertEqual(self.starter.done(), {(1, 7), (1, 8)})

    def test_a_write_that_both_see_is_named(self):
        """It is counted by torch, and so large and early that the copy differs as well."""
        def halve(weight):
            with torch.no_grad():
                weight.mul_(0.5)

        _, stderr = in_worker(lambda: train_bypassing(steps=9, from_step=6, write=halve))
        self.assertEqual(stderr.count("\n"), 1, stderr)
        self.assertIn("net.weight was written between step() and optimizer.step", stderr)
        self.assertEqual(self.starter.field(88), 1)
        self.assertEqual(self.starter.done(), {(1, 7), (1, 8)})

    def test_a_write_that_torch_does_not_count_spoils_one_checkpoint(self):
        def halve(weight):
            weight.data.mul_(0.5)

        _, stderr = in_worker(lambda: train_bypassing(steps=30, from_step=6, write=halve))
        self.assertEqual(stderr.count("\n"), 1, stderr)
        self.assertIn("by something that torch does not count (such as .data)", stderr)
        self.assertEqual(self.starter.field(88), 1)
        self.assertEqual(self.starter.done(), {(1, 28), (1, 29)})

    def test_memory_that_is_replaced_under_its_tensor_spoils_one_checkpoint(self):
        """As a queue of torch.multiprocessing does; torch counts no write, and what was copied may be another tensor's by then."""
        _, stderr = in_worker(lambda: train_bypassing(steps=9, from_step=6, write=lambda bias: bias.share_memory_(), of="bias"))
        self.assertEqual(stderr.count("\n"), 1, stderr)
        self.assertIn("the memory of net.bias was replaced between step() and optimizer.step()", stderr)
        self.assertEqual(self.starter.field(88), 1)
        self.assertEqual(self.starter.done(), {(1, 7), (1, 8)})

    def test_memory_that_is_unmapped_under_the_copy_spoils_one_checkpoint(self):
        """Malloc gives them back to the kernel at once; once more where the copy was faster."""
        def work():
            ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD, which else grows
            net = nn.Linear(1500, 1500)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            ckpt = lockstep.Checkpoint({"net": net, "optimizer": optimizer})
            storage, values = net.weight.storage(), torch.empty(1500, 1500)
            for i in range(100):
                torn = self.starter.field(88)
                net(torch.ones(1500)).sum().backward()
                optimizer.step()
                values.copy_(net.weight.detach())
                ckpt.step(i)
                if torn:
                    ckpt._client.save_wait()
                    return i
                if i > 1:
                    storage.resize_(0)
                    ckpt._client.save_wait()
                    storage.resize_(values.numel())
                    net.weight.data.copy_(values)

        last, _ = in_worker(work)
        self.assertEqual([self.starter.field(at) for at in (72, 88)], [last, 1])  # copies, torn
        self.assertIn((1, last), self.starter.done())

    def test_swapped_memory_and_a_grown_model(self):
        def grow():
            net = nn.Linear(4, 4)
            ckpt = lockstep.Checkpoint({"net": net, "optimizer": adam(net.parameters())})
            for i in range(8):
                if i == 4:
                    net.weight.data = torch.full((4, 4), 7.0)
                if i == 5:
                    net.register_buffer("late", torch.ones(1000))
                ckpt.step(i)
            ckpt._client.save_wait()

        def look():
            net = nn.Linear(4, 4)
            net.register_buffer("late", torch.zeros(1000))
            lockstep.Checkpoint({"net": net, "optimizer": adam(net.parameters())}).restore()
            return net.weight.sum().item(), net.late.sum().item()

        self.work(grow)
        self.starter.start_epoch(2, restore=max(self.starter.done()))
        self.assertEqual(self.work(look), (7.0 * 16, 1000.0))

    def test_one_that_lies_otherwise_is_the_same_object_at_the_same_place(self):
        def halve(tensor):
            tensor.data = tensor.data[:2]

        def transpose(tensor):
            tensor.data = tensor.data.t()

        def reread(tensor):
            tensor.data = tensor.data.view(torch.int32)

        def conjugate(tensor):
            tensor.data = tensor.data.conj()

        changes = {"resized": lambda tensor: tensor.resize_(2, 4), "transposed": lambda tensor: tensor.t_(), "longer": lambda tensor: tensor.unsqueeze_(0),
                   "halved": halve, "square": transpose, "reread": reread, "conjugate": conjugate}
        shapes = {"square": (3, 3)}

        def make():
            numbers = {key: torch.arange(12.0)[:9 if key == "square" else 12].view(shapes.get(key, (3, 4))).clone() for key in changes}
            return {**numbers, "conjugate": torch.complex(numbers["conjugate"], numbers["conjugate"])}

        def save():
            tensors = make()
            ckpt = lockstep.Checkpoint({"tensors": tensors})
            ckpt.step(0)
            before = {key: tensor.data_ptr() for key, tensor in tensors.items()}
            for key, tensor in tensors.items():
                changes[key](tensor)
            assert before == {key: tensor.data_ptr() for key, tensor in tensors.items()}
            ckpt.step(1)
            return {key: (str(tensor.dtype), tensor.tolist()) for key, tensor in tensors.items()}

        def restore():
            tensors = make()
            lockstep.Checkpoint({"tensors": tensors}).restore()
            return {key: (str(tensor.dtype), tensor.tolist()) for key, tensor in tensors.items()}

        saved = self.work(save)
        self.starter.start_epoch(2, restore=(1, 1))
        self.assertEqual(saved, self.work(restore))

    def test_weights_that_are_tied_no_more_are_both_saved(self):
        def make(tied):
            net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
            if tied:
                net[2].weight = net[0].weight
            net[1].register_buffer("late", torch.zeros(1), persistent=False)
            return net

        def save():
            net = make(tied=True)
            ckpt = lockstep.Checkpoint({"net": net})
            ckpt.step(0)
            net[1].running_mean = torch.ones(2)
            ckpt.step(1)
            net[2].weight = nn.Parameter(torch.full((2, 2), 7.0))
            net[1].register_buffer("late", torch.full((1,), 5.0), persistent=True)
            ckpt.step(2)
            return digest(net.state_dict())

        def restore():
            net = make(tied=False)
            net[1].register_buffer("late", torch.zeros(1), persistent=True)
            lockstep.Checkpoint({"net": net}).restore()
            return digest(net.state_dict())

        saved = self.work(save)
        self.starter.start_epoch(2, restore=(1, 2))
        self.assertEqual(saved, self.work(restore))

    def test_schedulers_accept_the_watched_optimizer_before_and_after(self):
        def both():
            net = nn.Linear(2, 2)
            optimizer = adam(net.parameters())
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
            lockstep.Checkpoint({"net": net, "optimizer": optimizer})
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                net(torch.ones(2)).sum().backward()
                optimizer.step()
                scheduler.step()
            return optimizer._step_count

        self.assertEqual(self.work(both), 1)

    def test_refuses_a_state_without_room_at_the_first_step(self):
        self.starter.refusal = SUM

        def begin():
            try:
                train(adam, 4)
            except lockstep.checkpoint.CheckpointError as error:
                return str(error)

        message, stderr = in_worker(begin)
        self.assertEqual(message, f"{SUM}; give more with `lockstep run --checkpoint-memory`, or run without Checkpoint")
        self.assertEqual(stderr, "")
        self.assertEqual(self.starter.field(24), -1)  # no step was reported

    def test_goes_on_without_checkpoints_when_a_grown_state_has_no_room(self):
        self.starter.refusal, self.starter.allowance = SUM, 1 << 20

        def grow():
            state = {"x": torch.zeros(8)}
            ckpt = lockstep.Checkpoint({"state": state})
            for step in range(4):
                ckpt.step(step)
                state[f"more {step}"] = torch.zeros(1 << 18)

        _, stderr = in_worker(grow)
        self.assertEqual(stderr, f"lockstep: rank 0 trains on without checkpoints: {SUM}\n")
        self.assertEqual(self.starter.field(24), 3)

    def test_a_forked_child_does_nothing(self):
        def fork_once():
            ckpt = lockstep.Checkpoint({"x": torch.ones(3)})
            ckpt.step(0)
            child = os.fork()
            if child == 0:
                ckpt.step(1)
                os._exit(0)
            return os.waitpid(child, 0)[1]

        self.assertEqual(self.work(fork_once), 0)
        self.assertEqual(self.starter.field(24), 0)

    def test_step_alone(self):
        self.work(lambda: lockstep.step(41, loss=torch.tensor(0.25)))
        self.assertEqual((self.starter.field(24), self.starter.field(64, "d")), (41, 0.25))


def clamp(weight):
    with torch.no_grad():
        weight.clamp_(-1, 1)


def train_bypassing(steps, from_step, write=clamp, of="weight"):
    """Writes to a parameter, `of` the net, after each step() from `from_step` on. The state is so large that it is copied beside the next forward."""
    net = nn.Linear(1500, 1500)
    optimizer = adam(net.parameters())
    ckpt = lockstep.Checkpoint({"net": net, "optimizer": optimizer})
    for i in range(steps):
        net(torch.ones(1500)).sum().backward()
        optimizer.step()
        ckpt.step(i)
        if i >= from_step:
            write(getattr(net, of))
    ckpt._client.save_wait()


class Marks(Starter):
    """What the script is at is told by hooks of DistributedDataParallel; they go nowhere with the model."""

    def hooked(self):
        from torch.nn.parallel import DistributedDataParallel

        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        return DistributedDataParallel(nn.Linear(3, 2))

    def test_steps_tell_their_parts_and_saved_models_have_idle_hooks(self):
        def work():
            import copy
            import io

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


class Mismatch(Starter):
    def restore_error(self, saved, here):
        """The sentence with which a script that gives `here()` refuses a checkpoint of `saved()`."""

        def save():
            ckpt = lockstep.Checkpoint(saved())
            ckpt.step(4)

        def restore():
            try:
                return str(lockstep.Checkpoint(here()).restore())
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        self.work(save)
        self.starter.start_epoch(2, restore=(1, 4))
        return self.work(restore)

    def test_what_is_no_state(self):
        def work():
            said = []
            for args, how in (([nn.Linear(2, 3)], {}), ([{}], {"every": 0}), ([{}], {"every": 2.5}), ([{"random number generators": [1]}], {})):
                try:
                    lockstep.Checkpoint(*args, **how)
                except lockstep.CheckpointError as error:
                    said.append(str(error))
            return "; ".join(said)

        self.starter.start_epoch(1)
        self.assertEqual("state is a Linear, expected names for what is to be saved: Checkpoint({'model': model}); every is 0, expected a whole number "
                         "of steps, at least 1; every is 2.5, expected a whole number of steps, at least 1; 'random number generators' is the name under which "
                         "every checkpoint has the generators: give yours another", self.work(work))

    def test_shape(self):
        text = self.restore_error(lambda: {"net": nn.Linear(2, 3)}, lambda: {"net": nn.Linear(4, 3)})
        self.assertEqual(text, "net.weight is float32 of shape (3, 2) in the checkpoint but float32 of shape (3, 4) in this script: "
                               "restore with the model and sharding that wrote it, or start the run afresh")

    def test_names_are_compared_in_a_time_that_grows_with_their_number(self):
        from lockstep import _state, _tensors

        compared = []

        class Name(str):
            __hash__ = str.__hash__

            def __eq__(self, other):
                compared.append(self)
                return str.__eq__(self, other)

        names = [(Name(number), None) for number in range(300)]
        tensors = [torch.zeros(1) for _ in names]
        _state.copy_into("net", names, tensors, [(_tensors.Layout(str(name), tensor, None), tensor) for (name, _), tensor in zip(names, tensors)])
        self.assertLess(len(compared), 10 * len(names))

    def test_structure(self):
        text = self.restore_error(lambda: {"net": nn.Linear(2, 3)}, lambda: {"net": nn.Linear(2, 3, bias=False)})
        self.assertIn("'net' has 1 tensors in this script and 2 in the checkpoint (the checkpoint also has net.bias)", text)

    def test_names(self):
        text = self.restore_error(lambda: {"net": nn.Linear(2, 3)}, lambda: {"model": nn.Linear(2, 3)})
        self.assertIn("the checkpoint of step 4 holds net, but this script gives model", text)

    def test_groups(self):
        def trained():
            net = nn.Linear(2, 3)
            return {"net": net, "o": adam(net.parameters())}

        text = self.restore_error(trained, lambda: {"net": nn.Linear(2, 3), "o": adam([torch.zeros(1)])})
        self.assertIn("'o' has parameter groups of [1] in this script but [2] in the checkpoint", text)

    def test_a_parameter_in_a_list(self):
        text = self.restore_error(lambda: {"p": [nn.Parameter(torch.zeros(3))]}, lambda: {"p": [nn.Parameter(torch.zeros(2))]})
        self.assertEqual(text, "p.0 is float32 of shape (3,) in the checkpoint but float32 of shape (2,) in this script: "
                               "restore with the script that wrote it, or start the run afresh")

    def test_a_parameter_that_an_optimizer_writes_and_nothing_has(self):
        def give(more, grad=True):
            flat = torch.zeros(4)
            parameter = nn.Parameter(flat[1:3])
            parameter.grad = torch.ones(2) if grad else None
            lockstep.Checkpoint({"o": momentum([parameter]), **more(flat, parameter)}).step(0)

        self.starter.start_epoch(1)
        for more in (lambda *_: {}, lambda flat, parameter: {"ema": Ema(nn.ParameterList([parameter]))}):
            _, said = in_worker(lambda: give(more))
            self.assertRegex(said, "^lockstep: 'o' writes parameter 0, float32 of shape \\(2,\\), which nothing else in Checkpoint has: .* has a copy of it\n$")
        self.assertIsNone(self.work(lambda: give(lambda flat, parameter: {"net": nn.ParameterList([parameter])})))
        self.assertIsNone(self.work(lambda: give(lambda *_: {}, grad=False)))
        _, said = in_worker(lambda: give(lambda flat, parameter: {"all": {"flat": flat, "small": flat[:1]}}))
        self.assertRegex(said, "^lockstep: all.small and all.flat share memory, .*\n$")

    def test_corruption(self):
        def flipped():
            self.starter.flip_bits()
            return {"net": nn.Linear(2, 3)}

        text = self.restore_error(lambda: {"net": nn.Linear(2, 3)}, flipped)
        self.assertRegex(text, "rank 0: the checkpoint of step 4 is corrupt: CRC 0x[0-9a-f]+, expected 0x[0-9a-f]+")

    def test_what_cannot_be_saved(self):
        def give(state):
            try:
                lockstep.Checkpoint(state).step(0)
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        self.assertIn("Checkpoint: 'n' is a int; expected a module", self.work(lambda: give({"n": 3})))
        self.assertIn("'f' can't be saved: ", self.work(lambda: give({"f": {"function": lambda: 0}})))
        self.assertIn("s: a tensor of layout torch.sparse_coo can't", self.work(lambda: give({"s": torch.eye(2).to_sparse()})))
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        self.assertIn("q.x: a quantized tensor can't be checkpointed", self.work(lambda: give({"q": {"x": quantized}})))
        if hasattr(torch.nested, "nested_tensor"):
            nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
            self.assertIn("n.x: a nested tensor can't be checkpointed", self.work(lambda: give({"n": {"x": nested}})))
        self.assertIn("m: a tensor on meta can't be checkpointed", self.work(lambda: give({"m": torch.empty(3, device="meta")})))
        freed, shrunk, quantized = torch.ones(3), torch.ones(1000), Wrapper(torch.ones(3))
        freed.storage().resize_(0)
        shrunk.storage().resize_(10)
        held = nn.ParameterList([nn.Parameter(quantized, requires_grad=False)])
        for tensor, name, kind in ((freed, "t", "Tensor"), (shrunk, "t", "Tensor"), (quantized, "t", "Wrapper"), (held, "t.0", "Wrapper")):
            self.assertIn(f"{name}: a {kind} of shape ", self.work(lambda: give({"t": tensor})))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lazy modules are new, torch says
            self.assertIn("l.weight is not made yet", self.work(lambda: give({"l": nn.LazyLinear(2)})))


class Wrapper(torch.Tensor if torch else object):
    """As those that keep their data in other tensors, and have none at their own address."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        return Wrapper(arguments[0])


class FakeDTensor(torch.Tensor if torch else object):
    """As torch 2's DTensor, by its attributes. at: where in the mesh this rank stands; None: as older versions of Lockstep saw it, which didn't ask."""

    @staticmethod
    def __new__(cls, local, mesh=(2,), placements=("Shard(0)",), at=(0,)):
        whole = torch.Tensor._make_wrapper_subclass(cls, (local.shape[0] * mesh[0],) + tuple(local.shape[1:]), dtype=local.dtype)
        whole._local_tensor, whole.placements = local, placements
        whole.device_mesh = types.SimpleNamespace(shape=mesh, **{} if at is None else {"get_coordinate": lambda: list(at)})
        return whole

    @classmethod
    def from_local(cls, local, device_mesh, placements, run_check, shape, stride):
        return cls(local, device_mesh.shape, placements)

    @classmethod
    def __torch_dispatch__(cls, function, kinds, arguments=(), options=None):
        raise NotImplementedError(str(function))


class FakeShardedTensor:
    """As torch 1.13's ShardedTensor, by its methods: the real one can't be imported by Python 3.11."""

    def __init__(self, tensors, offsets):
        self._shards = [types.SimpleNamespace(tensor=tensor, metadata=types.SimpleNamespace(shard_offsets=at, shard_sizes=tuple(tensor.shape)))
                        for tensor, at in zip(tensors, offsets)]

    def local_shards(self):
        return self._shards

    def size(self):
        return torch.Size((8, 2))


class Sharded(Starter):
    def test_dtensor_shards_come_back_in_place_and_only_where_they_belong(self):
        def save():
            lockstep.Checkpoint({"w": FakeDTensor(torch.arange(6.0).view(2, 3))}).step(0)

        def restore(placements, at=(0,)):
            whole = FakeDTensor(torch.zeros(2, 3), placements=placements, at=at)
            try:
                lockstep.Checkpoint({"w": whole}).restore()
            except lockstep.CheckpointError as error:
                return str(error)
            return whole._local_tensor.tolist()

        self.starter.start_epoch(1)
        self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertEqual(self.work(lambda: restore(("Shard(0)",))), [[0, 1, 2], [3, 4, 5]])
        self.assertRegex(self.work(lambda: restore(("Shard(1)",))), r"w is float32 .*Shard\(0\).* but float32 .*Shard\(1\)")
        self.assertRegex(self.work(lambda: restore(("Shard(0)",), at=(1,))), r"w is float32 .*\(0,\)\) in the checkpoint but float32 .*\(1,\)\) in")

    def test_sharded_tensor_shards_come_back_in_place_and_only_where_they_belong(self):
        def shards(fill, offsets):
            return FakeShardedTensor([torch.full((2, 2), fill), torch.full((1, 2), fill + 1)], offsets)

        def save():
            lockstep.Checkpoint({"w": shards(3.0, [(0, 0), (4, 0)])}).step(0)

        def restore(offsets):
            whole = shards(0.0, offsets)
            try:
                lockstep.Checkpoint({"w": whole}).restore()
            except lockstep.CheckpointError as error:
                return str(error)
            return [shard.tensor.sum().item() for shard in whole.local_shards()]

        self.starter.start_epoch(1)
        self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertEqual(self.work(lambda: restore([(0, 0), (4, 0)])), [12.0, 8.0])
        self.assertRegex(self.work(lambda: restore([(2, 0), (4, 0)])), r"w is float32 .*\(0, 0\).* but float32 .*\(2, 0\)")

    def test_an_optimizer_over_dtensors_gets_dtensors_back(self):
        self.assertEqual(self.momentum_again(saved_at=(0,)), ("FakeDTensor", [6.0, 6.0], 4.0))

    def test_what_an_older_version_saved_of_dtensors_comes_back(self):
        self.assertEqual(self.momentum_again(saved_at=None), ("FakeDTensor", [6.0, 6.0], 4.0))

    def momentum_again(self, saved_at):
        """Of an optimizer over DTensors: its type, what is in it, and the step."""
        def give(value, at):
            parameter = FakeDTensor(torch.zeros(2), at=at)
            optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
            optimizer.state[parameter] = {"momentum_buffer": FakeDTensor(torch.full((2,), value), at=at), "step": torch.tensor(4.0)}
            return optimizer, parameter

        def save():
            optimizer, parameter = give(6.0, saved_at)
            lockstep.Checkpoint({"o": optimizer, "w": parameter}).step(0)

        def restore():
            optimizer, parameter = give(0.0, at=(0,))
            lockstep.Checkpoint({"o": optimizer, "w": parameter}).restore()
            state = optimizer.state[parameter]
            return type(state["momentum_buffer"]).__name__, state["momentum_buffer"]._local_tensor.tolist(), state["step"].item()

        self.starter.start_epoch(1)
        self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        return self.work(restore)


class Devices(unittest.TestCase):
    """Where tensors come back that lay on a GPU: by what is asked of torch, which here has none."""

    def setUp(self):
        if torch is None:
            self.skipTest("this Python has no torch")

    def restore(self, holder, index=None, gpus=1, room=10):
        """The devices of which the holder asks memory when it restores what it captured, all of it from a GPU, of which there are so many with room
        for so many tensors."""
        from lockstep._tensors import Layout

        _, tensors, rest = holder.capture()
        layouts = [Layout(name, tensor, place) for (name, place), tensor in zip(holder.names(), tensors)]
        for layout in layouts:
            layout.device, layout.index = "cuda", index
        asked, empty = [], torch.empty_strided

        def empty_on_cpu(*shape, device="cpu", **options):
            asked.append(str(device))
            if device != "cpu" and len(asked) > room:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 bytes (GPU 0; 7 bytes free)")
            return empty(*shape, **options)

        with mock.patch("torch.empty_strided", empty_on_cpu), mock.patch.multiple(
                "torch.cuda", is_available=mock.Mock(return_value=True), device_count=mock.Mock(return_value=gpus)):
            holder.restore([(layout, tensor.clone()) for layout, tensor in zip(layouts, tensors)], rest)
        return asked

    def test_they_come_back_to_the_gpu_on_which_they_were(self):
        from lockstep import _state, _tensors

        for index, gpus, device in ((3, 4, "cuda:3"), (3, 2, "cuda"), (None, 4, "cuda")):
            self.assertEqual([device], self.restore(_state.holder_of("v", [torch.ones(2)], set()), index, gpus))
        older = ("x", "float32", (2,), None, None, "cuda", 8)
        self.assertIsNone(_tensors.Layout.from_tuple(older).index)
        self.assertEqual(3, _tensors.Layout.from_tuple((*older, 3, "of a later version")).index)

    def test_the_gpu_of_the_parameters_is_where_they_come_back(self):
        def on(*devices):
            ckpt = lockstep.Checkpoint.__new__(lockstep.Checkpoint)
            ckpt._apart = frozenset()
            parameters = [types.SimpleNamespace(device=torch.device(device)) for device in devices]
            ckpt._holders = {"net": types.SimpleNamespace(module=types.SimpleNamespace(parameters=lambda: parameters))}
            return ckpt._gpu_of_parameters()

        self.assertEqual([2, 0, None, None], [on("cpu", "cuda:2", "cuda:2"), on("cuda:0"), on("cuda:0", "cuda:1"), on("cpu")])

    def test_what_is_loaded_goes_to_that_gpu(self):
        from lockstep import _holding

        starter = FakeStarter()
        self.addCleanup(starter.close)

        def restore():
            asked = []
            with mock.patch.object(lockstep.Checkpoint, "_gpu_of_parameters", return_value=2), \
                    mock.patch.object(_holding, "_device_of", lambda layout: asked.append(layout.index) or "cpu"):
                lockstep.Checkpoint({"v": []}).restore()
            return asked

        starter.start_epoch(1)
        in_worker(lambda: lockstep.Checkpoint({"v": [torch.ones(1)]}).step(0))
        starter.start_epoch(2, restore=(1, 0))
        self.assertEqual(([2], ""), in_worker(restore))

    def test_a_full_gpu_leaves_all_of_an_object_on_the_cpu(self):
        from lockstep import _state

        ema = Ema(nn.Linear(3, 2))
        with mock.patch("lockstep._client.warn") as warn:
            self.assertEqual(["cuda", "cuda", "cpu", "cpu"], self.restore(_state.holder_of("ema", ema, set()), room=1))
        warn.assert_called_once_with("the tensors in 'ema' come back on the CPU, for the GPU has no room for them beside those that are there: "
                                     "CUDA out of memory. Tried to allocate 8 bytes")
        self.assertEqual([(2, 3), (2,)], [tuple(mean.shape) for mean in ema.average])

    def test_tensors_in_values_come_back_to_the_gpu(self):
        from lockstep import _state

        parameter = torch.ones(2)
        optimizer = torch.optim.SGD([parameter], lr=torch.tensor(0.1))
        optimizer.state[parameter] = {"where the parameter is": torch.ones(2), "old_dirs": [torch.ones(2)]}
        for value, devices in (([torch.ones(2)], ["cuda"]), (Ema(nn.Linear(3, 2)), ["cuda", "cuda"]), (optimizer, ["cpu", "cuda", "cuda"])):
            with self.subTest(type(value)):
                self.assertEqual(devices, sorted(self.restore(_state.holder_of("v", value, set()))))


class Table(unittest.TestCase):
    """The table of tensors, for readers without pickle."""

    def table(self, *named):
        from lockstep import _tensors

        return _tensors.table([_tensors.Layout(name, tensor, None) for name, tensor in named])

    def setUp(self):
        if torch is None:
            self.skipTest("this Python has no torch")

    def test_offsets_dtypes_and_shapes(self):
        entries = self.table(("a", torch.zeros(3, dtype=torch.bool)), ("b", torch.zeros(2, 5)), ("c", torch.zeros((), dtype=torch.int64)))
        self.assertEqual(entries, [{"name": "a", "offset": 0, "bytes": 3, "dtype": "BOOL", "shape": [3]},
                                   {"name": "b", "offset": 64, "bytes": 40, "dtype": "F32", "shape": [2, 5]},
                                   {"name": "c", "offset": 128, "bytes": 8, "dtype": "I64", "shape": []}])

    def test_names_are_made_unique(self):
        names = [entry["name"] for entry in self.table(*((name, torch.zeros(1)) for name in ("w", "w", "w#2", "__metadata__", "w")))]
        self.assertEqual(names, ["w", "w#2", "w#2#2", "__metadata__#2", "w#3"])

    def test_names_are_utf8(self):
        from lockstep import _tensors

        entries = self.table(*((name, torch.zeros(1)) for name in ("\udc80", "\\udc80", "\ud800\udc00", "é")))
        self.assertEqual(["\\udc80", "\\udc80#2", "\\ud800\\udc00", "é"], [entry["name"] for entry in entries])
        self.assertEqual("\udc80", _tensors.Layout("\udc80", torch.zeros(1), None).name, "restore() looks for it under its own")

    def test_what_safetensors_cannot_say(self):
        complex128, lasting = self.table(("z", torch.zeros(3, dtype=torch.complex128)),
                                         ("c", torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)))
        self.assertEqual(("U8", [48]), (complex128["dtype"], complex128["shape"]))
        self.assertEqual({"dtype": "complex128", "shape": [3], "strides": None}, complex128["torch"])
        self.assertEqual(("F32", [2, 4, 5, 3]), (lasting["dtype"], lasting["shape"]))
        self.assertEqual({"dtype": "float32", "shape": [2, 3, 4, 5], "strides": [60, 1, 15, 3]}, lasting["torch"])


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
