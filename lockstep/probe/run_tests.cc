#include "lockstep/probe/run_tests.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>

#include "lockstep/base/host.h"
#include "lockstep/probe/aligned.h"
#include "lockstep/probe/all_to_all.h"
#include "lockstep/probe/apart.h"
#include "lockstep/probe/cores.h"
#include "lockstep/probe/disk.h"
#include "lockstep/probe/gemm.h"
#include "lockstep/probe/gpu.h"
#include "lockstep/probe/memory.h"
#include "lockstep/probe/neighbours.h"

namespace lockstep::probe {
namespace {

constexpr Seconds kDiskGrace{20}, kGpuGrace{30};  // for the least that they do, on a slow disk, by a slow driver

using Measurements = std::vector<Measurement>;
struct Test {
  const char* name;
  double weight;  // of the time
  Measurements (*run)(const Budget& budget, const TestOptions& options);
};

// Neighbours come first: nodes that were started together are together then.
constexpr std::array kTests = {
    Test{"neighbours", 3,
         [](const Budget& budget, const TestOptions& options) {
           return MeasureNeighbours(
               budget,
               {.nodes = options.nodes, .self = options.self, .listener = options.listener, .wait = options.wait});
         }},
    Test{"memory", 3, [](const Budget& budget, const TestOptions&) { return MeasureMemory(budget, AllowedCores()); }},
    Test{"gemm", 2, [](const Budget& budget, const TestOptions&) { return MeasureGemm(budget, AllowedCores()); }},
    Test{"all_to_all", 2,
         [](const Budget& budget, const TestOptions&) { return MeasureAllToAll(budget, AllowedCores()); }},
    Test{"disk", 3,
         [](const Budget& budget, const TestOptions& options) {
           return RunApart("disk", budget, kDiskGrace,
                           [&] { return MeasureDisk(budget, {.directory = options.directory}); });
         }},
    Test{"gpu", 2,
         [](const Budget& budget, const TestOptions& options) {
           return RunApart("gpu", budget, kGpuGrace, [&] { return MeasureGpus(budget, options.has_gpu); });
         }},
    Test{"aligned", 3,
         [](const Budget& budget, const TestOptions& options) {
           return MeasureAligned(budget, AllowedCores(), {.shape = options.shape, .repeat = options.repeat});
         }},
};

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseTests(const std::string& text, bool has_neighbours) {
  std::vector<std::string> wanted, known, tests;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    wanted.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  for (const Test& test : kTests) {
    known.emplace_back(test.name);
    if (text.empty() ? known.back() != "neighbours" || has_neighbours : Contains(wanted, known.back()))
      tests.push_back(known.back());
  }
  for (const std::string& name : wanted) {
    if (!Contains(known, name))
      return InvalidArgument("--tests: there is no test \"{}\"; expected some of {}", name, fmt::join(known, ","));
  }
  if (Contains(tests, "neighbours") && !has_neighbours)
    return InvalidArgument("the test neighbours needs --peers and --listen");
  return tests;
}

absl::StatusOr<NodeReport> RunTests(const TestOptions& options, const Clock& clock, std::stop_token stop) {
  NodeReport report{.node = options.node.empty() ? HostName() : options.node, .isa = IsaText()};
  report.type = ProcessorText() + ", " + GpuText();
  if (!options.nodes.empty()) report.address = EndpointText(options.nodes[options.self]);
  double weights = 0;
  for (const Test& test : kTests) {
    if (Contains(options.tests, test.name)) weights += test.weight;
  }
  for (const Test& test : kTests) {
    if (!Contains(options.tests, test.name)) continue;
    const Budget budget(clock, Seconds{options.time.value * test.weight / weights}, stop);
    Measurements measured = test.run(budget, options);
    if (stop.stop_requested()) return absl::CancelledError("interrupted");  // what it says now is not whole
    std::ranges::move(measured, std::back_inserter(report.measurements));
  }
  return report;
}

}  // namespace lockstep::probe
