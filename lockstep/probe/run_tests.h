// The tests of one node, one after the other, within a time.
//
//   LS_ASSIGN_OR_RETURN(const NodeReport report, RunTests({.tests = {"memory", "gemm"}}, clock, stop));
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/probe/aligned_model.h"
#include "lockstep/probe/measurement.h"
#include "lockstep/probe/wire.h"

namespace lockstep::probe {

struct TestOptions {
  std::vector<std::string> tests{};  // of ParseTests()
  // Shared among the tests; each does its least once, whatever is left. Waiting for neighbours comes on top.
  Seconds time{5};
  std::string node{};              // its name in the report; "": the host's
  std::string directory = "/tmp";  // of the disk test
  AlignedShape shape{};
  int repeat = 1;                 // of the aligned model, at least
  bool has_gpu = false;           // that none is found is a fault then
  std::vector<Endpoint> nodes{};  // the ring of the neighbours' test, this one among them
  size_t self = 0;
  int listener = -1;  // that listens there; -1: the test makes one
  Seconds wait{10};   // for neighbours
};

// "memory,gemm"; "": all, but neighbours unless there are some. Each once, in the order in which they run.
absl::StatusOr<std::vector<std::string>> ParseTests(const std::string& text, bool has_neighbours);

// kCancelled: somebody asked to stop.
absl::StatusOr<NodeReport> RunTests(const TestOptions& options, const Clock& clock, std::stop_token stop);

}  // namespace lockstep::probe
