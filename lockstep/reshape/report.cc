#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "lockstep/base/json_text.h"
#include "lockstep/reshape/open.h"

namespace lockstep::reshape {
namespace {

std::vector<std::string> ProblemsOf(const Saved& saved) {
  std::vector<std::string> all;
  for (const SavedTensor& tensor : saved.tensors) {
    std::vector<std::string> problems = FindProblems(tensor);
    std::move(problems.begin(), problems.end(), std::back_inserter(all));
  }
  return all;
}

// All but tensors and values.
Json Summary(const Saved& saved) {
  uint64_t bytes = 0;
  for (const SavedTensor& tensor : saved.tensors) bytes += BytesOf(tensor);
  const std::vector<std::string> problems = ProblemsOf(saved);
  Json report = {{"kind", saved.kind}, {"folder", saved.folder}};
  report["step"] = saved.step ? Json(*saved.step) : Json();
  report["world_size"] = saved.world_size > 0 ? Json(saved.world_size) : Json();
  report["bytes"] = bytes;
  report["whole"] = problems.empty();
  report["problems"] = problems;
  report["passed_over"] = saved.passed_over;
  return report;
}

Json ShardJson(const Shard& shard) {
  Json json = {{"offsets", shard.box.offsets}, {"sizes", shard.box.sizes}, {"strides", shard.strides}};
  json["file"] = shard.file;
  json["at"] = shard.at;
  json["rank"] = shard.rank >= 0 ? Json(shard.rank) : Json();
  return json;
}

// "0, 1, 2, 3 and 60 more"
std::string RanksOf(const SavedTensor& tensor) {
  constexpr size_t kShown = 4;
  std::set<int> ranks;
  for (const Shard& shard : tensor.shards) ranks.insert(shard.rank);
  ranks.erase(-1);
  const std::vector<int> all(ranks.begin(), ranks.end());
  const std::string shown = fmt::format("{}", fmt::join(std::span(all).first(std::min(kShown, all.size())), ", "));
  return all.size() <= kShown ? shown : fmt::format("{} and {} more", shown, all.size() - kShown);
}

}  // namespace

Json DetailedReport(const Saved& saved) {
  Json report = Summary(saved);
  report["tensors"] = Json::array();
  for (const SavedTensor& tensor : saved.tensors) {
    Json shards = Json::array();
    for (const Shard& shard : tensor.shards) shards.push_back(ShardJson(shard));
    report["tensors"].push_back({{"name", tensor.name},
                                 {"dtype", tensor.dtype},
                                 {"shape", tensor.shape},
                                 {"bytes", BytesOf(tensor)},
                                 {"shards", std::move(shards)}});
  }
  report["values"] = Json::array();
  for (const SavedValue& value : saved.values)
    report["values"].push_back({{"name", value.name}, {"value", ParseJson(value.json)}});
  return report;
}

Json ShortReport(const Saved& saved) {
  Json report = Summary(saved);
  report["tensors"] = Json::array();
  for (const SavedTensor& tensor : saved.tensors) {
    report["tensors"].push_back({{"name", tensor.name},
                                 {"dtype", tensor.dtype},
                                 {"shape", fmt::format("[{}]", fmt::join(tensor.shape, ", "))},
                                 {"bytes", BytesOf(tensor)},
                                 {"shards", tensor.shards.size()},
                                 {"ranks", RanksOf(tensor)}});
  }
  report["values"] = Json::array();
  for (const SavedValue& value : saved.values)
    report["values"].push_back({{"name", value.name}, {"value", value.json}});
  return report;
}

}  // namespace lockstep::reshape
