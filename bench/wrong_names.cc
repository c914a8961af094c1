// How often the detector names somebody who is not to blame: faults planted into simulated jobs (detect/test_job.h,
// whose ranks look as measured on real ones), of every kind, on every rank, after a random past of evaluations, saves
// and pauses. Both what is certain and what is only named counts.
//
//   wrong_names INJECTIONS SEED    prints {"injections", "right", "wrong", "nobody", "wrong_examples": [...]}
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/detect/test_job.h"

namespace lockstep::detect {
namespace {

constexpr std::array kFaults = {Conduct::kStopped,    Conduct::kFrozen,      Conduct::kBlocked,   Conduct::kPythonLoop,
                                Conduct::kNativeLoop, Conduct::kCrowdedLoop, Conduct::kOtherPlace};
constexpr std::array kPast = {Conduct::kSteps, Conduct::kEvaluates, Conduct::kQuietlyEvaluates, Conduct::kSaves};

struct Tally {
  int right = 0, wrong = 0, nobody = 0;
  std::vector<std::string> examples;
};

// The first name that is not the victim's, of any finding; "" if there is none.
std::string WrongName(const Verdict& verdict, const std::string& victim) {
  for (const incident::Finding& finding : verdict.findings)
    for (const incident::Suspect& suspect : finding.suspects)
      if (suspect.kind == incident::Suspect::Kind::kRank && suspect.name != victim) return suspect.name;
  return "";
}

void Inject(uint64_t seed, Tally& tally) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const int ranks = 2 + static_cast<int>(random() % 7);
  TestJob job(ranks, Seconds{std::exp(uniform(std::log(0.05), std::log(2)))}, random());
  job.Run(Seconds{uniform(8, 20)});
  const Conduct past = kPast[random() % kPast.size()];
  job.Do(static_cast<int>(random() % static_cast<uint64_t>(ranks)), past);
  job.Run(Seconds{past == Conduct::kSteps ? 0 : uniform(0, 5)});
  job.AllDo(Conduct::kSteps);
  job.Run(Seconds{uniform(5, 10)});
  const int rank = static_cast<int>(random() % static_cast<uint64_t>(ranks));
  const Conduct fault = kFaults[random() % kFaults.size()];
  const std::string victim = std::to_string(rank);
  job.Do(rank, fault);
  const Verdict verdict =
      job.Until(Seconds{60}, [&](const Verdict& now) { return IsCertain(now) || !WrongName(now, victim).empty(); });
  const std::string wrong = WrongName(verdict, victim);
  if (!wrong.empty()) {
    ++tally.wrong;
    tally.examples.push_back(fmt::format("\"seed {}: rank {} named for conduct {} of rank {}\"", seed, wrong,
                                         static_cast<int>(fault), rank));
  } else {
    ++(IsCertain(verdict) ? tally.right : tally.nobody);
  }
}

}  // namespace
}  // namespace lockstep::detect

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: wrong_names INJECTIONS SEED\n");
    return 2;
  }
  const int injections = std::atoi(argv[1]);
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  lockstep::detect::Tally tally;
  for (int i = 0; i < injections; ++i) lockstep::detect::Inject(seed + static_cast<uint64_t>(i), tally);
  tally.examples.resize(std::min<size_t>(tally.examples.size(), 10));
  fmt::print("{{\"injections\": {}, \"right\": {}, \"wrong\": {}, \"nobody\": {}, \"wrong_examples\": [{}]}}\n",
             injections, tally.right, tally.wrong, tally.nobody, fmt::join(tally.examples, ", "));
  return 0;
}
