#include "lockstep/cli/torchrun_values.h"

#include <fmt/ranges.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "lockstep/base/host.h"
#include "lockstep/base/number.h"
#include "lockstep/base/split.h"

namespace lockstep::cli {
namespace {

int Processors() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// What a worker would see: the device files of NVIDIA's driver, or those of them that CUDA_VISIBLE_DEVICES leaves. A
// container that was given some GPUs of its host has their files under the host's numbers.
int Gpus(const std::string& folder) {
  constexpr std::string_view kPrefix = "nvidia";
  int devices = 0;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with(kPrefix) && WholeNumber<unsigned>(name.substr(kPrefix.size()))) ++devices;
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (devices == 0 || visible == nullptr) return devices;
  const std::vector<std::string> named = Split(visible, ',');
  const auto end = std::find(named.begin(), named.end(), "-1");
  return std::min(devices, static_cast<int>(end - named.begin()));
}

absl::Status BadMask(const std::string& flag, const std::string& text) {
  return InvalidArgument("{} must be 0, 1, 2, 3 or RANK:N,RANK:N with such an N, found \"{}\"", flag, text);
}

bool IsMask(const std::string& text) { return text.size() == 1 && text[0] >= '0' && text[0] <= '3'; }

}  // namespace

absl::StatusOr<int> RankCount(const std::string& text, const std::string& devices) {
  if (text == "cpu") return Processors();
  const int gpus = text == "gpu" || text == "auto" ? Gpus(devices) : 0;
  if (text == "auto") return gpus > 0 ? gpus : Processors();
  if (text == "gpu" && gpus == 0) {
    return InvalidArgument("--nproc-per-node gpu: this machine shows no GPU (/dev/nvidia*, CUDA_VISIBLE_DEVICES)");
  }
  if (text == "gpu") return gpus;
  const std::optional<int> count = WholeNumber<int>(text);
  if (!count) return InvalidArgument("--nproc-per-node must be a number, auto, cpu or gpu, found \"{}\"", text);
  return *count;
}

absl::Status CheckOwnAddress(const std::string& flag, const std::string& host) {
  const absl::StatusOr<bool> own = IsOwnAddress(host);
  if (!own.ok()) return InvalidArgument("{} {}", flag, Message(own.status()));
  return *own ? absl::OkStatus() : InvalidArgument("{} {} is not an address of this machine", flag, host);
}

void NoteSurplus(const std::string& flag, const std::string& text, const std::set<int>& named, int ranks,
                 std::vector<std::string>& notices) {
  const std::vector<int> surplus(named.lower_bound(ranks), named.end());
  if (surplus.empty()) return;
  notices.push_back(fmt::format("{} {} has no effect on rank{} {}: this node has {} rank{}", flag, text,
                                surplus.size() == 1 ? "" : "s", fmt::join(surplus, ", "), ranks,
                                ranks == 1 ? "" : "s"));
}

absl::StatusOr<std::vector<int>> Masks(const std::string& flag, const std::string& text, int ranks,
                                       std::vector<std::string>& notices) {
  if (text.empty() || IsMask(text))
    return std::vector<int>(static_cast<size_t>(ranks), text.empty() ? 0 : text[0] - '0');
  std::vector<int> masks(static_cast<size_t>(ranks), 0);
  std::set<int> named;
  for (const std::string& entry : Split(text, ',')) {
    const size_t colon = entry.find(':');
    const std::optional<int> rank = WholeNumber<int>(entry.substr(0, colon));
    if (colon == std::string::npos || !rank || *rank < 0 || !IsMask(entry.substr(colon + 1)))
      return BadMask(flag, text);
    named.insert(*rank);
    if (*rank < ranks) masks[static_cast<size_t>(*rank)] = entry[colon + 1] - '0';
  }
  NoteSurplus(flag, text, named, ranks, notices);
  return masks;
}

absl::StatusOr<int> SignalNumber(const std::string& name) {
  for (int number = 1; number < NSIG; ++number) {
    const char* known = sigabbrev_np(number);
    if (known != nullptr && name == std::string("SIG") + known && number != SIGKILL && number != SIGSTOP) return number;
  }
  return InvalidArgument("--signals-to-handle: \"{}\" is no signal that can be handled; write SIGTERM,SIGINT", name);
}

}  // namespace lockstep::cli
