"""What the training jobs of the end-to-end tests share: a tiny model with everything that must survive a restart."""
import os
import random
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# The jobs end with the same digests as the example: one definition of "equal, bit for bit".
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "examples"))
import fingerprint  # noqa: E402

INPUTS, CLASSES = 32, 8
SMALL_BUCKETS_MB = 0.02  # so that even a tiny model has several gradient buckets


class Model(nn.Module):
    """A multilayer perceptron whose forward draws random numbers (dropout) and changes buffers (batch norm)."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, width),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Linear(width, CLASSES),
        )

    def forward(self, inputs, targets):
        return nn.functional.cross_entropy(self.layers(inputs), targets)


class Cursor:
    """An endless data set: noisy points around one centre per class."""

    def __init__(self, batch, seed):
        self.batch = batch
        self.generator = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))

    def next(self):
        targets = torch.randint(CLASSES, (self.batch,), generator=self.generator)
        noise = torch.randn(self.batch, INPUTS, generator=self.generator)
        return self.centres[targets] + 2 * noise, targets

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class Curve(list):
    """The losses so far, as a part of the checkpoint."""

    def state_dict(self):
        return {"losses": list(self)}

    def load_state_dict(self, state):
        self[:] = state["losses"]


class Job:
    """Everything that one rank trains. Begins in the state of step 0, with the gradient buckets that DDP will keep."""

    def __init__(self, seed=1, batch=16, width=64):
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        # The mean loss has a group of its own: a rank that skips it waits elsewhere than the others, and no two
        # collectives of different size meet (gloo would abort).
        self.loss_group = dist.new_group()
        seed_all(seed)
        self.model = self._spread(Model(width))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=5, gamma=0.9)
        self.cursor = Cursor(batch, seed * 1000 + self.rank)
        self.curve = Curve()
        self._warm_up()
        seed_all(seed * 1000 + self.rank)

    def _spread(self, model):
        return DistributedDataParallel(model, bucket_cap_mb=SMALL_BUCKETS_MB)

    def _warm_up(self):
        """Two discarded iterations: see docs/bit-exact.md."""
        for _ in range(2):
            self.model(torch.zeros(2, INPUTS), torch.zeros(2, dtype=torch.long)).backward()
            self.model.zero_grad(set_to_none=True)

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "data": self.cursor,
            "curve": self.curve,
        }

    def backward(self):
        loss = self.model(*self.cursor.next())
        loss.backward()
        return loss.detach()

    def update(self):
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)

    def mean_loss(self, loss):
        # Kept while the job lives: were gloo's thread the last to let it go, it would wait for the interpreter, which at the
        # end waits for that thread, or ends it in the midst, which aborts the process.
        self.mean = loss / dist.get_world_size()
        dist.all_reduce(self.mean, group=self.loss_group)
        return self.mean.item()

    def write(self, path):
        fingerprint.write(path, self.model, self.optimizer, self.curve)


def seed_all(seed):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


class Pace:
    """Makes steps last at least `step_time_s`, counted from the end of the step before."""

    def __init__(self, step_time_s):
        self.step_time_s = step_time_s
        self.due = time.monotonic()

    def wait(self):
        self.due += self.step_time_s
        now = time.monotonic()
        if now < self.due:
            time.sleep(self.due - now)
        else:
            self.due = now  # late once is not a reason to hurry for ever after
