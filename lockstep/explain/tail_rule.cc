// What follows the passes of a step and has rows of its own: garbage collection, all-reduces within a worker or a
// pipeline, the optimizer. docs/models/explain.md has the rules.
#include <algorithm>
#include <iterator>
#include <map>

#include "lockstep/base/median.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

using trace::OpType;

constexpr double kSlower = 1.03;        // times what is usual: worth a look
constexpr double kMuchSlower = 1.3;     // the same, of communication, which varies more
constexpr double kShareOfStep = 0.005;  // what is longer by less of a step is not worth a name

struct Long {
  uint32_t cell;
  double seconds, usual;
};
using Place = std::pair<int, int>;  // dp, stage

// Of ops that ought to take the same time in a step, those that take longer than the lower median does.
void AddLong(const Passes& passes, const std::vector<uint32_t>& alike, double slower,
             std::map<Place, std::vector<Long>>& found) {
  const trace::TracedJob& job = passes.job();
  for (size_t set = 0; set < job.steps.size(); ++set) {
    const double least = kShareOfStep * static_cast<double>(job.step_times[set]);
    std::vector<double> values;
    const auto each = [&](const auto& take) {
      for (const uint32_t op : alike)
        for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane)
          if (passes.Has(op, lane)) take(op, lane, passes.Duration(op, lane));
    };
    each([&](uint32_t /*op*/, size_t /*lane*/, double seconds) { values.push_back(seconds); });
    const double usual = LowerMedian(std::move(values)), limit = std::max(slower * usual, usual + least);
    each([&](uint32_t op, size_t lane, double seconds) {
      if (seconds >= limit)
        found[{job.lanes[lane].dp, job.ops[op].stage}].push_back(
            {static_cast<uint32_t>(job.graph.Cell(op, lane)), seconds, usual});
    });
  }
}

// By worker, ops of one type that are longer than those of the same number: on all workers, or on the ranks of a stage,
// for stages do not all have as many parameters.
std::map<Place, std::vector<Long>> LongOnes(const Passes& passes, OpType type, bool stages_alike,
                                            double slower = kSlower) {
  std::map<std::pair<int, int>, std::vector<uint32_t>> alike;
  const std::vector<trace::JobOp>& ops = passes.job().ops;
  for (uint32_t op = 0; op < ops.size(); ++op)
    if (ops[op].type == type) alike[{stages_alike ? 0 : ops[op].stage, ops[op].sequence}].push_back(op);
  std::map<Place, std::vector<Long>> found;
  for (const auto& [key, of_key] : alike) AddLong(passes, of_key, slower, found);
  return found;
}

void Mend(const std::vector<Long>& longer, Remedy& remedy) {
  for (const Long& one : longer) remedy.durations.emplace_back(one.cell, static_cast<float>(one.usual));
}

double RatioOf(const std::vector<Long>& longer) {
  std::vector<double> ratios;
  for (const Long& one : longer)
    if (one.usual > 0) ratios.push_back(one.seconds / one.usual);
  return Median(std::move(ratios));
}

// Between the first stage and the last, which share the embedding, of one data-parallel rank.
std::vector<Remedy> FindSlowEmbeddings(const Passes& passes) {
  std::map<int, std::vector<Long>> by_dp;
  std::map<int, std::vector<CauseSuspect>> ends;
  for (const auto& [place, longer] : LongOnes(passes, OpType::kEmbeddingGradsAllReduce, true, kMuchSlower)) {
    by_dp[place.first].insert(by_dp[place.first].end(), longer.begin(), longer.end());
    ends[place.first].push_back(WorkerSuspect(passes.job(), place.first, place.second));
  }
  std::vector<Remedy> found;
  for (const auto& [dp, longer] : by_dp) {
    Remedy& remedy = found.emplace_back();
    Mend(longer, remedy);
    remedy.cause.kind = CauseKind::kLink;
    remedy.cause.suspects = ends[dp];
    remedy.cause.evidence = {fmt::format(
        "the all-reduce of the embedding between the first and the last stage takes {:.2f} times what it takes on most "
        "data-parallel ranks",
        RatioOf(longer))};
  }
  return found;
}

// Workers of which one op takes much longer than those of their stage's other ranks.
std::vector<Remedy> FindWorkersSlowIn(const Passes& passes, CauseKind kind, const char* op,
                                      const std::map<Place, std::vector<Long>>& long_ones) {
  std::vector<Remedy> found;
  for (const auto& [place, longer] : long_ones) {
    Remedy& remedy = found.emplace_back();
    Mend(longer, remedy);
    remedy.cause.kind = kind;
    remedy.cause.suspects.push_back(WorkerSuspect(passes.job(), place.first, place.second));
    remedy.cause.evidence = {
        fmt::format("its {} takes {:.2f} times what those of its stage's other ranks take, in {} of {} steps", op,
                    RatioOf(longer), longer.size(), passes.LanesOf(place.first).size())};
  }
  return found;
}

// Between the tensor-parallel ranks that a worker stands for.
std::vector<Remedy> FindSlowLayernorms(const Passes& passes) {
  return FindWorkersSlowIn(passes, CauseKind::kRing, "all-reduce of layernorm gradients",
                           LongOnes(passes, OpType::kLayernormGradsAllReduce, false, kMuchSlower));
}

}  // namespace

std::vector<Remedy> FindSlowTails(const Passes& passes) {
  std::vector<Remedy> found = FindSlowEmbeddings(passes);
  std::ranges::move(FindSlowLayernorms(passes), std::back_inserter(found));
  return found;
}

std::vector<Remedy> FindCollections(const Passes& passes) {
  const std::map<Place, std::vector<Long>> found = LongOnes(passes, OpType::kGc, true);
  if (found.empty()) return {};
  Remedy remedy;
  std::map<Place, size_t> count;
  double longest = 0;
  for (const auto& [place, longer] : found) {
    Mend(longer, remedy);
    count[place] = longer.size();
    for (const Long& one : longer) longest = std::max(longest, one.seconds - one.usual);
  }
  remedy.cause.kind = CauseKind::kGc;
  remedy.cause.suspects = MostPaused(passes.job(), count);
  remedy.cause.evidence = {fmt::format("{} garbage collections of up to {:.3f} s more than most workers', on {} of {}",
                                       remedy.durations.size(), longest, found.size(),
                                       passes.job().dp * passes.job().pp)};
  return {std::move(remedy)};
}

std::vector<Remedy> FindSlowOptimizers(const Passes& passes) {
  return FindWorkersSlowIn(passes, CauseKind::kOptimizer, "optimizer", LongOnes(passes, OpType::kOptimizer, false));
}

}  // namespace lockstep::explain
