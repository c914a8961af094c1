"""How lockstep.Checkpoint saves: what is written while it is copied, what changes its memory, and where there is no room."""
import ctypes
import os
import sys
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Starter, adam, digest, in_worker, lockstep, nn, torch, train

SUM = "checkpoint buffers: 4 ranks x 2 slots x 1.2 GB = 9.6 GB; 3.1 GB may be used"


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


if __name__ == "__main__":
    unittest.main()
