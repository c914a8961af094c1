#!/usr/bin/env python3
"""The what-if analysis of Lin et al. (OSDI'25) a second time: plain and slow, from its description alone and without a look at lockstep/explain,
so that a mistake would have to be made twice. With PUBLISHED it gives the figures that the authors published for their traces.

    whatif_reference.py TRACE.csv[.gz] META.yaml [--no-workers] [--published]     # JSON on stdout

A lane is one (step, dp_rank); an op is (optype, seq_id, stage). The graph is built from the first lane and shared by all.
"""
import csv
import gzip
import json
import math
import statistics
import sys
from array import array

EPS = 5e-5                                   # seconds; for recorded but never launched sends and receives
DIRECTIONS = (("forward", +1), ("backward", -1))
P2P = {"forward-send", "forward-recv", "backward-send", "backward-recv"}
DP_SYNCED = {"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"}
COMM = P2P | DP_SYNCED | {"embedding-grads-all-reduce", "optimizer-clip-main-grad"}   # transfer counts from the last start
MEDIAN = COMM | {"layernorm-grads-all-reduce"}                                       # ideal value is a median, else a mean
PP_COMM = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
           "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm"}


def f32(x):
    return array("f", [x])[0]


def mean32(values):
    """numpy's pairwise float32 mean for up to 128 values (8 running sums), for the published launch_slowdown."""
    n, r, i = len(values), [0.0] * 8, 0
    if n < 8 or n > 128:
        s = 0.0
        for v in values:
            s = f32(s + v)
        return f32(s / n)
    r = list(values[:8])
    for i in range(8, n - n % 8, 8):
        r = [f32(a + b) for a, b in zip(r, values[i:i + 8])]
    s = f32(f32(f32(r[0] + r[1]) + f32(r[2] + r[3])) + f32(f32(r[4] + r[5]) + f32(r[6] + r[7])))
    for v in values[n - n % 8:]:
        s = f32(s + v)
    return f32(s / n)


PUBLISHED = False                            # the artifact keeps medians of transfers, and the mean of T_base, as float32


def median(values, optype):
    m = statistics.median(values)
    return f32(m) if PUBLISHED and optype in COMM else m


class Trace:
    """start[op][lane], duration[op][lane] as float32 values; the columns mc, mb, gmc of an op in the first lane."""

    def __init__(self, path, meta_path):
        self.meta = {}
        with open(meta_path) as file:
            for line in file:
                if ":" in line:
                    k, v = line.split(":", 1)
                    self.meta[k.strip()] = v.strip()
        m = lambda k: int(self.meta.get(k, 1))
        self.dp, self.pp, self.vpp, self.dsp = m("dp_size"), m("pp_size"), m("vpp_size"), m("dsp_size")
        assert m("world_size") == self.dp * self.pp * m("tp_size") * self.dsp
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
            rows = list(csv.DictReader(file))
        self.steps = sorted({int(r["step"]) for r in rows})
        self.lanes = [(s, d) for s in self.steps for d in range(self.dp)]           # step major
        index = {l: i for i, l in enumerate(self.lanes)}
        n = len(self.lanes)
        self.start, self.duration, self.info, self.rank = {}, {}, {}, {}
        for r in rows:
            op = (r["optype"], int(r["seq_id"]), int(r["stage"]))
            lane = index[int(r["step"]), int(r["dp_rank"])]
            if op not in self.start:
                self.start[op], self.duration[op] = [None] * n, [None] * n
            assert self.start[op][lane] is None, ("twice", op, self.lanes[lane])
            self.start[op][lane] = f32(float(r["start_ts"]))
            self.duration[op][lane] = f32(float(r["duration"]))
            chunk = (int(r["mc"]), int(r["mb_id"]), int(r["gmc"]))
            if lane == 0:
                self.info[op] = chunk
            self.rank[int(r["dp_rank"]), op[2]] = int(r["rank"])
        for op, s in self.start.items():
            assert None not in s, ("missing", op, self.lanes[s.index(None)])
        self.end = {op: [f32(a + b) for a, b in zip(self.start[op], self.duration[op])] for op in self.start}
        self.ops = sorted(self.start)


