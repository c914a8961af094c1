"""What lockstep.Checkpoint makes of modules that change in the course."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Starter, in_worker, lockstep, momentum, nn, torch


class Modules(Starter):
    """Whose buffers, parameters and ties change in the course."""

    def resumed(self, make, change, look):
        """(what look(module) said when it was saved, what of a restored one, what the two have told)."""
        def save():
            module = make()
            ckpt = lockstep.Checkpoint({"m": module})
            ckpt.restore()
            for i in range(3):
                change(module)
                ckpt.step(i)
            return look(module), [name for name, _ in ckpt._holders["m"].names()]

        def restore():
            module = make()
            lockstep.Checkpoint({"m": module}).restore()
            return look(module)

        epoch = 1 + max((epoch for epoch, _ in self.starter.done()), default=0)
        self.starter.start_epoch(epoch)
        (saved, names), told = in_worker(save)
        self.starter.start_epoch(epoch + 1, restore=(epoch, 2))
        restored, said = in_worker(restore)
        return saved, restored, names, told + said

    def test_what_their_own_state_dict_adds_is_said(self):
        class Counting(nn.Linear):
            def _save_to_state_dict(self, destination, prefix, keep_vars):
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "count"] = 3

        class Renaming(nn.Sequential):
            def state_dict(self, *args, **options):
                raise RuntimeError("not asked: it may gather, or count")

        for make, name in ((lambda: nn.Sequential(Counting(1, 1), Counting(1, 1)), "Counting"), (lambda: Renaming(nn.Linear(1, 1)), "Renaming")):
            saved, restored, _, said = self.resumed(make, lambda module: None, lambda module: [value.tolist() for value in module.parameters()])
            self.assertEqual(saved, restored)
            self.assertEqual(2, said.count("\n"), said)
            self.assertIn(f"'m': {name} has a state_dict() of its own: what that has beside parameters and buffers is not saved", said)
        *_, said = self.resumed(lambda: nn.Sequential(torch.quantization.MinMaxObserver(), nn.BatchNorm1d(2)), lambda module: None, lambda module: None)
        self.assertEqual("", said)

    def test_buffers_that_change_come_back_as_they_were(self):
        class Queue(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("queue", torch.zeros(0))
                self.register_buffer("none", None)
                self.register_buffer("wide", torch.ones(1, 2).expand(2, 2))
                self.other = nn.Module()
                self.other.register_buffer("same", self.queue)

        def change(module):
            module.queue.resize_(len(module.queue) + 1).fill_(2)
            module.none = torch.ones(2, dtype=torch.float64)
            module.wide = torch.arange(4.0).view(2, 2)

        def look(module):
            return [(str(value.dtype), value.tolist()) for value in (module.queue, module.none, module.wide)], module.queue is module.other.same

        saved, restored, names, said = self.resumed(Queue, change, look)
        self.assertEqual(saved, restored)
        self.assertEqual(["m.queue", "m.none", "m.wide"], names)
        self.assertEqual("lockstep: 1 buffers of 'm' are as they were saved, and not as this script makes them: m.queue is float32 of shape (3,) and not "
                         "float32 of shape (0,)\n", said)
        observer = torch.quantization.PerChannelMinMaxObserver
        saved, restored, _, said = self.resumed(observer, lambda module: module(torch.ones(4, 3)), lambda module: module.min_val.tolist())
        self.assertEqual((saved, [1.0] * 4), (restored, saved))
        self.assertEqual(1, said.count("\n"))

    def test_what_a_restart_will_refuse_is_said_when_it_begins(self):
        def make():
            net, tensor = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)), torch.zeros(2)
            net[2].weight = net[0].weight
            return {"net": net, "o": momentum(net[0].parameters()), "t": tensor, "d": {"t": tensor.clone(), "p": [nn.Parameter(torch.ones(2))]}}

        def halve(weight):
            weight.data = weight.data[:1]

        def work(change, at):
            given = make()
            ckpt = lockstep.Checkpoint(given)
            ckpt.restore()
            for i in range(4):
                if i == at:
                    change(given)
                ckpt.step(i)

        changes = [(lambda given: halve(given["net"][0].weight), "'net' has changed since restore(): net.0.weight is float32 of shape (1, 2), and was"),
                   (lambda given: setattr(given["net"][2], "weight", nn.Parameter(torch.ones(2, 2))), "it has net.2.weight, which was not there"),
                   (lambda given: setattr(given["net"][1], "running_var", None), "net.1.running_var is no more"),
                   (lambda given: given["o"].add_param_group({"params": [given["net"][1].weight]}), "parameter groups of [2, 1], and had [2]"),
                   (lambda given: given["t"].resize_(3), "'t' has changed since restore(): it is float32 of shape (3,), and was"),
                   (lambda given: halve(given["d"]["p"][0]), "'d' has changed since restore(): d.p.0 is float32 of shape (1,), and was float32 of shape (2,)"),
                   (lambda given: given["d"].update(p=[nn.Parameter(torch.ones(3))]), "d.p.0 is float32 of shape (3,), and was")]
        for at in (0, 2):
            for change, expected in changes:
                with self.subTest(expected, at=at):
                    self.starter.start_epoch(1)
                    _, said = in_worker(work, change, at)
                    self.assertEqual(1, said.count("\n"), said)
                    self.assertIn(expected, said)
        for change in (lambda given: given["d"].update(p=[]), lambda given: given["d"]["p"].append(nn.Parameter(torch.ones(3))),
                       lambda given: given["d"]["t"].resize_(3), lambda given: given["d"]["p"].__setitem__(0, None)):
            self.starter.start_epoch(1)
            self.assertIsNone(self.work(work, change, 2))

    def test_what_no_restart_can_write_is_refused(self):
        def give(state):
            try:
                lockstep.Checkpoint(state).restore()
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        for state, name in (({"t": torch.ones(1, 2).expand(3, 2)}, "t"), ({"m": nn.ParameterList([nn.Parameter(torch.ones(1).expand(3))])}, "m.0")):
            self.assertIn(f"{name}: several elements of a tensor of shape (3", self.work(give, state))
        self.assertIsNone(self.work(give, {"d": {"t": torch.ones(1).expand(3)}}))


if __name__ == "__main__":
    unittest.main()
