"""Tensors that lockstep.Checkpoint saves: sharded ones, those of a GPU, and the table of all."""
import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checkpoint_job import Ema, FakeStarter, Starter, in_worker, lockstep, nn, torch


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


if __name__ == "__main__":
    unittest.main()
