#include "lockstep/agent/torchrun.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::agent {

Json ToJson(const Torchrun& torchrun) {
  Json streams = Json::array();
  for (const Streams& own : torchrun.streams) {
    streams.push_back({{"file", own.file}, {"tee", own.tee}, {"console", own.console}});
  }
  return {{"run_id", torchrun.run_id},           {"role", torchrun.role},
          {"master_addr", torchrun.master_addr}, {"master_port", torchrun.master_port},
          {"no_python", torchrun.no_python},     {"virtual_local_rank", torchrun.virtual_local_rank},
          {"log_dir", torchrun.log_dir},         {"streams", std::move(streams)},
          {"line_prefix", torchrun.line_prefix}};
}

absl::StatusOr<Torchrun> TorchrunFromJson(const Json& json) {
  Torchrun torchrun;
  if (!json.is_object()) return torchrun;
  try {
    torchrun.run_id = json.value("run_id", torchrun.run_id);
    torchrun.role = json.value("role", torchrun.role);
    torchrun.master_addr = json.value("master_addr", torchrun.master_addr);
    torchrun.master_port = json.value("master_port", torchrun.master_port);
    torchrun.no_python = json.value("no_python", torchrun.no_python);
    torchrun.virtual_local_rank = json.value("virtual_local_rank", torchrun.virtual_local_rank);
    torchrun.log_dir = json.value("log_dir", torchrun.log_dir);
    torchrun.line_prefix = json.value("line_prefix", torchrun.line_prefix);
    for (const Json& own : json.value("streams", Json::array())) {
      torchrun.streams.push_back({own.value("file", 0), own.value("tee", 0), own.value("console", true)});
    }
  } catch (const Json::exception& error) {
    return DataLoss("torchrun: {}", error.what());
  }
  return torchrun;
}

Streams StreamsOf(const Torchrun& torchrun, int rank) {
  const auto index = static_cast<size_t>(rank);
  return index < torchrun.streams.size() ? torchrun.streams[index] : Streams{};
}

std::string AttemptDir(const Torchrun& torchrun, int restart_count, int rank) {
  return fmt::format("{}/attempt_{}/{}", torchrun.log_dir, restart_count, rank);
}

std::string Substituted(std::string_view text, const std::map<std::string, std::string, std::less<>>& values) {
  std::string filled;
  while (!text.empty()) {
    const size_t plain = std::min(text.find('$'), text.size());
    filled += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const bool braced = text.starts_with("${");
    const size_t begin = braced ? 2 : 1, end = std::min(text.find_first_not_of(kNameLetters, begin), text.size());
    const auto value = values.find(text.substr(begin, end - begin));
    size_t taken = 1;
    if (value != values.end() && (!braced || text.substr(end).starts_with('}'))) {
      filled += value->second;
      taken = end + (braced ? 1 : 0);
    } else {
      filled += text.front();
      if (text.starts_with("$$")) taken = 2;
    }
    text.remove_prefix(taken);
  }
  return filled;
}

}  // namespace lockstep::agent
