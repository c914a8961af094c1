"""Faults for real traces: a second implementation, which shares neither code nor rules with Lockstep.

Healthy durations are drawn from what the two published traces have once their own faults are taken out: levels per op type
and stage, and scatter of steps, of workers within a step, and of single ops. Faults change durations; a replay of its own
then says when everything begins and ends, and what a step takes with and without them. Times are seconds, arrays
[step, data-parallel rank, sequence number].

    job = Job(folder, "AR")
    healthy = job.healthy(seed)
    trace = job.replay(job.inject(healthy, [{"kind": "worker", "dp": 1, "stage": 2, "factor": 1.4}], seed))
    trace.write("trace.csv.gz")
"""
import copy
import csv
import gzip

import numpy as np

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PASSES = FORWARD, BACKWARD
GATHER, REDUCE = "params-all-gather", "grads-reduce-scatter"
LAYERNORM, EMBEDDING, CLIP, OPTIMIZER, GC = ("layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad",
                                             "optimizer", "gc")
# Each kind of transfer: its send and receive, whose compute it carries, and to which stage from the sender's.
TRANSFERS = {"forward": ("forward-send", "forward-recv", FORWARD, 1), "backward": ("backward-send", "backward-recv", BACKWARD, -1)}
SENDS = {send: (kind, receive, compute, to) for kind, (send, receive, compute, to) in TRANSFERS.items()}
RECEIVES = {receive: (kind, send, compute, to) for kind, (send, receive, compute, to) in TRANSFERS.items()}
LAUNCH_S = 20e-6


def healthy_part(values):
    """Without the odd hiccup, and without clocks that disagree."""
    return values[values <= np.percentile(values, 97.5)].clip(0)


