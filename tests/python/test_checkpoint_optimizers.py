"""What lockstep.Checkpoint makes of optimizers of any type."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Starter, adam, in_worker, lockstep, momentum, on_disk, torch, trained


class Counting(torch.optim.Optimizer if torch else object):
    """Moments of more precision than the parameters, and a count that is in state_dict() alone."""

    def __init__(self, parameters, lr=1.0):
        super().__init__(parameters, {"lr": lr})
        self.count, self.seen = 0, torch.zeros(2)

    def step(self):
        self.count += 1
        self.seen += self.count
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("moment", torch.zeros(parameter.shape)).add_(1 / 3)

    def state_dict(self):
        return {**super().state_dict(), "count": self.count, "seen": self.seen}

    def load_state_dict(self, state):
        self.count, self.seen = state["count"], state["seen"]
        super().load_state_dict({key: state[key] for key in ("state", "param_groups")})


class Wrappers(Starter):
    """Optimizers that are more, or less, than their `state` and `param_groups`."""

    def resumed(self, make_optimizer, look):
        """look(optimizer) of one that was trained and saved, and of a new one that was restored from it and trained for a step more."""
        def in_group(steps):
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
            net, optimizer, scheduler = trained(make_optimizer, steps)
            return lockstep.Checkpoint({"net": net, "optimizer": optimizer, "scheduler": scheduler}), optimizer, scheduler

        def save():
            ckpt, optimizer, _ = in_group(steps=3)
            ckpt.step(0)
            return look(optimizer)

        def restore():
            ckpt, optimizer, scheduler = in_group(steps=0)
            ckpt.restore()
            found = look(optimizer)
            scheduler.step()
            return found, look(optimizer)

        self.starter.start_epoch(1)
        saved = self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        found, later = self.work(restore)
        self.assertEqual(saved, found)
        return found, later

    def test_the_state_of_a_sharded_optimizer_is_in_its_inner_one(self):
        def make(parameters):
            from torch.distributed.optim import ZeroRedundancyOptimizer

            return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=1.0)

        def look(optimizer):
            return [entry["step"].item() for entry in optimizer.optim.state.values()], optimizer.param_groups[0]["lr"]

        self.assertEqual(([3, 3], 0.125), self.resumed(make, look)[0])

    def test_an_averager_goes_on_where_it_was(self):
        def make(parameters):
            from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
            from torch.distributed.optim import PostLocalSGDOptimizer

            return PostLocalSGDOptimizer(torch.optim.Adam(parameters, lr=1.0), PeriodicModelAverager(period=4, warmup_steps=100))

        def look(optimizer):
            return [entry["step"].item() for entry in optimizer.state.values()], optimizer.averager.step, optimizer.optim.param_groups[0]["lr"]

        found, later = self.resumed(make, look)
        self.assertEqual(([3, 3], 3, 0.125), found)
        self.assertEqual(0.0625, later[2], "the scheduler reaches the inner optimizer")

    def test_what_state_dict_adds_costs_no_precision_and_no_late_copies(self):
        def work(restored):
            parameter = torch.ones(3, dtype=torch.bfloat16)
            optimizer = Counting([parameter])
            ckpt = lockstep.Checkpoint({"parameter": parameter, "o": optimizer})
            if restored:
                ckpt.restore()
            else:
                for i in range(3):
                    optimizer.step()
                    ckpt.step(i)
                assert [entry[4] for entry in ckpt._names() if entry[0] == "o"] == [True, False]
            moment = optimizer.state[parameter]["moment"]
            return moment.dtype, moment.tolist(), optimizer.count, optimizer.seen.tolist(), len(optimizer.state)

        self.starter.start_epoch(1)
        saved = self.work(work, False)
        self.assertEqual((torch.float32, 3), saved[::2][:2])
        self.starter.start_epoch(2, restore=(1, 2))
        self.assertEqual(saved, self.work(work, True))

    def test_a_wrapper_that_torch_can_give_no_hooks_tells_its_steps(self):
        class Wrapper(torch.optim.Optimizer):
            def __init__(self, inner):
                self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state

            def register_step_pre_hook(self, hook):
                self._optimizer_step_pre_hooks.append(hook)

            def register_step_post_hook(self, hook):
                self._optimizer_step_post_hooks.append(hook)

            def step(self):
                self.inner.step()

            def state_dict(self):
                return {**self.inner.state_dict(), "more": 1}

        def work():
            optimizer, marked = Wrapper(momentum([torch.ones(1)])), []
            ckpt = lockstep.Checkpoint({"o": optimizer})
            ckpt._client.mark = marked.append
            optimizer.step()
            return marked == [_client.OPTIMIZER, _client.OTHER]

        from lockstep import _client

        self.starter.start_epoch(1)
        self.assertTrue(self.work(work))

    def test_a_state_dict_that_refuses_is_said_once(self):
        class Refuses(torch.optim.SGD):
            def state_dict(self):
                raise RuntimeError("gather it first")

        def work(restored):
            parameter = torch.ones(1)
            optimizer = Refuses([parameter], lr=1.0)
            ckpt = lockstep.Checkpoint({"o": optimizer})
            if restored:
                ckpt.restore()
            else:
                optimizer.state[parameter]["moment"] = torch.ones(1)
                for i in range(3):
                    ckpt.step(i)
            return optimizer.state[parameter]["moment"].item()

        self.starter.start_epoch(1)
        self.assertEqual((1, "lockstep: 'o': state_dict() of this Refuses failed (gather it first): its `state` and `param_groups` are saved, and nothing "
                             "that it may have beside them\n"), in_worker(work, False))
        self.starter.start_epoch(2, restore=(1, 2))
        self.assertEqual(1, self.work(work, True))

    def test_what_state_dict_adds_is_read_from_disk_and_imported(self):
        from lockstep import _imported, _state

        optimizer = Counting([torch.ones(1)])
        optimizer.step()
        holder = _state.holder_of("o", optimizer, set())
        found = on_disk(self.enterContext(tempfile.TemporaryDirectory()), {"o": optimizer}).optimizer("o")
        self.assertEqual((1, [1, 1], [0], 1), (found["count"], found["seen"].tolist(), found["param_groups"][0]["params"], len(found["state"])))
        _imported.load({"o": holder}, "[]", '{"values": {"o.count": 7}, "tensors": []}', b"", lambda text: None)
        self.assertEqual((7, 1), (optimizer.count, len(optimizer.state)))

    def test_state_of_no_parameter_comes_back(self):
        class Counts(torch.optim.SGD):
            def step(self):
                super().step()
                self.state["steps"] = self.state.get("steps", 0) + 1
                self.state["scale"] = {"now": torch.tensor(0.5)}

        def look(optimizer):
            return optimizer.state["steps"], optimizer.state["scale"]["now"].item()

        self.assertEqual((3, 0.5), self.resumed(lambda parameters: Counts(parameters, lr=1.0), look)[0])

    def test_keys_of_any_type_come_back_as_they_were(self):
        class Momenta(torch.optim.Optimizer):
            def __init__(self, parameters, lr):
                super().__init__(parameters, {"lr": lr})

            @torch.no_grad()
            def step(self):
                for parameter in self.param_groups[0]["params"]:
                    for weight, key in enumerate((0, "0", "a.b", "", ("m", 1), None, 1.5)):
                        self.state[parameter].setdefault(key, torch.zeros_like(parameter)).add_(weight)
                    self.state[parameter][2] = "other"

        def look(optimizer):
            return [[(key, value if value == "other" else value.flatten()[0].item()) for key, value in entry.items()] for entry in optimizer.state.values()]

        found, _ = self.resumed(lambda parameters: Momenta(parameters, lr=1.0), look)
        self.assertEqual([[(0, 0), ("0", 3), ("a.b", 6), ("", 9), (("m", 1), 12), (None, 15), (1.5, 18), (2, "other")]] * 2, found)

    def test_keys_come_back_in_their_order(self):
        """Or a digest of the state would be another: those of Rprop are a number, a tensor and a tensor."""
        class Mixes(torch.optim.SGD):
            def step(self):
                super().step()
                for parameter in self.param_groups[0]["params"]:
                    self.state[parameter] = {"count": 1, "mean": torch.ones(1), "flag": True, "window": [torch.ones(1)], "last": torch.ones(1), "name": "x"}

        def look(optimizer):
            return [list(entry) for entry in optimizer.state.values()]

        found, _ = self.resumed(lambda parameters: Mixes(parameters, lr=1.0), look)
        self.assertEqual([["count", "mean", "flag", "window", "last", "name"]] * 2, found)

    def test_keys_are_read_from_disk_in_their_order(self):
        optimizer = torch.optim.Rprop([torch.ones(1)])
        optimizer.state[optimizer.param_groups[0]["params"][0]].update(step=1, prev=torch.ones(1), step_size=torch.ones(1), more=2)
        found = on_disk(self.enterContext(tempfile.TemporaryDirectory()), {"o": optimizer}).optimizer("o")
        self.assertEqual(["step", "prev", "step_size", "more"], list(found["state"][0]))

    def test_values_of_older_checkpoints_have_no_places(self):
        from lockstep import _state, _tensors

        optimizer = momentum([torch.ones(1)])
        parameter, = optimizer.param_groups[0]["params"]
        optimizer.state[parameter].update(step=1, prev=torch.ones(1))
        holder = _state.holder_of("o", optimizer, set())
        _, (prev,), rest = holder.capture()
        del rest["places"]
        holder.restore([(_tensors.Layout("o.0.prev", prev, None), prev)], rest)
        self.assertEqual({"step": 1, "prev": 1}, optimizer.state[parameter])

    def test_keys_of_older_checkpoints_are_texts(self):
        from lockstep import _state, _tensors

        parameter = torch.ones(1)
        optimizer = momentum([parameter])
        optimizer.state[parameter]["momentum_buffer"] = torch.ones(1)
        holder = _state.holder_of("o", optimizer, set())
        _, (moment,), rest = holder.capture()
        del rest["keys"]
        optimizer.state.clear()
        holder.restore([(_tensors.Layout("o.0.momentum_buffer", moment, None), moment)], rest)
        self.assertEqual({"momentum_buffer": 1}, optimizer.state[parameter])

    def test_a_harmless_state_dict_changes_nothing(self):
        class Own(torch.optim.Adam):
            def state_dict(self):
                return super().state_dict()

        found, _ = self.resumed(lambda parameters: Own(parameters, lr=1.0), lambda optimizer: [entry["step"].item() for entry in optimizer.state.values()])
        self.assertEqual([3, 3], found)
        self.assertIn("OptimizerHolder", self.work(lambda: type(lockstep.Checkpoint({"o": Own([torch.ones(1)])})._holders["o"]).__name__))

    def test_state_that_is_elsewhere_is_missed(self):
        class Hides(torch.optim.Adam):
            def __init__(self, parameters, lr):
                super().__init__(parameters, lr)
                self.inner = adam(self.param_groups[0]["params"])

            def step(self):
                self.inner.step()

            def state_dict(self):
                return self.inner.state_dict()

        def save():
            _, optimizer, _ = trained(lambda parameters: Hides(parameters, lr=1.0), 1)
            try:
                lockstep.Checkpoint({"o": optimizer}).step(0)
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        self.assertEqual("'o' is a Hides whose state_dict() has the state of 2 parameters, and whose `state` that of 0: give Checkpoint the optimizer inside it",
                         self.work(save))


if __name__ == "__main__":
    unittest.main()
