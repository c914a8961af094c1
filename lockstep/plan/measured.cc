#include "lockstep/plan/measured.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "lockstep/plan/layout.h"
#include "lockstep/plan/measured_row.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/model_file.h"
#include "lockstep/plan/report.h"
#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

bool Holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
bool HoldsOne(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(parts, [&](std::string_view part) { return Holds(text, part); });
}

Precision PrecisionOf(MeasuredRow& row) {
  const std::string name = row.Word("precision");
  // The narrowest that is named: "bf16_with_fp8_mixed" has its products in eight bits.
  if (Holds(name, "fp4")) return Precision::kFp4;
  if (Holds(name, "fp8")) return Precision::kFp8;
  const bool is_16_bits = name == "half" || HoldsOne(name, {"bf16", "fp16", "float16"});
  if (!row.Text("precision").empty() && !is_16_bits)
    row.Fail(fmt::format("column precision is \"{}\"; expected bf16, fp16, fp8, mxfp8 or nvfp4", name));
  return Precision::kBf16;
}

Recompute RecomputeOf(MeasuredRow& row) {
  const std::string name = row.Word("recompute");
  if (name == "full") return Recompute::kFull;
  if (name == "selective") return Recompute::kSelective;
  if (row.Text("recompute").empty()) return Recompute::kAsNeeded;
  if (name != "none")
    row.Fail(fmt::format("column recompute is \"{}\"; expected none, selective, full or unknown", name));
  return Recompute::kNone;
}

// Of which no scores go through memory.
bool IsFused(MeasuredRow& row) {
  const std::string name = row.Word("attention");
  if (row.Text("attention").empty()) return true;
  if (HoldsOne(name, {"unfused", "eager", "math", "naive"})) return false;
  if (name.starts_with("no") || !HoldsOne(name, {"fused", "flash", "sdpa", "cudnn", "flex", "xformers"}))
    row.Fail(fmt::format("column attention is \"{}\"; expected flash, sdpa, fused or unfused", name));
  return true;
}

Training TrainingOf(MeasuredRow& row) {
  const std::string task = row.Word("task");
  if (HoldsOne(task, {"infer", "prefill", "decod", "serving", "eval"}))
    row.Fail(fmt::format("column task is \"{}\"; expected one that trains", task));
  return HoldsOne(task, {"lora", "peft"}) ? Training::kLora : Training::kFull;
}

