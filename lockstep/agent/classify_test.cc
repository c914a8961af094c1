// testdata/*.stacks: real dumps of torch 1.13.1 with gloo, 4 ranks, Debian 12 (docs/models/detect.md says how each came
// about).
#include "lockstep/agent/classify.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

using detect::CodeKind;
using detect::InCollective;
using detect::StackSample;

struct Dump {
  StackDump native;
  PythonStack python;
};

Wait WaitNamed(const std::string& name) {
  if (name == "forever") return Wait::kForever;
  if (name == "timed") return Wait::kTimed;
  if (name == "external") return Wait::kExternal;
  return name == "running" ? Wait::kRunning : Wait::kUnknown;
}

// "thread TID STATE WAIT SYSCALL", then its frames indented by two; after "python" the text of faulthandler.
Dump Load(const std::string& name) {
  const std::filesystem::path folder = LOCKSTEP_TESTDATA;
  const std::string text = ReadFile((folder / (name + ".stacks")).string()).value();
  const size_t python = text.find("\npython\n");
  Dump dump{{}, ParsePythonStacks(std::string_view(text).substr(python + 8))};
  std::istringstream lines(text.substr(0, python));
  for (std::string line, word, wait; std::getline(lines, line);) {
    std::istringstream words(line);
    if (line.starts_with("  ")) {
      dump.native.threads.back().frames.push_back(line.substr(2));
    } else if (line.starts_with("pid")) {
      words >> word >> dump.native.pid;
    } else {
      ThreadStack& thread = dump.native.threads.emplace_back();
      words >> word >> thread.tid >> thread.state >> wait >> thread.syscall_name;
      thread.wait = WaitNamed(wait);
    }
  }
  return dump;
}

struct Case {
  const char* dump;
  InCollective place;
  bool forever;
  const char* python;
  const char* native;
  CodeKind code;
};

constexpr InCollective kYes = InCollective::kYes, kNo = InCollective::kNo;
const Case kCases[] = {
    {"ddp_waits", kYes, true, "torch/autograd/__init__.py:197 in backward",
     "c10d::Reducer::finalize_backward (libtorch_cpu.so.1.13.0)", CodeKind::kMathLibrary},
    {"all_reduce_waits", kYes, true, "torch/distributed/distributed_c10d.py:1541 in all_reduce",
     "c10d::Work::wait (libtorch_cpu.so.1.13.0)", CodeKind::kMathLibrary},
    {"barrier_waits", kYes, true, "torch/distributed/distributed_c10d.py:3152 in barrier",
     "c10d::Work::wait (libtorch_cpu.so.1.13.0)", CodeKind::kMathLibrary},
    {"sleeps", kNo, false, "job.py:5 in hold_back", "python3.11+0x1d64b3", CodeKind::kInterpreter},
    {"deadlock", kNo, true, "job.py:8 in hold_back", "PyThread_acquire_lock_timed (python3.11)",
     CodeKind::kInterpreter},
    {"reads_a_pipe", kNo, false, "job.py:18 in hold_back", "_Py_read (python3.11)", CodeKind::kInterpreter},
    {"matmul", kNo, false, "job.py:21 in hold_back", "sgemm_kernel_HASWELL (libopenblasp-r0.3.21.so)",
     CodeKind::kMathLibrary},
    {"python_loop", kNo, false, "job.py:11 in hold_back", "PyObject_Free (python3.11)", CodeKind::kInterpreter},
    {"native_loop", kNo, false, "job.py:16 in hold_back", "loop_for_ever (loop.so)", CodeKind::kOther},
};

TEST(Classify, RealDumps) {
  for (const Case& c : kCases) {
    const Dump dump = Load(c.dump);
    const StackSample sample = Classify(dump.native, dump.python);
    EXPECT_EQ(sample.in_collective, c.place) << c.dump;
    EXPECT_EQ(sample.waits_forever, c.forever) << c.dump;
    EXPECT_EQ(sample.python, c.python) << c.dump;
    EXPECT_EQ(sample.native, c.native) << c.dump;
    EXPECT_EQ(sample.code, c.code) << c.dump;
    EXPECT_NE(sample.signature, 0u) << c.dump;
  }
}

