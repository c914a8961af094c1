"""What lockstep.Checkpoint makes of modules, optimizers and the like in a dict or list, and of what lies in two places."""
import collections
import copy
import json
import os
import pickle
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Starter, adam, filled, in_worker, lockstep, momentum, nn, torch, trained


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
        nets = [net]
        for given, one in (({"t": tensor, "d": {"t": tensor}}, "t and d.t are one tensor"),
                           ({"d": [tensor], "e": {"t": (tensor,)}}, "d.0 and e.t.0 are one tensor"),
                           ({"net": net, "d": {"mean": net.running_mean}}, "net.running_mean and d.mean are one tensor"),
                           ({"d": [tensor], "row": tensor[1:]}, "d.0 and row share memory"),
                           ({"d": [plain], "plain": plain}, "d.0 and plain are one list"),
                           ({"plain": plain, "d": {"of": [plain]}}, "plain and d.of.0 are one list"),
                           ({"d": [held], "e": {"h": held}}, "d.0 and e.h are one dict"),
                           ({"d": [nets], "e": {"h": nets}}, "d.0 and e.h are one list"),
                           ({"d": [nets] * 2, "e": {"t": tensor, "again": [tensor]}, "f": [net]}, None),
                           ({"d": [plain], "e": [plain]}, None),
                           ({"d": held, "e": held}, None),
                           ({"net": net, "d": [net.weight, net]}, None),
                           ({"t": tensor, "again": tensor, "row": tensor[1:]}, None)):
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


if __name__ == "__main__":
    unittest.main()