void TakeSizes(MeasuredRow& row, Workload& work) {
  work.layers = row.Integer("layers");
  work.hidden = row.Integer("hidden");
  work.heads = row.Integer("heads");
  work.kv_heads = row.Integer("kv_heads", work.heads);
  work.head_dim = row.Integer("head_dim", work.heads > 0 ? work.hidden / work.heads : 0);
  work.vocabulary = row.Integer("vocab", 50'257);
  work.gated = row.Flag("gated", false);
  work.experts = row.Integer("experts", 0);
  work.top_k = row.Integer("topk", 0);
  work.expert_ffn = row.Integer("moe_ffn", 0);
  work.ffn = row.Integer("ffn", work.experts > 0 ? std::max(1, work.expert_ffn) : -1);
  if (work.experts > 0 && work.expert_ffn == 0) work.expert_ffn = work.ffn;
  const std::string notes = row.Word("notes");
  work.tied_embeddings = Holds(notes, "tied embeddings") && !Holds(notes, "untied embeddings");
}

bool SaysNoSizes(const MeasuredRow& row) { return row.Text("layers").empty() && row.Text("hidden").empty(); }

// By its name alone, of one that is a preset; else by the columns, and what those leave out of one that is known.
absl::Status TakeModel(MeasuredRow& row, const Known& known, Workload& work) {
  const std::string name = row.Text("model"), preset = known.ModelNamed(name);
  if (SaysNoSizes(row) && !preset.empty()) {
    row.Assume(fmt::format("the sizes of {} are those of the preset {}", name, preset));
    return plan::TakeModel(preset, known.presets, work);
  }
  TakeSizes(row, work);
  known.models.Complete(name, work);
  return absl::OkStatus();
}

// Layers that do not divide, though two more would: the embedding and the output layer take the place of a layer each
// (Megatron's --account-for-embedding-in-pipeline-split, DeepSpeed's type:transformer|embedding, torchtitan's default).
void TakeStages(const Stack* stack, Workload& work) {
  const int64_t parts = int64_t{work.pp} * work.chunks;
  if (work.pp < 2 || work.chunks < 1 || work.layers < work.pp || work.layers % work.pp == 0) return;
  if ((work.layers + 2) % parts != 0) return;
  work.stage_layers.assign(size_t(work.pp), (work.layers + 2) / work.pp);
  --work.stage_layers.front(), --work.stage_layers.back();
  if (stack != nullptr) work.keeps.gradient_bytes += stack->later_gradient_bytes;
}

bool IsSharded(MeasuredRow& row) { return Holds(row.Word("framework"), "fsdp"); }

// Beside mbs, which says the same.
void NoteAccumulation(MeasuredRow& row, int accumulated, const Workload& work) {
  const double sequences = double(work.dp) * work.microbatch * accumulated;
  if (row.Text("mbs").empty() || sequences == 0 || sequences == work.global_batch) return;
  row.Assume(fmt::format("ga {}, which with dp {} and mbs {} makes {} sequences, not gbs {}, is left aside",
                         accumulated, work.dp, work.microbatch, sequences, work.global_batch));
}

// Nobody has all experts on each rank where ranks can share them, so that is not what a table means that leaves ep out.
// Nor is one to be taken at its word that leaves it at 1 beside DeepEP, which is what sends tokens between ranks that
// have different experts.
void TakeSpread(MeasuredRow& row, Workload& work) {
  const bool says = !row.Text("ep").empty(), is_wrong = work.ep == 1 && Holds(row.Word("framework"), "deepep");
  if (work.experts == 0 || (says && !is_wrong)) return;
  work.ep = static_cast<int>(std::gcd(int64_t{work.experts}, work.Replicas()));
  if (work.ep > 1)
    row.Assume(fmt::format("ep{} is read as {}", says ? " 1 beside DeepEP" : ", of which nothing is said,", work.ep));
}

// Where the source does not say, what its framework does by itself.
void TakeLayout(MeasuredRow& row, Workload& work) {
  work.accelerators = row.Ranks("gpus");
  work.tp = row.Ranks("tp", 1);
  work.pp = row.Ranks("pp", 1);
  work.cp = row.Ranks("cp", 1);
  work.ep = row.Ranks("ep", 1);
  work.chunks = row.Ranks("vp", 1);
  work.zero = row.Integer("zero", IsSharded(row) ? 3 : 0);
  if (work.zero == 3 && row.Text("zero").empty()) row.Assume("zero, of which nothing is said, is FSDP's 3");
  const int64_t others = int64_t{work.tp} * work.pp * work.cp;
  work.dp = row.Ranks("dp", static_cast<int>(std::max<int64_t>(1, work.accelerators / std::max<int64_t>(1, others))));
  TakeSpread(row, work);
  const int per_rank = std::max(1, work.global_batch / std::max(1, work.dp)), accumulated = row.Integer("ga", 0);
  if (row.Text("mbs").empty() && accumulated > 0 && per_rank % accumulated != 0)
    row.Fail(fmt::format("column ga is {}, which does not divide the {} sequences of a rank", accumulated, per_rank));
  work.microbatch = row.Integer("mbs", accumulated > 0 ? per_rank / accumulated : work.pp == 1 ? per_rank : 1);
  NoteAccumulation(row, accumulated, work);
  work.sequence_parallel = row.Flag("seq_parallel", work.tp > 1 && work.flash);
  const auto read_as_one = [&](int& value, const char* column, const char* without) {
    if (value > 1) row.Assume(fmt::format("{} {} without {} is read as 1", column, value, without));
    value = std::min(value, 1);
  };
  if (work.pp == 1) read_as_one(work.chunks, "vp", "a pipeline");
  if (work.experts == 0) read_as_one(work.ep, "ep", "experts");
}

void TakeWork(MeasuredRow& row, Workload& work) {
  work.sequence = row.Integer("seq");
  work.global_batch = row.Integer("gbs");
  work.flash = IsFused(row);
  work.precision = PrecisionOf(row);
  work.recompute = RecomputeOf(row);
  work.training = TrainingOf(row);
}

void TakeStack(MeasuredRow& row, const Stacks& stacks, Workload& work) {
  const std::string notes = row.Word("notes");
  const bool sharded = IsSharded(row) || row.Integer("zero", 0) == 3;
  const Stack& stack = stacks.OfFramework(row.Text("framework"), {.unfused = !work.flash, .sharded = sharded});
  work.stack = stack.name;
  work.keeps = stack.memory;
  work.blocking_launches = Holds(notes, "cuda_launch_blocking");
  work.async_tensor = HoldsOne(notes, {"asynctp", "async tp"});
  work.row_scales = Holds(notes, "rowwise");
  work.drops_tokens = Holds(notes, "tokendrop");
}

bool MayFit(const Workload& work) { return PredictMemory(work).MayFit(work.machine); }

// What fits only so is read so: where nothing is said, as a distributed optimizer, or else as FSDP; and as that where
// some of Megatron Bridge's tables say another, for they don't say which runs are FSDP's, and others do.
void TakeSharding(MeasuredRow& row, Workload& work) {
  const bool says = !row.Text("zero").empty();
  if (work.zero == 3 || (says && !Holds(row.Word("framework"), "megatron-bridge")) || MayFit(work)) return;
  const int given = work.zero;
  for (const int zero : {1, 3}) {
    if ((zero == 1 && says) || (zero == 3 && work.pp > 1)) continue;
    work.zero = zero;
    if (MayFit(work))
      return row.AssumeToFit(fmt::format("zero {}, which would not fit, is read as {}", given,
                                         zero == 1 ? "1, a distributed optimizer" : "FSDP's 3"));
  }
  work.zero = given;
}

// As many of a rank's sequences at once as fit.
void TakeMicrobatch(MeasuredRow& row, int most, Workload& work) {
  for (int parts = 1; parts <= most; ++parts) {
    if (most % parts != 0) continue;
    work.microbatch = most / parts;
    if (MayFit(work)) break;
  }
  if (work.microbatch < most)
    row.AssumeToFit(fmt::format("mbs, of which nothing is said, is {}: more would not fit", work.microbatch));
}

// Megatron splits experts over tp, too, where nobody asks for anything else: what fits only so is read so.
void TakeExperts(MeasuredRow& row, Workload& work) {
  const int given = work.ep, split = work.ep * work.tp;
  if (work.experts == 0 || work.tp == 1 || work.experts % split != 0 || work.TokenRanks() % split != 0) return;
  if (MayFit(work)) return;
  work.ep = split;
  if (MayFit(work))
    row.AssumeToFit(
        fmt::format("ep {}, which would not fit, is read as {}: experts are split over tp, too", given, split));
  else
    work.ep = given;
}

// Attention that is not fused says nothing of the sequence, of which each rank of tp may have a part.
void TakeSequence(MeasuredRow& row, Workload& work) {
  if (work.sequence_parallel || !row.Text("seq_parallel").empty() || !work.CanSplitSequence() || MayFit(work)) return;
  work.sequence_parallel = true;
  if (MayFit(work)) return row.AssumeToFit("seq_parallel 0, which would not fit, is read as 1");
  work.sequence_parallel = false;
}

// What nobody says is chosen by itself (Recompute::kAsNeeded); here it is told.
void NoteRecompute(MeasuredRow& row, const Workload& work) {
  const int layers = work.recompute == Recompute::kAsNeeded ? RecomputedLayers(work) : 0;
  if (layers == 0 || !MayFit(work)) return;
  row.AssumeToFit(
      fmt::format("recompute, of which nothing is said, is of {} layer{} of a stage: with fewer it would not fit",
                  layers, layers == 1 ? "" : "s"));
}

absl::StatusOr<Workload> WorkloadOf(MeasuredRow& row, const Known& known) {
  Workload work;
  LS_RETURN_IF_ERROR(TakeModel(row, known, work));
  TakeWork(row, work);
  TakeStack(row, known.stacks, work);
  TakeLayout(row, work);
  TakeStages(known.stacks.Find(work.stack), work);
  LS_RETURN_IF_ERROR(row.status());
  LS_ASSIGN_OR_RETURN(work.machine, known.machines.Find(row.Text("hardware")));
  LS_RETURN_IF_ERROR(work.Validate());
  if (work.global_batch % work.dp != 0)
    return InvalidArgument("column gbs is {}, which dp {} does not divide", work.global_batch, work.dp);
  if (work.Tokens() > kMostTokens)
    return InvalidArgument("gbs {} of seq {} tokens are {:.3g} tokens a step; expected sequences, not tokens",
                           work.global_batch, work.sequence, work.Tokens());
  if (work.precision == Precision::kFp8 && work.machine.fp8 == 0)
    return InvalidArgument("{} has no fp8", work.machine.name);
  if (work.precision == Precision::kFp4 && work.machine.fp4 == 0)
    return InvalidArgument("{} has no fp4", work.machine.name);
  LS_RETURN_IF_ERROR(CheckExperts(work));
  LS_RETURN_IF_ERROR(CheckBatch(work));
  const bool says_microbatch = work.pp > 1 || !row.Text("mbs").empty() || !row.Text("ga").empty();
  const int most = work.microbatch;
  if (!says_microbatch) work.microbatch = 1;  // until what is shared is known
  TakeSharding(row, work);
  TakeExperts(row, work);
  TakeSequence(row, work);
  if (!says_microbatch) TakeMicrobatch(row, most, work);
  NoteRecompute(row, work);
  return work;
}

// Figures that no machine can reach are compared with all the same: who reads on is told.
void NoteImplausible(MeasuredRow& row, const MeasuredRun::Values& values, const Workload& work) {
  constexpr double kGiB = 1024.0 * 1024 * 1024, kRoom = 1.1;
  const double memory = work.machine.memory / kGiB;
  if (values.memory_gib && *values.memory_gib > kRoom * memory)
    row.Assume(fmt::format("mem_gib {:g} is more than the {:.1f} of {}: is it in another unit?", *values.memory_gib,
                           memory, work.machine.name));
  const double share = values.step_s > 0 ? ShareOfPeak(work, {values.step_s}) : 0;
  if (share > 1)
    row.Assume(fmt::format("step_time_s {:g} takes {:.3g} times the peak of {}: is it in another unit?", values.step_s,
                           share, work.machine.name));
}

// With names of columns in lower case, and those that are needed.
absl::StatusOr<CsvTable> ReadColumns(const std::string& path) {
  LS_ASSIGN_OR_RETURN(CsvTable table, ReadCsv(path));
  std::set<std::string> names;
  for (std::string& column : table.columns) {
    absl::StripAsciiWhitespace(&column);
    absl::AsciiStrToLower(&column);
    if (!names.insert(column).second && !column.empty())
      return InvalidArgument("{}: column \"{}\" twice, in capitals or not", path, column);
  }
  for (const char* column : {"hardware", "seq", "gbs", "gpus"})
    if (!table.Column(column)) return InvalidArgument("{}: there is no column {}", path, column);
  for (const char* column : {"layers", "hidden", "heads"})
    if (!table.Column(column) && !table.Column("model"))
      return InvalidArgument("{}: there is no column {}, and no model whose sizes could be known", path, column);
  return table;
}

// Of a run that did not come that far a table may have 0 for nothing.
std::optional<double> Measurement(MeasuredRow& row, const char* column, bool out_of_memory) {
  const std::optional<double> value = row.Number(column);
  if (value != 0) return value;
  if (!out_of_memory) row.Fail(fmt::format("column {} is 0; expected a number above 0, or nothing", column));
  return std::nullopt;
}

}  // namespace

