#include "lockstep/plan/measured.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "lockstep/base/csv.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/report.h"
#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

bool Holds(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Fields of one row: what is missing or impossible is remembered with its column.
class Row {
 public:
  Row(const CsvTable& table, const CsvRow& row) : table_(table), row_(row) {}

  std::string Text(std::string_view column) const { return std::string(table_.Field(row_, column)); }
  std::optional<double> Number(std::string_view column) {
    const std::string_view text = table_.Field(row_, column);
    if (text.empty()) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    if (!is_number || value < 0) Fail(fmt::format("column {} is \"{}\"; expected a number not below 0", column, text));
    return is_number ? std::optional(value) : std::nullopt;
  }
  // Missing: `otherwise`; below 0: it has to be there.
  int Integer(std::string_view column, int otherwise = -1) {
    const std::optional<double> value = Number(column);
    if (!value && otherwise < 0) Fail(fmt::format("column {} is empty", column));
    if (value && (*value != std::floor(*value) || *value > 1e9))
      Fail(fmt::format("column {} is {}; expected a whole number", column, *value));
    return value ? static_cast<int>(std::min(*value, 1e9)) : otherwise;
  }
  // No more than any job has.
  int Ranks(std::string_view column, int otherwise = -1) {
    const int value = Integer(column, otherwise);
    if (value <= kMostAccelerators) return value;
    Fail(fmt::format("column {} is {}; expected at most {}", column, value, kMostAccelerators));
    return 1;
  }
  bool Flag(std::string_view column, bool otherwise) {
    const int value = Integer(column, otherwise ? 1 : 0);
    if (value > 1) Fail(fmt::format("column {} is {}; expected 0 or 1", column, value));
    return value == 1;
  }
  void Fail(std::string why) {
    if (status_.ok()) status_ = InvalidArgument("{}", why);
  }
  const absl::Status& status() const { return status_; }
  // That something is not read as it is written.
  void Assume(std::string what) { assumed_.push_back(std::move(what)); }
  const std::vector<std::string>& assumed() const { return assumed_; }

 private:
  const CsvTable& table_;
  const CsvRow& row_;
  absl::Status status_;
  std::vector<std::string> assumed_;
};

Precision PrecisionOf(Row& row) {
  const std::string name = row.Text("precision");
  if (name.starts_with("nvfp4") || name == "fp4") return Precision::kFp4;
  if (name.starts_with("fp8") || name.starts_with("mxfp8")) return Precision::kFp8;
  if (!name.empty() && name != "bf16" && name != "fp16")
    row.Fail(fmt::format("column precision is \"{}\"; expected bf16, fp16, fp8, mxfp8 or nvfp4", name));
  return Precision::kBf16;
}

Recompute RecomputeOf(Row& row) {
  const std::string name = row.Text("recompute");
  if (name == "full") return Recompute::kFull;
  if (name == "selective") return Recompute::kSelective;
  if (name == "unknown") return Recompute::kAsNeeded;
  if (!name.empty() && name != "none")
    row.Fail(fmt::format("column recompute is \"{}\"; expected none, selective, full or unknown", name));
  return Recompute::kNone;
}

void TakeModel(Row& row, Workload& work) {
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

// Where the source does not say, what its framework does by itself.
void TakeLayout(Row& row, Workload& work) {
  work.accelerators = row.Ranks("gpus");
  work.tp = row.Ranks("tp", 1);
  work.pp = row.Ranks("pp", 1);
  work.cp = row.Ranks("cp", 1);
  work.ep = row.Ranks("ep", 1);
  work.chunks = row.Ranks("vp", 1);
  work.zero = row.Integer("zero", 0);
  const int64_t others = int64_t{work.tp} * work.pp * work.cp;
  work.dp = row.Ranks("dp", static_cast<int>(std::max<int64_t>(1, work.accelerators / std::max<int64_t>(1, others))));
  // DeepEP is what sends tokens between ranks that have different experts: a table that leaves ep at 1 beside it is not
  // to be taken at its word.
  if (work.experts > 0 && work.ep == 1 && Holds(row.Text("framework"), "DeepEP")) {
    work.ep = static_cast<int>(std::gcd(int64_t{work.experts}, int64_t{work.dp} * work.cp));
    if (work.ep > 1) row.Assume(fmt::format("ep 1 beside DeepEP is read as {}", work.ep));
  }
  const int per_rank = work.global_batch / std::max(1, work.dp);
  work.microbatch = row.Integer("mbs", work.pp == 1 ? std::max(1, per_rank) : 1);
  work.sequence_parallel = row.Flag("seq_parallel", work.tp > 1 && work.flash);
  const auto read_as_one = [&](int& value, const char* column, const char* without) {
    if (value > 1) row.Assume(fmt::format("{} {} without {} is read as 1", column, value, without));
    value = std::min(value, 1);
  };
  if (work.pp == 1) read_as_one(work.chunks, "vp", "a pipeline");
  if (work.experts == 0) read_as_one(work.ep, "ep", "experts");
}

void TakeWork(Row& row, Workload& work) {
  work.sequence = row.Integer("seq");
  work.global_batch = row.Integer("gbs");
  work.flash = row.Text("attention") != "unfused";
  work.precision = PrecisionOf(row);
  work.recompute = RecomputeOf(row);
  work.training = row.Text("task") == "lora" ? Training::kLora : Training::kFull;
}

void TakeStack(Row& row, const Stacks& stacks, Workload& work) {
  const std::string framework = row.Text("framework"), notes = row.Text("notes");
  const bool sharded = Holds(framework, "FSDP") || Holds(framework, "fsdp") || row.Integer("zero", 0) == 3;
  const Stack& stack = stacks.OfFramework(framework, {.unfused = !work.flash, .sharded = sharded});
  work.stack = stack.name;
  work.keeps = stack.memory;
  work.blocking_launches = Holds(notes, "CUDA_LAUNCH_BLOCKING");
  work.async_tensor = Holds(notes, "AsyncTP") || Holds(notes, "async TP");
  work.row_scales = Holds(notes, "rowwise");
  work.drops_tokens = Holds(notes, "tokendrop");
}

// Some of Megatron Bridge's tables don't say which runs are FSDP's; others have the same configurations as such. What
// fits only so is read so.
void TakeSharding(Row& row, Workload& work) {
  if (work.pp > 1 || !Holds(row.Text("framework"), "Megatron-Bridge")) return;
  const auto fits = [&] { return PredictMemory(work).least() <= work.machine.memory; };
  if (work.zero == 3 || fits()) return;
  const int given = std::exchange(work.zero, 3);
  if (fits())
    row.Assume(fmt::format("zero {}, which would not fit, is read as FSDP's 3", given));
  else
    work.zero = given;
}

absl::StatusOr<Workload> WorkloadOf(Row& row, const Known& known) {
  Workload work;
  TakeModel(row, work);
  known.models.Complete(row.Text("model"), work);
  TakeWork(row, work);
  TakeStack(row, known.stacks, work);
  TakeLayout(row, work);
  TakeStages(known.stacks.Find(work.stack), work);
  if (work.dp > 0 && work.global_batch % work.dp != 0)
    row.Fail(fmt::format("column gbs is {}, which dp {} does not divide", work.global_batch, work.dp));
  LS_RETURN_IF_ERROR(row.status());
  LS_ASSIGN_OR_RETURN(work.machine, known.machines.Find(row.Text("hardware")));
  LS_RETURN_IF_ERROR(work.Validate());
  if (work.Tokens() > kMostTokens)
    return InvalidArgument("gbs {} of seq {} tokens are {:.3g} tokens a step; expected sequences, not tokens",
                           work.global_batch, work.sequence, work.Tokens());
  if (work.precision == Precision::kFp8 && work.machine.fp8 == 0)
    return InvalidArgument("{} has no fp8", work.machine.name);
  if (work.precision == Precision::kFp4 && work.machine.fp4 == 0)
    return InvalidArgument("{} has no fp4", work.machine.name);
  TakeSharding(row, work);
  return work;
}

// Figures that no machine can reach are compared with all the same: who reads on is told.
void NoteImplausible(Row& row, const MeasuredRun::Values& values, const Workload& work) {
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

}  // namespace

double PredictedSeconds(const MeasuredRun& run, const Rates& rates) {
  constexpr double kLeast = 1e-3;  // of the step: a part that is hidden has no logarithm
  if (!run.Measured().part) return PredictStep(run.workload(), rates).total().value;
  const StepParts parts = PredictParts(run.workload(), rates);
  return std::max(parts[*run.Measured().part], kLeast * parts.total());
}

absl::StatusOr<MeasuredTable> ReadMeasured(const std::string& path, const Known& known) {
  LS_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(path));
  for (const char* column : {"hardware", "layers", "hidden", "heads", "seq", "gbs", "gpus", "step_time_s"})
    if (!table.Column(column)) return InvalidArgument("{}: there is no column {}", path, column);
  MeasuredTable measured;
  for (const CsvRow& fields : table.rows) {
    Row row(table, fields);
    absl::StatusOr<Workload> work = WorkloadOf(row, known);
    MeasuredRun::Values values;
    values.step_s = row.Number("step_time_s").value_or(0);
    values.memory_gib = row.Number("mem_gib");
    values.out_of_memory = row.Text("notes").starts_with("OOM");
    values.counts_context = Holds(row.Text("notes"), "nvidia-smi");
    if (values.memory_gib == 0) row.Fail("column mem_gib is 0; expected a number above 0, or nothing");
    const absl::Status why = !work.ok() ? work.status() : row.status();
    if (why.ok()) NoteImplausible(row, values, *work);
    if (!why.ok()) {
      measured.skipped.push_back({fields.line, Message(why)});
    } else if (values.step_s == 0 && !values.out_of_memory && !values.memory_gib) {
      measured.skipped.push_back({fields.line, "nothing was measured: columns step_time_s and mem_gib are empty"});
    } else {
      const std::string id = row.Text("id");
      for (const std::string& what : row.assumed()) measured.assumed.push_back({fields.line, what});
      measured.runs.emplace_back(fields.line, id.empty() ? std::to_string(fields.line) : id, row.Text("family"),
                                 *std::move(work), values);
    }
  }
  return measured;
}

}  // namespace lockstep::plan
