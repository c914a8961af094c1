"""DDP over gloo under torch.profiler, which writes rank-N.json of each rank. One rank does more forwards than the others."""
import argparse
import pathlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--slow-rank", type=int, default=-1)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(512, 256)

    def write(profiler):
        profiler.export_chrome_trace(str(flags.folder / f"rank-{rank}.json"))

    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=STEPS), on_trace_ready=write) as profiler:
        for _ in range(STEPS + 2):
            if rank == flags.slow_rank:
                for _ in range(60):  # 0.1 s: what a busy machine takes from the other rank by chance is far less
                    with torch.no_grad():
                        model.module(data)
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
