#include "lockstep/feed/status.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::feed {
namespace {

constexpr size_t kListed = 100;  // corrupt items

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// Whose turn it is: a rank that holds all its slots has the service wait, one that has none waits itself.
std::string_view Waiting(const Rank& rank, uint32_t held) {
  if (held == rank.ring.shape().slots) return "for the job";
  return held <= 1 ? "for the service" : "nobody";
}

// Of the epoch it is in.
std::string_view OrderOf(const Rank& rank) {
  if (rank.job->epochs.group() == nullptr) return "alone";
  return NameOf(rank.stream.place().lap.window == 0 ? sampling::Policy::kCommon : sampling::Policy::kPaced);
}

std::string_view WhyOf(const sampling::Group& group) {
  if (group.options().policy) return "as asked for";
  if (!group.choice().loads.empty()) return "predicted loads";
  return group.jobs().size() == 1 ? "one job" : "not predicted yet";
}

// A group of jobs, and why it has its policy.
Json GroupRow(const sampling::Group& group, const std::map<uint64_t, std::string>& names) {
  const sampling::GroupChoice& choice = group.choice();
  Json row{{"seed", group.options().seed}, {"policy", NameOf(choice.policy)}, {"jobs", Json::array()}};
  for (const uint64_t job : group.jobs()) {
    const double item_ns = group.PaceOf(job);
    row["jobs"].push_back({{"job", names.at(job)}, {"items_per_s", item_ns > 0 ? 1e9 / item_ns : 0.0}});
  }
  row["why"] = WhyOf(group);
  row["predicted_loads"] = Json::object();
  for (const auto& [policy, loads] : choice.loads) row["predicted_loads"][std::string(NameOf(policy))] = loads;
  row["cache_items"] = group.options().cache_items;
  return row;
}

Json GroupsOf(const Dispatcher& seen) {
  std::map<uint64_t, std::string> names;
  std::map<uint64_t, const sampling::Group*> groups;  // by seed
  for (const std::shared_ptr<Rank>& rank : seen.ranks()) {
    names[rank->job->key] = rank->job->name;
    if (const auto& group = rank->job->epochs.group()) groups[rank->job->seed] = group.get();
  }
  Json rows = Json::array();
  for (const auto& [seed, group] : groups) rows.push_back(GroupRow(*group, names));
  return rows;
}

Json RankRow(const Rank& rank) {
  const Job& job = *rank.job;
  const uint32_t held = rank.ring.Held();
  return {{"job", job.name},
          {"rank", rank.number},
          {"world", job.cut.world},
          {"host", rank.whose.host},
          {"pid", rank.whose.pid},
          {"items", job.items()},
          {"epoch", rank.stream.place().epoch},
          {"taken", rank.stream.place().taken},
          {"batches", rank.ticket},
          {"held", held},
          {"slots", rank.ring.shape().slots},
          {"ring_bytes", RingBytes(rank.ring.shape())},
          {"order", OrderOf(rank)},
          {"waits", Waiting(rank, held)}};
}

Json CacheRow(const ItemCache& cache, Form form, std::string_view name) {
  const ItemCache::Totals& totals = cache.totals(form);
  return {{"form", name},          {"items", totals.items},
          {"bytes", totals.bytes}, {"quota_bytes", cache.quota(form)},
          {"hits", totals.hits},   {"evictions", totals.evictions}};
}

Json SharingOf(const Tally& tally) {
  return {{"deliveries", tally.deliveries},
          {"preparations", tally.preparations()},
          {"deliveries_per_preparation", Ratio(tally.deliveries, tally.preparations())},
          {"waited_for_a_decode", tally.waited}};
}

// Seconds of all threads, and as shares of all that they had since the service began.
Json TimesOf(const Times& times, uint64_t read_bytes, size_t threads, Nanos up) {
  const auto seconds = [](int64_t ns) { return ToSeconds(Nanos{ns}).value; };
  const double all = ToSeconds(up).value * static_cast<double>(threads);
  const auto share = [&](int64_t ns) { return all > 0 ? std::min(1.0, seconds(ns) / all) : 0; };
  return {{"threads", threads},
          {"read_s", seconds(times.read_ns)},
          {"decode_s", seconds(times.decode_ns)},
          {"cut_s", seconds(times.cut_ns)},
          {"idle_s", seconds(times.idle_ns)},
          {"shares",
           {{"read", share(times.read_ns)},
            {"decode", share(times.decode_ns)},
            {"resize", share(times.cut_ns)},
            {"idle", share(times.idle_ns)}}},
          {"read_bytes", read_bytes}};
}

// What the shares of all items are to be that come from storage and from memory; none before anything was measured.
Json SplitOf(const sampling::CacheSplit& split) {
  Json row = Json::object();
  if (split.rate <= 0) return row;
  for (const sampling::Form form : {sampling::kStored, sampling::kEncoded, sampling::kDecoded})
    row[std::string(NameOf(form)) + "_pct"] = 100 * split.shares[form];
  row["items_per_s"] = split.rate;
  return row;
}

using Counters = std::vector<std::pair<std::string, uint64_t>>;

// Nothing that is 0: most sets have none of it.
Json CountersOf(const Counters& counters) {
  Json row = Json::object();
  for (const auto& [name, count] : counters)
    if (count > 0) row[name] = count;
  return row;
}

Counters OfPrepared(const prepare::PrepareCounters& prepared) {
  return {{"by_tiles", prepared.by_tiles},
          {"damaged", prepared.damaged},
          {"bad_index", prepared.bad_index},
          {"refused", prepared.refused},
          {"too_large", prepared.too_large}};
}

Json CorruptOf(const Dispatcher& dispatcher, const DataSet& data) {
  Json rows = Json::array();
  for (const CorruptItem& corrupt : dispatcher.corrupt()) {
    if (rows.size() == kListed) break;
    rows.push_back({{"item", corrupt.item}, {"key", data.source().item(corrupt.item).key}, {"why", corrupt.why}});
  }
  return rows;
}

}  // namespace

