// How fast what ranks told is judged, on simulated jobs of many ranks. Prints JSON:
//
//   telemetry rate        records per second, from snapshots to findings: 1,024 ranks, 30 s of records, samples
//   telemetry scale N     a coordinator's look at N ranks whose agents send what they send: seconds, samples; records,
//                         peak memory; and the verdict on a hang of all of them, seconds
//   telemetry ticks N     a coordinator's judge over 20 s of N ranks, eight to a node: each node tells its ranks' state
//   once
//                         a second and what they communicated every 5 s, a fifth of the nodes in each second; seconds
//                         of processor time that each second takes: to read what came, to take it in, to judge; peak
//                         memory
//   telemetry onset SEED   1,024 ranks, one of which becomes 1.2 times as slow as it was: seconds until it is named
//   telemetry days JOB_DAYS SEED   1,024 ranks with all the irregularities of healthy jobs, looked at every ten
//                         seconds: findings, and those that are certain
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <ctime>
#include <deque>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/agent/collectors.h"
#include "lockstep/base/check.h"
#include "lockstep/control/judge.h"
#include "lockstep/detect/comm_hang.h"
#include "lockstep/rpc/encode.h"
#include "lockstep/synth/telemetry.h"
#include "lockstep/trace/trails.h"

namespace lockstep {
namespace {

using Snapshots = std::vector<trace::TrailSnapshot>;

constexpr int kSamples = 5;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

synth::TelemetryShape Shape(int ranks) {
  const int tp = 8, pp = ranks >= 8192 ? 8 : 4;
  return {.layout = {.tp = tp, .dp = ranks / tp / pp, .pp = pp}, .ports = 2, .microbatches = 2};
}

synth::Telemetry Job(int ranks, const std::vector<std::string>& faults, uint64_t seed) {
  std::vector<synth::TelemetryFault> parsed;
  for (const std::string& text : faults) parsed.push_back(synth::ParseTelemetryFault(text).value());
  return synth::Telemetry::Create(Shape(ranks), parsed, seed).value();
}

size_t RecordsOf(const Snapshots& snapshots) {
  size_t records = 0;
  for (const trace::TrailSnapshot& snapshot : snapshots) records += snapshot.ended.size() + snapshot.under_way.size();
  return records;
}

struct Look {
  double seconds;
  std::vector<incident::Finding> findings;
};
Look LookAt(Snapshots snapshots) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<incident::Finding> findings =
      detect::DiagnoseCommunication(trace::JoinTrails(std::move(snapshots))).findings;
  return {SecondsSince(begin), std::move(findings)};
}

// Of a job in which nobody is to be named.
double LookAtHealthy(const Snapshots& snapshots) {
  const Look look = LookAt(snapshots);
  if (!look.findings.empty()) std::cerr << "a healthy job was named\n";
  return look.seconds;
}

// As agents send them.
Snapshots Thinned(Snapshots snapshots) {
  const size_t most = agent::OpsToTell(static_cast<int>(snapshots.size()));
  for (trace::TrailSnapshot& snapshot : snapshots) trace::Thin(snapshot, 0, most);
  return snapshots;
}

Json Rate() {
  synth::Telemetry job = Job(1024, {}, 1);
  job.Run(Seconds{30});
  const Snapshots snapshots = job.Take();
  Json samples = Json::array();
  for (int i = 0; i < kSamples; ++i)
    samples.push_back(static_cast<double>(RecordsOf(snapshots)) / LookAtHealthy(snapshots));
  return {{"records", RecordsOf(snapshots)}, {"records_per_s", samples}};
}

Json Scale(int ranks) {
  synth::Telemetry job = Job(ranks, {"stopped:rank=777,from=40"}, 1);
  job.Run(Seconds{35});
  Snapshots snapshots = Thinned(job.Take());
  Json looks = Json::array();
  for (int i = 0; i < kSamples; ++i) looks.push_back(LookAtHealthy(snapshots));
  const size_t records = RecordsOf(snapshots);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  job.Run(Seconds{60});
  snapshots = Thinned(job.Take());
  Json hangs = Json::array();
  std::string named;
  for (int i = 0; i < kSamples; ++i) {
    const Look look = LookAt(snapshots);
    hangs.push_back(look.seconds);
    if (!look.findings.empty()) named = look.findings.front().suspects.front().name;
  }
  return {{"ranks", ranks},  {"records", records}, {"look_s", looks}, {"peak_mb", usage.ru_maxrss / 1024},
          {"hang_s", hangs}, {"hang_named", named}};
}

// The newest of each rank, with what had ended before it.
Snapshots Together(const std::vector<Snapshots>& windows) {
  Snapshots all(windows.back().size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<ls_record> ended;
    for (const Snapshots& window : windows)
      ended.insert(ended.end(), window[rank].ended.begin(), window[rank].ended.end());
    all[rank] = windows.back()[rank];
    all[rank].ended = std::move(ended);
  }
  return all;
}

double ProcessorSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// What all agents say within one second of a job, as bytes, and the judge that hears it.
class Coordinated {
 public:
  explicit Coordinated(int ranks) : job_(Job(ranks, {}, 1)), ranks_(ranks), judge_(detect::HangLimits{}, ranks) {
    state_.spec.ranks = ranks;
    state_.epoch = kEpoch;
    judge_.Begin(kEpoch);
  }

