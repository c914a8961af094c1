#include "lockstep/agent/helpers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/agent/proc.h"
#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

using trace::ProcessRole;

constexpr std::array<std::string_view, 2> kDataWords = {"torch/utils/data/_utils/worker.py", "pt_data_worker"};
constexpr std::array<std::string_view, 3> kWriterWords = {"checkpoint", "filesystem_async", "async_save"};
constexpr std::array<std::string_view, 2> kWriterPrograms = {"checkpoint_writer", "checkpoint-writer"};

template <size_t N>
bool HasAny(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

template <size_t N>
bool HaveAny(std::span<const std::string> frames, const std::array<std::string_view, N>& words) {
  return std::any_of(frames.begin(), frames.end(), [&](const std::string& frame) { return HasAny(frame, words); });
}

std::string ReadName(pid_t pid, const char* file) {
  std::string text = ReadFile(fmt::format("/proc/{}/{}", pid, file)).value_or("");
  std::replace(text.begin(), text.end(), '\0', ' ');
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::span<const std::string> OwnFrames(std::span<const std::string> python) {
  const auto start = std::find_if(python.begin(), python.end(), [](const std::string& frame) {
    return frame.find("multiprocessing/process.py") != std::string::npos && frame.ends_with(" in _bootstrap");
  });
  return {python.begin(), start};
}

}  // namespace

std::vector<Helper> FindHelpers(std::span<const pid_t> workers, size_t most, size_t& beyond) {
  std::vector<Helper> helpers;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    std::vector<pid_t> pids = Descendants({workers[worker]});
    std::sort(pids.begin(), pids.end());
    beyond += pids.size() - std::min(pids.size(), most);
    pids.resize(std::min(pids.size(), most));
    for (const pid_t pid : pids) helpers.push_back({pid, worker, ReadName(pid, "comm"), ReadName(pid, "cmdline")});
  }
  return helpers;
}

ProcessRole RoleOf(std::string_view name, std::string_view command, std::span<const std::string> python) {
  const std::span<const std::string> own = OwnFrames(python);
  if (HasAny(name, kDataWords) || HaveAny(own, kDataWords)) return ProcessRole::kDataWorker;
  // The command line of a forked child is its parent's, where "checkpoint" may be an option: it must say more.
  if (HasAny(name, kWriterWords) || HaveAny(own, kWriterWords) || HasAny(command, kWriterPrograms))
    return ProcessRole::kCheckpointWriter;
  return ProcessRole::kOther;
}

}  // namespace lockstep::agent
