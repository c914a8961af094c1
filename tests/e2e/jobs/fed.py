"""A job that trains on photos of a data service, and keeps a diary: one line for each batch, and after it the state to go on with.

usage: fed.py DIARY SOCKET JOB BEGIN END EPOCHS        goes on from DIARY.pt if that is there; ends after EPOCHS epochs
"""
import json
import os
import sys
import time

import torch
from torch import nn

import lockstep.feed
from lockstep.feed import Flip, Loader, RandomResizedCrop


def main():
    diary, socket, job, begin, end, epochs = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    loader = Loader("photos", job=job, where=range(int(begin), int(end)), transform=[RandomResizedCrop(64), Flip()], batch=16, seed=7,
                    socket=socket)
    await_file(os.environ["GATE"])
    lines = 0
    if os.path.exists(f"{diary}.pt"):
        saved = torch.load(f"{diary}.pt")
        net.load_state_dict(saved["net"])
        loader.load_state_dict(saved["data"])
        lines = saved["lines"]
    forget_after(diary, lines)
    while loader.epoch < int(epochs):
        for batch in loader:
            images, labels = batch.torch()
            loss = nn.functional.cross_entropy(net(images.float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lines += 1
            note(diary, {"epoch": batch.epoch, "ids": batch.ids.tolist(), "skipped": batch.skipped, "loss": loss.item()})
            torch.save({"net": net.state_dict(), "data": loader.state_dict(), "lines": lines}, f"{diary}.next")
            os.replace(f"{diary}.next", f"{diary}.pt")


def await_file(path):
    """Until all jobs have joined that are to begin together."""
    while not os.path.exists(path):
        time.sleep(0.01)


def forget_after(diary, lines):
    """What was noted and not saved is done again."""
    if os.path.exists(diary):
        with open(diary, "r+") as file:
            kept = "".join(file.readlines()[:lines])
            file.seek(0)
            file.write(kept)
            file.truncate()


def note(diary, entry):
    with open(diary, "a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
