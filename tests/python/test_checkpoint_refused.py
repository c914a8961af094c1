"""What lockstep.Checkpoint can't save, or can't bring back into a script, says so by name."""
import os
import sys
import unittest
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Ema, Starter, adam, in_worker, lockstep, momentum, nn, torch


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


if __name__ == "__main__":
    unittest.main()
