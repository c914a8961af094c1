#include "lockstep/synth/ddp.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/file.h"
#include "lockstep/synth/chance.h"
#include "lockstep/synth/times.h"

namespace lockstep::synth {
namespace {

constexpr double kMicro = 1e6;                                          // per s
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
      std::vector<double> pauses(static_cast<size_t>(forward));  // before each forward kernel, us
      for (const Fault& fault : faults_) {
        if (IsOf(fault, FaultKind::kDataLoading, static_cast<int>(rank), step)) at += kMicro * fault.seconds.value;
        if (fault.kind != FaultKind::kGc || chance_.Uniform() >= fault.share) continue;
        pauses[chance_.Below(pauses.size())] += kMicro * fault.seconds.value;
      }
      for (int i = 0; i < shape_.kernels; ++i) {
        double duration = kMicro * shape_.kernel.value * factor * chance_.Spread(shape_.jitter);
        if (i < forward) at += pauses[static_cast<size_t>(i)];
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

// What the NCCL kernel of a bucket tells of itself.
std::string Told(const DdpShape& shape, size_t step, int bucket) {
  std::string told = fmt::format(
      ", \"Collective name\": \"allreduce\", \"In msg nelems\": {0}, \"Out msg nelems\": {0}, \"Group size\": {1}, "
      "\"dtype\": \"Float\", \"In split size\": \"[]\", \"Out split size\": \"[]\", \"Process Group Name\": \"0\", "
      "\"Process Group Description\": \"default_pg\", \"Process Group Ranks\": \"[0, 1, ...]\"",
      kElements, shape.ranks);
  if (shape.era == KinetoEra::kBase)
    told += fmt::format(", \"Seq\": {}", step * static_cast<size_t>(shape.buckets) + static_cast<size_t>(bucket) + 1);
  return told;
}

void WriteStep(const DdpShape& shape, size_t step, const Lane& lane, const Lane* next, KinetoFile& file) {
  double end = lane.begin_us;
  for (const Kernel& kernel : lane.kernels) end = std::max(end, kernel.begin_us + kernel.duration_us);
  file.AddStep(step, lane.begin_us, next == nullptr ? end : next->begin_us);
  std::vector<size_t> order(lane.kernels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lane.kernels[a].issued_us < lane.kernels[b].issued_us; });
  double launch = lane.begin_us + kFirstLaunch;
  for (const size_t i : order) {
    const Kernel& kernel = lane.kernels[i];
    // The host runs ahead, but not of what it waited for itself.
    launch = std::max(launch + kBetweenLaunches, kernel.issued_us - kLead + kFirstLaunch);
    const bool communicates = kernel.bucket >= 0;
    file.AddKernel(
        {kernel.begin_us, kernel.duration_us, launch, communicates ? kComm : kCompute,
         communicates ? "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)" : "gemm",
         communicates ? Told(shape, step, kernel.bucket) : ""});
  }
}

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
  if (fault.stage != 0 || (fault.first_step >= shape.steps))
    return InvalidArgument("fault {}: stage and first step are {} and {}; expected 0, and less than {}",
                           FaultKindName(fault.kind), fault.stage, fault.first_step, shape.steps);
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
  LS_RETURN_IF_ERROR(CheckTimes({{"clock offset", clock_offset.value}}, jitter));
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
  std::vector<int> all(static_cast<size_t>(shape.ranks));
  std::iota(all.begin(), all.end(), 0);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    LS_ASSIGN_OR_RETURN(KinetoFile file, KinetoFile::Create(directory, rank, shape.ranks, shape.era,
                                                            kMicro * shape.clock_offset.value * clocks.Normal(),
                                                            {{"0", "default_pg", all}}));
    for (size_t step = 0; step < steps.size(); ++step)
      WriteStep(shape, step, steps[step][static_cast<size_t>(rank)],
                step + 1 < steps.size() ? &steps[step + 1][static_cast<size_t>(rank)] : nullptr, file);
    LS_RETURN_IF_ERROR(file.Finish());
  }
  return absl::OkStatus();
}

}  // namespace lockstep::synth