class Graph:
    """deps[op]: ops that must have ended; groups: (members, over dp lanes as well?) that wait for each other's start."""

    def __init__(self, t):
        self.t, self.deps, self.groups, self.noop, self.match = t, {op: set() for op in t.ops}, [], set(), {}
        for stage in range(t.pp):
            self.one_stage(stage)
        self.make_groups()
        self.order()

    def key(self, op):                                                             # first lane
        return (self.t.start[op][0], op[1], op[0])

    def chain(self, ops):
        for a, b in zip(ops, ops[1:]):
            self.deps[b].add(a)

    def stream(self, stage, *optypes):
        return sorted((op for op in self.t.ops if op[2] == stage and op[0] in optypes), key=self.key)

    def has_peer(self, compute, step):
        """Virtual stage gmc = mc*pp + stage; activations go to gmc+1 and gradients to gmc-1, if there is one."""
        return 0 <= self.t.info[compute][2] + step < self.t.vpp * self.t.pp

    def one_stage(self, stage):
        t, deps = self.t, self.deps
        compute = self.stream(stage, "forward-compute", "backward-compute")
        self.chain(compute)
        for direction, step in DIRECTIONS:
            work = [op for op in compute if op[0] == direction + "-compute"]
            for kind in ("send", "recv"):
                comms = self.stream(stage, f"{direction}-{kind}")
                self.chain(comms)
                # a send of this compute goes to gmc+step, a receive for it comes from gmc-step
                self.match_p2p(stage, work, comms, kind, step if kind == "send" else -step)
        self.chain(self.stream(stage, "params-all-gather", "grads-reduce-scatter") if t.dp * t.dsp > 1 else [])

        # the first backward communication is not posted before the last but one forward ahead of the first backward
        first_backward = next(i for i, op in enumerate(compute) if op[0] == "backward-compute")
        if first_backward >= 2:
            for kind in ("send", "recv"):
                op = (f"backward-{kind}", 0, stage)
                if op in deps:
                    deps[op].add(compute[first_backward - 2])

        of = lambda optype: [op for op in t.ops if op[0] == optype and op[2] == stage]
        gathers, scatters = of("params-all-gather"), of("grads-reduce-scatter")
        by_chunk = lambda kind, mc: [op for op in compute if op[0] == kind and t.info[op][0] == mc]
        for g in gathers:
            if by_chunk("forward-compute", t.info[g][0]):
                deps[by_chunk("forward-compute", t.info[g][0])[0]].add(g)
        overlapped = any(op[0] == "separate-grads-all-reduce" for op in t.ops)
        if overlapped:
            for mc in {t.info[s][0] for s in scatters}:
                deps[min((s for s in scatters if t.info[s][0] == mc), key=self.key)].add(by_chunk("backward-compute", mc)[-1])

        last = max(compute, key=lambda op: t.end[op][0])
        tail = [last] + of("gc") + of("layernorm-grads-all-reduce")
        if overlapped and scatters:
            deps[of("layernorm-grads-all-reduce")[0]].add(max(scatters, key=self.key))
        tail += of("embedding-grads-all-reduce")
        tail += of("separate-grads-all-reduce") if overlapped else scatters
        self.chain(tail + of("optimizer-clip-main-grad") + of("optimizer"))

    def match_p2p(self, stage, work, comms, kind, step):
        """Which compute a send or receive belongs to, and the edges between them."""
        t, live = self.t, []
        for c in comms:                                                            # recorded, never launched
            never = (t.start[c][0] > t.start[work[-1]][0] + EPS if kind == "recv"
                     else t.end[c][0] < t.end[work[0]][0] - EPS)
            self.noop.add(c) if never else live.append(c)
        if not live:
            return
        with_peer = [w for w in work if self.has_peer(w, step)]
        if len(live) == len(work):
            pairs = list(zip(work, live))
        elif len(live) == len(with_peer):                                          # ends of the pipeline record none
            pairs = list(zip(with_peer, live))
        else:
            assert len(live) == len(work) - 1 and stage in (0, t.pp - 1), (stage, kind, len(live), len(work))
            pairs = list(zip(work[1:], live))
        for w, c in pairs:
            self.match[c] = w
            if not self.has_peer(w, step):
                self.noop.add(c)
            if kind == "send":
                self.deps[c].add(w)
            else:
                self.deps[w].add(c)
                i = work.index(w)
                if i:
                    self.deps[c].add(work[i - 1])

    def make_groups(self):
        t, used = self.t, set()
        for direction, step in DIRECTIONS:
            if t.pp == 1:
                break
            for s in range(t.pp):
                peer = (s + step) % t.pp
                # the n-th launched send of s meets the n-th launched receive of the peer
                sends = [c for c in self.stream(s, direction + "-send") if c not in self.noop]
                recvs = [c for c in self.stream(peer, direction + "-recv") if c not in self.noop]
                assert len(sends) == len(recvs), ("unpaired", direction, s, len(sends), len(recvs))
                for a, b in zip(sends, recvs):
                    wa, wb = t.info[self.match[a]], t.info[self.match[b]]          # from first principles: same microbatch,
                    assert wa[1] == wb[1] and wa[2] + step == wb[2], (a, wa, b, wb)  # neighbouring virtual stages
                    self.groups.append(([a, b], False))
        by_lane = [op for op in t.ops if op[0] == "embedding-grads-all-reduce"]
        self.groups += [(by_lane, False)] if by_lane else []
        clip = [op for op in t.ops if op[0] == "optimizer-clip-main-grad"]
        self.groups += [(clip, True)] if clip else []
        self.groups += [([op], True) for op in t.ops if op[0] in DP_SYNCED]
        used = {op for members, _ in self.groups for op in members}
        self.groups += [([op], False) for op in t.ops if op not in used]

    def order(self):
        """Groups in an order in which all dependencies of all members come first."""
        home = {op: i for i, (members, _) in enumerate(self.groups) for op in members}
        need = [{home[d] for op in members for d in self.deps[op]} for members, _ in self.groups]
        users = [[] for _ in need]
        for i, n in enumerate(need):
            assert i not in n
            for j in n:
                users[j].append(i)
        left, ready, out = [len(n) for n in need], [i for i, n in enumerate(need) if not n], []
        while ready:
            i = ready.pop()
            out.append(i)
            for j in users[i]:
                left[j] -= 1
                if not left[j]:
                    ready.append(j)
        assert len(out) == len(self.groups), "ops wait for each other in a circle"
        self.groups = [self.groups[i] for i in out]