  // The job's second that ends at `second`. Seconds of processor time: [read, take in, judge].
  std::array<double, 3> Second(int second) {
    job_.Run(Seconds{static_cast<double>(second)});
    Keep(job_.Take());
    const std::vector<std::string> words = Say(second);
    const double begin = ProcessorSeconds();
    std::vector<control::Said> heard;
    heard.reserve(words.size());
    for (const std::string& word : words) {
      rpc::FromAgent wire;
      LS_CHECK(wire.ParseFromString(word), "a word of our own");
      heard.push_back(rpc::DecodeSaid(wire).value());
    }
    const double read = ProcessorSeconds();
    for (control::Said& said : heard) {
      if (auto* seen = std::get_if<control::CommunicationSeen>(&said)) judge_.Add(std::move(*seen));
      if (auto* samples = std::get_if<control::Samples>(&said)) judge_.Add(*samples);
    }
    const double taken = ProcessorSeconds();
    for (int tick = 0; tick < kTicks; ++tick) {
      const Nanos now = ToNanos(Seconds{second + tick / double{kTicks}});
      for (const control::EventBody& event : judge_.At(state_, {second, now}, now))
        if (std::holds_alternative<control::Suspected>(event)) std::cerr << "a healthy job was named\n";
    }
    return {read - begin, taken - read, ProcessorSeconds() - taken};
  }

 private:
  static constexpr EpochId kEpoch{1};
  static constexpr int kNode = 8, kTicks = 10, kEvery = 5, kWindow = 30;

  void Keep(Snapshots newest) {
    kept_.push_back(std::move(newest));
    if (kept_.size() > kWindow) kept_.pop_front();
  }

  // What an agent would read of this rank's trail now.
  trace::TrailSnapshot TrailOf(size_t rank) const {
    trace::TrailSnapshot trail = kept_.back()[rank];
    trail.ended.clear();
    for (const Snapshots& of_second : kept_)
      trail.ended.insert(trail.ended.end(), of_second[rank].ended.begin(), of_second[rank].ended.end());
    trace::Thin(trail, 0, agent::OpsToTell(ranks_));
    return trail;
  }

  detect::RankSample SampleOf(int rank, int second) const {
    detect::RankSample sample;
    sample.rank = RankId(rank);
    sample.at = ToNanos(Seconds{static_cast<double>(second)});
    sample.step = sample.steps = second;
    sample.step_end = sample.at;
    sample.stepping = sample.at;
    sample.in_loop = true;
    return sample;
  }

  std::vector<std::string> Say(int second) const {
    std::vector<std::string> words;
    for (int node = 0; node * kNode < ranks_; ++node) {
      control::Samples samples{kEpoch, {}, {}, {second, ToNanos(Seconds{static_cast<double>(second)})}};
      control::CommunicationSeen seen{kEpoch, {}};
      for (int rank = node * kNode; rank < (node + 1) * kNode; ++rank) {
        samples.ranks.push_back(SampleOf(rank, second));
        if (node % kEvery == second % kEvery) seen.trails.push_back(TrailOf(static_cast<size_t>(rank)));
      }
      words.push_back(rpc::Encode(control::Said(std::move(samples))).SerializeAsString());
      if (!seen.trails.empty()) words.push_back(rpc::Encode(control::Said(std::move(seen))).SerializeAsString());
    }
    return words;
  }

