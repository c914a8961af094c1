#include "lockstep/detect/stack_frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/base/split.h"

namespace lockstep::detect {
namespace {

using cluster::Dimension;

// In keys of frames: any number, any address, and what stands before either of these letters if it was read.
constexpr char kNumber = '\1', kAddress = '\2', kQuote = '\3';

constexpr bool IsDigit(char letter) { return letter >= '0' && letter <= '9'; }
constexpr bool IsHex(char letter) {
  return IsDigit(letter) || (letter >= 'a' && letter <= 'f') || (letter >= 'A' && letter <= 'F');
}
constexpr bool IsLetter(char letter) { return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'); }

// Of all letters: a look instead of seven comparisons.
constexpr std::array<bool, 256> kWords = [] {
  std::array<bool, 256> words{};
  for (int i = 0; i < 128; ++i) {
    const char letter = static_cast<char>(i);
    words[static_cast<size_t>(i)] =
        IsDigit(letter) || IsLetter(letter) || letter == '_' || letter == '.' || letter == '$';
  }
  return words;
}();
bool IsWord(char letter) { return kWords[static_cast<unsigned char>(letter)]; }
bool AllDigits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit); }

// Addresses become "?", numbers that are no part of a name "N".
std::string WithoutNumbers(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    if (text.substr(i).starts_with("0x")) {
      for (end = i + 2; end < text.size() && IsHex(text[end]);) ++end;
      clean += '?';
    } else if (IsWord(text[i])) {
      while (end < text.size() && IsWord(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      if (AllDigits(word))
        clean += 'N';
      else
        clean += word;
    } else {
      clean += text[end++];
    }
    i = end;
  }
  return clean;
}

// What lies in packages is known by its path there, all else by its file's name.
std::string_view ShortPath(std::string_view path) {
  constexpr std::string_view kPackages = "-packages/";
  if (path.starts_with('<')) return path;
  const size_t packages = path.rfind(kPackages);
  if (packages != std::string_view::npos) return path.substr(packages + kPackages.size());
  return path.substr(path.rfind('/') + 1);
}

std::string Python(std::string_view path, std::string_view line, std::string_view function, Lines lines) {
  function = Trim(function.substr(0, function.find('(')));
  const std::string at = lines == Lines::kKeep && !line.empty() ? fmt::format(":{}", line) : "";
  return fmt::format("{}{} in {}", WithoutNumbers(ShortPath(path)), at, WithoutNumbers(function));
}

// "PATH:12": its parts. No line: all is path.
std::pair<std::string_view, std::string_view> SplitLine(std::string_view place) {
  const size_t colon = place.rfind(':');
  if (colon == std::string_view::npos || !AllDigits(place.substr(colon + 1))) return {place, {}};
  return {place.substr(0, colon), place.substr(colon + 1)};
}

// 'File "PATH", line 12 in f' and 'File "PATH", line 12, in f'.
std::optional<std::string> FromTraceback(std::string_view frame, Lines lines) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ", kIn = " in ";
  if (!frame.starts_with(kFile)) return std::nullopt;
  frame.remove_prefix(kFile.size());
  const size_t end = frame.rfind(kLine);
  const size_t in = frame.find(kIn, std::min(end, frame.size()));
  if (end == std::string_view::npos || in == std::string_view::npos) return std::nullopt;
  std::string_view line = frame.substr(end + kLine.size(), in - end - kLine.size());
  if (line.ends_with(',')) line.remove_suffix(1);
  return Python(frame.substr(0, end), line, frame.substr(in + kIn.size()), lines);
}

// "PATH:12 in f".
std::optional<std::string> FromOurs(std::string_view frame, Lines lines) {
  constexpr std::string_view kIn = " in ";
  for (size_t in = frame.find(kIn); in != std::string_view::npos; in = frame.find(kIn, in + 1)) {
    const auto [path, line] = SplitLine(frame.substr(0, in));
    if (!line.empty()) return Python(path, line, frame.substr(in + kIn.size()), lines);
  }
  return std::nullopt;
}

// Where the last group in parentheses of a frame opens, if it ends with one.
size_t LastGroup(std::string_view frame) {
  int depth = 0;
  for (size_t i = frame.size(); frame.ends_with(')') && i-- > 0;) {
    depth += frame[i] == ')' ? 1 : frame[i] == '(' ? -1 : 0;
    if (depth == 0) return i;
  }
  return std::string_view::npos;
}

// "f (PATH.py:12)".
std::optional<std::string> FromPySpy(std::string_view frame, Lines lines) {
  const size_t open = LastGroup(frame);
  if (open == std::string_view::npos || open == 0 || frame[open - 1] != ' ') return std::nullopt;
  const auto [path, line] = SplitLine(frame.substr(open + 1, frame.size() - open - 2));
  if (!path.ends_with(".py") && !path.starts_with('<')) return std::nullopt;
  return Python(path, line, frame.substr(0, open), lines);
}

// "f<int>(int, T)" -> "f<int>"; "(anonymous namespace)" and "operator()" stay.
std::string_view WithoutParameters(std::string_view symbol) {
  int depth = 0;
  for (size_t i = 0; i < symbol.size(); ++i) {
    if (symbol[i] == '<') ++depth;
    if (symbol[i] == '>' && depth > 0) --depth;
    if (symbol[i] != '(' || depth > 0 || symbol.substr(i).starts_with("(anonymous ")) continue;
    if (i < 8 || symbol.substr(i - 8, 10) != "operator()") return symbol.substr(0, i);
  }
  return symbol;
}

std::string_view WithoutOffset(std::string_view module) { return module.substr(0, module.rfind("+0x")); }

// The module or source file of a native frame, which is taken off it.
std::string_view TakeModule(std::string_view& frame) {
  for (const std::string_view word : {" at ", " from "}) {
    const size_t at = frame.rfind(word);
    if (at == std::string_view::npos || frame.find(' ', at + word.size()) != std::string_view::npos) continue;
    const std::string_view module = ShortPath(SplitLine(frame.substr(at + word.size())).first);
    frame = frame.substr(0, at);
    return module;
  }
  const size_t open = LastGroup(frame);
  if (open == std::string_view::npos || open == 0 || frame[open - 1] != ' ') return {};
  const std::string_view inside = frame.substr(open + 1, frame.size() - open - 2);
  if (inside.empty() || inside.find_first_of(" =,()") != std::string_view::npos) return {};
  frame = frame.substr(0, open);
  return ShortPath(WithoutOffset(SplitLine(inside).first));
}

std::string Native(std::string_view frame) {
  const std::string_view module = TakeModule(frame);
  const std::string symbol = WithoutNumbers(Trim(WithoutParameters(Trim(WithoutOffset(frame)))));
  return module.empty() ? symbol : fmt::format("{} ({})", symbol, WithoutNumbers(module));
}

// gdb's "#3  0x00007f12 in ".
std::string_view WithoutNumberOfFrame(std::string_view frame) {
  if (!frame.starts_with('#')) return frame;
  size_t at = 1;
  while (at < frame.size() && IsDigit(frame[at])) ++at;
  frame = Trim(frame.substr(at));
  if (!frame.starts_with("0x")) return frame;
  const size_t in = frame.find(" in ");
  return in == std::string_view::npos ? frame : Trim(frame.substr(in + 4));
}

struct Call {
  std::string_view function;
  Partners partners;
  bool unmistakable;  // else it counts in torch's own file only: a socket has a `recv`, too
};

// torch.distributed's functions, and those of Megatron's pipelines, which know their neighbour.
constexpr auto kCalls = std::to_array<Call>({
    {"all_reduce", Partners::kGroup, true},
    {"all_reduce_coalesced", Partners::kGroup, true},
    {"all_gather", Partners::kGroup, true},
    {"all_gather_into_tensor", Partners::kGroup, true},
    {"all_gather_object", Partners::kGroup, true},
    {"all_gather_coalesced", Partners::kGroup, true},
    {"_all_gather_base", Partners::kGroup, true},
    {"reduce_scatter", Partners::kGroup, true},
    {"reduce_scatter_tensor", Partners::kGroup, true},
    {"_reduce_scatter_base", Partners::kGroup, true},
    {"all_to_all", Partners::kGroup, true},
    {"all_to_all_single", Partners::kGroup, true},
    {"monitored_barrier", Partners::kGroup, true},
    {"broadcast_object_list", Partners::kGroup, true},
    {"barrier", Partners::kGroup, false},
    {"broadcast", Partners::kGroup, false},
    {"reduce", Partners::kGroup, false},
    {"gather", Partners::kGroup, false},
    {"gather_object", Partners::kGroup, true},
    {"scatter", Partners::kGroup, false},
    {"scatter_object_list", Partners::kGroup, true},
    {"wait_tensor", Partners::kGroup, true},
    {"wait", Partners::kUnknown, false},
    {"synchronize", Partners::kUnknown, false},
    {"send", Partners::kNeighbours, false},
    {"recv", Partners::kNeighbours, false},
    {"isend", Partners::kNeighbours, true},
    {"irecv", Partners::kNeighbours, true},
    {"batch_isend_irecv", Partners::kNeighbours, true},
    {"recv_forward", Partners::kBefore, true},
    {"send_backward", Partners::kBefore, true},
    {"send_backward_recv_forward", Partners::kBefore, true},
    {"recv_backward", Partners::kBehind, true},
    {"send_forward", Partners::kBehind, true},
    {"send_forward_recv_backward", Partners::kBehind, true},
    {"send_forward_recv_forward", Partners::kNeighbours, true},
    {"send_backward_recv_backward", Partners::kNeighbours, true},
});
constexpr std::array<std::string_view, 3> kTorchFiles = {"distributed_c10d.py", "_functional_collectives.py",
                                                         "c10d_logger.py"};

// Of torch's distributed checkpoint: its `all_reduce` and the like have the caller's function run inside of themselves,
// which writes the files, and call those of distributed_c10d.py then.
constexpr std::array<std::string_view, 2> kNoCalls = {"torch/distributed/checkpoint/utils.py",
                                                      "torch/distributed/_shard/checkpoint/utils.py"};

struct Hint {
  std::string_view part;  // of a frame
  Dimension dimension;
};
// Of what only runs where such a group communicates; not the wrapper below which all of a forward pass runs. Who sums
// layer norms stands before what it is part of.
constexpr auto kHints = std::to_array<Hint>({
    {"layernorm_grads", Dimension::kTp},
    {"tensor_parallel", Dimension::kTp},
    {"mappings.py", Dimension::kTp},
    {"sequence_parallel", Dimension::kTp},
    {"token_dispatcher", Dimension::kEp},
    {"expert_parallel", Dimension::kEp},
    {"context_parallel", Dimension::kCp},
    {"ring_attention", Dimension::kCp},
    {"grad_sync", Dimension::kDpCp},
    {"finalize_model_grads", Dimension::kDpCp},
    {"param_and_grad_buffer", Dimension::kDpCp},
    {"allreduce_gradients", Dimension::kDpCp},
    {"c10d::Reducer", Dimension::kDpCp},
    {"/fsdp/", Dimension::kDpCp},
});

// A device that is waited for may itself wait in a collective kernel.
constexpr std::array<std::string_view, 12> kCollective = {
    "c10d::",       "gloo::",      "nccl",      "cudaStreamSync", "cudaEventSync", "cudaDeviceSync",
    "cuStreamSync", "cuEventSync", "cuCtxSync", "cudaMemcpy",     "cuMemcpyDtoH",  "ompi_request_wait"};
constexpr std::array<std::string_view, 9> kBackground = {"gloo::transport::tcp::Loop::run",
                                                         "c10d::ProcessGroupGloo::runLoop",
                                                         "c10d::ProcessGroupNCCL::ncclCommWatchdog",
                                                         "c10d::ProcessGroupNCCL::Watchdog",
                                                         "c10d::ProcessGroupNCCL::heartbeatMonitor",
                                                         "c10d::ProcessGroupNCCL::workCleanupLoop",
                                                         "c10d::detail::TCPStore",
                                                         "c10d::detail::BackgroundThread",
                                                         "ncclProxy"};

}  // namespace

