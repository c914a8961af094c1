"""What lockstep.Checkpoint makes of optimizers and containers of any type: each comes back as what it was, or says what it comes back as."""
import collections
import copy
import json
import os
import pickle
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Starter, adam, in_worker, lockstep, momentum, nn, on_disk, torch


def trained(make_optimizer, steps):
    """(model, optimizer, scheduler) of a job whose scheduler changes param_groups behind each step()."""
    net = nn.Linear(3, 2)
    optimizer = make_optimizer(net.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(steps):
        net(torch.ones(3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return net, optimizer, scheduler


def filled(value):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


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


Pair = collections.namedtuple("Pair", "mean count")


class Curve(list):
    """A list of a script's own, with an attribute."""


class Image(torch.Tensor if torch else object):
    """A tensor with an attribute."""


class Range(tuple):
    """A tuple with a constructor of its own."""

    def __new__(cls, low, high):
        return super().__new__(cls, (low, high))


class Bounded(dict):
    """One that pickle writes, and can't read: it sets the items before the attribute."""

    def __init__(self, most):
        self.most = most

    def __setitem__(self, key, value):
        if len(self) < self.most:
            super().__setitem__(key, value)


class AttrDict(dict):
    def __init__(self, *items):
        super().__init__(*items)
        self.__dict__ = self


class Types(Starter):
    def resumed(self, make, warning=None, look=lambda value: value):
        """look() of make() as it comes back into a script that has an empty one; three saves give that one warning, a regular expression."""
        def save():
            ckpt = lockstep.Checkpoint({"v": make()})
            for i in range(3):
                ckpt.step(i)

        def restore():
            value = {}
            lockstep.Checkpoint({"v": value}).restore()
            return look(value)

        self.starter.start_epoch(1)
        _, stderr = in_worker(save)
        self.assertRegex(stderr, f"^lockstep: {warning}\n$" if warning else "^$")
        self.starter.start_epoch(2, restore=(1, 2))
        return self.work(restore)

    def test_dicts_that_pickle_cannot_take_are_plain(self):
        class Local(dict):
            pass

        for one in (1.5, torch.tensor(1.5)):
            for kind in (lambda items: collections.defaultdict(lambda: 0.0, items), Local):
                with self.subTest(one=one, kind=kind):
                    value = self.resumed(lambda: {"d": [kind({"a": one})]}, r"'v' can't be saved as it is \(.*\): its dicts of other types come back as plain ones")
                    self.assertEqual(({"d": [{"a": one}]}, dict), (value, type(value["d"][0])))

    def test_what_has_a_constructor_of_its_own_is_plain_where_it_must_be(self):
        def make():
            bounded = Bounded(3)
            bounded["a"] = 1
            return {"range": Range(torch.tensor(1), torch.tensor(2)), "bounded": bounded}

        value = self.resumed(make)
        self.assertEqual([(1, 2), tuple, {"a": 1}, dict], [value["range"], type(value["range"]), value["bounded"], type(value["bounded"])])

    def test_attributes_are_items_again_and_no_tensor_is_pickled(self):
        def make():
            curve = Curve([1])
            curve.best = torch.ones(1000)
            return {"with": AttrDict({"a": torch.ones(1000), "b": 2}), "without": AttrDict({"b": 2}), "curve": curve}

        from lockstep import _state

        self.assertLess(len(pickle.dumps(_state.PlainHolder("v", make()).capture()[2])), 1000)
        def look(value):
            both = value["with"], value["without"]
            return [vars(one) is one for one in both], both[0].a.sum().item(), both[1].b, value["curve"].best.sum().item()

        self.assertEqual(([True, True], 1000, 2, 1000), self.resumed(make, look=look))

    def test_a_copy_that_is_the_same_object_is_not_written(self):
        class Shared(dict):
            def __copy__(self):
                return self

        from lockstep import _state

        value = Shared(a=torch.ones(1))
        self.assertIs(dict, type(_state.PlainHolder("v", {"s": value}).capture()[2]["s"]))
        self.assertIsInstance(value["a"], torch.Tensor)

    def test_an_optimizer_may_have_hooks_in_its_state(self):
        def work(restored):
            optimizer = momentum([torch.ones(1)])
            ckpt = lockstep.Checkpoint({"o": optimizer})
            if restored:
                ckpt.restore()
                return dict(optimizer.state)
            optimizer.state.update(hook=lambda: 0, steps=3)
            for i in range(3):
                ckpt.step(i)

        self.starter.start_epoch(1)
        _, stderr = in_worker(work, False)
        self.assertRegex(stderr, r"^lockstep: 'o' can't be saved as it is \(.*\): 'hook' of its state is left out\n$")
        self.starter.start_epoch(2, restore=(1, 2))
        self.assertEqual({"steps": 3}, self.work(work, True))

    def test_containers_keep_their_types_with_and_without_tensors(self):
        def make(one):
            curve = Curve([one])
            curve.unit = "nats"
            defaults, ordered = collections.defaultdict(list, a=[one]), collections.OrderedDict(b=one)
            return {"defaults": defaults, "ordered": ordered, "counts": collections.Counter("aab"), "pair": Pair(one, 2), "curve": curve,
                    "deep": [({"x": (one, None)},)]}

        for one in (1.5, torch.tensor(1.5)):
            with self.subTest(one):
                value = self.resumed(lambda: make(one))
                self.assertEqual(make(one), value)
                self.assertEqual([type(item) for item in make(one).values()], [type(item) for item in value.values()])
                self.assertEqual(([], "nats", 0), (value["defaults"]["new"], value["curve"].unit, value["counts"]["c"]))

    def test_what_is_given_itself_may_be_of_any_kind_of_dict(self):
        def restore():
            value = collections.defaultdict(lambda: 7)
            lockstep.Checkpoint({"v": value}).restore()
            return value["a"], value["b"]

        self.starter.start_epoch(1)
        self.work(lambda: lockstep.Checkpoint({"v": collections.defaultdict(lambda: 7, a=1)}).step(0))
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertEqual((1, 7), self.work(restore))

    def test_what_is_in_two_places_is_one_again(self):
        def make():
            tensor, shared = torch.ones(3), [1, torch.zeros(2)]
            return {"a": tensor, "b": [tensor], "p": shared, "q": {"again": shared}, "other": torch.ones(3)}

        def look(value):
            return value["a"] is value["b"][0], value["p"] is value["q"]["again"], value["a"] is value["other"], value["p"][1].tolist()

        self.assertEqual((True, True, False, [0, 0]), self.resumed(make, look=look))

    def test_a_learning_rate_of_two_groups_is_one_again(self):
        def work(restored):
            rate = torch.tensor(0.5)
            optimizer = torch.optim.SGD([{"params": [torch.ones(1)]}, {"params": [torch.ones(2)]}], lr=0.5)
            for group in optimizer.param_groups:
                group["lr"] = rate
            ckpt = lockstep.Checkpoint({"o": optimizer})
            if restored:
                ckpt.restore()
            else:
                ckpt.step(0)
            first, second = optimizer.param_groups
            return first["lr"] is second["lr"], first["lr"].item()

        self.starter.start_epoch(1)
        self.work(work, False)
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertEqual((True, 0.5), self.work(work, True))

    def test_tensors_of_a_subclass_keep_their_type_and_attributes(self):
        def make():
            image = torch.arange(6.0).view(2, 3).t().as_subclass(Image)
            image.unit = "px"
            return {"image": image, "again": [image], "plain": torch.ones(1), "bare": torch.ones(2).as_subclass(Image)}

        def look(value):
            image = value["image"]
            return type(image), image.unit, image.tolist(), image.stride(), image is value["again"][0], type(value["plain"]), vars(value["bare"])

        self.assertEqual((Image, "px", [[0, 3], [1, 4], [2, 5]], (1, 3), True, torch.Tensor, {}), self.resumed(make, look=look))

    def test_attributes_of_what_is_given_itself_are_said_to_be_lost(self):
        curve = Curve([1, torch.ones(1)])
        curve.best, curve._book = 1, 2
        text = r"'v' is a Curve with attributes \(best\), which are not saved, only its items are: .*"

        def save():
            ckpt = lockstep.Checkpoint({"v": curve, "w": AttrDict({"a": 1})})
            for i in range(3):
                ckpt.step(i)

        self.starter.start_epoch(1)
        self.assertRegex(in_worker(save)[1], f"^lockstep: {text}\n$")

    def test_what_goes_round_or_too_deep_is_refused(self):
        def refused(value):
            try:
                lockstep.Checkpoint({"v": value}).step(0)
            except lockstep.CheckpointError as error:
                return str(error)

        round, deep = {"x": [1, torch.ones(1)]}, []
        round["x"].append(round["x"])
        for _ in range(3000):
            deep = [deep]
        self.starter.start_epoch(1)
        self.assertRegex(self.work(refused, round), "^v.x.2 is a list that lies in itself")
        self.assertRegex(self.work(refused, {"deep": deep}), "^'v' has dicts, lists and tuples in each other more deeply than Python goes")

    def test_plain_values_are_not_looked_at_one_by_one(self):
        from lockstep import _state

        losses = [0.5] * 1000
        with mock.patch("lockstep._holding.is_tensor", side_effect=AssertionError):
            self.assertIs(losses, _state.PlainHolder("losses", losses).capture()[2])


class TwoArguments(Exception):
    def __init__(self, what, where):
        super().__init__(f"{what} {where}")


class NotReadBack(Starter):
    def refused(self, *values):
        """What the last of these steps raises."""
        def work():
            given = {"a": [1, {}]}
            ckpt = lockstep.Checkpoint({"v": given, "w": [given["a"]]})
            for i, value in enumerate(values[:-1]):
                given["a"][1] = {"x": value}
                ckpt.step(i)
            given["a"][1] = {"x": values[-1]}
            try:
                ckpt.step(len(values))
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        return self.work(work)

    def test_what_can_be_saved_and_not_loaded_is_refused_when_it_comes(self):
        text = r"^v.a.1.x is a TwoArguments that can be saved and not be loaded again \(.*missing 1 required.*\): give it a __reduce__"
        self.assertRegex(self.refused(TwoArguments("no", "way")), text)
        self.assertRegex(self.refused(None, {1}, TwoArguments("no", "way")), text)
        self.assertIsNone(self.refused(ValueError("no"), ValueError("way")))

    def test_a_packed_sequence_is_refused_by_name(self):
        packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
        self.assertRegex(self.refused(packed), "^v.a.1.x is a PackedSequence that can be saved and not be loaded again")

    def test_a_long_state_is_not_loaded_for_a_trial(self):
        def work():
            return lockstep.Checkpoint({"v": {"long": bytes(65 << 20), "x": TwoArguments("no", "way")}})._capture() is not None

        self.starter.start_epoch(1)
        self.assertTrue(self.work(work))

    def test_what_the_script_can_t_make_at_a_restart_is_said(self):
        def restore():
            del globals()["TwoArguments"]
            try:
                lockstep.Checkpoint({"v": {}}).restore()
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        self.work(lambda: lockstep.Checkpoint({"v": {"kind": TwoArguments}}).step(0))
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertRegex(self.work(restore), "^the checkpoint of step 0 has something that this script can't make again .*TwoArguments.*: restore with")


class Holds:
    """An object of another kind, with something in it."""

    def __init__(self, held):
        self.held = held


class Inside(Starter):
    """Modules, optimizers and the like in a dict or list of the script's."""

    def job(self, steps=0):
        """(what is given, what the script's own variables say of it)."""
        torch.manual_seed(0)
        net, optimizer, scheduler = trained(adam, steps)
        extra = nn.Linear(1, 1)
        with torch.no_grad():
            extra.weight.fill_(steps)
        given = {"all": {"net": net, "opts": [optimizer, (scheduler,)], "epoch": steps}, "extra": extra, "again": [extra]}

        def look():
            same = [given["all"]["net"] is net, given["all"]["opts"][0] is optimizer, given["all"]["opts"][1][0] is scheduler, given["again"][0] is extra]
            return same, net.weight.tolist(), len(optimizer.state), scheduler.last_epoch, extra.weight.item(), given["all"]["epoch"]

        return given, look

    def test_they_come_back_in_place(self):
        def save():
            given, look = self.job(steps=3)
            lockstep.Checkpoint(given).step(0)
            return look()

        def restore():
            given, look = self.job()
            lockstep.Checkpoint(given).restore()
            return look()

        self.starter.start_epoch(1)
        saved = self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        found = self.work(restore)
        self.assertEqual(saved, found)
        self.assertEqual([True] * 4, found[0])

    def test_each_has_one_holder_with_the_name_of_its_place(self):
        from lockstep import _state

        given, _ = self.job()
        self.assertEqual({"all", "extra", "again", "all.net", "all.opts.0", "all.opts.1.0"}, _state.holders_of(given, set()).keys())
        given["all.net"] = nn.Linear(1, 1)
        with self.assertRaisesRegex(lockstep.CheckpointError, "'all.net' is the name of two things, one of which is in 'all'"):
            _state.holders_of(given, set())

    def test_what_only_looks_so_stays_a_value(self):
        from lockstep import _state

        class Meter(nn.Module):  # keeps all in plain attributes, as metrics do
            def __init__(self):
                super().__init__()
                self.total = torch.zeros(1)

        class Config:
            def __getattr__(self, name):
                raise KeyError(name)

        value = {"class": nn.Linear, "meter": Meter(), "config": Config()}
        self.assertEqual({}, _state.PlainHolder("v", value).apart)
        same = {0: nn.Linear(1, 1), "0": nn.Linear(1, 1)}
        with self.assertRaisesRegex(lockstep.CheckpointError, "'v.0' is the name of two things in 'v'"):
            _state.PlainHolder("v", same)

    def test_a_checkpoint_from_before_they_had_holders_of_their_own(self):
        from lockstep import _state

        before, _ = self.job(steps=3)
        given, look = self.job()
        holder = _state.holders_of(given, set())["all"]
        holder.restore([], pickle.loads(pickle.dumps(before["all"])))
        same, weight, _, epoch, _, _ = look()
        self.assertEqual(([True] * 4, before["all"]["net"].weight.tolist(), 3), (same, weight, epoch))

    def test_one_that_is_missing_in_the_script_is_named(self):
        def save():
            lockstep.Checkpoint(self.job()[0]).step(0)

        def restore():
            given, _ = self.job()
            given["again"] = []
            try:
                lockstep.Checkpoint(given).restore()
            except lockstep.CheckpointError as error:
                return str(error)

        self.starter.start_epoch(1)
        self.work(save)
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertIn("with an object of its own at again.0, where this script has none", self.work(restore))

    def test_what_is_trained_comes_back_in_place(self):
        def make():
            leaves = [nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), torch.ones(2)]
            optimizer = momentum(leaves)
            return {"p": leaves, "d": {"p": {0: leaves[0]}, "plain": torch.ones(2), "grown": torch.ones(1, requires_grad=True)}, "o": optimizer}, leaves

        def train(leaves, optimizer):
            for leaf in leaves:
                leaf.grad = leaf.detach() * 2
            optimizer.step()

        def save():
            given, leaves = make()
            ckpt = lockstep.Checkpoint(given)
            for i in range(3):
                train(leaves, given["o"])
                given["d"]["grown"] = torch.ones(i, requires_grad=True)
                ckpt.step(i)
            return [leaf.tolist() for leaf in leaves]

        def restore():
            given, leaves = make()
            kept, plain = list(leaves), given["d"]["plain"]
            lockstep.Checkpoint(given).restore()
            same = [one is other for one, other in zip(given["p"], kept)]
            return [leaf.tolist() for leaf in kept], [*same, given["d"]["p"][0] is kept[0], given["d"]["plain"] is plain], given["d"]["grown"].tolist()

        self.starter.start_epoch(1)
        saved, _ = in_worker(save)
        self.starter.start_epoch(2, restore=(1, 2))
        self.assertEqual((saved, [True] * 4 + [False], [1.0, 1.0]), self.work(restore))

    def test_one_that_comes_later_is_said_once(self):
        def late():
            state = {}
            ckpt = lockstep.Checkpoint({"state": state})
            state["net"] = nn.Linear(1, 1)
            for i in range(3):
                ckpt.step(i)

        self.starter.start_epoch(1)
        self.assertRegex(in_worker(late)[1], "^lockstep: state.net came into 'state' after Checkpoint was made: .*\n$")

    def test_one_in_an_object_of_another_kind_is_said_once(self):
        def work(value, later=None):
            given = {"plain": Holds(1), "a": [value]}
            ckpt = lockstep.Checkpoint({"d": given})
            for i in range(3):
                ckpt.step(i)
                given["a"] += [later]

        self.starter.start_epoch(1)
        net = filled(1)
        for value, kinds in ((Holds(net), "Holds with a Linear"), (collections.deque([net]), "deque with a Linear"), (Holds([1, net.weight]), "Holds with a Parameter"),
                             (Holds({"o": momentum([torch.ones(1)])}), "Holds with a SGD")):
            text = f"^lockstep: d.a.%d is a {kinds} in it: it is saved as one value, and a restart puts a copy there, .*\n$"
            self.assertRegex(in_worker(work, value)[1], text % 0)
            if kinds.startswith("deque"):
                self.assertRegex(in_worker(work, None, value)[1], text % 1, "of a type that comes later")
        for value in (Holds(nn.ReLU()), Holds(torch.ones(1)), net):
            self.work(work, value)

    def test_views_of_one_tensor_are_said_once(self):
        def work(value):
            ckpt = lockstep.Checkpoint({"d": value})
            for i in range(3):
                ckpt.step(i)

        self.starter.start_epoch(1)
        pool = torch.zeros(4, 2)
        self.assertRegex(in_worker(work, {"pool": pool, "row": pool[1:2]})[1],
                         "^lockstep: d.pool and d.row share memory, as views of one tensor do: each is saved, .*\n$")
        self.work(work, {"first": pool[:2], "last": pool[2:], "same": pool[2:].clone(), "none": pool[:0], "sparse": 1})

    def test_what_lies_in_two_things_that_are_given_is_said_once(self):
        def work(given):
            ckpt = lockstep.Checkpoint(given)
            for i in range(3):
                ckpt.step(i)

        self.starter.start_epoch(1)
        tensor, plain, held, net = torch.ones(2), [1], {"x": torch.ones(1)}, nn.BatchNorm1d(2)
        for given, one in (({"t": tensor, "d": {"t": tensor}}, "t and d.t are one tensor"), ({"d": [tensor], "e": {"t": (tensor,)}}, "d.0 and e.t.0 are one tensor"),
                           ({"net": net, "d": {"mean": net.running_mean}}, "net.running_mean and d.mean are one tensor"),
                           ({"d": [tensor], "row": tensor[1:]}, "d.0 and row share memory"), ({"d": [plain], "plain": plain}, "d.0 and plain are one list"),
                           ({"plain": plain, "d": {"of": [plain]}}, "plain and d.of.0 are one list"), ({"d": [[net]], "e": {"x": [net]}}, None), ({"d": [[net]] * 2, "e": {"t": tensor, "again": [tensor]}}, None),
                           ({"d": [held], "e": {"h": held}}, "d.0 and e.h are one dict"), ({"d": [plain], "e": [plain]}, None), ({"d": held, "e": held}, None),
                           ({"net": net, "d": [net.weight, net]}, None), ({"t": tensor, "again": tensor, "row": tensor[1:]}, None)):
            with self.subTest(given):
                _, said = in_worker(work, given)
                self.assertEqual(1 if one else 0, said.count("\n"), said)
                self.assertIn(one or "", said)

    def test_what_is_plain_and_lies_in_two_is_one_again(self):
        def work(restored):
            plain = [1, {"x": 2}]
            given = {"d": [plain], "e": {"of": (plain, plain[1])}}
            ckpt = lockstep.Checkpoint(given)
            if restored:
                ckpt.restore()
            else:
                ckpt.step(0)
            return given["d"][0] is given["e"]["of"][0], given["d"][0][1] is given["e"]["of"][1], given["d"][0] is plain

        self.starter.start_epoch(1)
        self.work(work, False)
        self.starter.start_epoch(2, restore=(1, 0))
        self.assertEqual((True, True, False), self.work(work, True))

    def replaced_and_restored(self, make, change):
        """(make() of a script that restores what another saved after change(state), what it was told)."""
        def save():
            state = make()
            ckpt = lockstep.Checkpoint({"s": state})
            for i in range(4):
                change(state, i)
                ckpt.step(i)

        def restore():
            state = make()
            before = dict(state)
            lockstep.Checkpoint({"s": state}).restore()
            return [(key, state[key] is before.get(key), look(state[key])) for key in state]

        def look(item):
            if isinstance(item, nn.Module):
                return item.weight.item()
            return item.param_groups[0]["lr"] if isinstance(item, torch.optim.Optimizer) else item.last_epoch

        self.starter.start_epoch(1)
        in_worker(save)
        self.starter.start_epoch(2, restore=(1, 3))
        return in_worker(restore)

    def test_one_that_took_the_place_of_another_is_the_one_that_comes_back(self):
        def make():
            net = filled(0)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            return {"online": net, "target": filled(0), "opt": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

        def change(state, i):
            with torch.no_grad():
                state["online"].weight.add_(2)
            state["target"] = copy.deepcopy(state["online"])
            state["opt"] = torch.optim.SGD(state["online"].parameters(), lr=0.001)
            state["schedule"] = torch.optim.lr_scheduler.StepLR(state["opt"], 1)
            state["schedule"].last_epoch = 40 + i

        found, _ = self.replaced_and_restored(make, change)
        self.assertEqual([("online", True, 8), ("target", True, 8), ("opt", True, 0.001), ("schedule", True, 43)], found)

    def test_where_one_was_in_two_places_and_one_of_them_has_another(self):
        def make():
            net = filled(0)
            return {"online": net, "best": net}

        def change(state, i):
            if i == 1:
                state["best"] = copy.deepcopy(state["online"])
            with torch.no_grad():
                state["online"].weight.add_(2)

        found, _ = self.replaced_and_restored(make, change)
        self.assertEqual([("online", True, 8), ("best", False, 2)], found)

    def test_one_that_was_taken_out_is_saved_no_more(self):
        found, said = self.replaced_and_restored(lambda: {"a": filled(1), "b": filled(2)}, lambda state, i: state.pop("a", None))
        self.assertEqual([("b", True, 2)], found)
        self.assertEqual("lockstep: s.a is not in the checkpoint, so it is no more in 's', which is as it was saved\n", said)

    def test_its_own_state_dict_is_not_asked(self):
        class Sharded(nn.Linear):
            def state_dict(self, *args, **kwargs):
                raise RuntimeError("gather first")

        self.starter.start_epoch(1)
        self.assertEqual({"s", "s.net"}, in_worker(lambda: set(lockstep.Checkpoint({"s": {"net": Sharded(1, 1)}})._ids))[0])

    def test_they_are_imported_by_the_names_of_their_places(self):
        from lockstep import _imported, _state

        given, _ = self.job()
        holders = _state.holders_of(given, set())
        net, optimizer = given["all"]["net"], given["all"]["opts"][0]
        wrapped = nn.Module()
        wrapped.module = net
        for holder in (holders["all.net"], _state.ModuleHolder("wrapped", wrapped, set())):
            self.assertEqual({id(net.weight): {"weight"}, id(net.bias): {"bias"}}, _imported._names_of_parameters([holder]))
        said, values = [], {"all.opts.0.state.0.step": 7, "all.opts.0.param_groups.0.lr": 0.5, "all.epoch": 9}
        named = {name: holders[name] for name in ("all", "all.opts.0")}
        _imported.load(named, "[]", json.dumps({"values": values, "tensors": []}), b"", said.append)
        self.assertEqual((7, 0.5, 9), (int(optimizer.state[net.weight]["step"]), optimizer.param_groups[0]["lr"], given["all"]["epoch"]))
        self.assertIs(net, given["all"]["net"])
        self.assertNotIn("all.net", "".join(said))


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