  synth::Telemetry job_;
  const int ranks_;
  control::Judge judge_;
  control::State state_;
  std::deque<Snapshots> kept_;
};

Json Ticks(int ranks) {
  constexpr int kWarm = 30, kSeconds = 20;
  Coordinated job(ranks);
  Json read = Json::array(), taken = Json::array(), judged = Json::array();
  for (int second = 1; second <= kWarm + kSeconds; ++second) {
    const std::array<double, 3> took = job.Second(second);
    if (second <= kWarm) continue;
    read.push_back(took[0]);
    taken.push_back(took[1]);
    judged.push_back(took[2]);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {{"ranks", ranks},
          {"read_s", read},
          {"take_in_s", taken},
          {"judge_s", judged},
          {"peak_mb", usage.ru_maxrss / 1024}};
}

// Looked at as a coordinator does: at what agents sent, every five seconds.
Json Onset(uint64_t seed) {
  constexpr int kRanks = 1024, kMostS = 120;
  constexpr double kPeriod = 5;  // control/judge.cc; the newest 30 s are six of them
  const double onset = 60 + kPeriod * static_cast<double>(seed % 10) / 10;
  const auto slow = static_cast<int>(seed * 389 % kRanks);
  synth::Telemetry job = Job(kRanks, {fmt::format("slow_rank:rank={},factor=1.2,from={}", slow, onset)}, seed);
  std::vector<Snapshots> kept;
  for (double at = kPeriod; at < onset + kMostS; at += kPeriod) {
    job.Run(Seconds{at});
    kept.push_back(job.Take());
    if (kept.size() > 6) kept.erase(kept.begin());
    for (const incident::Finding& finding : LookAt(Thinned(Together(kept))).findings) {
      const std::string named = finding.suspects.empty() ? "nobody" : finding.suspects.front().name;
      return {{"slow", std::to_string(slow)}, {"named", named}, {"certain", finding.certain}, {"after_s", at - onset}};
    }
  }
  return {{"slow", std::to_string(slow)}, {"named", "nobody"}, {"certain", false}, {"after_s", kMostS}};
}

Json Days(double days, uint64_t seed) {
  constexpr int kRanks = 1024;
  constexpr double kWindow = 10;
  // One process looks thousands of times: what a look has freed is for the next one, and not to be asked for again.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc takes no more
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  synth::Telemetry job =
      Job(kRanks,
          {"gc:share=0.01,seconds=0.3", "checkpoint:every=600,seconds=8", "evaluation:every=1800,seconds=30",
           "lengths:factor=0.35", "warm_up:factor=4", "rotating:factor=1.3", "pause:from=3000,seconds=60",
           "everybody:factor=1.2,from=7000,until=9000"},
          seed);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t records = 0, windows = 0, found = 0, certain = 0;
  Json said = Json::array();
  std::vector<Snapshots> kept;  // of the newest three windows
  for (double at = kWindow; at <= days * 86400; at += kWindow, ++windows) {
    job.Run(Seconds{at});
    kept.push_back(job.Take());
    records += RecordsOf(kept.back());
    if (kept.size() > 3) kept.erase(kept.begin());
    const Look look = LookAt(Together(kept));
    for (const incident::Finding& finding : look.findings) {
      ++found;
      certain += finding.certain;
      if (said.size() < 20) said.push_back(finding.evidence);
    }
  }
  return {{"job_days", days},
          {"windows", windows},
          {"records", records},
          {"found", found},
          {"certain", certain},
          {"evidence", said},
          {"seconds", SecondsSince(begin)}};
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  lockstep::Json answer;
  if (mode == "rate" && argc == 2) {
    answer = lockstep::Rate();
  } else if (mode == "scale" && argc == 3) {
    answer = lockstep::Scale(std::stoi(argv[2]));
  } else if (mode == "ticks" && argc == 3) {
    answer = lockstep::Ticks(std::stoi(argv[2]));
  } else if (mode == "onset" && argc == 3) {
    answer = lockstep::Onset(std::stoull(argv[2]));
  } else if (mode == "days" && argc == 4) {
    answer = lockstep::Days(std::stod(argv[2]), std::stoull(argv[3]));
  } else {
    std::cerr << "telemetry rate | scale RANKS | ticks RANKS | onset SEED | days JOB_DAYS SEED\n";
    return 2;
  }
  std::cout << answer.dump(2) << "\n";
}