// Without the right to trace, torch's frames could compute or wait; the user's own can't wait for a collective.
TEST(Classify, PythonAloneIsCareful) {
  for (const Case& c : kCases) {
    const StackSample sample = Classify({}, Load(c.dump).python);
    EXPECT_EQ(sample.in_collective, c.place == kYes ? InCollective::kUnknown : kNo) << c.dump;
    EXPECT_FALSE(sample.waits_forever);
    EXPECT_EQ(sample.python, c.python);
    EXPECT_EQ(sample.code, CodeKind::kUnknown);
  }
}

TEST(Classify, NativeAloneSuffices) {
  for (const Case& c : kCases) {
    const StackSample sample = Classify(Load(c.dump).native, {});
    EXPECT_EQ(sample.in_collective, c.place) << c.dump;
    EXPECT_EQ(sample.python, "");
  }
}

TEST(Classify, NothingReadableIsUnknown) {
  StackDump frozen;
  frozen.pid = 1;
  frozen.threads.push_back({.tid = 1, .comm = "python3", .state = 'D', .syscall_name = "", .wchan = "", .frames = {}});
  frozen.unreadable = "frozen";
  const StackSample sample = Classify(frozen, {{}, "frozen"});
  EXPECT_EQ(sample.in_collective, InCollective::kUnknown);
  EXPECT_EQ(sample.signature, 0u);
  EXPECT_FALSE(sample.waits_forever);
}

// A bucket of gradients that is under way in gloo's pool does not mean that the rank waits for it.
TEST(Classify, AnAsynchronousCollectiveIsNotAWait) {
  Dump dump = Load("native_loop");
  dump.native.threads.push_back({.tid = 99,
                                 .comm = "",
                                 .syscall_name = "",
                                 .wait = Wait::kTimed,
                                 .wchan = "",
                                 .frames = {"gloo::transport::tcp::UnboundBuffer::waitRecv (libgloo.so.0)",
                                            "c10d::ProcessGroupGloo::AsyncWork::execute (libtorch_cpu.so)",
                                            "c10d::ProcessGroupGloo::runLoop (libtorch_cpu.so)"}});
  EXPECT_EQ(Classify(dump.native, dump.python).in_collective, kNo);
}

// ... but a helper thread that waits in one holds the rank there.
TEST(Classify, AHelperThreadMayBeTheOneThatWaits) {
  Dump dump = Load("deadlock");
  dump.native.threads.push_back({.tid = 99,
                                 .comm = "",
                                 .syscall_name = "",
                                 .wait = Wait::kForever,
                                 .wchan = "",
                                 .frames = {"pthread_cond_wait (libc.so.6)", "c10d::Work::wait (libtorch_cpu.so)",
                                            "_PyEval_EvalFrameDefault (python3.11)"}});
  EXPECT_EQ(Classify(dump.native, dump.python).in_collective, kYes);
}

TEST(Classify, ATimedHelperThreadMayEndTheWait) {
  Dump dump = Load("deadlock");
  dump.native.threads.push_back({.tid = 99,
                                 .comm = "",
                                 .syscall_name = "",
                                 .wait = Wait::kTimed,
                                 .wchan = "",
                                 .frames = {"clock_nanosleep (libc.so.6)", "_PyEval_EvalFrameDefault (python3.11)"}});
  EXPECT_FALSE(Classify(dump.native, dump.python).waits_forever);
}

TEST(Classify, TheSignatureFollowsTheMainThreadOnly) {
  Dump dump = Load("deadlock");
  const uint64_t before = Classify(dump.native, dump.python).signature;
  dump.native.threads.back().frames.push_back("other (x.so)");
  EXPECT_EQ(Classify(dump.native, dump.python).signature, before);
  dump.native.threads.front().frames.push_back("other (x.so)");
  EXPECT_NE(Classify(dump.native, dump.python).signature, before);
}

}  // namespace
}  // namespace lockstep::agent
