"""FOLDER WORKERS BATCHES: what torch's DataLoader makes of a folder of images per second: torchvision's RandomResizedCrop(224) and flip, as bytes. JSON on stdout."""
import json
import sys
import time

import numpy
import torch
import torchvision

BATCH = 64


def as_bytes(image):
    return torch.from_numpy(numpy.array(image))


def main():
    folder, workers, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    steps = torchvision.transforms.Compose([torchvision.transforms.RandomResizedCrop(224), torchvision.transforms.RandomHorizontalFlip(), as_bytes])
    data = torchvision.datasets.ImageFolder(folder, steps)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    many = torch.utils.data.RandomSampler(data, replacement=True, num_samples=BATCH * (batches + 2 + 2 * workers))
    loader = iter(torch.utils.data.DataLoader(data, BATCH, sampler=many, num_workers=workers))
    for _ in range(1 + 2 * workers):  # what the workers have prefetched is not counted
        next(loader)
    begin = time.monotonic()
    for _ in range(batches):
        next(loader)
    print(json.dumps({"images_per_s": BATCH * batches / (time.monotonic() - begin)}))


if __name__ == "__main__":
    main()
