"""Profiler files of a pipelined job whose stages exchange by batch_isend_irecv, one NCCL kernel for a send and a receive, of which only the
host tells anything: 1F1B without overlap, each rank doing one thing after the other. Written from how such a job runs, without a look at
how it is read."""
import gzip
import json
import random

FORWARD_S, BACKWARD_S, TRANSFER_S, REDUCE_S, OPTIMIZER_S = 0.02, 0.036, 0.0005, 0.01, 0.005
PAUSE_S = 2e-6  # between two kernels
RECEIVE_BEFORE, RECEIVE_BEHIND = ("recv", -1), ("recv", 1)
SEND_BEFORE, SEND_BEHIND = ("send", -1), ("send", 1)


def program(stage, stages, microbatches):
    """What a stage does in a step: ("F" or "B", microbatch), ("x", what is sent and received at once), ("reduce",), ("optimizer",)."""
    warm_up = min(stages - 1 - stage, microbatches)
    before, behind = stage > 0, stage < stages - 1
    todo = []

    def exchange(*parts):
        there = [part for part in parts if (before if part[1] < 0 else behind)]
        if there:
            todo.append(("x", there))

    for microbatch in range(warm_up):
        exchange(RECEIVE_BEFORE)
        todo.append(("F", microbatch))
        exchange(SEND_BEHIND)
    if warm_up < microbatches:
        exchange(RECEIVE_BEFORE)
    for microbatch in range(warm_up, microbatches):
        todo.append(("F", microbatch))
        exchange(SEND_BEHIND, RECEIVE_BEHIND)
        todo.append(("B", microbatch - warm_up))
        exchange(SEND_BEFORE, *([RECEIVE_BEFORE] if microbatch < microbatches - 1 else []))
    for microbatch in range(microbatches - warm_up, microbatches):
        exchange(RECEIVE_BEHIND)
        todo.append(("B", microbatch))
        exchange(SEND_BEFORE)
    return todo + [("reduce",), ("optimizer",)]


class Job:
    """fault(kind, dp, stage, seconds) -> seconds; kind is "F", "B" or "x" (then stage is the lower one)."""

    def __init__(self, dp, pp, microbatches, steps, fault=lambda kind, dp, stage, seconds: seconds, lengths=0.0):
        self.dp, self.pp, self.steps = dp, pp, steps
        self.fault = fault
        self.chance = random.Random(7)
        self.workers = [(replica, stage) for replica in range(dp) for stage in range(pp)]
        self.now = {worker: 0.01 for worker in self.workers}
        self.begins = {worker: [] for worker in self.workers}  # of steps
        self.kernels = {worker: [] for worker in self.workers}  # (kind, begin, end, parts)
        for _ in range(steps):
            length = [[self.spread(lengths) for _ in range(microbatches)] for _ in range(dp)]
            self.step([program(stage, pp, microbatches) for stage in range(pp)], length)
        self.step_s = (max(self.now.values()) - 0.01) / steps

    def spread(self, sigma):
        return self.chance.lognormvariate(0, sigma)

    def step(self, programs, length):
        at = dict.fromkeys(self.workers, 0)
        for worker in self.workers:
            self.begins[worker].append(self.now[worker])

        def todo(worker):
            return programs[worker[1]][at[worker]] if at[worker] < len(programs[worker[1]]) else None

        def run(workers, kind, seconds, parts=None):
            """They end together, so long behind the last one's begin."""
            end = max(self.now[worker] for worker in workers) + seconds
            for worker in workers:
                self.kernels[worker].append((kind, self.now[worker], end, parts and parts[worker]))
                self.now[worker] = end + PAUSE_S
                at[worker] += 1

        def advance(worker):
            replica, stage = worker
            what = todo(worker)
            if what[0] in ("F", "B"):
                seconds = (FORWARD_S if what[0] == "F" else BACKWARD_S) * length[replica][what[1]] * self.spread(0.005)
                run([worker], what[0], self.fault(what[0], replica, stage, seconds))
            elif what[0] == "optimizer":
                run([worker], "optimizer", OPTIMIZER_S)
            elif what[0] == "reduce":
                ring = [(other, stage) for other in range(self.dp)]
                if any(todo(one) != what for one in ring):
                    return False
                run(ring, "reduce", REDUCE_S)
            else:
                peer = (replica, stage + what[1][0][1])
                answer = {(kind, -side) for kind, side in what[1]}
                theirs = todo(peer)
                if theirs is None or theirs[0] != "x" or {("send" if kind == "recv" else "recv", side) for kind, side in theirs[1]} != answer:
                    return False
                seconds = self.fault("x", replica, min(stage, peer[1]), TRANSFER_S * self.spread(0.005))
                run([worker, peer], "x", seconds, {worker: what[1], peer: theirs[1]})
            return True

        while any(todo(worker) for worker in self.workers):
            moved = [advance(worker) for worker in self.workers if todo(worker)]
            assert any(moved), "the program waits for itself"

    def rank(self, worker):
        return worker[1] * self.dp + worker[0]

    def write(self, folder):
        """Returns the paths."""
        return [self.write_rank(folder, worker) for worker in self.workers]

    def write_rank(self, folder, worker):
        replica, stage = worker
        rank = self.rank(worker)
        pipeline = [self.rank((replica, each)) for each in range(self.pp)]
        ring = [self.rank((each, stage)) for each in range(self.dp)]
        events = []

        def event(category, name, begin_s, duration_us, thread=4000, **args):
            events.append({"ph": "X", "cat": category, "name": name, "pid": rank % 8 if category == "kernel" else 4000, "tid": thread,
                           "ts": round(begin_s * 1e6, 3), "dur": round(duration_us, 3), "args": args})

        def told(name, group, ranks):
            return {"Collective name": name, "In msg nelems": 4096, "Out msg nelems": 4096, "Group size": len(ranks), "dtype": "BFloat16",
                    "Process Group Name": group, "Process Group Ranks": str(ranks)}

        ends = self.begins[worker][1:] + [self.now[worker]]
        for number, (begin, end) in enumerate(zip(self.begins[worker], ends)):
            event("user_annotation", f"ProfilerStep#{number}", begin - 300e-6, (end - begin) * 1e6)
        for number, (kind, begin, end, parts) in enumerate(self.kernels[worker], 1000):
            name, stream, args = "gemm", 7, {}
            if kind == "reduce":
                name, stream, args = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", 30, told("_reduce_scatter_base", f"dp{stage}", ring)
            if kind == "x":
                name, stream = "ncclDevKernel_SendRecv(x)", 21
                for index, (what, side) in enumerate(parts):
                    event("cpu_op", "record_param_comms", begin - 60e-6 + index * 3e-6, 1, **told(what, f"pp{replica}", pipeline),
                          **{"External id": 100 * number + index, "Dst Rank" if what == "send" else "Src Rank": stage + side})
            event("cuda_runtime", "cudaLaunchKernel", begin - 50e-6, 2, correlation=number)
            event("kernel", name, begin, (end - begin) * 1e6, stream, correlation=number, stream=stream, **args)
        path = f"{folder}/rank-{rank}.json.gz"
        with gzip.open(path, "wt", compresslevel=1) as file:
            json.dump({"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.dp * self.pp},
                       "baseTimeNanoseconds": 1750000000000000000, "traceEvents": events}, file)
        return path