double PredictedSeconds(const MeasuredRun& run, const Rates& rates) {
  constexpr double kLeast = 1e-3;  // of the step: a part that is hidden has no logarithm
  if (!run.Measured().part) return PredictStep(run.workload(), rates).total().value;
  const StepParts parts = PredictParts(run.workload(), rates);
  return std::max(parts[*run.Measured().part], kLeast * parts.total());
}

absl::StatusOr<MeasuredTable> ReadMeasured(const std::string& path, const Known& known) {
  LS_ASSIGN_OR_RETURN(const CsvTable table, ReadColumns(path));
  MeasuredTable measured;
  for (const CsvRow& fields : table.rows) {
    MeasuredRow row(table, fields);
    absl::StatusOr<Workload> work = WorkloadOf(row, known);
    MeasuredRun::Values values;
    values.out_of_memory = row.Word("notes").starts_with("oom");
    values.step_s = Measurement(row, "step_time_s", values.out_of_memory).value_or(0);
    values.memory_gib = Measurement(row, "mem_gib", values.out_of_memory);
    values.counts_context = Holds(row.Word("notes"), "nvidia-smi");
    const absl::Status why = !work.ok() ? work.status() : row.status();
    if (why.ok()) NoteImplausible(row, values, *work);
    if (!why.ok()) {
      measured.skipped.push_back({fields.line, Message(why)});
    } else {
      const std::string id = row.Text("id");
      for (const std::string& what : row.assumed()) measured.assumed.push_back({fields.line, what});
      measured.runs.emplace_back(fields.line, id.empty() ? std::to_string(fields.line) : id, row.Text("family"),
                                 *std::move(work), values,
                                 Guesses{.sizes = SaysNoSizes(row), .fit = row.made_to_fit()});
    }
  }
  return measured;
}

}  // namespace lockstep::plan
