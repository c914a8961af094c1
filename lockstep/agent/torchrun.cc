#include "lockstep/agent/torchrun.h"

#include <fmt/core.h>

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
          {"log_dir", torchrun.log_dir},         {"streams", std::move(streams)}};
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

}  // namespace lockstep::agent
