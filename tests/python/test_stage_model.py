"""lockstep.stage.publish_model(): what is published, and what a solver computes with it."""
import ctypes
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_stage import ROOT, Room

import numpy
import torch
import torch.nn.utils.prune

from lockstep import stage
from lockstep.stage import StageError


class Models(Room):
    def test_what_cannot_be_published(self):
        with self.error(StageError, "module 1 of the model is a Conv2d"):
            stage.publish_model("m", torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Conv2d(1, 1, 1)))
        for model, kind in ((torch.nn.Linear(2, 2), "a Linear"), (torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2))), "a DataParallel"),
                            (None, "a NoneType"), ([1, 2], "a list"), ([(1, 2)], "a list")):
            with self.error(StageError, f"the model is {kind}: expected a torch.nn.Sequential"):
                stage.publish_model("m", model)
        with self.error(StageError, "activation 'gelu'"):
            stage.publish_model("m", [(numpy.ones((1, 2)), None, "gelu")])
        with self.error(StageError, "expected [outputs, inputs]"):
            stage.publish_model("m", [(numpy.ones((1, 2)), numpy.ones(2), "none")])
        with self.error(StageError, "model m has no layer"):
            stage.publish_model("m", [])
        with self.error(StageError, "is not finite"):
            stage.publish_model("m", [(numpy.full((3, 2), numpy.nan), None, "none")])  # and the name is free for other layers
        self.assertFalse(os.path.exists(self.room))
        self.assertEqual(1, stage.publish_model("m", [(numpy.ones((1, 2)), None, "none")]))
        with self.error(StageError, "with other layers"):
            stage.publish_model("m", [(numpy.ones((1, 2)), None, "relu")])
        with self.error(StageError, "is not finite"):
            stage.publish_model("m", [(numpy.full((1, 2), numpy.nan), None, "none")])
        self.assertEqual(2, stage.publish_model("m", [(numpy.ones((1, 2)), None, "none")]))
        stage.withdraw_model("m")

    def test_modules_whose_weights_do_not_say_what_they_compute(self):
        class Doubled(torch.nn.Sequential):
            def forward(self, x):
                return 2 * super().forward(x)

        class Linear(torch.nn.Linear):  # adapters look like this
            def forward(self, x):
                return 2 * super().forward(x)

        def hooked(module):
            module.register_forward_hook(lambda module, inputs, output: 2 * output)
            return module

        def put(module):
            module.forward = lambda x: x
            return module

        plain, nn = lambda: torch.nn.Linear(2, 2), torch.nn
        for kind in (nn.utils.weight_norm, nn.utils.spectral_norm, lambda module: torch.nn.utils.prune.l1_unstructured(module, "weight", amount=0.5), hooked, put):
            with self.error(StageError, "module 0 of the model has hooks"):
                stage.publish_model("m", nn.Sequential(kind(plain())))
        for kind in (hooked, put):
            with self.error(StageError, "the model has hooks"):
                stage.publish_model("m", kind(nn.Sequential(plain())))
        with self.error(StageError, "Doubled, which has a forward() of its own"):
            stage.publish_model("m", Doubled(plain()))
        with self.error(StageError, "Linear: expected Linear of torch.nn"):
            stage.publish_model("m", nn.Sequential(Linear(2, 2)))
        with self.error(StageError, "ParametrizedLinear: expected Linear of torch.nn"):
            stage.publish_model("m", nn.Sequential(nn.utils.parametrizations.spectral_norm(plain())))

    def test_feed_has_them_too(self):
        script = "import sys, lockstep.feed as feed; before = 'lockstep.stage' in sys.modules; from lockstep import stage\n" \
                 "print(before, all(getattr(feed, name) is getattr(stage, name) for name in ('publish_model', 'withdraw_model')), hasattr(feed, 'other'))"
        done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}, capture_output=True, text=True)
        self.assertEqual("False True False\n", done.stdout, done.stderr)

    def test_what_is_published_is_what_torch_computes(self):
        class Net(torch.nn.Sequential):
            def __init__(self):
                super().__init__(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Identity(), torch.nn.Linear(5, 4, bias=False), torch.nn.ReLU())

        rows = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
        normed = torch.nn.Sequential(torch.nn.utils.remove_weight_norm(torch.nn.utils.weight_norm(torch.nn.Linear(6, 4))))
        for name, model in (("net", Net()), ("half", Net().bfloat16()), ("double", Net().double()), ("normed", normed)):
            self.assertEqual(1, stage.publish_model(name, model))
            numpy.testing.assert_allclose(model.float()(rows).detach().numpy(), self.asked(name, rows.numpy(), 4), atol=1e-6)
            stage.withdraw_model(name)

    def asked(self, name, rows, outputs):
        """By a solver."""
        library, model = ctypes.CDLL(os.environ["LOCKSTEP_STAGE_LIB"]), ctypes.c_void_p()
        self.assertEqual(0, library.ls_infer_open(name.encode(), ctypes.c_double(10), ctypes.byref(model)))
        library.ls_infer_refresh(model)
        answer = numpy.zeros((len(rows), outputs), "float32")
        library.ls_infer(model, ctypes.c_void_p(rows.ctypes.data), len(rows), ctypes.c_void_p(answer.ctypes.data))
        library.ls_infer_close(model)
        return answer


if __name__ == "__main__":
    unittest.main()
