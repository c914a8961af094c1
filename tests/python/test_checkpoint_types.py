"""What lockstep.Checkpoint makes of containers of any type: each comes back as what it was, or says what it comes back as."""
import collections
import os
import pickle
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Starter, in_worker, lockstep, momentum, torch

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


if __name__ == "__main__":
    unittest.main()
