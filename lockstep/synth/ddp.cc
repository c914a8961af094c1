#include "lockstep/synth/ddp.h"

#include <algorithm>

#include "lockstep/base/file.h"
#include "lockstep/synth/chance.h"
#include "lockstep/trace/perfetto.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::synth {
namespace {

constexpr double kMicro = 1e6;                                          // per s
constexpr int64_t kEpochNs = 1'750'000'000'000'000'000;                 // when the jobs begin
constexpr double kLead = 100, kFirstLaunch = 10, kBetweenLaunches = 3;  // us: launches run ahead of kernels
constexpr double kAfter = 2;                                            // us from what a kernel waits for to its begin
constexpr int kCompute = 7, kComm = 20;                                 // streams
constexpr int64_t kElements = 6'553'600;                                // of a bucket

struct Kernel {
  double begin_us, duration_us;  // of the true time
  double issued_us;              // when the host would have had to launch it at the latest
  int bucket = -1;
};

// One rank in one step.
struct Lane {
  double begin_us = 0;  // when the host began it
  std::vector<Kernel> kernels;
};

class Simulation {
 public:
  Simulation(const DdpShape& shape, const std::vector<Fault>& faults, uint64_t seed)
      : shape_(shape), faults_(faults), chance_(seed), free_(static_cast<size_t>(shape.ranks)) {}

  // [step][rank]
  std::vector<std::vector<Lane>> Run() {
    std::vector<std::vector<Lane>> steps;
    steps.reserve(static_cast<size_t>(shape_.steps));
    for (int step = 0; step < shape_.steps; ++step) steps.push_back(Step(step));
    return steps;
  }

 private:
  bool IsOf(const Fault& fault, FaultKind kind, int rank, int step) const {
    return fault.kind == kind && (rank < 0 || fault.dp == rank) && step >= fault.first_step && step <= fault.last_step;
  }

  // Of all compute of a rank in a step.
  double Factor(int rank, int step) {
    double factor = 1;
    for (const Fault& fault : faults_) {
      if (fault.kind == FaultKind::kSequenceLength) factor *= chance_.Spread(fault.factor);
      if (IsOf(fault, FaultKind::kWorker, rank, step) || IsOf(fault, FaultKind::kTransientWorker, rank, step))
        factor *= fault.factor;
    }
    return factor;
  }

  std::vector<Lane> Step(int step) {
    const auto ranks = static_cast<size_t>(shape_.ranks);
    std::vector<Lane> lanes(ranks);
    std::vector<std::vector<double>> ready(ranks);  // when a rank's bucket may be reduced
    const int forward = shape_.kernels / 3, backward = shape_.kernels - forward;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double factor = Factor(static_cast<int>(rank), step);
      double at = free_[rank] + kLead;
      lanes[rank].begin_us = free_[rank];
      int paused = -1;
      double pause = 0;
      for (const Fault& fault : faults_) {
        if (IsOf(fault, FaultKind::kDataLoading, static_cast<int>(rank), step)) at += kMicro * fault.seconds.value;
        if (fault.kind != FaultKind::kGc || chance_.Uniform() >= fault.share) continue;
        paused = static_cast<int>(chance_.Below(static_cast<size_t>(forward)));
        pause = kMicro * fault.seconds.value;
      }
      for (int i = 0; i < shape_.kernels; ++i) {
        double duration = kMicro * shape_.kernel.value * factor * chance_.Spread(shape_.jitter);
        if (i == paused) at += pause;
        lanes[rank].kernels.push_back({at, duration, at});
        at += duration + kAfter;
        const int done = i - forward + 1;  // backward kernels
        if (done > 0 && done * shape_.buckets / backward > (done - 1) * shape_.buckets / backward)
          ready[rank].push_back(at);
      }
      free_[rank] = at;
    }
    ReduceBuckets(step, ready, lanes);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double duration = kMicro * shape_.optimizer.value * chance_.Spread(shape_.jitter);
      lanes[rank].kernels.push_back({free_[rank], duration, free_[rank]});
      free_[rank] += duration + kAfter;
    }
    return lanes;
  }

  void ReduceBuckets(int step, const std::vector<std::vector<double>>& ready, std::vector<Lane>& lanes) {
    std::vector<double> stream(lanes.size(), 0);
    for (int bucket = 0; bucket < shape_.buckets; ++bucket) {
      double last = 0;
      for (size_t rank = 0; rank < lanes.size(); ++rank) {
        stream[rank] = std::max(stream[rank], ready[rank][static_cast<size_t>(bucket)]);
        last = std::max(last, stream[rank]);
      }
      double transfer = kMicro * shape_.transfer.value * chance_.Spread(shape_.jitter);
      for (const Fault& fault : faults_)
        if (IsOf(fault, FaultKind::kFabric, -1, step)) transfer *= fault.factor;
      for (size_t rank = 0; rank < lanes.size(); ++rank) {
        lanes[rank].kernels.push_back(
            {stream[rank], last + transfer - stream[rank], ready[rank][static_cast<size_t>(bucket)], bucket});
        stream[rank] = last + transfer + kAfter;
        free_[rank] = std::max(free_[rank], stream[rank]);
      }
    }
  }

  const DdpShape& shape_;
  const std::vector<Fault>& faults_;
  Chance chance_;
  std::vector<double> free_;  // when each rank's device has nothing left to do, us
};

