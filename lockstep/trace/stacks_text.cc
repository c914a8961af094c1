#include "lockstep/trace/stacks_text.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>

#include "lockstep/base/file.h"
#include "lockstep/base/number.h"
#include "lockstep/base/split.h"
#include "lockstep/trace/byte_source.h"

namespace lockstep::trace {
namespace {

constexpr const char* kRoleNames[] = {"trainer", "data_worker", "checkpoint_writer", "other"};
constexpr std::string_view kNode = "node ", kRank = "rank ", kPid = " (pid ", kPython = " Python", kNative = " native",
                           kUnreadable = "  not readable: ", kFrame = "    ", kMainThread = "  main thread",
                           kState = " state ";
constexpr int kMostRanks = 1 << 24;
constexpr size_t kUsualFrames = 16;  // to make room for all at once

std::optional<ProcessRole> RoleNamed(std::string_view name) {
  const auto* const found = std::find(std::begin(kRoleNames), std::end(kRoleNames), name);
  if (found == std::end(kRoleNames)) return std::nullopt;
  return static_cast<ProcessRole>(found - std::begin(kRoleNames));
}

// "rank 3 (pid 12)" or "rank 3, data_worker (pid 13)"; what follows is left aside.
std::optional<ProcessStack> ParseHead(std::string_view line) {
  if (!line.starts_with(kRank)) return std::nullopt;
  line.remove_prefix(kRank.size());
  ProcessStack stack;
  const std::optional<int> rank = TakeNumber<int>(line);
  if (!rank || *rank < 0 || *rank >= kMostRanks) return std::nullopt;
  stack.rank = *rank;
  if (line.starts_with(", ")) {
    line.remove_prefix(2);
    const std::string_view name = line.substr(0, line.find(kPid));
    const std::optional<ProcessRole> role = RoleNamed(name);
    if (!role) return std::nullopt;
    stack.role = *role;
    line.remove_prefix(name.size());
  }
  if (!line.starts_with(kPid)) return std::nullopt;
  line.remove_prefix(kPid.size());
  const std::optional<int64_t> pid = TakeNumber<int64_t>(line);
  if (!pid || *pid < 0 || !line.starts_with(')')) return std::nullopt;
  stack.pid = *pid;
  return stack;
}

// "  thread 812 python3 state T in futex": the last such word, for a thread may bear any name.
bool IsStopped(std::string_view thread) {
  const size_t at = thread.rfind(kState);
  return at != std::string_view::npos && thread.substr(at + kState.size()).starts_with('T');
}

class Parser {
 public:
  explicit Parser(const std::string& path) : path_(path) {}

  absl::StatusOr<std::vector<ProcessStack>> Run(std::string_view text) {
    while (!text.empty()) {
      std::string_view line = TakeLine(text);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++number_;
      LS_RETURN_IF_ERROR(Take(line));
    }
    if (stacks_.empty()) return InvalidArgument("{}: no stacks; expected lines as \"rank 0 (pid 12)\"", path_);
    return std::move(stacks_);
  }

 private:
  absl::Status Take(std::string_view line) {
    if (line.empty()) return absl::OkStatus();
    if (line.starts_with(kNode)) {
      node_ = line.substr(kNode.size());
    } else if (line.front() != ' ') {
      return Begin(line);
    } else if (stacks_.empty()) {
      return InvalidArgument("{}:{}: expected \"rank N (pid P)\" first, found \"{}\"", path_, number_,
                             line.substr(0, 80));
    } else if (line == kPython || line == kNative) {
      in_native_ = line == kNative;
      thread_ = nullptr;
      threads_ = 0;
    } else if (line.starts_with(kUnreadable)) {
      stacks_.back().unreadable += stacks_.back().unreadable.empty() ? "" : "; ";
      stacks_.back().unreadable += line.substr(kUnreadable.size());
    } else if (line.starts_with(kFrame)) {
      if (thread_ != nullptr) thread_->emplace_back(line.substr(kFrame.size()));
    } else {
      BeginThread(line);
    }
    return absl::OkStatus();
  }

  absl::Status Begin(std::string_view line) {
    std::optional<ProcessStack> stack = ParseHead(line);
    if (!stack)
      return InvalidArgument(
          "{}:{}: expected \"rank N (pid P)\" or \"rank N, data_worker|checkpoint_writer|other (pid P)\", found \"{}\"",
          path_, number_, line.substr(0, 80));
    stack->node = node_;
    stacks_.push_back(*std::move(stack));
    thread_ = nullptr;
    return absl::OkStatus();
  }

  // The main thread stands first natively, and is called so in Python, whose other threads are left aside.
  void BeginThread(std::string_view line) {
    ProcessStack& stack = stacks_.back();
    const bool first = threads_++ == 0;
    if (!in_native_) {
      thread_ = line == kMainThread ? &stack.python : nullptr;
    } else if (first) {
      thread_ = &stack.native;
      stack.stopped = IsStopped(line);
    } else {
      thread_ = &stack.others.emplace_back();
      stack.stopped &= IsStopped(line);
    }
    if (thread_ != nullptr) thread_->reserve(kUsualFrames);
  }

  const std::string& path_;
  size_t number_ = 0, threads_ = 0;
  std::string node_;
  std::vector<ProcessStack> stacks_;
  bool in_native_ = false;
  std::vector<std::string>* thread_ = nullptr;  // to which frames belong
};

bool IsStacks(const std::string& path) {
  constexpr size_t kBegin = 512;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const std::string bytes = FirstBytes(path, kBegin);
  std::string_view begin(bytes);
  std::string_view line = TakeLine(begin);
  if (line.starts_with(kNode)) line = TakeLine(begin);
  return ParseHead(line).has_value();
}

// Those of a directory, sorted, and one that is named by itself.
std::vector<std::string> FilesAt(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (IsStacks(entry->path().string())) files.push_back(entry->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

const char* RoleName(ProcessRole role) { return kRoleNames[static_cast<size_t>(role)]; }

absl::StatusOr<std::vector<ProcessStack>> ParseStacks(std::string_view text, const std::string& path) {
  return Parser(path).Run(text);
}

bool HasStacks(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? !FilesAt(path).empty() : IsStacks(path);
}

absl::StatusOr<std::vector<ProcessStack>> ReadStackFiles(const std::vector<std::string>& paths) {
  std::vector<ProcessStack> all;
  std::map<int, std::string> trainer_in;
  for (const std::string& path : paths) {
    const std::vector<std::string> files = FilesAt(path);
    if (files.empty()) return InvalidArgument("{}: no file of stacks there; expected an incident's stacks.txt", path);
    for (const std::string& file : files) {
      LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
      LS_ASSIGN_OR_RETURN(std::vector<ProcessStack> stacks, ParseStacks(text, file));
      for (ProcessStack& stack : stacks) {
        if (stack.role == ProcessRole::kTrainer && !trainer_in.emplace(stack.rank, file).second)
          return InvalidArgument("{}: rank {} is in {} too; expected the stacks of one moment, each rank once", file,
                                 stack.rank, trainer_in[stack.rank]);
        all.push_back(std::move(stack));
      }
    }
  }
  return all;
}

}  // namespace lockstep::trace
