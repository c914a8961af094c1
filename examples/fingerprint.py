"""What two runs must have in common if they computed the same, bit for bit."""
import hashlib
import json
import os
import random

import numpy
import torch
import torch.distributed as dist


def digest(value):
    """SHA-256 over every bit of `value`: tensors, and the containers and plain values around them."""
    whole = hashlib.sha256()
    for piece in pieces(value):
        whole.update(len(piece).to_bytes(8, "little") + piece)  # with its length: "ab", "c" is not "a", "bc"
    return whole.hexdigest()


def pieces(value):
    if torch.is_tensor(value):
        yield value.detach().cpu().numpy().tobytes()
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield str(key).encode()
            yield from pieces(value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from pieces(item)
    else:
        yield repr(value).encode()


def rng_digest():
    _, keys, *rest = numpy.random.get_state()
    return digest([random.getstate(), keys.tobytes(), rest, torch.get_rng_state()])


def write(path, model, optimizer, losses):
    """Rank 0 writes the digests of all state, and the losses to the last bit, as JSON. Every rank must call it."""
    rng = [None] * dist.get_world_size()
    dist.all_gather_object(rng, rng_digest())
    if dist.get_rank() != 0:
        return
    result = {
        "parameters": digest(model.state_dict()),
        "optimizer": digest(optimizer.state_dict()),
        "losses": [loss.hex() for loss in losses],
        "rng": rng,
    }
    with open(path + ".part", "w") as file:
        json.dump(result, file, indent=1)
    os.replace(path + ".part", path)