// One rank's file.
class File {
 public:
  File(const DdpShape& shape, int rank, double clock_us, trace::TextWriter& text)
      : shape_(shape), rank_(rank), clock_us_(clock_us), text_(text) {}

  void Write(const std::vector<std::vector<Lane>>& steps) {
    std::string ranks;
    for (int rank = 0; rank < shape_.ranks; ++rank) ranks += (rank == 0 ? "" : ", ") + std::to_string(rank);
    text_.Write(
        "{{\n\"schemaVersion\": 1,\n\"deviceProperties\": [],\n\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": "
        "{}, "
        "\"world_size\": {}",
        rank_, shape_.ranks);
    if (shape_.era != KinetoEra::kMicros)
      text_.Write(
          ", \"pg_count\": 1, \"pg_config\": [{{\"pg_name\": \"0\", \"pg_desc\": \"default_pg\", \"backend_config\": "
          "\"cuda:nccl\", \"pg_size\": {}, \"ranks\": [{}]}}], \"nccl_version\": \"2.21.5\"",
          shape_.ranks, ranks);
    text_.Write("}},\n\"displayTimeUnit\": \"ms\",\n");
    if (shape_.era == KinetoEra::kBase) text_.Write("\"baseTimeNanoseconds\": {},\n", Base());
    text_.Write("\"traceEvents\": [");
    for (size_t step = 0; step < steps.size(); ++step) WriteStep(step, steps);
    text_.Write("\n],\n\"traceName\": \"rank-{}.json\"\n}}\n", rank_);
  }

 private:
  // Ranks of one job may have different ones.
  int64_t Base() const { return kEpochNs - 1'000'000'000LL * (rank_ + 1); }

  // A moment as this era has it.
  std::string Time(double us) const {
    const auto ns = static_cast<int64_t>((us + clock_us_) * 1e3) + kEpochNs;
    if (shape_.era == KinetoEra::kMicros) return std::to_string(ns / 1000);
    const int64_t written = shape_.era == KinetoEra::kBase ? ns - Base() : ns;
    return fmt::format("{}.{:03}", written / 1000, written % 1000);
  }
  std::string Duration(double us) const {
    return shape_.era == KinetoEra::kMicros ? std::to_string(static_cast<int64_t>(us)) : fmt::format("{:.3f}", us);
  }

  void Event(const char* category, const std::string& name, int64_t process, int64_t thread, double begin_us,
             double duration_us, const std::string& args) {
    text_.Write(
        "{}\n  {{\n    \"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {},\n    \"ts\": {}, "
        "\"dur\": {}{}\n  }}",
        first_ ? "" : ",", category, trace::JsonText(name), process, thread, Time(begin_us), Duration(duration_us),
        args.empty() ? "" : ",\n    \"args\": {" + args + "}");
    first_ = false;
  }

  void WriteStep(size_t step, const std::vector<std::vector<Lane>>& steps) {
    constexpr int64_t kHostProcess = 4000, kMainThread = 4000;
    const auto rank = static_cast<size_t>(rank_);
    const Lane& lane = steps[step][rank];
    double end = lane.begin_us;
    for (const Kernel& kernel : lane.kernels) end = std::max(end, kernel.begin_us + kernel.duration_us);
    if (step + 1 < steps.size()) end = steps[step + 1][rank].begin_us;
    Event("user_annotation", fmt::format("ProfilerStep#{}", step), kHostProcess, kMainThread, lane.begin_us,
          end - lane.begin_us, "");
    std::vector<size_t> order(lane.kernels.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return lane.kernels[a].issued_us < lane.kernels[b].issued_us; });
    double launch = lane.begin_us + kFirstLaunch;
    for (const size_t i : order) {
      const Kernel& kernel = lane.kernels[i];
      // The host runs ahead, but not of what it waited for itself.
      launch = std::max(launch + kBetweenLaunches, kernel.issued_us - kLead + kFirstLaunch);
      ++correlation_;
      Event("cuda_runtime", "cudaLaunchKernel", kHostProcess, kMainThread, launch, 2,
            fmt::format("\"cbid\": 211, \"correlation\": {}", correlation_));
      const bool communicates = kernel.bucket >= 0;
      std::string args = fmt::format("\"External id\": {0}, \"device\": {1}, \"stream\": {2}, \"correlation\": {0}",
                                     correlation_, rank_ % 8, communicates ? kComm : kCompute);
      if (communicates) args += Told(step, kernel.bucket);
      Event("kernel",
            communicates ? "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)" : "gemm",
            rank_ % 8, communicates ? kComm : kCompute, kernel.begin_us, kernel.duration_us, args);
    }
  }

