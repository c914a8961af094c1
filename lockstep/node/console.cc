#include "lockstep/node/console.h"

namespace lockstep::node {
namespace {

constexpr size_t kMaxHeld = 64 << 10;

}  // namespace

std::string LinePrefixer::Take(std::string_view data) {
  std::string out;
  for (const char c : data) {
    if (c == '\n' && after_return_ && held_.empty()) {
      out += c;
      after_return_ = false;
      continue;
    }
    held_ += c;
    after_return_ = c == '\r';
    if (c == '\n' || c == '\r' || held_.size() >= kMaxHeld) out += prefix_ + std::exchange(held_, {});
  }
  return out;
}

std::string LinePrefixer::Rest() { return held_.empty() ? "" : prefix_ + std::exchange(held_, {}) + "\n"; }

std::string LinePrefix(const agent::RunSpec& spec, int rank) {
  return agent::Substituted(spec.torchrun.line_prefix, {{"role_name", spec.torchrun.role},
                                                        {"rank", std::to_string(agent::GlobalRank(spec, rank).value())},
                                                        {"local_rank", std::to_string(rank)}});
}

void Console::Output(int rank, int stream, std::string_view data) {
  if (!agent::StreamsOf(spec_.torchrun, rank).Prefixed(stream)) return view_.Output(stream, data);
  const auto [own, made] =
      prefixers_.try_emplace({rank, agent::GlobalRank(spec_, rank), stream}, LinePrefix(spec_, rank));
  if (const std::string text = own->second.Take(data); !text.empty()) view_.Output(stream, text);
}

void Console::Flush() {
  for (auto& [key, prefixer] : prefixers_) {
    if (const std::string text = prefixer.Rest(); !text.empty()) view_.Output(std::get<2>(key), text);
  }
}

}  // namespace lockstep::node
