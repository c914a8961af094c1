#include "lockstep/synth/pipeline_files.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/file.h"

namespace lockstep::synth {
namespace {

using trace::OpType;
using trace::StragglerRow;

constexpr double kMicro = 1e6;                       // per s
constexpr double kAhead = 30, kBetweenLaunches = 1;  // us: a kernel is launched so long before it begins, at least
constexpr double kStepLead = 700, kStepGap = 2000;   // us: of the host's step before the first kernel; between steps
constexpr double kNormBefore = 12, kNorm = 10;       // us
constexpr int64_t kElements = 1'048'576;             // of a communication
constexpr int kComputeStream = 7;

// As a job on NCCL has it: a kernel, what it is called, on which stream.
struct Communication {
  const char* name;
  const char* kernel;
  int stream;
};

std::optional<Communication> CommunicationOf(OpType type) {
  switch (type) {
    case OpType::kForwardSend:
      return Communication{"send", "SendRecv", 21};
    case OpType::kForwardRecv:
      return Communication{"recv", "SendRecv", 22};
    case OpType::kBackwardSend:
      return Communication{"send", "SendRecv", 23};
    case OpType::kBackwardRecv:
      return Communication{"recv", "SendRecv", 24};
    case OpType::kParamsAllGather:
      return Communication{"_allgather_base", "AllGather_RING_LL", 30};
    case OpType::kGradsReduceScatter:
      return Communication{"_reduce_scatter_base", "ReduceScatter_Sum_f32_RING_LL", 30};
    case OpType::kSeparateGradsAllReduce:
      return Communication{"allreduce", "AllReduce_Sum_f32_RING_LL", 30};
    case OpType::kEmbeddingGradsAllReduce:
      return Communication{"allreduce", "AllReduce_Sum_f32_RING_LL", 31};
    case OpType::kOptimizerClipMainGrad:
      return Communication{"allreduce", "AllReduce_Sum_f32_RING_LL", 32};
    default:
      return std::nullopt;
  }
}

// Process groups as Megatron-LM makes them.
class Groups {
 public:
  explicit Groups(const std::vector<std::vector<int32_t>>& ranks) {
    all_.push_back({"0", "default_pg", {}});
    const size_t stages = ranks.front().size();
    for (size_t stage = 0; stage < stages; ++stage) {
      KinetoGroup& group = all_.emplace_back(KinetoGroup{std::to_string(all_.size()), "DATA_PARALLEL_GROUP", {}});
      for (const auto& of_dp : ranks) group.ranks.push_back(of_dp[stage]);
      all_.front().ranks.insert(all_.front().ranks.end(), group.ranks.begin(), group.ranks.end());
    }
    first_pipeline_ = all_.size();
    for (const auto& of_dp : ranks)
      all_.push_back({std::to_string(all_.size()), "PIPELINE_MODEL_PARALLEL_GROUP", {of_dp.begin(), of_dp.end()}});
    first_embedding_ = all_.size();
    for (const auto& of_dp : ranks)
      all_.push_back({std::to_string(all_.size()), "EMBEDDING_GROUP", {of_dp.front(), of_dp.back()}});
    std::sort(all_.front().ranks.begin(), all_.front().ranks.end());
  }

  const std::vector<KinetoGroup>& all() const { return all_; }
  const KinetoGroup& Of(const StragglerRow& row) const {
    if (IsTransfer(row.type)) return all_[first_pipeline_ + row.dp];
    if (row.type == OpType::kEmbeddingGradsAllReduce) return all_[first_embedding_ + row.dp];
    return row.type == OpType::kOptimizerClipMainGrad ? all_.front() : all_[1 + row.stage];
  }

 private:
  std::vector<KinetoGroup> all_;
  size_t first_pipeline_ = 0, first_embedding_ = 0;
};

// One rank.
class Rank {
 public:
  Rank(const Groups& groups, int stages, KinetoEra era, KinetoFile& file)
      : groups_(groups), stages_(stages), era_(era), file_(file) {}

  // rows: in the order of the program.
  void AddStep(int64_t number, double begin_us, double length_us, const std::vector<const StragglerRow*>& rows) {
    file_.AddStep(static_cast<size_t>(number), begin_us - kStepLead, begin_us + length_us);
    std::vector<double> launches(rows.size());
    double next = begin_us + length_us;
    for (size_t i = rows.size(); i-- > 0;) {
      next = std::min(next - kBetweenLaunches, begin_us + kMicro * static_cast<double>(rows[i]->start) - kAhead);
      launches[i] = next;
    }
    for (size_t i = 0; i < rows.size(); ++i) AddKernel(*rows[i], begin_us, launches[i]);
  }