class Job:
    def __init__(self, folder, name):
        self.name = name
        with gzip.open(folder / f"trace-{name}.csv.gz", "rt") as file:
            self.header, *self.rows = csv.reader(file)
        self.dps, self.stages = (1 + max(int(row[column]) for row in self.rows) for column in (0, 1))
        self.steps = sorted({int(row[3]) for row in self.rows})
        self.read()
        self.levels, self.scatter, self.pools = {}, {}, {}
        (self.levels_of_few if name == "AR" else self.levels_of_many)()
        self.pools_of_communication()
        self.level_stages()

    def read(self):
        """Starts and durations, [begin or duration, step, dp, sequence number], and the recorded order of computes."""
        count = {}
        for row in self.rows:
            count[row[4], int(row[1])] = max(count.get((row[4], int(row[1])), 0), int(row[7]) + 1)
        self.count = count
        self.measured = {place: np.full((2, len(self.steps), self.dps, ops), np.nan) for place, ops in count.items()}
        index = {step: place for place, step in enumerate(self.steps)}
        self.where = []
        for row in self.rows:
            place, cell = (row[4], int(row[1])), (index[int(row[3])], int(row[0]), int(row[7]))
            self.measured[place][(0, *cell)], self.measured[place][(1, *cell)] = float(row[5]), float(row[6])
            self.where.append((place, cell))
        self.order = {}
        for stage in range(self.stages):
            starts = np.concatenate([self.measured[kind, stage][0, 0, 0] for kind in PASSES])
            forwards = count[FORWARD, stage]
            self.order[stage] = [(FORWARD, int(i)) if i < forwards else (BACKWARD, int(i) - forwards) for i in np.argsort(starts, kind="stable")]

    def is_sound(self, stage):
        """Which data-parallel ranks to learn from: AR has one slow worker."""
        sound = np.ones(self.dps, bool)
        sound[0] = not (self.name == "AR" and stage == 0)
        return sound

    def keep_scatter(self, place, level, relative):
        of_step = relative.mean(axis=(1, 2))
        self.levels[place] = level
        self.scatter[place] = (of_step, (relative.mean(axis=2) / of_step[:, None]).ravel(),
                               (relative / relative.mean(axis=2, keepdims=True)).ravel())

    def levels_of_few(self):
        for stage in range(self.stages):
            for kind in PASSES:
                durations = self.measured[kind, stage][1][:, self.is_sound(stage)]
                level = durations.mean(axis=(0, 1))
                self.keep_scatter((kind, stage), level, durations / level)

    def levels_of_many(self):
        """SE's microbatches differ in length, alike in all places: what the other places say of a microbatch is taken out."""
        places = [(kind, stage) for kind in PASSES for stage in range(self.stages)]
        logs = {place: np.log(self.measured[place][1]) for place in places}
        logs = {place: values - values.mean() for place, values in logs.items()}
        for place in places:
            others = sum(logs[other] for other in places if other != place) / (len(places) - 1)
            rest = np.exp(logs[place] - np.polyval(np.polyfit(others.ravel(), logs[place].ravel(), 3), others))
            rest = np.clip(rest, *np.percentile(rest, [0.5, 99.5]))
            level = np.full(self.count[place], self.measured[place[0], 0][1].mean())
            self.keep_scatter(place, level, rest / rest.mean())

    def pools_of_communication(self):
        last = self.stages - 1
        for stage in range(self.stages):
            sound = self.is_sound(stage)
            for kind in (GATHER, REDUCE):
                begin, duration = self.measured[kind, stage][:, :, :, 0]
                self.pools[kind, stage] = healthy_part(np.median(begin + duration, axis=1) - begin.max(axis=1))
            for kind in (LAYERNORM, OPTIMIZER):
                self.pools[kind, stage] = healthy_part(self.measured[kind, stage][1][:, sound, 0].ravel())
            for kind, (send, receive, _, to) in TRANSFERS.items():
                if not 0 <= stage + to <= last:
                    continue
                (sent, sending), (received, receiving) = self.measured[send, stage], self.measured[receive, stage + to]
                transfer = np.minimum(sent + sending, received + receiving) - np.maximum(sent, received)
                self.pools[kind, stage] = healthy_part(transfer[:, sound & self.is_sound(stage + to)].ravel())
        (first, first_duration), (second, _) = self.measured[EMBEDDING, 0], self.measured[EMBEDDING, last]
        self.pools[EMBEDDING] = healthy_part((first + first_duration - np.maximum(first, second)).ravel())
        clips = [self.measured[CLIP, stage] for stage in range(self.stages)]
        ends = np.median(np.concatenate([(begin + duration)[:, :, 0] for begin, duration in clips], axis=1), axis=1)
        self.pools[CLIP] = healthy_part(ends - np.max([begin.max(axis=(1, 2)) for begin, _ in clips], axis=0))

    def level_stages(self):
        """AR's last stage has a little more to do, and its first a larger ring: here all have the same."""
        if self.name != "AR":
            return
        for kind in PASSES:
            level = np.mean([self.levels[kind, stage] for stage in range(self.stages - 1)], axis=0)
            self.levels.update({(kind, stage): level for stage in range(self.stages)})
        for kind in (GATHER, REDUCE, LAYERNORM, OPTIMIZER):
            self.pools.update({(kind, stage): self.pools[kind, 1] for stage in range(self.stages)})

    def healthy(self, seed):
        """Durations of a job without a fault, by (op type or transfer, stage)."""
        chance = np.random.default_rng([seed, 1])
        steps, dps = len(self.steps), self.dps
        drawn = {}
        for stage in range(self.stages):
            for kind in PASSES:
                of_step, of_worker, of_op = self.scatter[kind, stage]
                drawn[kind, stage] = (self.levels[kind, stage] * chance.choice(of_step, (steps, 1, 1)) * chance.choice(of_worker, (steps, dps, 1)) *
                                      chance.choice(of_op, (steps, dps, self.count[kind, stage])))
            for kind in (GATHER, REDUCE):
                drawn[kind, stage] = chance.choice(self.pools[kind, stage], (steps, 1)) + np.zeros((steps, dps))
            for kind in (LAYERNORM, OPTIMIZER):
                drawn[kind, stage] = chance.choice(self.pools[kind, stage], (steps, dps))
            for kind, (send, _, _, to) in TRANSFERS.items():
                if 0 <= stage + to < self.stages:
                    drawn[kind, stage] = chance.choice(self.pools[kind, stage], (steps, dps, self.count[send, stage]))
            drawn["skew", stage] = chance.uniform(0, 2e-3, (steps, dps))
        drawn[EMBEDDING] = chance.choice(self.pools[EMBEDDING], (steps, dps))
        drawn[CLIP] = chance.choice(self.pools[CLIP], (steps, 1)) + np.zeros((steps, dps))
        drawn["load"] = np.zeros((steps, dps))
        return drawn

    def inject(self, healthy, faults, seed):
        durations = copy.deepcopy(healthy)
        for number, fault in enumerate(faults):
            getattr(self, "inject_" + fault["kind"])(durations, fault, np.random.default_rng([seed, 2, number]))
        return durations

    def inject_worker(self, durations, fault, chance):
        for kind in PASSES:
            durations[kind, fault["stage"]][fault.get("from"):fault.get("to"), fault["dp"]] *= fault["factor"]

    inject_transient_worker = inject_worker

    def inject_stage(self, durations, fault, chance):
        for kind in PASSES:
            durations[kind, fault["stage"]] *= fault["factor"]

    def inject_sequence_length(self, durations, fault, chance):
        lengths = np.exp(chance.normal(0, fault["sigma"], durations[FORWARD, 0].shape))
        for stage in range(self.stages):
            for kind in PASSES:
                durations[kind, stage] *= lengths

    def inject_gc(self, durations, fault, chance):
        for stage in range(self.stages):
            steps, dps = np.nonzero(chance.random((len(self.steps), self.dps)) < fault["share"])
            microbatches = chance.integers(0, self.count[FORWARD, stage], len(steps))
            durations[FORWARD, stage][steps, dps, microbatches] += chance.uniform(0.5, 1, len(steps))

    def inject_link(self, durations, fault, chance):
        """Between `stage` and the next one, in the directions given."""
        for kind in fault["directions"]:
            slow = durations[kind, fault["stage"] + (kind == "backward")][:, fault["dp"]]
            slow += fault["seconds"] * chance.uniform(0.9, 1.1, slow.shape)

    def inject_ring(self, durations, fault, chance):
        for kind in (GATHER, REDUCE):
            durations[kind, fault["stage"]] *= fault["factor"]

    def inject_fabric(self, durations, fault, chance):
        for stage in range(self.stages):
            for kind in (GATHER, REDUCE, *(TRANSFERS if fault["transfers"] else ())):
                if (kind, stage) in durations:
                    durations[kind, stage][fault["from"]:fault["to"]] *= fault["factor"]

    def inject_data_loading(self, durations, fault, chance):
        late = fault["seconds"] * np.exp(chance.normal(0, 0.15, (len(self.steps), self.dps)))
        dps = slice(None) if fault["dp"] == "all" else fault["dp"]
        durations["load"][:, dps] += late[:, dps]

    def replay(self, durations):
        return Replay(self, durations)