class WhatIf:
    def __init__(self, t):
        self.t, self.g = t, Graph(t)
        self.n, self.dp = len(t.lanes), t.dp
        self.step_start = []
        for i in range(0, self.n, self.dp):
            low = min(min(v[i:i + self.dp]) for v in t.start.values())
            self.step_start += [low] * self.dp
        self.t_base = [f32(max(max(v[i:i + self.dp]) for v in t.end.values()) - self.step_start[i])
                       for i in range(0, self.n, self.dp)]
        self.value = {}                                    # duration, or for communication the transfer
        for members, over_dp in self.g.groups:
            last = self.latest([t.start[op] for op in members], over_dp)
            for op in members:
                if op[0] in COMM:
                    transfer = [f32(e - s) for e, s in zip(t.end[op], last)]
                    self.value[op] = [0.0 if x <= -0.01 else x for x in transfer]
                else:
                    self.value[op] = [max(x, 0.0) for x in t.duration[op]]
        self.delay = {}
        for members, _ in self.g.groups:
            for op in members:
                before = [t.end[d] for d in self.g.deps[op]] or [self.step_start]
                d = [f32(a - max(b)) for a, b in zip(t.start[op], zip(*before))]
                self.delay[op] = [0.0 if x <= -0.01 else x for x in d]
        pool = {}
        for op in t.ops:
            pool.setdefault(op[0], []).extend(self.value[op])
        self.ideal_value = {k: (median(v, k) if k in MEDIAN else math.fsum(v) / len(v)) for k, v in pool.items()}
        self.ideal = {op: [self.ideal_value[op[0]]] * self.n for op in t.ops}

    def latest(self, columns, over_dp):
        top = list(columns[0]) if len(columns) == 1 else list(map(max, *columns))
        if over_dp:
            for i in range(0, self.n, self.dp):
                top[i:i + self.dp] = [max(top[i:i + self.dp])] * self.dp
        return top

    def replay(self, value, delay=None):
        """Time of each step."""
        end = {}
        for members, over_dp in self.g.groups:
            starts = []
            for op in members:
                before = [end[d] for d in self.g.deps[op]] or [self.step_start]
                s = list(before[0]) if len(before) == 1 else list(map(max, *before))
                starts.append([a + b for a, b in zip(s, delay[op])] if delay else s)
            if members[0][0] in COMM:
                g = self.latest(starts, over_dp)
                starts = [g] * len(members)
            for op, s in zip(members, starts):
                end[op] = [a + b for a, b in zip(s, value[op])]
        ends = [end[op] for op in self.t.ops if op[0] == "optimizer"]
        return [max(max(e[i:i + self.dp]) for e in ends) - self.step_start[i] for i in range(0, self.n, self.dp)]

    def mixed(self, chosen, inside, outside):
        """Values `inside` where chosen(optype, stage, dp_rank), else `outside`."""
        out = {}
        for op in self.t.ops:
            pick = [chosen(op[0], op[2], d) for d in range(self.dp)]
            if all(pick) or not any(pick):
                out[op] = inside[op] if pick[0] else outside[op]
            else:
                out[op] = [(inside if pick[i % self.dp] else outside)[op][i] for i in range(self.n)]
        return out

    def analyse(self, workers=True):
        t, mean = self.t, lambda v: math.fsum(v) / len(v)
        original, ideal = self.replay(self.value), self.replay(self.ideal)
        with_delays = self.replay(self.value, self.delay)
        t_ori, t_ideal = mean(original), mean(ideal)
        steps = {}

        def alone(name, chosen):                          # S_x: everything ideal, only x as it was
            per_step = self.replay(self.mixed(chosen, self.value, self.ideal))
            steps[name] = {str(s): a / b for s, a, b in zip(t.steps, per_step, ideal)}
            return mean(per_step) / t_ideal

        def removed(chosen):                              # share of the slowdown that goes if x is made ideal
            if t_ori == t_ideal:
                return None
            return (t_ori - mean(self.replay(self.mixed(chosen, self.ideal, self.value)))) / (t_ori - t_ideal)

        label = lambda o: PP_COMM.get(o, o)
        by_optype = {x: alone(("optype", x), lambda o, s, d: label(o) == x) for x in sorted({label(op[0]) for op in t.ops})}
        by_dp = {str(x): alone(("dp", x), lambda o, s, d: d == x) for x in range(t.dp)}
        by_stage = {str(x): alone(("stage", x), lambda o, s, d: s == x) for x in range(t.pp)}
        by_min = {(d, s): min(by_dp[str(d)], by_stage[str(s)]) for d in range(t.dp) for s in range(t.pp)}
        exact = {(x, y): alone(("worker", x, y), lambda o, s, d: (d, s) == (x, y)) for x, y in by_min} if workers else {}

        def m_w(score):
            top = sorted(score, key=lambda w: (-score[w], t.rank[w]))[:math.ceil(0.03 * len(score))]
            return removed(lambda o, s, d: (d, s) in top)
        return {
            "slowdown": t_ori / t_ideal, "launch_slowdown": (mean32 if PUBLISHED else mean)(self.t_base) / t_ori,
            "step_t_base": self.t_base, "step_t_nodelay": original, "step_t_noblk": ideal, "steps": t.steps,
            "resimulation_error": max(abs(a - b) / b for a, b in zip(with_delays, self.t_base)),
            "by_optype": by_optype, "by_dp_rank": by_dp, "by_stage": by_stage,
            "by_worker": {f"{d},{s}": v for (d, s), v in exact.items()}, "by_worker_min": {f"{d},{s}": v for (d, s), v in by_min.items()},
            "m_w": m_w(exact) if workers else None, "m_w_min": m_w(by_min), "m_s": removed(lambda o, s, d: s == t.pp - 1),
            "per_step": {",".join(map(str, k)): v for k, v in steps.items()}, "ideal_values": self.ideal_value,
            "noop": len(self.g.noop), "edges": sum(map(len, self.g.deps.values())),
            "groups": sum(1 for m, o in self.g.groups if m[0][0] in COMM)}


if __name__ == "__main__":
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    PUBLISHED = "--published" in sys.argv
    print(json.dumps(WhatIf(Trace(*args)).analyse("--no-workers" not in sys.argv), indent=1))