std::string NormalFrame(std::string_view frame, Lines lines) {
  frame = WithoutNumberOfFrame(Trim(frame));
  if (auto python = FromTraceback(frame, lines)) return *std::move(python);
  if (auto python = FromPySpy(frame, lines)) return *std::move(python);
  if (auto python = FromOurs(frame, lines)) return *std::move(python);
  return Native(frame);
}

// NormalFrame looks at where words, signs and addresses are, at digits only to see that a word has nothing else, and at
// none but whole words: so it finds in all frames of one key the same.
void MakeFrameKey(std::string_view frame, std::string& key) {
  frame = WithoutNumberOfFrame(Trim(frame));
  key.clear();
  for (size_t i = 0; i < frame.size();) {
    size_t end = i + 1;
    if (frame[i] == '0' && end < frame.size() && frame[end] == 'x') {
      for (++end; end < frame.size() && IsHex(frame[end]);) ++end;
      key += kAddress;
    } else if (IsWord(frame[i])) {
      bool number = IsDigit(frame[i]);
      for (; end < frame.size() && IsWord(frame[end]); ++end) number = number && IsDigit(frame[end]);
      number ? key.push_back(kNumber) : void(key.append(frame, i, end - i));
    } else {
      if (frame[i] >= kNumber && frame[i] <= kQuote) key += kQuote;
      key += frame[i];
    }
    i = end;
  }
}

