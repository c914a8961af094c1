#include "lockstep/trace/kineto.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>
#include <utility>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/parallel.h"
#include "lockstep/trace/chrome_trace.h"
#include "lockstep/trace/kernel_name.h"
#include "lockstep/trace/kineto_name.h"
#include "lockstep/trace/kineto_told.h"
#include "lockstep/trace/nsys.h"
#include "lockstep/trace/time_range.h"

namespace lockstep::trace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kStep = "ProfilerStep#";
constexpr std::string_view kGloo = "gloo:";
constexpr std::string_view kDamagedEvents = "damaged_events";  // the counter
constexpr std::string_view kOnDevice = "gpu_user_annotation";
constexpr std::string_view kHostLaunch = "c10d::";  // with which the script hands a communication to gloo's threads
// Ops of the host are the compute of a job without devices. There they are few; before a device's they are let go.
constexpr size_t kMostHostOps = 4 << 20;

bool IsKernel(std::string_view category) { return category == "kernel" || category == "Kernel"; }
bool IsDeviceWork(std::string_view category) {
  return IsKernel(category) || category == "gpu_memcpy" || category == "gpu_memset" || category == "Memcpy" ||
         category == "Memset";
}
bool IsLaunch(std::string_view category) {
  return category == "cuda_runtime" || category == "cuda_driver" || category == "Runtime";
}
// PyTorch without Kineto tells no category.
bool IsHostOp(std::string_view category) { return category == "cpu_op" || category == "Operator" || category.empty(); }

class Reader {
 public:
  explicit Reader(const std::string& path) { rank_.path = path; }

  absl::StatusOr<KinetoRank> Read(std::optional<int> given_rank) {
    LS_ASSIGN_OR_RETURN(ChromeTraceReader reader, ChromeTraceReader::Open(rank_.path));
    while (reader.Next()) Take(reader.event());
    LS_RETURN_IF_ERROR(reader.status());
    if (reader.events() == 0)
      return InvalidArgument("{}: no events; expected a trace of the PyTorch profiler", rank_.path);
    LS_RETURN_IF_ERROR(ReadDocument(reader, given_rank));
    JoinLaunches();
    TakeHostOps();
    Collect();
    Count(rank_.counters, kDamagedEvents, reader.damaged());
    Count(rank_.counters, "negative_durations", negative_durations_);
    return std::move(rank_);
  }

 private:
  struct Op {
    DeviceOp op;
    uint32_t correlation, external;
  };
  struct Launch {
    uint32_t correlation;
    int64_t begin_ns;
  };
  struct HostOp {
    int64_t begin_ns, duration_ns;
    uint32_t stream;
  };

  void Take(const ChromeEvent& event) {
    if (event.phase != 'X') return;
    ChromeEvent one = event;
    if (one.duration_ns < 0) ++negative_durations_, one.duration_ns = 0;
    if (IsDeviceWork(one.category)) {
      TakeDeviceOp(one);
    } else if (IsLaunch(one.category)) {
      ForEachMember(one.args, [&](std::string_view key, JsonValue value) {
        if (key != "correlation") return true;
        if (const auto correlation = value.unsigned_integer())
          launches_.push_back({static_cast<uint32_t>(*correlation), one.begin_ns});
        return false;
      });
    } else if (one.name == "record_param_comms") {
      TakeParameters(one);
    } else if (one.category == kOnDevice) {
      return;  // what the host annotated, once more
    } else if (one.name.starts_with(kStep) || one.name.starts_with(kGloo)) {
      TakeAnnotation(one);
    } else if (IsHostOp(one.category) && !has_device_ && host_.size() < kMostHostOps) {
      if (one.name.starts_with(kHostLaunch)) host_launches_.push_back(one.begin_ns);
      host_.push_back({one.begin_ns, one.duration_ns, StreamOf({"thread ", one.thread.text()})});
    }
  }