  // What the NCCL kernel tells of itself.
  std::string Told(size_t step, int bucket) const {
    if (shape_.era == KinetoEra::kMicros) return "";
    std::string args = fmt::format(
        ", \"Collective name\": \"allreduce\", \"In msg nelems\": {0}, \"Out msg nelems\": {0}, \"Group size\": {1}, "
        "\"dtype\": "
        "\"Float\", \"In split size\": \"[]\", \"Out split size\": \"[]\", \"Process Group Name\": \"0\", \"Process "
        "Group "
        "Description\": \"default_pg\", \"Process Group Ranks\": \"[0, 1, ...]\"",
        kElements, shape_.ranks);
    if (shape_.era == KinetoEra::kBase)
      args +=
          fmt::format(", \"Seq\": {}", step * static_cast<size_t>(shape_.buckets) + static_cast<size_t>(bucket) + 1);
    return args;
  }

  const DdpShape& shape_;
  const int rank_;
  const double clock_us_;
  trace::TextWriter& text_;
  bool first_ = true;
  int64_t correlation_ = 100;
};

absl::Status Fits(const Fault& fault, const DdpShape& shape) {
  switch (fault.kind) {
    case FaultKind::kStage:
    case FaultKind::kLink:
    case FaultKind::kRing:
      return InvalidArgument(
          "fault {}: a data-parallel job has no stages; expected worker, transient_worker, "
          "sequence_length, gc, fabric or data_loading",
          FaultKindName(fault.kind));
    default:
      break;
  }
  if (fault.dp < 0 || fault.dp >= shape.ranks)
    return InvalidArgument("fault {}: dp is {}, expected 0 to {}", FaultKindName(fault.kind), fault.dp,
                           shape.ranks - 1);
  return absl::OkStatus();
}

}  // namespace

absl::Status DdpShape::Validate() const {
  const std::tuple<const char*, int, int> sizes[] = {
      {"ranks", ranks, 65536}, {"steps", steps, 1 << 20}, {"buckets", buckets, 1000}, {"kernels", kernels, 100'000}};
  for (const auto& [name, value, most] : sizes)
    if (value < 1 || value > most) return InvalidArgument("{} must be 1 to {}, found {}", name, most, value);
  if (kernels < 3 * buckets)
    return InvalidArgument("kernels must be at least three for each of {} buckets, found {}", buckets, kernels);
  return absl::OkStatus();
}

absl::Status WriteDdpTraces(const std::string& directory, const DdpShape& shape, const std::vector<Fault>& faults,
                            uint64_t seed) {
  LS_RETURN_IF_ERROR(shape.Validate());
  for (const Fault& fault : faults) LS_RETURN_IF_ERROR(Fits(fault, shape));
  LS_RETURN_IF_ERROR(MakeDirectory(directory));
  const std::vector<std::vector<Lane>> steps = Simulation(shape, faults, seed).Run();
  Chance clocks(seed + 1);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    LS_ASSIGN_OR_RETURN(trace::TextWriter text,
                        trace::TextWriter::Create(fmt::format("{}/rank-{}.json.gz", directory, rank)));
    File(shape, rank, kMicro * shape.clock_offset.value * clocks.Normal(), text).Write(steps);
    LS_RETURN_IF_ERROR(text.Finish());
  }
  return absl::OkStatus();
}

}  // namespace lockstep::synth
