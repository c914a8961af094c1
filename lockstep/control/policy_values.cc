// The values of a policy: from TOML, to and from the JSON that the journal keeps.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/cluster/table_reader.h"
#include "lockstep/control/policy.h"
#include "lockstep/incident/fields.h"

namespace lockstep::control {
namespace {

// Visits each value with its table and its name.
template <typename AnyPolicy, typename Visit>
void ForEachValue(AnyPolicy& policy, const Visit& visit) {
  visit("", "dry_run", policy.dry_run);
  visit("eviction", "per_hour", policy.evictions_per_hour);
  visit("eviction", "least_machines", policy.least_machines);
  visit("eviction", "may_evict", policy.may_evict);
  visit("eviction", "stop_within_s", policy.stop_within);
  visit("eviction", "stuck_within_s", policy.stuck_within);
  visit("network", "alerts", policy.network_alerts);
  visit("network", "window_s", policy.network_window);
  visit("ladder", "again_within_s", policy.again_within);
  visit("ladder", "diagnose", policy.diagnose);
  visit("ladder", "rollback", policy.rollback);
  visit("ladder", "replay", policy.replay);
  visit("ladder", "diagnose_within_s", policy.diagnose_within);
  visit("ladder", "replay_within_s", policy.replay_within);
  visit("nodes", "wait_s", policy.wait_for_node);
  visit("nodes", "grow_after_s", policy.grow_after);
  visit("nodes", "grow_every_s", policy.grow_every);
  visit("nan", "steps", policy.nan_steps);
  visit("nan", "restart", policy.nan_restart);
  visit("update", "steps", policy.update_steps);
  visit("update", "slower", policy.update_slower);
}

struct FromToml {
  cluster::TableReader& in;
  std::string_view table;

  void operator()(std::string_view of, const char* key, bool& value) const {
    if (of == table) in.Boolean(key, value);
  }
  void operator()(std::string_view of, const char* key, int& value) const {
    const bool counts = std::string_view(key) == "alerts" || std::string_view(key) == "steps";
    if (of == table) in.Integer(key, {.least = counts ? 1 : 0}, value);
  }
  void operator()(std::string_view of, const char* key, Seconds& value) const {
    if (of == table) in.Number(key, cluster::Sign::kPositive, value);
  }
  void operator()(std::string_view of, const char* key, std::vector<std::string>& value) const {
    if (of != table) return;
    in.Texts(key, value);
    for (const std::string& role : value) {
      if (!RoleFromName(role))
        in.Fail(key, fmt::format("{} must hold some of inspection, diagnosis, replay, loss, found \"{}\"", key, role));
    }
  }
};

struct ToFlatJson {
  Json& json;
  static Json Plain(const Seconds& value) { return value.value; }
  template <typename Value>
  static Json Plain(const Value& value) {
    return value;
  }
  template <typename Value>
  void operator()(std::string_view table, const char* key, const Value& value) const {
    json[table.empty() ? std::string(key) : fmt::format("{}.{}", table, key)] = Plain(value);
  }
};

struct FromFlatJson {
  incident::Fields& fields;
  void Take(const char* name, bool& value) const { value = fields.Flag(name); }
  void Take(const char* name, int& value) const { value = fields.Int32(name); }
  void Take(const char* name, Seconds& value) const { value = Seconds{fields.Number(name)}; }
  void Take(const char* name, std::vector<std::string>& value) const { value = fields.Texts(name); }
  template <typename Value>
  void operator()(std::string_view table, const char* key, Value& value) const {
    const std::string name = table.empty() ? std::string(key) : fmt::format("{}.{}", table, key);
    if (fields.Optional(name.c_str()) != nullptr) Take(name.c_str(), value);
  }
};

}  // namespace

absl::StatusOr<Policy> ReadPolicy(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LS_ASSIGN_OR_RETURN(const cluster::TomlValue root, cluster::ParseToml(text, path));
  Policy policy;
  cluster::TableReader reader(root, path);
  ForEachValue(policy, FromToml{reader, ""});
  for (const char* table : {"eviction", "network", "ladder", "nodes", "nan", "update"})
    reader.Table(table, [&](cluster::TableReader& in) { ForEachValue(policy, FromToml{in, table}); });
  LS_RETURN_IF_ERROR(reader.Finish());
  return policy;
}

Json ToJson(const Policy& policy) {
  Json json = Json::object();
  ForEachValue(policy, ToFlatJson{json});
  return json;
}

absl::StatusOr<Policy> PolicyFromJson(const Json& json) {
  incident::Fields fields(json, "policy");
  Policy policy;
  ForEachValue(policy, FromFlatJson{fields});
  LS_RETURN_IF_ERROR(fields.status());
  return policy;
}

}  // namespace lockstep::control
