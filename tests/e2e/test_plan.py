"""`lockstep plan` as its users call it."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from harness import BINARY

ROWS = """id,family,hardware,gpus,layers,hidden,ffn,gated,heads,seq,gbs,mbs,tp,pp,zero,recompute,attention,precision,step_time_s
a,f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,64,4,1,1,1,none,flash,bf16,2.0
b,f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,128,4,1,1,1,none,flash,bf16,3.9
c,f,H100-80GB-SXM,8,32,4096,16384,0,32,2048,64,4,3,1,1,none,flash,bf16,2.0
"""
MACHINE = """[[machine]]
name = "mine"
rates = "h100"
bf16_tflops = 989.5
memory_gb = 85.5
memory_gb_s = 3350
scale_up_gb_s = 450
nic_gb_s = 50
"""
DLRM = """[bottom]
input = 13
width = 512
layers = 3
[top]
input = 512
width = 1024
layers = 3
[[table]]
rows = 1e6
dim = 64
pooling = 20
count = 26
"""
LLAMA = ["--model", "llama3-8b", "--cluster", "dgx-h100:16", "--batch", "128"]


ONE = ["--model", "llama3-8b", "--cluster", "dgx-h100:1", "--batch", "8", "--layout", "mbs=1"]
KERNELS = {"matrix products": "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT", "attention": "flash_fwd_kernel",
           "element-wise": "triton_poi_fused_mul_0", "optimizer": "multi_tensor_apply_kernel"}


def write_profile(path, seconds, steps=3):
    """What the PyTorch profiler would write of one rank whose steps consist of these terms, one after the other."""
    events, at = [], 0
    idle = {"between steps": 0, "launches": 0} | {term: value for term, value in seconds.items() if term not in KERNELS}
    for step in range(steps):
        begin, at = at, at + idle["between steps"]
        for number, (term, kernel) in enumerate(KERNELS.items()):
            at += idle["launches"] if number == 1 else 0
            events.append(("kernel", kernel, at, seconds.get(term, 0)))
            at += seconds.get(term, 0)
        events.append(("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    path.write_text(json.dumps({
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "traceEvents": [{"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": 7, "ts": round(begin * 1e6, 3),
                         "dur": round(duration * 1e6, 3)}
                        for kind, name, begin, duration in events]}))


def plan(*words):
    return subprocess.run([BINARY, "plan", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


class Plan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.table = self.folder / "runs.csv"
        self.table.write_text(ROWS)
        self.impossible = self.folder / "config.json"
        self.impossible.write_text(json.dumps({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336, "vocab_size": 128256,
                                               "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1024, "first_k_dense_replace": 99,
                                               "max_position_embeddings": 4096}))
        self.empty = self.folder / "empty.csv"
        self.empty.write_text(ROWS.splitlines(True)[0])
        self.unmeasured = self.folder / "unmeasured.csv"
        self.unmeasured.write_text("".join(ROWS.splitlines(True)[i] for i in (0, 3)))

    def document(self, *words):
        answer = plan(*words, "--json")
        self.assertEqual((0, ""), (answer.returncode, answer.stderr))
        return json.loads(answer.stdout)

    def test_the_best_layouts(self):
        found = self.document(*LLAMA, "--top", 3)
        self.assertEqual(3, len(found["best"]))
        times = [one["step_time_s"] for one in found["best"]]
        self.assertEqual(sorted(times), times)
        first = found["best"][0]
        self.assertAlmostEqual(first["step_time_s"], sum(first["breakdown"].values()), 9)
        self.assertLessEqual(first["memory_gib"]["total"], first["memory_gib"]["capacity"])
        self.assertIn("step_time_s", plan(*LLAMA).stdout)

    def test_one_layout(self):
        one = self.document(*LLAMA, "--layout", "tp=2,pp=2,mbs=2")
        self.assertIn("tp 2, pp 2, dp 4", one["layout"])
        self.assertLess(one["lo80"], one["step_time_s"])
        self.assertLess(one["step_time_s"], one["hi80"])

    def test_what_fits_nowhere(self):
        answer = plan("--model", "llama3-70b", "--cluster", "a100-40gb:8", "--batch", 64)
        self.assertEqual(1, answer.returncode)
        self.assertIn("no layout fits the memory: the least is", answer.stderr)
        self.assertIn("weights, gradients and optimizer are", answer.stderr)
        cheapest = re.search(r"cheapest first: .*?(\d+) x (\S+)", answer.stderr)
        fits = plan("--model", "llama3-70b", "--cluster", f"{cheapest[2]}:{cheapest[1]}", "--batch", 64)
        self.assertEqual(0, fits.returncode, fits)
        freeze = re.search(r"--freeze (embedding,layers:\d+)", answer.stderr)[1]
        fits = plan("--model", "llama3-70b", "--cluster", "a100-40gb:8", "--batch", 64, "--freeze", freeze)
        self.assertEqual(0, fits.returncode, fits)

    def test_what_fits_with_the_hosts_memory(self):
        words = ["--model", "llama3-8b", "--cluster", "a100-40gb:2", "--batch", 8]
        offload = re.search(r"cheapest first: --offload (\S+) \(", plan(*words).stderr)[1]
        fits = self.document(*words, "--offload", offload)["best"][0]
        self.assertIn(f"offload {offload}", fits["layout"])
        self.assertLess(0, fits["memory_gib"]["host"])
        self.assertLessEqual(fits["memory_gib"]["host"], fits["memory_gib"]["host_capacity"])

    def test_weights_in_the_hosts_memory(self):
        # 16 bytes of each of 70 billion parameters are more than eight accelerators have.
        words = ["--model", "llama3-70b", "--cluster", "dgx-h100:8", "--batch", 64]
        self.assertEqual(1, plan(*words).returncode)
        best = self.document(*words, "--offload", "weights")["best"][0]
        self.assertIn("offload weights", best["layout"])
        self.assertAlmostEqual(best["step_time_s"], sum(best["breakdown"].values()), 9)
        optimizer = self.document(*words, "--offload", "optimizer")["best"][0]
        self.assertLess(best["memory_gib"]["states"], optimizer["memory_gib"]["states"])
        flags = plan(*words, "--layout", "tp=4,zero=3,mbs=1,recompute=full,offload=weights", "--emit", "torchtitan").stdout
        self.assertIn("enable_cpu_offload = true\n", flags)

    def test_flags_of_the_first_layout_that_a_framework_can_carry_out(self):
        words = ["--model", "llama3-70b", "--cluster", "dgx-h100:64", "--batch", 128, "--stack", "nemo", "--emit", "torchtitan"]
        said = plan(*words)
        self.assertEqual(0, said.returncode, said)
        self.assertIn("found zero 1; these are the flags of: ", said.stderr)
        report = self.document(*words)
        self.assertEqual(said.stdout, report["flags"])
        self.assertRegex(report["flags_of"], "zero 3|dp 1,", "all is shared, or there is nobody to share with")
        self.assertIn(report["flags_note"], said.stderr)
        self.assertEqual(5, len(report["best"]))

    def test_flags_are_predicted_by_their_own_frameworks_habits(self):
        words = [*LLAMA, "--layout", "tp=2,zero=3,mbs=1"]
        own = self.document(*words, "--emit", "torchtitan")
        self.assertEqual(self.document(*words, "--stack", "torchtitan")["step_time_s"], own["step_time_s"])
        self.assertNotIn("flags_note", own)
        self.assertEqual("torchtitan", own["stack"])
        other = self.document(*words, "--emit", "torchtitan", "--stack", "nemo")
        self.assertEqual(self.document(*words)["step_time_s"], other["step_time_s"])
        self.assertEqual("predicted with the habits of --stack nemo, not with those of torchtitan", other["flags_note"])

    def test_a_layout_as_it_is_printed(self):
        words = [*LLAMA, "--layout", "tp=2,pp=4,mbs=1,stages=9+8x2+7,recompute=full:2,offload=optimizer+activations"]
        one = self.document(*words)
        self.assertIn("stages 9+8+8+7", one["layout"])
        self.assertIn("recompute full:2, offload optimizer+activations", one["layout"])
        self.assertAlmostEqual(one["step_time_s"], sum(one["breakdown"].values()), 9)
        self.assertIn("machine.host_link_gb_s", one["sensitivities"])
        flags = plan(*LLAMA, "--layout", "tp=2,pp=4,mbs=1,stages=9+8x2+7,recompute=full:2", "--emit", "megatron").stdout
        self.assertIn("--decoder-last-pipeline-num-layers 7\n", flags)
        self.assertIn("--recompute-num-layers 2\n", flags)

    def test_frozen_parts_need_less(self):
        layout = ["--layout", "tp=2,mbs=1"]
        full, frozen = self.document(*LLAMA, *layout), self.document(*LLAMA, *layout, "--freeze", "embedding,layers:24")
        self.assertGreater(full["step_time_s"], frozen["step_time_s"])
        self.assertGreater(full["memory_gib"]["states"], 1.5 * frozen["memory_gib"]["states"])
        even, uneven = (self.document(*LLAMA, "--stages", stages)["candidates"] for stages in ("even", "any"))
        self.assertLess(even, uneven)

    def test_schedules_and_uneven_stages(self):
        layouts = ["pp=4,mbs=1", "pp=4,mbs=1,schedule=zb-h1", "pp=4,mbs=1,schedule=zb-2p"]
        bubbles = [self.document(*LLAMA, "--layout", one)["breakdown"]["bubble"] for one in layouts]
        self.assertEqual(sorted(bubbles, reverse=True), bubbles)
        even = self.document(*LLAMA, "--layout", "pp=4,mbs=1,stages=8+8+8+8")
        fewer_on_the_last = self.document(*LLAMA, "--layout", "pp=4,mbs=1,stages=9+8+8+7")
        self.assertLess(fewer_on_the_last["step_time_s"], even["step_time_s"])
        found = self.document(*LLAMA, "--schedule", "1f1b,zb-h1,zb-2p,dualpipe")
        self.assertGreater(found["candidates"], self.document(*LLAMA)["candidates"])

    def test_mixtures_in_pieces(self):
        words = ["--model", "deepseek-v3", "--cluster", "dgx-h100:512", "--batch", 4096]
        one, pieces = (self.document(*words, "--moe-chunks", chunks, "--top", 1) for chunks in ("1", "1,2,4,8"))
        self.assertGreater(pieces["candidates"], 2 * one["candidates"])
        self.assertLess(pieces["best"][0]["step_time_s"], one["best"][0]["step_time_s"])
        number = re.search(r"moe_chunks (\d+)", pieces["best"][0]["layout"])[1]
        self.assertIn(f"found moe_chunks {number}", plan(*words, "--moe-chunks", number, "--emit", "megatron").stderr)
        exchange = [self.document(*words, "--layout", f"pp=1,ep=32,zero=3,moe_chunks={chunks}")["breakdown"]["expert_exchange"] for chunks in (1, 4)]
        self.assertLess(exchange[1], exchange[0])

    def test_precisions_side_by_side(self):
        both, fp8, bf16 = (self.document(*LLAMA, "--precision", precisions) for precisions in ("fp8,bf16,fp8", "fp8", "bf16"))
        self.assertIn(", fp8", both["best"][0]["layout"])
        self.assertEqual((both["best"][0], both["candidates"]), (fp8["best"][0], fp8["candidates"] + bf16["candidates"]))
        words = ["--model", "llama3-8b", "--batch", 128, "--precision", "bf16,fp8"]
        machines, a100, h100 = (self.document(*words, "--cluster", each)["candidates"]
                                for each in ("dgx-a100:16,dgx-h100:16", "dgx-a100:16", "dgx-h100:16"))
        self.assertEqual(machines, a100 + h100)
        self.assertEqual(self.document(*words[:-1], "bf16", "--cluster", "dgx-a100:16")["candidates"], a100)  # which have no fp8
        refused = plan(*LLAMA, "--precision", "bf16,fp8", "--layout", "pp=1,mbs=1")
        self.assertEqual((2, True), (refused.returncode, "are of one precision, found bf16, fp8" in refused.stderr), refused.stderr)

    def test_tiers_of_a_network(self):
        with tempfile.TemporaryDirectory() as scratch:
            file = pathlib.Path(scratch) / "mine.toml"
            words = ["--model", "llama3-8b", "--cluster", f"{file}:64", "--batch", 64, "--layout", "pp=1,zero=1,mbs=1"]
            steps = []
            for tiers in ("", "[[machine.tier]]\naccelerators = 16\ngb_s = 2\n[[machine.tier]]\naccelerators = 32\ngb_s = 0.5\n"):
                file.write_text(MACHINE + tiers)
                steps.append(self.document(*words))
            self.assertLess(steps[0]["breakdown"]["data"], .2 * steps[1]["breakdown"]["data"])
            self.assertIn("machine.tier.1.gb_s", steps[1]["sensitivities"])
            file.write_text(MACHINE + "[[machine.tier]]\naccelerators = 8\ngb_s = 2\n")
            refused = plan(*words)
            self.assertEqual(2, refused.returncode)
            self.assertIn("accelerators must be more than 8", refused.stderr)
            file.write_text(MACHINE + "[[machine.tier]]\naccelerators = 16\ngb_s = 25e9\n")
            self.assertIn("gb_s must be 0.01 to 10000, found 2.5e+10: is it in another unit?", plan(*words).stderr)

    def test_who_sends_tokens_to_experts(self):
        words = ["--model", "qwen3-235b-a22b", "--cluster", "dgx-h100:256", "--batch", 1024]
        s1, s2, everybody = (self.document(*words, "--layout", f"tp=4,pp=1,ep=64,zero=3,{ways}")["step_time_s"]
                             for ways in ("seq_parallel=1", "moe_gather=1", "seq_parallel=0"))
        self.assertLess(s1, s2)
        self.assertLess(s2, everybody)

    def test_groups_that_share(self):
        words = ["--model", "llama3-8b", "--cluster", "dgx-h100:64", "--batch", 128]
        alike, groups = (self.document(*words, "--shard", shard)["candidates"] for shard in ("all", "any"))
        self.assertLess(alike, groups)
        whole, shared = (self.document(*words, "--layout", f"zero=3,shard={shard}")["memory_gib"]["states"] for shard in (0, 8))
        self.assertAlmostEqual(8, shared / whole, 6)

    def test_models_of_other_kinds(self):
        for model, cluster in (("mixtral-8x7b", "dgx-h100:64"), ("qwen3-30b-a3b", "dgx-h100:16"), ("qwen3-235b-a22b", "dgx-h100:256"), ("llama3-405b", "dgx-h100:512"), ("gpt-oss-20b", "dgx-h100:16"),
                               ("vit-l16", "dgx-h100:8")):
            best = self.document("--model", model, "--cluster", cluster, "--batch", 1024, "--top", 1)["best"][0]
            self.assertTrue(best["fits"], model)
            self.assertAlmostEqual(best["step_time_s"], sum(best["breakdown"].values()), 9)
            self.assertEqual(model.startswith(("qwen3", "mixtral", "gpt-oss")), "experts" in best["breakdown"], model)

    def test_sliding_windows_and_experts_in_some_layers(self):
        config = {"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
                  "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
                  "layer_types": ["sliding_attention", "full_attention"] * 12}
        words = ["--cluster", "dgx-h100:16", "--batch", 64, "--seq", 8192, "--layout", "ep=8,zero=1,mbs=1"]
        file = self.folder / "windows.json"
        file.write_text(json.dumps(config))
        windowed, preset = (self.document("--model", model, *words) for model in (file, "gpt-oss-20b"))
        self.assertEqual(windowed["step_time_s"], preset["step_time_s"])
        file.write_text(json.dumps(config | {"layer_types": ["full_attention"] * 24}))
        whole = self.document("--model", file, *words)
        self.assertAlmostEqual(.5 + .5 * (1 - (1 - 192 / 8192) ** 2), windowed["breakdown"]["attention"] / whole["breakdown"]["attention"], 6)
        file.write_text(json.dumps(config | {"decoder_sparse_step": 2}))
        half = self.document("--model", file, *words)
        self.assertAlmostEqual(.5, half["breakdown"]["experts"] / windowed["breakdown"]["experts"], 6)
        flags = plan("--model", file, *words, "--emit", "megatron").stdout
        self.assertIn('--window-size "(127,0)"\n--window-attn-skip-freq 2\n', flags)
        self.assertIn('--moe-layer-freq "(([0]*1+[1]*1)*12)"\n', flags)
        file.write_text(json.dumps(config | {"layer_types": ["linear_attention"] * 24}))
        self.assertIn('"layer_types" has "linear_attention"', plan("--model", file, *words).stderr)

    def test_adapters_need_less(self):
        both = [self.document(*LLAMA, "--training", kind, "--layout", "tp=2,mbs=1") for kind in ("full", "lora")]
        self.assertGreater(both[0]["step_time_s"], both[1]["step_time_s"])
        self.assertGreater(both[0]["memory_gib"]["states"], 2 * both[1]["memory_gib"]["states"])

    def test_the_whole_space(self):
        usual, whole = (self.document(*LLAMA, "--space", space) for space in ("usual", "whole"))
        self.assertGreater(whole["candidates"], 20 * usual["candidates"])
        self.assertLessEqual(whole["best"][0]["step_time_s"], usual["best"][0]["step_time_s"])

    def test_the_step_as_files(self):
        timeline = self.folder / "step.json"
        words = [*LLAMA, "--layout", "tp=2,pp=4,vp=2,mbs=1", "--out"]
        one = self.document(*words, timeline)
        self.assertAlmostEqual(1, one["graph"]["step_time_s"] / one["step_time_s"], delta=0.02)
        slices = [event for event in json.loads(timeline.read_text())["traceEvents"] if event["ph"] == "X"]
        self.assertEqual(one["graph"]["ops"], len(slices))
        chakra = self.document(*words, self.folder / "step.et")["graph"]["files"]
        self.assertEqual(4, len(chakra))
        read = subprocess.run([BINARY, "explain", "--chakra", *chakra, "--json"], capture_output=True, text=True, check=False)
        self.assertEqual(0, read.returncode, read.stderr)

    def test_comparison_flags_and_failures(self):
        both = self.document(*LLAMA, "--compare", "tp=2,pp=2", "tp=8,pp=1")
        step = next(row for row in both["difference"] if row["term"] == "step_time_s")
        self.assertAlmostEqual(step["b_minus_a"], both["b"]["step_time_s"] - both["a"]["step_time_s"], 9)
        flags = plan(*LLAMA, "--layout", "tp=2,pp=2,mbs=2", "--emit", "megatron").stdout
        self.assertIn("--tensor-model-parallel-size 2\n--pipeline-model-parallel-size 2\n", flags)
        one = self.document(*LLAMA, "--failures", "c4-2023-12")
        self.assertAlmostEqual(one["with_failures"]["tokens_per_s"], one["with_failures"]["useful"] * one["best"][0]["tokens_per_s"], 6)

    def test_money_and_energy(self):
        several = [*LLAMA[:3], "dgx-h100:16,dgx-h100:64", *LLAMA[4:]]
        fastest = self.document(*several)["best"][0]
        cheapest = self.document(*several, "--objective", "cost")["best"][0]
        self.assertEqual((64, 16), (fastest["accelerators"], cheapest["accelerators"]))
        self.assertLess(cheapest["usd_per_step"], fastest["usd_per_step"])
        dear = self.document(*several, "--objective", "cost", "--usd-per-hour", 24.58)["best"][0]
        self.assertAlmostEqual(2, dear["usd_per_step"] / cheapest["usd_per_step"], 6)
        self.assertGreater(self.document(*several, "--objective", "energy")["best"][0]["kwh_per_step"], 0)

    def test_a_machine_of_ones_own(self):
        own = self.folder / "own.toml"
        own.write_text(MACHINE)
        self.assertEqual("mine", self.document(*LLAMA[:3], f"{own}:16", *LLAMA[4:])["best"][0]["machine"])
        for wrong, text in [("bf16_tflops = 989.5e12", "bf16_tflops must be 0.1 to 100000, found 9.895e+14: is it in another unit?"),
                            ("bf16_tflops = 0", "bf16_tflops must be more than 0"),
                            ("bf16_tflops = -1", "bf16_tflops must not be negative"),
                            ("bf16_tflops = 1\nnic_gb_s = 4000", "nic_gb_s must be at most scale_up_gb_s, 450, found 4000: is it in Gb/s?")]:
            own.write_text((MACHINE if "nic" not in wrong else MACHINE.replace("nic_gb_s = 50\n", "")).replace("bf16_tflops = 989.5", wrong))
            answer = plan(*LLAMA[:3], f"{own}:16", *LLAMA[4:])
            self.assertEqual((2, 1), (answer.returncode, len(answer.stderr.splitlines())))
            self.assertIn(text, answer.stderr)

    def test_bits_for_bytes(self):
        own, model = self.folder / "own.toml", self.folder / "dlrm.toml"
        model.write_text(DLRM)
        asked = [[*LLAMA[:3], f"{own}:16", *LLAMA[4:]], [*LLAMA[:3], f"{own}:16", *LLAMA[4:], "--layout", "tp=2"],
                 ["dlrm", model, "--cluster", f"{own}:8", "--batch", 8192],
                 ["inference", "--model", "llama3-8b", "--cluster", f"{own}:8", "--batch", 8, "--prompt", 512, "--output", 8]]
        for right, wrong in (("nic_gb_s = 50", "nic_gb_s = 400"), ("scale_up_gb_s = 450", "scale_up_gb_s = 3600")):
            own.write_text(MACHINE.replace(right, wrong))
            note = f"mine: {wrong.replace('=', 'is')}, more than twice that of any machine known here: is it in Gb/s?"
            for words in asked:
                self.assertEqual(note, self.document(*words)["machine_note"])
        own.write_text(MACHINE)
        for words in asked:
            self.assertNotIn("machine_note", self.document(*words))
        own.write_text(MACHINE.replace("nic_gb_s = 50", "nic_gb_s = 100").replace("450", "64") + "domain = 1\n")
        self.assertEqual("mine", self.document(*asked[0])["best"][0]["machine"], "nobody in reach of the faster links")

    def test_schedules_of_a_grid_without_answers(self):
        grid = self.folder / "grid.csv"
        grid.write_text("B,L,M,H,k,f,N_MP,N_EP,N_ESP,choice\n2,512,512,2048,2,2.4,2,4,2,S1\n")
        compared = self.document("moe", grid)
        self.assertEqual((1, {"row": 2, "choice": ["S2", "S1"]}), (compared["wrong_choices"], compared["worst"]))
        self.assertEqual(["S2"], [one["choice"] for one in self.document("moe", grid, "--rows")["choices"]])
        grid.write_text("B,L,M,H,k,f,N_MP,N_EP,N_ESP\n2,512,512,2048,2,2.4,2,4,2\n")
        self.assertIn("S2", plan("moe", grid).stdout)

    def test_a_recommendation_model(self):
        model = self.folder / "dlrm.toml"
        model.write_text(DLRM)
        words = ["dlrm", model, "--cluster", "a100-40gb:8", "--batch", 8192]
        report = self.document(*words)
        self.assertAlmostEqual(report["step_time_s"], sum(report["breakdown"].values()), 9)
        self.assertEqual(26 * 64, sum(shard["columns"] for shard in report["shards"]))
        self.assertLess(report["step_time_s"], max(way["step_time_s"] for way in report["tried"]))
        model.write_text(DLRM.replace("rows = 1e6", "rows = 1e9"))
        self.assertEqual(1, plan(*words).returncode)
        preset = self.document("dlrm", "dlrm-a", "--cluster", "a100-40gb:128", "--batch", 65536)
        self.assertEqual(4096 * 94, sum(shard["columns"] for shard in preset["shards"]))
        model.write_text(DLRM.replace("dim = 64", "dims = 64"))
        answer = plan(*words)
        self.assertEqual(2, answer.returncode)
        self.assertIn("table.dim is missing", answer.stderr)

    def test_inference(self):
        words = ["inference", "--model", "llama3-8b", "--cluster", "dgx-h100:8", "--prompt", 2048, "--output", 128]
        few, many = (self.document(*words, "--batch", batch)["best"][0] for batch in (1, 32))
        self.assertLess(few["token_s"], many["token_s"])
        self.assertLess(few["tokens_per_s"], many["tokens_per_s"])
        self.assertEqual(1, plan(*words, "--batch", 1 << 18).returncode)

    def test_calibrated_by_ones_own_runs(self):
        folder = self.folder / "mine"
        fitted = self.document("calibrate", self.table, "-o", folder)
        self.assertEqual((2, 1), (fitted["runs"], fitted["skipped"]))
        report = self.document("validate", self.table, "--calibration", folder, "--rows")
        self.assertEqual((3, 2, 2), (report["n"], report["predicted"], len(report["rows"])))
        self.assertEqual(4, report["skipped"][0]["row"])
        self.assertIn("tp 3", report["skipped"][0]["why"])
        self.assertLess(report["mape"], 0.05)
        self.assertIn("step_time_s", self.document(*LLAMA, "--calibration", folder)["best"][0])

    def test_a_table_in_another_unit(self):
        rows = ROWS.splitlines(True)
        self.table.write_text(rows[0] + rows[1] + rows[2].replace(",3.9\n", ",3900\n"))
        for report in (self.document("validate", self.table), self.document("calibrate", self.table, "-o", self.folder / "mine"),
                       self.document("calibrate", self.table, "--fresh", "-o", self.folder / "fresh")):
            self.assertEqual(1, len(report["assumed"]), report["assumed"])
            self.assertEqual(3, report["assumed"][0]["row"])
            self.assertRegex(report["assumed"][0]["what"], r"^step_time_s 3900 is [0-9e+.]+ times what is predicted \([0-9.]+\): is it in another unit\?$")
        self.assertEqual(str(self.table), report["assumed"][0]["table"])

    def test_transfers_on_a_slow_network(self):
        layout = ["--batch", 64, "--layout", "pp=8,dp=2,mbs=1"]
        self.assertNotIn("graph", self.document(*LLAMA[:4], *layout))
        machine = self.folder / "slow.toml"
        machine.write_text(MACHINE.replace("nic_gb_s = 50", "nic_gb_s = 1").replace("450", "1"))
        slow = self.document("--model", "llama3-8b", "--cluster", f"{machine}:16", *layout)
        self.assertGreater(slow["breakdown"]["pipeline"], .05 * slow["step_time_s"])
        self.assertRegex(slow["graph"]["note"], "^transfers between stages take [0-9]+ % of the step")
        self.assertAlmostEqual(1, slow["graph"]["step_time_s"] / slow["step_time_s"], delta=.5)
        large = self.document("--model", "llama3-8b", "--cluster", f"{machine}:16", "--batch", 1 << 19, "--seq", 1024, *layout[2:])
        self.assertNotIn("step_time_s", large["graph"], "more microbatches than a graph holds")
        self.assertRegex(large["graph"]["note"], "^transfers between stages take")

    def test_a_model_that_nobody_knows(self):
        config = {"model_type": "new", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336, "vocab_size": 32000}
        file = self.folder / "config.json"
        file.write_text(json.dumps(config))
        words = ["--model", file, "--cluster", "dgx-h100:16", "--batch", 16, "--seq", 4096]
        for asked in ([], ["--layout", "tp=2"], ["--compare", "tp=2", "tp=4"]):
            self.assertIn("model_type new is not known here", self.document(*words, *asked)["model_note"])
        self.assertIn("model_type new is not known here", plan(*words, "--emit", "megatron").stderr)
        served = self.document("inference", *words[:-2], "--prompt", 128, "--output", 8)
        self.assertIn("model_type new is not known here", served["model_note"])
        file.write_text(json.dumps(config | {"model_type": "llama"}))
        self.assertNotIn("model_note", self.document(*words))

    def test_a_profile_of_a_model_that_nobody_knows(self):
        file, path = self.folder / "config.json", self.folder / "rank-0.json"
        file.write_text(json.dumps({"model_type": "new", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
                                    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}))
        write_profile(path, self.predicted_terms())
        one = [file if word == "llama3-8b" else word for word in ONE]
        self.assertIn("model_type new is not known here", self.document("calibrate", "--trace", path, *one, "-o", self.folder / "mine")["model_note"])

    def predicted_terms(self):
        path = self.folder / "any.json"
        write_profile(path, {"matrix products": 1000})  # slower than any that could be
        return {term["term"]: term["predicted_s"] for term in self.document(*ONE, "--explain", path)["terms"]}

    def test_a_profiled_job_beside_its_plan(self):
        path, predicted = self.folder / "rank-0.json", self.predicted_terms()
        write_profile(path, predicted)
        same = self.document(*ONE, "--explain", path)
        for term in same["terms"]:
            self.assertAlmostEqual(term["predicted_s"], term["measured_s"], 5, term)
        self.assertIn("within its interval", same["verdict"])
        slower = {**predicted, "optimizer": 1.7 * predicted["optimizer"], "launches": predicted.get("launches", 0) + .01}
        write_profile(path, slower)
        report = self.document(*ONE, "--explain", path)
        differences = {term["term"]: term["difference_s"] for term in report["terms"] if abs(term["difference_s"]) > 1e-4}
        self.assertEqual({"optimizer", "launches"}, differences.keys())
        self.assertAlmostEqual(.7 * predicted["optimizer"], differences["optimizer"], 5)
        self.assertAlmostEqual(.01, differences["launches"], 5)
        gains = [term["difference_s"] for term in report["terms"]]
        self.assertEqual(sorted(gains, reverse=True), gains)
        for side in ("measured", "predicted"):
            self.assertAlmostEqual(report["step_time_s"][side], sum(term[f"{side}_s"] for term in report["terms"]), 6)
        self.assertGreater(report["mfu"]["predicted"], report["mfu"]["measured"])
        text = plan(*ONE, "--explain", path)
        self.assertRegex(text.stdout, r"verdict +steps take .* s, .* % MFU; the plan says")

    def test_calibrated_by_a_profile(self):
        path, folder, predicted = self.folder / "rank-0.json", self.folder / "mine", self.predicted_terms()
        write_profile(path, {**predicted, "matrix products": 1.2 * predicted["matrix products"]})
        fitted = self.document("calibrate", "--trace", path, *ONE, "-o", folder)
        changed = {row["rate"]: row["after"] / row["before"] for row in fitted["changed"]}
        self.assertLess(changed["gemm"], .95)
        self.assertLess(fitted["mean_error"], fitted["mean_error_before"])
        measured = self.document(*ONE, "--explain", path)["step_time_s"]
        after = self.document(*ONE, "--calibration", folder)["step_time_s"]
        self.assertLess(abs(after / measured["measured"] - 1), .3 * abs(measured["predicted"] / measured["measured"] - 1))

    def test_published_runs(self):
        table = pathlib.Path(os.environ.get("LOCKSTEP_DATA", "")) / "perf/measured_train.csv"
        if not table.exists():
            self.skipTest(f"no {table}")
        report = self.document("validate", table)
        self.assertGreater(report["predicted"], 450)
        self.assertLess(report["median"], 0.04)
        self.assertLess(report["mape"], 0.08)
        self.assertLess(report["memory"]["mape"], 0.08)

    def test_bad_input(self):
        for words, text in [
            ([], "needs --model, --cluster and --batch"),
            (["--model", "llama3-8", "--cluster", "dgx-h100:8", "--batch", 8], "llama3-8b"),
            (["--model", "llama3-8b", "--cluster", "dgx-h100", "--batch", 8], "expected NAME:N"),
            (["--model", "llama3-8b", "--cluster", "h1:8", "--batch", 8], 'no machine "h1" is known; the nearest: h100-80gb'),
            (["--model", "llama3-8b", "--cluster", "dgx-h100:8", "--batch", 1 << 20], "it counts sequences, not tokens"),
            (["--model", "llama3-8b", "--cluster", "b300:8", "--batch", 8, "--objective", "cost"], "no price of b300 is known"),
            ([*LLAMA, "--layout", "pp=4,schedule=gpipe"], "expected 1f1b, zb-h1, zb-2p or dualpipe"),
            ([*LLAMA, "--layout", "pp=32,tp=1,dp=1"], "is 32, but there are 16"),
            ([*LLAMA, "--freeze", "layers:32"], "of 32 layers at most 31 can be frozen"),
            ([*LLAMA, "--freeze", "head"], "expected embedding, or layers:N"),
            ([*LLAMA, "--freeze", "layers:2", "--layout", "tp=2", "--emit", "megatron"], "no flag for frozen parts"),
            ([*LLAMA, "--offload", "states"], "expected one of none, optimizer, activations"),
            ([*LLAMA, "--layout", "pp=4,recompute=full:9"], "a stage has 8 layers"),
            ([*LLAMA, "--layout", "mbs=3"], "mbs can be 1, 2, 4 or 8"),
            ([*LLAMA, "--layout", "tp=2", "--emit", "torchtitan"], "found zero 1"),
            ([*LLAMA, "--precision", "fp8", "--emit", "torchtitan"], "of --precision bf16 alone"),
            ([*LLAMA, "--offload", "weights", "--freeze", "embedding"], "not beside adapters and frozen parts"),
            ([*LLAMA, "--failures", "c4"], "c4-2023-06"),
            ([*LLAMA, "--layout", "tp=2", "--out", "/nowhere/step.json"], "/nowhere/step.json"),
            (["--model", "llama3-8b", "--cluster", "dgx-a100:8", "--batch", 8, "--precision", "fp8"], "a100-80gb has none"),
            (["dlrm", "dlrm-b", "--cluster", "a100-40gb:8", "--batch", 8192], '"dlrm-b" is not among the dlrm; did you mean dlrm-a?'),
            ([*LLAMA, "--layout", "zero=1,shard=8"], "it needs zero 3, found 1"),
            ([*LLAMA, "--layout", "moe_chunks=2"], "only experts that are spread"),
            (["--model", "vit-l16", "--cluster", "dgx-h100:8", "--batch", 64, "--layout", "mbs=8", "--emit", "megatron"], "not of vision transformers"),
            ([*LLAMA, "--layout", "tp=3"], "32 heads can't be split over tp 3: it can be 1, 2, 4, 8 or 16"),
            ([*LLAMA, "--layout", "tp=2,pp=2,tp=4"], "tp is there twice"),
            ([*LLAMA, "--layout", "tp=2", "--out", self.folder / "step.txt"], "ends with .json, .json.gz or .et"),
            (["inference", "--model", "vit-l16", "--cluster", "dgx-h100:8", "--batch", 8, "--prompt", 8, "--output", 8], "not of vision transformers"),
            (["--model", self.impossible, "--cluster", "dgx-h100:64", "--batch", 128], "dense_layers must be 0 to 32, and shared"),
            (["validate", self.folder / "none.csv"], "none.csv"),
            ([*LLAMA, "--stack", "megatron"], "expected one of nemo,"),
            (["validate", self.table, "--calibration", self.folder / "none"], "expected a folder of"),
            ([*ONE, "--explain", self.table], "runs.csv"),
            (["calibrate", "-o", self.folder / "x"], "expected tables of measured runs, or --trace"),
            (["calibrate", self.empty, "--fresh", "-o", self.folder / "x"], "empty.csv: no run to calibrate with: 0 of 0 rows were skipped"),
            (["calibrate", self.unmeasured, "-o", self.folder / "x"], "no run to calibrate with: 1 of 1 rows were skipped"),
        ]:
            answer = plan(*words)
            self.assertEqual(2, answer.returncode, f"{words}: {answer}")
            self.assertIn(text, answer.stderr)
            self.assertEqual(1, len(answer.stderr.splitlines()), answer.stderr)

    def test_flags_that_do_not_go_together(self):
        for words, text in [
            ([*LLAMA, "--layout", "tp=2", "--offload", "optimizer"], "--offload"),
            ([*LLAMA, "--layout", "tp=2", "--schedule", "zb-h1"], "--schedule"),
            ([*LLAMA, "--layout", "tp=2", "--objective", "cost"], "--objective"),
            ([*LLAMA, "--offload", "weights", "--schedule", "zb-h1"], "--offload weights, which needs pp 1"),
            ([*LLAMA, "--compare", "tp=2", "tp=4", "--emit", "megatron"], "--emit"),
            ([*LLAMA, "--layout", "tp=2", "--explain", self.table, "--out", self.folder / "a.json"], "--out"),
            ([*LLAMA, "--layout", ""], "expected KEY=VALUE"),
            ([*LLAMA, "--usd-per-hour", "nan"], "expected 0.001 to 10000, found nan"),
            (["calibrate", self.table, "--layout", "tp=2", "-o", self.folder / "x"], "--trace"),
        ]:
            answer = plan(*words)
            self.assertEqual(2, answer.returncode, f"{words}: {answer}")
            self.assertIn(text, answer.stderr)

    def test_a_layout_that_does_not_fit(self):
        words = ["--model", "llama3-70b", "--cluster", "dgx-h100:8", "--batch", 8, "--stack", "megatron-core", "--layout", "tp=1,pp=1,zero=0"]
        found = self.document(*words)
        self.assertFalse(found["fits"])
        self.assertRegex(found["misfit"], r"^[0-9.]+ GiB of 79.6 \(tp 1, .*\); weights, gradients and optimizer are [0-9.]+ of it$")
        self.assertNotIn("misfit", self.document(*LLAMA, "--layout", "tp=8"))
        emitted = plan(*words, "--emit", "megatron")
        self.assertEqual((1, ""), (emitted.returncode, emitted.stdout))
        self.assertIn("does not fit the memory: it needs " + found["misfit"], emitted.stderr)

    def test_profiles_of_another_job(self):
        path = self.folder / "rank-0.json"
        write_profile(path, {"matrix products": 1e-6})
        answer = plan(*ONE, "--explain", path)
        self.assertEqual(2, answer.returncode)
        self.assertIn("they are not of this model", answer.stderr)
        write_profile(path, {"matrix products": 1})
        answer = plan(*ONE, "--explain", path, path)
        self.assertEqual(2, answer.returncode)
        self.assertIn("are both of rank 0", answer.stderr)


if __name__ == "__main__":
    unittest.main()
