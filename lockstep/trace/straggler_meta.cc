#include "lockstep/trace/straggler_meta.h"

#include <yaml-cpp/yaml.h>

#include <limits>
#include <regex>

#include "lockstep/base/file.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::trace {
namespace {

// yaml-cpp throws; nothing of that leaves this file.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<StragglerMeta> Read() {
    LS_RETURN_IF_ERROR(RefusePipe(path_));
    LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_));
    try {
      root_ = YAML::Load(text);
      if (!root_.IsMap()) return InvalidArgument("{}: expected a mapping such as \"dp_size: 4\"", path_);
      return Meta();
    } catch (const YAML::Exception& error) {
      return InvalidArgument("{}:{}: {}", path_, error.mark.line + 1, error.msg);
    }
  }

 private:
  absl::StatusOr<StragglerMeta> Meta() {
    StragglerMeta meta;
    if (root_["trial_name"]) meta.trial_name = root_["trial_name"].as<std::string>();
    LS_RETURN_IF_ERROR(Get("run_id", false, meta.run_id));
    LS_RETURN_IF_ERROR(Size("dp_size", true, meta.dp));
    LS_RETURN_IF_ERROR(Size("dsp_size", false, meta.dsp));
    LS_RETURN_IF_ERROR(Size("pp_size", true, meta.pp));
    LS_RETURN_IF_ERROR(Size("tp_size", true, meta.tp));
    LS_RETURN_IF_ERROR(Size("vpp_size", false, meta.vpp));
    LS_RETURN_IF_ERROR(Get("world_size", true, meta.world_size));
    constexpr int64_t kMostRanks = 1 << 22;
    const double product = double(meta.dp) * meta.dsp * meta.pp * meta.tp;
    if (product > kMostRanks)
      return InvalidArgument("{}: dp_size * dsp_size * pp_size * tp_size is {:.4g}, expected at most {}", path_,
                             product, kMostRanks);
    if (double(meta.world_size) != product)
      return InvalidArgument("{}: world_size is {}, expected dp_size * dsp_size * pp_size * tp_size = {:.0f}", path_,
                             meta.world_size, product);
    LS_RETURN_IF_ERROR(Day(meta));
    LS_RETURN_IF_ERROR(Hosts(meta));
    return meta;
  }

  absl::Status Get(const char* key, bool required, int64_t& value) {
    const YAML::Node node = root_[key];
    if (!node && !required) return absl::OkStatus();
    if (!node) return InvalidArgument("{}: {} is missing", path_, key);
    try {
      value = node.as<int64_t>();
    } catch (const YAML::Exception&) {
      return InvalidArgument("{}:{}: {} is not a number", path_, node.Mark().line + 1, key);
    }
    return absl::OkStatus();
  }

  absl::Status Day(StragglerMeta& meta) {
    if (!root_["day"]) return absl::OkStatus();
    meta.day = root_["day"].as<std::string>();
    static const std::regex date("[0-9]{4}-[01][0-9]-[0-3][0-9]");
    if (std::regex_match(meta.day, date)) return absl::OkStatus();
    return InvalidArgument("{}:{}: day is \"{}\", expected a date such as 2026-11-22", path_,
                           root_["day"].Mark().line + 1, meta.day);
  }

  absl::Status Hosts(StragglerMeta& meta) {
    const YAML::Node hosts = root_["hosts"];
    if (!hosts) return absl::OkStatus();
    meta.hosts = hosts.as<std::vector<std::string>>();
    if (!meta.hosts.empty() && meta.world_size % static_cast<int64_t>(meta.hosts.size()) == 0) return absl::OkStatus();
    return InvalidArgument("{}:{}: {} hosts for {} ranks, expected equal shares", path_, hosts.Mark().line + 1,
                           meta.hosts.size(), meta.world_size);
  }

  absl::Status Size(const char* key, bool required, int& value) {
    constexpr int64_t kMost = 1 << 20;
    int64_t number = value;
    LS_RETURN_IF_ERROR(Get(key, required, number));
    if (number < 1 || number > kMost)
      return InvalidArgument("{}: {} is {}, expected 1 to {}", path_, key, number, kMost);
    value = static_cast<int>(number);
    return absl::OkStatus();
  }

  const std::string path_;
  YAML::Node root_;
};

}  // namespace

absl::StatusOr<StragglerMeta> ReadStragglerMeta(const std::string& path) { return Reader(path).Read(); }

absl::Status WriteStragglerMeta(const std::string& path, const StragglerMeta& meta) {
  std::string origin;
  if (!meta.day.empty()) origin += fmt::format("day: {}\n", meta.day);
  if (!meta.hosts.empty()) origin += fmt::format("hosts: [{}]\n", fmt::join(meta.hosts, ", "));
  return WriteText(
      path, fmt::format("trial_name: {}\nrun_id: {}\ndp_size: {}\ndsp_size: {}\npp_size: {}\ntp_size: {}\nvpp_size: "
                        "{}\nworld_size: {}\n",
                        meta.trial_name, meta.run_id, meta.dp, meta.dsp, meta.pp, meta.tp, meta.vpp, meta.world_size) +
                origin);
}

}  // namespace lockstep::trace
