#include "lockstep/agent/classify.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/base/split.h"
#include "lockstep/detect/stack_frames.h"

namespace lockstep::agent {
namespace {

using detect::CodeKind;
using detect::InCollective;
using detect::StackSample;

// Modules of which a thread consists that runs nobody's Python: TCPStore's daemons and OpenMP's workers have no
// exported names.
constexpr std::array<std::string_view, 14> kRuntime = {
    "libc.so", "libpthread", "libstdc++", "ld-linux", "libtorch_cpu", "libtorch_cuda", "libc10",
    "libgloo", "libnccl",    "libcuda",   "libgomp",  "libiomp",      "libopenblas",   "libmkl"};

constexpr std::array<std::string_view, 5> kSystem = {"libc.so", "libpthread", "ld-linux", "libstdc++", "[vdso"};
constexpr std::array<std::string_view, 2> kInterpreter = {"python", "libpython"};
constexpr std::array<std::string_view, 18> kMath = {
    "libtorch", "libc10",  "libopenblas", "libblas",   "liblapack",         "libmkl",
    "libgomp",  "libiomp", "libdnnl",     "libcuda",   "libcublas",         "libcudnn",
    "libnccl",  "libm.so", "libm-",       "libfbgemm", "_multiarray_umath", "libtbb"};

// "symbol (module)" or "module+0x1234".
std::string_view ModuleOf(std::string_view frame) {
  if (!frame.ends_with(')')) return frame.substr(0, frame.rfind("+0x"));
  const size_t open = frame.rfind('(');
  return frame.substr(open + 1, frame.size() - open - 2);
}

// Threads that communication libraries keep for themselves. They poll for ever, whatever the rank does; what matters is
// who waits for them.
bool IsBackground(const ThreadStack& thread, pid_t main) {
  return thread.tid != main && std::any_of(thread.frames.begin(), thread.frames.end(), detect::IsBackground);
}

// A background thread, or one without a name that sleeps: an idle thread of torch's engine or of a pool.
bool ServesOthers(const ThreadStack& thread, pid_t main) {
  if (IsBackground(thread, main)) return true;
  if (thread.tid == main || thread.frames.empty()) return false;
  return thread.wait != Wait::kRunning &&
         std::all_of(thread.frames.begin(), thread.frames.end(),
                     [](const std::string& frame) { return StartsWithAny(ModuleOf(frame), kRuntime); });
}

bool Readable(const StackDump& native) { return !native.threads.empty() && !native.threads.front().frames.empty(); }

InCollective FromNative(const StackDump& native) {
  const bool waits = std::any_of(native.threads.begin(), native.threads.end(), [&](const ThreadStack& thread) {
    return !IsBackground(thread, native.pid) &&
           std::any_of(thread.frames.begin(), thread.frames.end(), detect::IsNativeCommunication);
  });
  return waits ? InCollective::kYes : InCollective::kNo;
}

// Python alone can't tell a backward pass that computes from one that waits, but code outside torch is outside the
// collective.
InCollective FromPython(const std::vector<std::string>& frames) {
  if (frames.empty()) return InCollective::kUnknown;
  const bool torch = std::any_of(frames.begin(), frames.end(),
                                 [](const std::string& frame) { return frame.find("/torch/") != std::string::npos; });
  return torch ? InCollective::kUnknown : InCollective::kNo;
}

bool WaitsForever(const StackDump& native) {
  return Readable(native) && std::all_of(native.threads.begin(), native.threads.end(), [&](const ThreadStack& thread) {
           return thread.wait == Wait::kForever || ServesOthers(thread, native.pid);
         });
}

// "/usr/lib/python3/dist-packages/torch/_tensor.py:488 in backward" -> "torch/_tensor.py:488 in backward"; else the
// file's bare name.
std::string Shorten(const std::string& frame) {
  constexpr std::string_view kPackages = "-packages/";
  const size_t path_end = std::min(frame.rfind(" in "), frame.size());
  const size_t packages = frame.rfind(kPackages, path_end);
  if (packages != std::string::npos) return frame.substr(packages + kPackages.size());
  const size_t slash = frame.rfind('/', path_end);
  return slash == std::string::npos ? frame : frame.substr(slash + 1);
}

// FNV-1a, so that the value means the same in every process.
void Hash(std::string_view text, uint64_t& hash) {
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  hash = (hash ^ '\n') * 0x100000001b3ULL;
}

uint64_t Signature(const std::vector<std::string>& native, const std::vector<std::string>& python) {
  if (native.empty() && python.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::string& frame : native) Hash(frame, hash);
  for (const std::string& frame : python) Hash(frame, hash);
  return hash;
}

// Where the main thread is natively, seen past the C library: the function that called it is what it does.
void DescribeCode(const std::vector<std::string>& frames, StackSample& sample) {
  const auto frame = std::find_if(frames.begin(), frames.end(),
                                  [](const std::string& f) { return !StartsWithAny(ModuleOf(f), kSystem); });
  if (frame == frames.end()) return;
  sample.native = *frame;
  const std::string_view module = ModuleOf(*frame);
  sample.code = StartsWithAny(module, kInterpreter) ? CodeKind::kInterpreter
                : StartsWithAny(module, kMath)      ? CodeKind::kMathLibrary
                                                    : CodeKind::kOther;
}

}  // namespace

StackSample Classify(const StackDump& native, const PythonStack& python) {
  const std::vector<std::string>& python_frames = MainFrames(python);
  StackSample sample;
  sample.in_collective = Readable(native) ? FromNative(native) : FromPython(python_frames);
  sample.waits_forever = WaitsForever(native);
  if (!python_frames.empty()) sample.python = Shorten(python_frames.front());
  const std::vector<std::string> none;
  const std::vector<std::string>& native_frames = Readable(native) ? native.threads.front().frames : none;
  sample.signature = Signature(native_frames, python_frames);
  DescribeCode(native_frames, sample);
  return sample;
}

}  // namespace lockstep::agent