  void TakeDeviceOp(const ChromeEvent& event) {
    if (!std::exchange(has_device_, true)) host_ = {};
    Op op{{event.begin_ns, event.duration_ns, kNoTime, kNoIndex, kNoIndex}, kNoIndex, kNoIndex};
    bool communicates = IsCommunication(event.name);
    ForEachMember(event.args, [&](std::string_view key, JsonValue value) {
      if (key == "correlation") {
        op.correlation = static_cast<uint32_t>(value.unsigned_integer().value_or(kNoIndex));
      } else if (key == "External id") {
        op.external = static_cast<uint32_t>(value.unsigned_integer().value_or(kNoIndex));
      } else if (key == kCollectiveName) {  // a copy may have it, too: of a group of one rank
        communicates = communicates || IsKernel(event.category);
      }
      return true;
    });
    op.op.stream = StreamOf({"device ", event.process.text(), " stream ", event.thread.text()});
    op.op.kernel = kernels_.Of(event.name, rank_.kernels);
    if (communicates) {
      Told told;
      ForEachMember(event.args, [&](std::string_view key, JsonValue value) {
        ReadCollective(key, value, told);
        return true;
      });
      const bool told_all = !told.collective.name.empty();
      if (!told_all) told.collective.name = CollectiveOfKernel(event.name);
      op.op.collective = static_cast<uint32_t>(told_.size());
      told_.push_back(std::move(told));
      if (!told_all) untold_.push_back(ops_.size());
    }
    ops_.push_back(op);
  }

  void TakeParameters(const ChromeEvent& event) {
    Told told;
    uint32_t external = kNoIndex;
    ForEachMember(event.args, [&](std::string_view key, JsonValue value) {
      if (key == "External id") {
        external = static_cast<uint32_t>(value.unsigned_integer().value_or(kNoIndex));
      } else {
        ReadCollective(key, value, told);
      }
      return true;
    });
    if (external == kNoIndex || told.collective.name.empty()) return;
    fused_.Add(event.begin_ns, told);
    parameters_[external] = std::move(told);
  }

  void TakeAnnotation(const ChromeEvent& event) {
    if (event.name.starts_with(kStep)) {
      const auto number = JsonValue(event.name.substr(kStep.size())).integer();
      if (number) rank_.steps.push_back({*number, event.begin_ns, event.duration_ns});
    } else if (event.name.starts_with(kGloo)) {
      Told told;
      told.collective.name = event.name.substr(kGloo.size());
      ops_.push_back(
          {{event.begin_ns, event.duration_ns, kNoTime, StreamOf({kHostStream}), static_cast<uint32_t>(told_.size())},
           kNoIndex,
           kNoIndex});
      told_.push_back(std::move(told));
    }
  }

  // The n-th communication is the n-th that was handed over: in the file, else in each step in which none is missing
  // (the profiler may end before one does).
  void JoinHostLaunches() {
    std::sort(host_launches_.begin(), host_launches_.end());
    std::stable_sort(ops_.begin(), ops_.end(), [](const Op& a, const Op& b) { return a.op.begin_ns < b.op.begin_ns; });
    std::vector<int64_t> ends;  // of the stretches that are told apart
    if (ops_.size() != host_launches_.size())
      for (const ProfilerStep& step : rank_.steps) ends.push_back(step.begin_ns);
    ends.push_back(INT64_MAX);
    std::sort(ends.begin(), ends.end());
    auto op = ops_.begin();
    auto launch = host_launches_.begin();
    for (const int64_t end : ends) {
      const auto next_op = std::partition_point(op, ops_.end(), [&](const Op& one) { return one.op.begin_ns < end; });
      const auto next_launch = std::lower_bound(launch, host_launches_.end(), end);
      if (next_op - op == next_launch - launch)
        for (auto from = launch; op != next_op; ++op, ++from) op->op.launch_ns = *from;
      op = next_op;
      launch = next_launch;
    }
  }

  // Of ops within each other the outermost.
  void TakeHostOps() {
    if (has_device_) return;
    JoinHostLaunches();
    std::sort(host_.begin(), host_.end(), [](const HostOp& a, const HostOp& b) {
      return std::tuple(a.stream, a.begin_ns, b.duration_ns) < std::tuple(b.stream, b.begin_ns, a.duration_ns);
    });
    uint32_t stream = kNoIndex;
    int64_t end = 0;
    for (const HostOp& one : host_) {
      if (one.stream == stream && one.begin_ns < end) continue;
      stream = one.stream;
      end = one.begin_ns + one.duration_ns;
      ops_.push_back({{one.begin_ns, one.duration_ns, one.begin_ns, one.stream, kNoIndex}, kNoIndex, kNoIndex});
    }
    Count(rank_.counters, "host_ops_left_out", host_.size() == kMostHostOps ? 1 : 0);
    host_ = {};
  }

