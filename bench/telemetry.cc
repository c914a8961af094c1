// How fast what ranks told is judged, on simulated jobs of many ranks. Prints JSON:
//
//   telemetry rate        records per second, from snapshots to findings: 1,024 ranks, 30 s of records, samples
//   telemetry scale N     a coordinator's look at N ranks whose agents send what they send: seconds, samples; records,
//                         peak memory; and the verdict on a hang of all of them, seconds
//   telemetry onset SEED   1,024 ranks, one of which becomes 1.2 times as slow as it was: seconds until it is named
//   telemetry days JOB_DAYS SEED   1,024 ranks with all the irregularities of healthy jobs, looked at every ten
//                         seconds: findings, and those that are certain
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/agent/collectors.h"
#include "lockstep/detect/comm_hang.h"
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
  } else if (mode == "onset" && argc == 3) {
    answer = lockstep::Onset(std::stoull(argv[2]));
  } else if (mode == "days" && argc == 4) {
    answer = lockstep::Days(std::stod(argv[2]), std::stoull(argv[3]));
  } else {
    std::cerr << "telemetry rate | scale RANKS | onset SEED | days JOB_DAYS SEED\n";
    return 2;
  }
  std::cout << answer.dump(2) << "\n";
}
