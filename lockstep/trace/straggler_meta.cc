#include "lockstep/trace/straggler_meta.h"

#include <yaml-cpp/yaml.h>

#include <limits>

#include "lockstep/base/file.h"
#include "lockstep/trace/text_writer.h"

namespace lockstep::trace {
namespace {

// yaml-cpp throws; nothing of that leaves this file.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<StragglerMeta> Read() {
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
    const int64_t product = int64_t{meta.dp} * meta.dsp * meta.pp * meta.tp;
    if (meta.world_size != product)
      return InvalidArgument("{}: world_size is {}, expected dp_size * dsp_size * pp_size * tp_size = {}", path_,
                             meta.world_size, product);
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
  return WriteText(
      path, fmt::format("trial_name: {}\nrun_id: {}\ndp_size: {}\ndsp_size: {}\npp_size: {}\ntp_size: {}\nvpp_size: "
                        "{}\nworld_size: {}\n",
                        meta.trial_name, meta.run_id, meta.dp, meta.dsp, meta.pp, meta.tp, meta.vpp, meta.world_size));
}

}  // namespace lockstep::trace
