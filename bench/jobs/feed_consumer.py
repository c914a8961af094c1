"""One job of feed_jobs.py or feed_race.py: takes photos from a data service, or from torch's DataLoader, and perhaps trains a network on them.

usage: feed_consumer.py --service SOCKET|--folder FOLDER --count PHOTOS [--part I] --size PIXELS [--network NAME] --epochs N|--seconds S [--threads N]

With --part it reads three quarters of the photos, from the I-th quarter on, around. Says "ready" on stdout once all is there but the loader, begins
when a line comes on stdin, and prints {"images", "began", "ended" (s, CLOCK_MONOTONIC)} as JSON. The time to start the loader is in it."""
import argparse
import importlib
import json
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, WORKERS = 64, 2


def parse_flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", help="its socket")
    parser.add_argument("--folder")
    parser.add_argument("--count", type=int)
    parser.add_argument("--part", type=int)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--network", choices=("resnet18", "small"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def of_service(flags, ids):
    """Batches, epoch after epoch: (images as bytes (N, 3, H, W), labels)."""
    import lockstep.feed

    crop = lockstep.feed.RandomResizedCrop(flags.size)
    name = f"{flags.network or 'takes'}{flags.part}.{os.getpid()}"
    with lockstep.feed.Loader("images", job=name, batch=BATCH, transform=[crop, lockstep.feed.Flip()], where=ids, seed=1, socket=flags.service) as loader:
        while True:
            for batch in loader:
                yield batch.torch()
            yield None


def of_torch(flags, ids):
    """The same, by torch's DataLoader and torchvision."""
    import numpy
    import torch
    import torchvision

    steps = [torchvision.transforms.RandomResizedCrop(flags.size), torchvision.transforms.RandomHorizontalFlip(), lambda image: torch.from_numpy(numpy.array(image)).permute(2, 0, 1)]
    photos = torch.utils.data.Subset(torchvision.datasets.ImageFolder(flags.folder, torchvision.transforms.Compose(steps)), ids)
    loader = torch.utils.data.DataLoader(photos, BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    while True:
        yield from loader
        yield None


def small_network(torch, size, classes):
    """Features of patches of 8 x 8, and a linear layer: 1 million multiplications for an image of 64 x 64."""
    features = 64
    return torch.nn.Sequential(torch.nn.Conv2d(3, features, 8, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(features * (size // 8) ** 2, classes))


def trainer(flags):
    """A function of (images, labels): one step of SGD. Without a network: nothing."""
    if flags.network is None:
        return lambda images, labels: None
    import torch
    import torchvision

    torch.manual_seed(1)
    torch.set_num_threads(flags.threads)
    classes = 64  # more than there are photos of which all are parts
    network = torchvision.models.resnet18(num_classes=classes) if flags.network == "resnet18" else small_network(torch, flags.size, classes)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(images, labels):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images.float().div_(255)), labels).backward()
        optimizer.step()

    for _ in range(2):
        step(torch.zeros(BATCH, 3, flags.size, flags.size, dtype=torch.uint8), torch.zeros(BATCH, dtype=torch.int64))
    return step


def main():
    flags = parse_flags()
    sys.path.insert(0, str(ROOT / "python"))
    import torch

    importlib.import_module("lockstep.feed" if flags.service else "torchvision")  # its time is nobody's loader
    torch.set_num_threads(flags.threads)
    step = trainer(flags)
    quarter = flags.count // 4
    ids = list(range(flags.count)) if flags.part is None else sorted((flags.part * quarter + i) % flags.count for i in range(3 * quarter))
    batches = of_service(flags, ids) if flags.service else of_torch(flags, ids)
    print("ready", flush=True)
    sys.stdin.readline()
    began, images, epochs = time.monotonic(), 0, 0
    while epochs != flags.epochs and (flags.seconds is None or time.monotonic() - began < flags.seconds):
        batch = next(batches)
        if batch is None:
            epochs += 1
            continue
        step(*batch)
        images += len(batch[1])
        del batch
    print(json.dumps({"images": images, "began": began, "ended": time.monotonic()}), flush=True)
    batches.close()


if __name__ == "__main__":
    main()