 private:
  void AddKernel(const StragglerRow& row, double begin_us, double launch_us) {
    // Clipping sends what was computed of the reduced gradients: without that kernel no file would tell that it waited.
    if (row.type == OpType::kOptimizerClipMainGrad)
      file_.AddKernel({begin_us + kMicro * static_cast<double>(row.start) - kNormBefore, kNorm,
                       launch_us - kBetweenLaunches / 2, kComputeStream, "l2norm", ""});
    const auto [start, duration] = std::pair(static_cast<double>(row.start), static_cast<double>(row.duration));
    KinetoKernel kernel{begin_us + kMicro * start, kMicro * duration, launch_us, kComputeStream, "gemm", ""};
    if (const auto communication = CommunicationOf(row.type)) {
      const KinetoGroup& group = groups_.Of(row);
      if (group.ranks.size() < 2) return;
      kernel.stream = communication->stream;
      kernel.name = fmt::format("ncclDevKernel_{}(ncclDevComm*, unsigned long, ncclWork*)", communication->kernel);
      kernel.told = Told(row, communication->name, group);
    }
    file_.AddKernel(kernel);
  }

  std::string Told(const StragglerRow& row, const char* name, const KinetoGroup& group) {
    std::string told = fmt::format(
        ", \"Collective name\": \"{0}\", \"In msg nelems\": {1}, \"Out msg nelems\": {1}, \"Group size\": {2}, "
        "\"dtype\": "
        "\"Float\", \"Process Group Name\": \"{3}\", \"Process Group Description\": \"{4}\", \"Process Group Ranks\": "
        "\"{5}\"",
        name, kElements, group.ranks.size(), group.name, group.description, ListText(group.ranks));
    if (IsTransfer(row.type)) told += PeerText(row);
    if (era_ == KinetoEra::kBase) told += fmt::format(", \"Seq\": {}", ++sequence_[group.name]);
    return told;
  }

  // A place in the group.
  std::string PeerText(const StragglerRow& row) const {
    const bool sends = row.type == OpType::kForwardSend || row.type == OpType::kBackwardSend;
    const bool to_next = row.type == OpType::kForwardSend || row.type == OpType::kBackwardRecv;
    return fmt::format(", \"{}\": {}", sends ? "Dst Rank" : "Src Rank",
                       (row.stage + (to_next ? 1 : stages_ - 1)) % stages_);
  }

  const Groups& groups_;
  const int stages_;
  const KinetoEra era_;
  KinetoFile& file_;
  std::map<std::string, int64_t> sequence_;  // by group
};

using Worker = std::pair<int, int>;                                              // dp, stage
using Order = std::map<std::tuple<int, OpType, int>, std::pair<float, OpType>>;  // (stage, type, sequence)

// A host launches in the order of its program, whatever its device makes of it: that in which the ops of a stage begin
// where nothing disturbs.
absl::StatusOr<Order> OrderOfLaunches(JobShape shape) {
  shape.steps = 1;
  shape.jitter = 0;
  LS_ASSIGN_OR_RETURN(const trace::StragglerRows rows, Generate(shape, {}, 1));
  Order order;
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece)
      order.emplace(std::tuple(row.stage, row.type, row.sequence), std::pair(row.start, row.type));
  return order;
}

}  // namespace

absl::Status WritePipelineFiles(const std::string& directory, const JobShape& shape, const trace::StragglerRows& rows,
                                KinetoEra era) {
  if (shape.tp != 1)
    return InvalidArgument("the profiler's files are written of jobs without tensor parallelism, found tp = {}",
                           shape.tp);
  LS_RETURN_IF_ERROR(MakeDirectory(directory));
  LS_ASSIGN_OR_RETURN(const Order order, OrderOfLaunches(shape));
  const auto place_of = [&](const StragglerRow* row) { return order.at({row->stage, row->type, row->sequence}); };
  const Groups groups(rows.ranks);
  std::map<Worker, std::vector<std::vector<const StragglerRow*>>> by_worker;  // [step]
  std::vector<double> lengths(rows.steps.size());
  for (const auto& piece : rows.pieces)
    for (const StragglerRow& row : piece) {
      // The one takes no time, the other is between tensor-parallel ranks, of which there is one.
      if (row.type == OpType::kGc || row.type == OpType::kLayernormGradsAllReduce) continue;
      auto& steps = by_worker[{row.dp, row.stage}];
      steps.resize(rows.steps.size());
      steps[row.step].push_back(&row);
      lengths[row.step] = std::max(lengths[row.step], kMicro * static_cast<double>(row.start + row.duration));
    }
  for (auto& [worker, steps] : by_worker) {
    const int32_t number = rows.ranks[static_cast<size_t>(worker.first)][static_cast<size_t>(worker.second)];
    LS_ASSIGN_OR_RETURN(KinetoFile file,
                        KinetoFile::Create(directory, number, shape.dp * shape.pp, era, 0, groups.all()));
    Rank rank(groups, shape.pp, era, file);
    double begin = kStepGap;
    for (size_t step = 0; step < steps.size(); ++step) {
      std::sort(steps[step].begin(), steps[step].end(),
                [&](const auto* a, const auto* b) { return place_of(a) < place_of(b); });
      rank.AddStep(rows.steps[step], begin, lengths[step], steps[step]);
      begin += lengths[step] + kStepGap;
    }
    LS_RETURN_IF_ERROR(file.Finish());
  }
  return absl::OkStatus();
}

}  // namespace lockstep::synth
