"""A tiny job that was begun without Lockstep, saved as torch's users save theirs, and is taken over.

    elsewhere.py save FOLDER            ranks by RANK and WORLD_SIZE: at step SAVED writes FOLDER/saved.pt, FOLDER/dcp and FOLDER/expected,
                                        then goes on; at the end FOLDER/result.json
    elsewhere.py go_on FOLDER           under `lockstep run`, from what was imported: the same end, in FOLDER/taken_over.json
    elsewhere.py look FOLDER [sharded]  under `lockstep run`: FOLDER/restored.json, the state as it was restored; the model by fully_shard (torch 2)
"""
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

SAVED, STEPS = 5, 10
ROWS = 5  # of the sharded tensor: 3 and 2


def build(sharded=False):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 2))
    if sharded:
        import common  # noqa: F401: says where the next one finds its own
        from sharded import complete_cpu_streams
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        complete_cpu_streams()
        model = fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.99))
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5), {"losses": []}


def train(model, optimizer, scheduler, curve, step):
    generator = torch.Generator().manual_seed(step * 100 + dist.get_rank())
    optimizer.zero_grad()
    loss = model(torch.randn(4, 6, generator=generator)).pow(2).mean()
    loss.backward()
    for tensor in [*(parameter.grad for parameter in model.parameters()), *model[2].buffers()]:
        dist.all_reduce(tensor)
        tensor.copy_(tensor.double().div(dist.get_world_size()).to(tensor.dtype))
    optimizer.step()
    scheduler.step()
    curve["losses"].append(float(loss))


# ---- what torch's own formats get ----


def kinds():
    """Tensors of other kinds than a model has."""
    whole = torch.arange(12)
    return {"half": whole.to(torch.bfloat16), "flags": whole % 3 == 0, "transposed": whole.double().view(3, 4).t(), "scalar": torch.tensor(7),
            "empty": torch.zeros(0, 3), "complex": torch.view_as_complex(whole.double().view(6, 2))}


def rows():
    return torch.arange(ROWS * 3, dtype=torch.float32).view(ROWS, 3)


def state_of(model, optimizer, scheduler, curve):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "curve": curve, "kinds": kinds(),
            "step": SAVED}


def save_dcp(state, folder):
    if hasattr(dist, "_tensor") or hasattr(dist, "tensor"):  # torch 2
        import torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        state["rows"] = distribute_tensor(rows(), init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])
        return dcp.save(state, checkpoint_id=folder)
    from old_dcp import checkpoint, sharded

    flat = flattened(state)
    flat["rows"] = sharded(rows())
    return checkpoint.save_state_dict(flat, checkpoint.FileSystemWriter(folder))


def flattened(value, name=""):
    """As torch 2 does by itself."""
    if isinstance(value, dict) and value:
        return {key: item for name_below, below in value.items() for key, item in flattened(below, f"{name}.{name_below}".lstrip(".")).items()}
    return {name: value}


def write_expected(folder, tensors):
    """Raw bytes in C order, for readers without torch."""
    folder.mkdir()
    index = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        tensor = tensor.detach().contiguous()
        index[name] = {"dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape), "file": f"{number}.bin"}
        known = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor  # to numpy
        (folder / f"{number}.bin").write_bytes(known.numpy().tobytes())
    (folder / "index.json").write_text(json.dumps(index))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def digest(model, optimizer, scheduler, curve):
    """Bits as text."""
    def text(value):
        if isinstance(value, torch.Tensor):
            return [str(value.dtype), list(value.shape), whole(value.detach()).double().flatten().tolist()]
        if isinstance(value, dict):
            return {str(key): text(item) for key, item in value.items()}
        return [text(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)

    return text({"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "curve": curve})


def write(path, value):
    if dist.get_rank() == 0:
        path.write_text(json.dumps(value))


def save(folder):
    job = build()
    for step in range(STEPS):
        train(*job, step)
        if step == SAVED:
            state = state_of(*job)
            if dist.get_rank() == 0:
                torch.save(state, folder / "saved.pt")
                tensors = {name: value for name, value in flattened(state).items() if isinstance(value, torch.Tensor)}
                write_expected(folder / "expected", {**tensors, "rows": rows()})
                write(folder / "saved.json", digest(*job))
            save_dcp(state, str(folder / "dcp"))
    write(folder / "result.json", digest(*job))


def restored(sharded=False):
    import lockstep

    model, optimizer, scheduler, curve = build(sharded)
    ckpt = lockstep.Checkpoint({"model": model, "optimizer": optimizer, "scheduler": scheduler, "curve": curve})
    return (model, optimizer, scheduler, curve), ckpt, ckpt.restore()


def go_on(folder):
    job, ckpt, last = restored()
    for step in range(last + 1, STEPS):
        train(*job, step)
        ckpt.step(step)
    write(folder / "taken_over.json", {"first": last + 1, "state": digest(*job)})


def look(folder, sharded=False):
    job, ckpt, last = restored(sharded)
    state = digest(*job)  # of a sharded model all ranks give their part
    write(folder / "restored.json", {"last": last, "state": state})
    ckpt.step(last + 1)


def main(verb, folder, *words):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"save": save, "go_on": go_on, "look": look}[verb](pathlib.Path(folder), *map(bool, words))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