std::string_view FunctionOf(std::string_view frame) {
  const size_t in = frame.rfind(" in ");
  if (in != std::string_view::npos) return frame.substr(in + 4);
  return frame.substr(0, frame.rfind(" ("));
}

bool IsOfTorch(std::string_view frame) { return frame.starts_with("torch/"); }

std::optional<Partners> CommunicationCall(std::string_view frame) {
  const std::string_view function = FunctionOf(frame);
  const auto* const call =
      std::find_if(kCalls.begin(), kCalls.end(), [&](const Call& known) { return known.function == function; });
  if (call == kCalls.end() || StartsWithAny(frame, kNoCalls)) return std::nullopt;
  const bool in_torch = std::any_of(kTorchFiles.begin(), kTorchFiles.end(),
                                    [&](std::string_view file) { return frame.find(file) != std::string_view::npos; });
  return call->unmistakable || in_torch ? std::optional(call->partners) : std::nullopt;
}

std::optional<Dimension> DimensionHint(std::string_view frame) {
  const auto* const hint = std::find_if(kHints.begin(), kHints.end(), [&](const Hint& known) {
    return frame.find(known.part) != std::string_view::npos;
  });
  return hint == kHints.end() ? std::nullopt : std::optional(hint->dimension);
}

bool IsNativeCommunication(std::string_view frame) { return StartsWithAny(frame, kCollective); }
bool IsBackground(std::string_view frame) { return StartsWithAny(frame, kBackground); }

}  // namespace lockstep::detect
