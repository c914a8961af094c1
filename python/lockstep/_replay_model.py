"""What `lockstep replay` trains without a script: a small network under DistributedDataParallel, whose weights and inputs are the same in
all ranks of all groups. Every gradient therefore has the same bits in every rank before it is reduced, and one that has not names its rank.
"""

import os

import lockstep

WIDTH, BATCH = 64, 8

# Were a thread of gloo the last to let a tensor go, it would wait for the interpreter, which at the end of the group waits for that thread.
_kept = []


def main():
    replay = lockstep.replay()
    if replay is None:
        raise SystemExit("lockstep._replay_model is run by `lockstep replay`")
    train(replay)


def train(replay, disturb=None):
    """disturb(step, gradients): called before gradients, one flat tensor, are reduced; for rehearsals."""
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if cuda else "gloo")
    model = torch.nn.parallel.DistributedDataParallel(_network(torch, replay.layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0

    def reduce(_, bucket):
        gradients = bucket.buffer()
        if disturb is not None:
            disturb(step, gradients)
        # Weights of later steps depend on how a sum of so many is rounded.
        replay.check(step, {f"local gradient {bucket.index()}": gradients}, scope="everywhere" if step == 0 else "group")
        gradients.div_(replay.ranks)
        dist.all_reduce(gradients)
        _kept.append(gradients)
        reduced = torch.futures.Future()
        reduced.set_result(gradients)
        return reduced

    _kept.append(model)
    model.register_comm_hook(None, reduce)
    for step in range(replay.steps):
        inputs, targets = _batch(torch, step)
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradients = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
        replay.check(step, {"reduced gradient": gradients}, loss=loss, scope="group")
        optimizer.step()
    dist.destroy_process_group()


def _network(torch, layers):
    torch.manual_seed(0)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(WIDTH, WIDTH))


def _batch(torch, step):
    generator = torch.Generator().manual_seed(1 + step)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


if __name__ == "__main__":
    main()