  uint32_t StreamOf(std::initializer_list<std::string_view> name) {
    stream_name_.clear();
    for (const std::string_view part : name) stream_name_ += part;
    const auto known = stream_index_.find(stream_name_);
    if (known != stream_index_.end()) return known->second;
    rank_.streams.push_back(stream_name_);
    return stream_index_.emplace(stream_name_, static_cast<uint32_t>(rank_.streams.size() - 1)).first->second;
  }

  absl::Status ReadDocument(const ChromeTraceReader& reader, std::optional<int> given_rank) {
    const auto member = [&](std::string_view name) {
      const auto found = reader.members().find(name);
      return found == reader.members().end() ? std::string() : found->second;
    };
    rank_.base_ns = JsonValue(member("baseTimeNanoseconds")).integer();
    base_ns_ = rank_.base_ns.value_or(0);
    if (!IsInRange(base_ns_))
      return InvalidArgument("{}: baseTimeNanoseconds is {}, expected a time of this age", rank_.path, base_ns_);
    ReadDistributedInfo(member("distributedInfo"));
    const KinetoName name = ParseKinetoName(rank_.path);
    rank_.host = name.host;
    Count(rank_.counters, "other_ranks_given", given_rank && rank_.rank >= 0 && rank_.rank != *given_rank ? 1 : 0);
    if (rank_.rank < 0) rank_.rank = given_rank.value_or(name.rank.value_or(-1));
    if (rank_.rank >= kMostKinetoRanks || rank_.world_size > kMostKinetoRanks)
      return InvalidArgument("{}: its distributedInfo tells of more ranks than {}", rank_.path, kMostKinetoRanks);
    if (rank_.rank < 0)
      return InvalidArgument(
          "{}: neither distributedInfo nor the file's name tells the rank: name it rank-N.json (or, "
          "of `lockstep explain`, say --rank N)",
          rank_.path);
    return absl::OkStatus();
  }

  // Some writers put the object into a string, as Python prints it.
  void ReadDistributedInfo(std::string text) {
    if (text.empty()) return;
    if (text.starts_with('"')) {
      text = std::string(JsonValue(text).text());
      std::replace(text.begin(), text.end(), '\'', '"');
    }
    const Json info = ParseJson(text);
    if (!info.is_object()) return Count(rank_.counters, "unreadable_distributed_info", 1);
    rank_.rank = static_cast<int>(std::min<int64_t>(IntegerAt(info, "rank", rank_.rank), kMostKinetoRanks));
    rank_.world_size = static_cast<int>(std::clamp<int64_t>(IntegerAt(info, "world_size", 0), 0, kMostKinetoRanks + 1));
    rank_.backend = TextAt(info, "backend");
    const Json& groups = At(info, "pg_config");
    if (!groups.is_array()) return;
    for (const Json& one : groups) {
      if (!one.is_object() || !one.contains("pg_name")) continue;
      ProcessGroup group;
      group.name = one["pg_name"].is_string() ? one["pg_name"].get<std::string>() : OneLine(one["pg_name"]);
      if (one.contains("pg_desc") && one["pg_desc"].is_string()) group.description = one["pg_desc"].get<std::string>();
      if (one.contains("ranks") && one["ranks"].is_array())
        for (const Json& rank : one["ranks"])
          if (const std::optional<int> one_rank = RankFrom(rank)) group.ranks.push_back(*one_rank);
      std::sort(group.ranks.begin(), group.ranks.end());
      rank_.groups.push_back(std::move(group));
    }
  }