Json StatusReport(const DataSet& data, const std::string& socket, Nanos up, const Dispatcher& dispatcher,
                  const sampling::CacheSplit& split) {
  Json report{{"data_set", data.name()}, {"path", data.path()},   {"socket", socket},
              {"pid", getpid()},         {"items", data.items()}, {"up_s", ToSeconds(up).value}};
  report["left_out"] = CountersOf(data.source().counters());
  dispatcher.Look([&](const Dispatcher& seen) {
    report["jobs"] = Json::array();
    for (const std::shared_ptr<Rank>& rank : seen.ranks()) report["jobs"].push_back(RankRow(*rank));
    report["groups"] = GroupsOf(seen);
    report["sharing"] = SharingOf(seen.tally());
    report["cache"] = {{"budget_bytes", seen.cache().budget()},
                       {"used_bytes", seen.cache().used()},
                       {"peak_bytes", seen.cache().peak()},
                       {"no_room", seen.cache().refused()},
                       {"beyond_budget", seen.tally().beyond},
                       {"beyond_budget_bytes", seen.tally().beyond_bytes},
                       {"split", SplitOf(split)}};
    report["forms"] = {CacheRow(seen.cache(), Form::kDecoded, "decoded"),
                       CacheRow(seen.cache(), Form::kEncoded, "encoded")};
    report["time"] = TimesOf(seen.TimesNow(), seen.tally().costs.reads.bytes, seen.threads(), up);
    report["images"] = CountersOf(OfPrepared(seen.tally().prepared));
    report["corrupt_items"] = seen.corrupt().size();
    report["corrupt"] = CorruptOf(seen, data);
  });
  return report;
}

}  // namespace lockstep::feed
