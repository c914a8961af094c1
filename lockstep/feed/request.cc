#include "lockstep/feed/request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_at.h"
#include "lockstep/base/json_text.h"
#include "lockstep/client/feed_ring.h"
#include "lockstep/incident/fields.h"

namespace lockstep::feed {
namespace {

constexpr uint32_t kMaxBatch = 1 << 20, kMaxWorld = 1 << 20;
constexpr uint64_t kMaxRing = uint64_t{1} << 40;

absl::Status Check(bool right, std::string_view name, int64_t found, std::string_view expected) {
  return right ? absl::OkStatus() : InvalidArgument("{} {}: expected {}", name, found, expected);
}

// ["low", "high"] of that name, if it is there.
absl::Status TakePair(incident::Fields& fields, const char* name, double& low, double& high) {
  const Json* pair = fields.Optional(name);
  if (pair == nullptr) return absl::OkStatus();
  if (!pair->is_array() || pair->size() != 2 || !(*pair)[0].is_number() || !(*pair)[1].is_number())
    return InvalidArgument("{}: expected two numbers, found {}", name, OneLine(*pair));
  low = (*pair)[0].get<double>();
  high = (*pair)[1].get<double>();
  return absl::OkStatus();
}

absl::StatusOr<prepare::Recipe> ParseClip(incident::Fields& fields, bool random) {
  prepare::Clip clip;
  const int64_t rate = fields.Int("rate"), frames = fields.Int("frames"), channels = fields.Int("channels");
  const std::string type = fields.Text("dtype");
  LS_RETURN_IF_ERROR(fields.status());
  for (const auto& [name, value] : {std::pair{"rate", rate}, {"frames", frames}, {"channels", channels}})
    LS_RETURN_IF_ERROR(Check(value >= 1 && value <= INT32_MAX, name, value, "at least 1"));
  if (type != "float32" && type != "int16")
    return InvalidArgument("transform: clips of type \"{}\": expected float32 or int16", type);
  clip = {.rate = static_cast<uint32_t>(rate),
          .frames = static_cast<uint32_t>(frames),
          .channels = static_cast<uint32_t>(channels),
          .random = random,
          .int16 = type == "int16"};
  prepare::Recipe recipe{.clip = clip};
  LS_RETURN_IF_ERROR(prepare::Validate(recipe));
  return recipe;
}

absl::StatusOr<prepare::Recipe> ParseRecipe(const Json& json) {
  incident::Fields fields(json, "transform");
  prepare::Recipe recipe;
  const std::string crop = fields.Text("crop");
  if (crop == "random_clip" || crop == "center_clip") return ParseClip(fields, crop == "random_clip");
  recipe.flip = fields.Number("flip");
  LS_RETURN_IF_ERROR(fields.status());
  if (crop != "random_resized" && crop != "center")
    return InvalidArgument(
        "transform: there is no crop \"{}\"; expected random_resized, center, random_clip or center_clip", crop);
  recipe.crop = crop == "center" ? prepare::CropRule::kCenter : prepare::CropRule::kRandomResized;
  double height = 0, width = 0;
  LS_RETURN_IF_ERROR(TakePair(fields, "size", height, width));
  LS_RETURN_IF_ERROR(TakePair(fields, "scale", recipe.scale_low, recipe.scale_high));
  LS_RETURN_IF_ERROR(TakePair(fields, "ratio", recipe.ratio_low, recipe.ratio_high));
  recipe.size = {static_cast<int>(std::clamp(width, -1.0, 1e6)), static_cast<int>(std::clamp(height, -1.0, 1e6))};
  if (json.contains("shorter")) recipe.shorter = fields.Int32("shorter");
  LS_RETURN_IF_ERROR(fields.status());
  LS_RETURN_IF_ERROR(prepare::Validate(recipe));
  return recipe;
}

// A name, or the number that items carry: a folder may be called 10, and be another one than number 10.
absl::Status TakeLabel(const Json& label, Subset& subset) {
  if (label.is_string())
    subset.names.push_back(label.get<std::string>());
  else if (label.is_number_unsigned())
    subset.labels.push_back(label.get<uint64_t>());
  else
    return InvalidArgument("where: label {:.100}: expected a name, or a number from 0 on", OneLine(label));
  return absl::OkStatus();
}

absl::StatusOr<Subset> ParseSubset(const Json* json, std::optional<uint64_t>& listed) {
  Subset subset;
  if (json == nullptr) return subset;
  if (!json->is_object()) return InvalidArgument("where: expected an object, found {}", OneLine(*json));
  for (const auto& [key, value] : json->items()) {
    if (key == "items" && value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
        value[1].is_number_unsigned()) {
      subset.begin = value[0].get<uint64_t>();
      subset.end = value[1].get<uint64_t>();
    } else if (key == "labels" && value.is_array() && !value.empty()) {
      for (const Json& label : value) LS_RETURN_IF_ERROR(TakeLabel(label, subset));
    } else if (key == "listed" && value.is_number_unsigned()) {
      listed = value.get<uint64_t>();
    } else if (key == "mask" && value.is_number_unsigned()) {
      subset.mask = value.get<uint64_t>();
    } else {
      return InvalidArgument("where: {} {:.100}: expected items [begin, end] or labels [name, ...]", key,
                             OneLine(value));
    }
  }
  return subset;
}

Whose ParseWhose(const Json* json) {
  if (json == nullptr) return {};
  return {TextAt(*json, "host"), static_cast<pid_t>(IntegerAt(*json, "pid", 0))};
}

absl::Status TakeNumbers(incident::Fields& fields, JoinRequest& request) {
  struct Number {
    const char* field;
    std::string_view name;  // that the user of the loader knows
    uint32_t least, most;
    uint32_t& value;
  };
  for (const Number& number : {Number{"batch", "batch", 1, kMaxBatch, request.batch},
                               {"slots", "prefetch", 2, LS_FEED_MAX_SLOTS, request.slots},
                               {"world", "world", 1, kMaxWorld, request.world},
                               {"rank", "rank", 0, kMaxWorld - 1, request.rank}}) {
    const int64_t found = fields.Int(number.field);
    LS_RETURN_IF_ERROR(fields.status());
    LS_RETURN_IF_ERROR(Check(found >= number.least && found <= number.most, number.name, found,
                             fmt::format("{} to {}", number.least, number.most)));
    number.value = static_cast<uint32_t>(found);
  }
  request.seed = fields.Unsigned("seed");
  return fields.status();
}

absl::Status Validate(const JoinRequest& request) {
  const uint64_t ring = request.slots * uint64_t{request.batch} * request.recipe.bytes();
  LS_RETURN_IF_ERROR(Check(request.rank < request.world, "rank", request.rank, "less than world"));
  if (request.job.empty() || request.job.size() > 128) return InvalidArgument("job: expected a name of 1 to 128 bytes");
  if (ring > kMaxRing) return InvalidArgument("batch and prefetch: {} bytes of batches are too many", ring);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JoinRequest> ParseJoin(const Json& packet) {
  incident::Fields fields(packet, "join");
  const int64_t version = fields.Int("version");
  LS_RETURN_IF_ERROR(fields.status());
  if (version != kProtocolVersion)
    return InvalidArgument("the loader speaks version {} and this service {}: install both anew", version,
                           kProtocolVersion);
  JoinRequest request;
  request.dataset = fields.Text("dataset");
  request.job = fields.Text("job");
  LS_RETURN_IF_ERROR(TakeNumbers(fields, request));
  request.drop_last = fields.Flag("drop_last");
  request.alone = fields.Flag("alone");
  if (fields.Optional("apart") != nullptr) request.apart = fields.Flag("apart");
  request.state = fields.Text("state");
  request.from = ParseWhose(fields.Optional("from"));
  const Json& recipe = fields.Child("recipe");
  LS_RETURN_IF_ERROR(fields.status());
  LS_ASSIGN_OR_RETURN(request.recipe, ParseRecipe(recipe));
  LS_ASSIGN_OR_RETURN(request.where, ParseSubset(fields.Optional("where"), request.listed));
  LS_RETURN_IF_ERROR(Validate(request));
  return request;
}

std::string Whose::ToString() const {
  return host.empty() ? fmt::format("process {}", pid) : fmt::format("process {} of {}", pid, host);
}

std::string TermsOf(const JoinRequest& request) {
  const prepare::Recipe& recipe = request.recipe;
  const prepare::Clip clip = recipe.clip.value_or(prepare::Clip{});
  return fmt::format(
      "world {}, batch {}, seed {}, drop_last {}, transform {}x{} {} {} {} {} {} {} {}, clip {} {} {} {} {}",
      request.world, request.batch, request.seed, request.drop_last, recipe.size.width, recipe.size.height,
      static_cast<int>(recipe.crop), recipe.scale_low, recipe.scale_high, recipe.ratio_low, recipe.ratio_high,
      recipe.flip, recipe.shorter, clip.rate, clip.frames, clip.channels, clip.random, clip.int16);
}

}  // namespace lockstep::feed