  // What the host told of each kernel that it launched.
  void JoinLaunches() {
    std::stable_sort(launches_.begin(), launches_.end(),
                     [](const Launch& a, const Launch& b) { return a.correlation < b.correlation; });
    for (Op& op : ops_) {  // of several launches the last
      const auto behind = std::upper_bound(launches_.begin(), launches_.end(), op.correlation,
                                           [](uint32_t wanted, const Launch& one) { return wanted < one.correlation; });
      if (op.correlation != kNoIndex && behind != launches_.begin() && behind[-1].correlation == op.correlation)
        op.op.launch_ns = behind[-1].begin_ns;
    }
    for (const size_t index : untold_) {
      const auto told = parameters_.find(ops_[index].external);
      if (ops_[index].external != kNoIndex && told != parameters_.end())
        told_[ops_[index].op.collective] = told->second;
    }
    JoinFused();
    launches_ = std::vector<Launch>();
    parameters_.clear();
  }

  // One kernel for several sends and receives, which the host told of since it launched the one before.
  void JoinFused() {
    std::vector<const Op*> transfers;
    for (const Op& op : ops_)
      if (op.op.collective != kNoIndex && op.op.launch_ns != kNoTime &&
          IsTransferKernel(told_[op.op.collective].collective.name))
        transfers.push_back(&op);
    std::sort(transfers.begin(), transfers.end(),
              [](const Op* a, const Op* b) { return a->op.launch_ns < b->op.launch_ns; });
    int64_t last = INT64_MIN;
    for (const Op* op : transfers) {
      Told& told = told_[op->op.collective];
      if (told.source < 0 && told.destination < 0)
        if (auto fused = fused_.Between(last, op->op.launch_ns)) told = *std::move(fused);
      last = op->op.launch_ns;
    }
  }

  uint32_t GroupOf(const Told& told) {
    if (told.group_name.empty() && !told.ranks && told.start < 0) return kNoIndex;
    const auto known = std::find_if(rank_.groups.begin(), rank_.groups.end(),
                                    [&](const ProcessGroup& group) { return group.name == told.group_name; });
    std::vector<int> ranks;
    if (told.ranks) {
      ranks = *told.ranks;
    } else if (known != rank_.groups.end() && !known->ranks.empty()) {
      return static_cast<uint32_t>(known - rank_.groups.begin());
    } else if (told.start >= 0 && told.stride > 0 && told.size > 0 && told.size <= 1 << 20) {
      for (int64_t i = 0; i < told.size; ++i) ranks.push_back(static_cast<int>(told.start + i * told.stride));
    }
    ProcessGroup group{told.group_name, told.group_description, std::move(ranks)};
    const auto same = std::find_if(rank_.groups.begin(), rank_.groups.end(), [&](const ProcessGroup& one) {
      return one.name == group.name && (group.ranks.empty() || one.ranks.empty() || one.ranks == group.ranks);
    });
    if (same == rank_.groups.end())
      return rank_.groups.push_back(std::move(group)), static_cast<uint32_t>(rank_.groups.size() - 1);
    if (same->ranks.empty()) same->ranks = std::move(group.ranks);
    return static_cast<uint32_t>(same - rank_.groups.begin());
  }

  // Who is at the other end of a transfer. A number beyond the group is a rank of the job already.
  void FindPeer(const Told& told, Collective& one) const {
    one.sends = one.name == "send" || one.name == kExchange;
    const int64_t place = one.sends ? told.destination : one.name == "recv" ? told.source : -1;
    if (place < 0 || place > INT32_MAX) return;
    const std::vector<int>* ranks = one.group == kNoIndex ? nullptr : &rank_.groups[one.group].ranks;
    const bool in_group = ranks != nullptr && place < static_cast<int64_t>(ranks->size());
    one.peer = in_group ? (*ranks)[static_cast<size_t>(place)] : static_cast<int>(place);
  }