class Replay:
    """When everything begins and ends, op by op (type, stage, sequence number)."""

    def __init__(self, job, durations):
        self.job, self.durations = job, durations
        self.place = {stage: {op: i for i, op in enumerate(order)} for stage, order in job.order.items()}
        self.begin, self.end = {}, {}
        for (kind, stage), count in job.count.items():
            for i in range(count):
                self.carry_out((kind, stage, i))
        self.first = np.min([begin.min(axis=1) for begin in self.begin.values()], axis=0)
        self.step_s = np.max([end.max(axis=1) for end in self.end.values()], axis=0) - self.first

    def carry_out(self, op):
        stack = [op]
        while stack:
            group = self.group(stack[-1])
            waits_for = [before for one in group for before in self.before(*one) if before not in self.end]
            if stack[-1] in self.end:
                stack.pop()
            elif waits_for:
                stack += waits_for
            else:
                for one in group:
                    self.begin[one] = self.start(one)
                last = np.max([self.begin[one] for one in group], axis=0)
                for one in group:
                    self.end[one] = self.finish(*one, last)

    def group(self, op):
        kind, stage, i = op
        if kind in SENDS:
            return [op, (SENDS[kind][1], stage + SENDS[kind][3], i)]
        if kind in RECEIVES:
            return [op, (RECEIVES[kind][1], stage - RECEIVES[kind][3], i)]
        if kind == EMBEDDING:
            return [(kind, 0, 0), (kind, self.job.stages - 1, 0)]
        return [(kind, each, 0) for each in range(self.job.stages)] if kind == CLIP else [op]

    def before(self, kind, stage, i):
        """What must have ended on the same rank."""
        order, last = self.job.order[stage], self.job.stages - 1
        at = lambda place: (order[place][0], stage, order[place][1])
        if kind in PASSES:
            place = self.place[stage][kind, i]
            receive, origin = ("forward-recv", 0) if kind == FORWARD else ("backward-recv", last)
            return [at(place - 1) if place else (GATHER, stage, 0)] + ([(receive, stage, i)] if stage != origin else [])
        if kind in SENDS or kind in RECEIVES:
            compute = SENDS.get(kind, RECEIVES.get(kind))[2]
            waits = [(kind, stage, i - 1)] if i else []
            if kind in SENDS:
                waits.append((compute, stage, i))
            else:
                waits.append((compute, stage, i - 1) if i else (GATHER, stage, 0))
            second = self.place[stage][BACKWARD, 0] - 2
            return waits + ([at(second)] if i == 0 and compute == BACKWARD and second >= 0 else [])
        in_embedding = stage in (0, last)
        tail = {GC: at(-1), LAYERNORM: (GC, stage, 0), EMBEDDING: (LAYERNORM, stage, 0),
                REDUCE: (EMBEDDING if in_embedding else LAYERNORM, stage, 0), CLIP: (REDUCE, stage, 0), OPTIMIZER: (CLIP, stage, 0)}
        return [tail[kind]] if kind in tail else []

    def start(self, op):
        before = self.before(*op)
        ready = np.max([self.end[one] for one in before], axis=0) if before else self.durations["skew", op[1]]
        return ready + (self.durations["load"] if op == (FORWARD, 0, 0) else 0) + LAUNCH_S

    def finish(self, kind, stage, i, last):
        if kind in PASSES:
            return last + self.durations[kind, stage][:, :, i]
        if kind in SENDS:
            return last + self.durations[SENDS[kind][0], stage][:, :, i]
        if kind in RECEIVES:
            return last + self.durations[RECEIVES[kind][0], stage - RECEIVES[kind][3]][:, :, i]
        if kind == GC:
            return last
        if kind in (GATHER, REDUCE):
            return last.max(axis=1, keepdims=True) + self.durations[kind, stage]
        if kind == CLIP:
            return last.max(axis=1, keepdims=True) + self.durations[CLIP]
        return last + (self.durations[EMBEDDING] if kind == EMBEDDING else self.durations[kind, stage])

    def write(self, path):
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.write(",".join(self.job.header) + "\n")
            for row, ((kind, stage), (step, dp, i)) in zip(self.job.rows, self.job.where):
                begin, end = self.begin[kind, stage, i][step, dp], self.end[kind, stage, i][step, dp]
                file.write(",".join([*row[:5], f"{begin - self.first[step]:.8g}", f"{end - begin:.8g}", *row[7:]]) + "\n")