  // Into the order and the base that the rest wants; each kind of communication once.
  void Collect() {
    std::map<std::tuple<std::string, uint32_t, int64_t, int64_t, int64_t, int>, uint32_t> index;
    std::vector<uint32_t> kind(told_.size());
    for (size_t i = 0; i < told_.size(); ++i) {
      Collective& one = told_[i].collective;
      one.group = GroupOf(told_[i]);
      FindPeer(told_[i], one);
      const auto [found, is_new] =
          index.emplace(std::tuple(one.name, one.group, one.sequence, one.elements_in, one.elements_out, one.peer),
                        static_cast<uint32_t>(rank_.collectives.size()));
      if (is_new) rank_.collectives.push_back(one);
      kind[i] = found->second;
    }
    for (ProfilerStep& step : rank_.steps) step.begin_ns += base_ns_;
    uint64_t out_of_range = std::erase_if(rank_.steps, [](const auto& step) { return !IsInRange(step.begin_ns); });
    std::sort(rank_.steps.begin(), rank_.steps.end(),
              [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
    uint64_t without_launch = 0;
    rank_.ops.reserve(ops_.size());
    for (Op& op : ops_) {
      op.op.begin_ns += base_ns_;
      if (op.op.launch_ns != kNoTime) op.op.launch_ns += base_ns_;
      if (!IsInRange(op.op.begin_ns) || op.op.duration_ns > kLongest) {
        ++out_of_range;
        continue;
      }
      if (op.op.launch_ns == kNoTime && has_device_) ++without_launch;
      if (op.op.collective != kNoIndex) op.op.collective = kind[op.op.collective];
      rank_.ops.push_back(op.op);
    }
    std::stable_sort(rank_.ops.begin(), rank_.ops.end(), [](const DeviceOp& a, const DeviceOp& b) {
      return std::tuple(a.stream, a.begin_ns) < std::tuple(b.stream, b.begin_ns);
    });
    Count(rank_.counters, "ops_without_launch", without_launch);
    Count(rank_.counters, "times_out_of_range", out_of_range);
  }

  KinetoRank rank_;
  std::vector<Op> ops_;
  std::vector<HostOp> host_;
  std::vector<int64_t> host_launches_;
  bool has_device_ = false;
  std::vector<Told> told_;
  std::vector<size_t> untold_;  // communications of which the kernel itself says nothing
  std::vector<Launch> launches_;
  std::unordered_map<uint32_t, Told> parameters_;  // by external id
  FusedTransfers fused_;
  KernelNames kernels_;
  std::map<std::string, uint32_t, std::less<>> stream_index_;
  std::string stream_name_;
  int64_t base_ns_ = 0;
  uint64_t negative_durations_ = 0;
};

// The profiler writes the base behind the events, one for all ranks of a job.
void LendBase(std::vector<KinetoRank>& ranks) {
  const auto told = std::ranges::find_if(ranks, [](const KinetoRank& rank) { return rank.base_ns.has_value(); });
  if (told == ranks.end()) return;
  for (KinetoRank& rank : ranks) {
    const auto damaged = [](const Counter& counter) { return counter.name == kDamagedEvents; };
    if (rank.base_ns || std::ranges::none_of(rank.counters, damaged)) continue;
    rank.base_ns = told->base_ns;
    for (ProfilerStep& step : rank.steps) step.begin_ns += *rank.base_ns;
    for (DeviceOp& op : rank.ops) {
      op.begin_ns += *rank.base_ns;
      if (op.launch_ns != kNoTime) op.launch_ns += *rank.base_ns;
    }
  }
}

}  // namespace

absl::StatusOr<KinetoRank> ReadKineto(const std::string& path, std::optional<int> rank) {
  if (std::error_code error; std::filesystem::is_directory(path, error))
    return InvalidArgument(
        "{}: a directory; expected the profiler's files, one per rank, or a directory without --kineto", path);
  return IsSqlite(path) ? ReadNsys(path, rank) : Reader(path).Read(rank);
}

absl::StatusOr<std::vector<KinetoRank>> ReadKinetoFiles(const std::vector<std::string>& paths,
                                                        std::optional<int> rank) {
  std::vector<absl::StatusOr<KinetoRank>> read(paths.size(), absl::UnknownError("not read"));
  ParallelFor(paths.size(), std::thread::hardware_concurrency(),
              [&](size_t i, size_t /*worker*/) { read[i] = ReadKineto(paths[i], rank); });
  std::vector<KinetoRank> ranks;
  for (auto& one : read) {
    LS_RETURN_IF_ERROR(one.status());
    ranks.push_back(*std::move(one));
  }
  LendBase(ranks);
  return ranks;
}

}  // namespace lockstep::trace
