#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/feed.h"
#include "lockstep/prepare/data_file.h"
#include "lockstep/prepare/preparer.h"

namespace lockstep::cli {
namespace {

struct FeedShowFlags {
  std::string image, out;
  prepare::Recipe recipe;
  prepare::AugmentKey key;
  prepare::Limits limits;
  int size = 224;
  bool center = false, json = false;
};

std::string Ppm(const prepare::Size& size, std::string_view rgb) {
  return fmt::format("P6\n{} {}\n255\n", size.width, size.height) + std::string(rgb);
}

Json Box(const prepare::Region& region) { return Json{region.x, region.y, region.width, region.height}; }

absl::StatusOr<Json> Show(FeedShowFlags flags) {
  flags.recipe.size = {flags.size, flags.size};
  flags.recipe.crop = flags.center ? prepare::CropRule::kCenter : prepare::CropRule::kRandomResized;
  if (flags.center) flags.recipe.flip = 0;
  LS_RETURN_IF_ERROR(Validate(flags.recipe));
  prepare::Buffer bytes;
  LS_RETURN_IF_ERROR(prepare::ReadWhole(flags.image, bytes));
  prepare::Preparer preparer(flags.limits);
  std::string pixels(flags.recipe.bytes(), '\0');
  const std::span<uint8_t> out(reinterpret_cast<uint8_t*>(pixels.data()), pixels.size());
  const absl::Status status = preparer.Prepare(bytes.bytes(), flags.recipe, flags.key, out);
  if (!status.ok()) return At(flags.image, status);
  LS_ASSIGN_OR_RETURN(const prepare::ImageHead head, prepare::ReadImageHead(bytes.bytes(), flags.limits));
  const prepare::Placement placement = Place(flags.recipe, head.size, flags.key);
  if (!flags.out.empty())
    LS_RETURN_IF_ERROR(WriteFileAtomically(flags.out, Ppm(flags.recipe.size, pixels), kForReaders));
  const prepare::PrepareCounters& counters = preparer.counters();
  return Json{{"width", head.size.width},
              {"height", head.size.height},
              {"crop_x_y_width_height", Box(placement.source)},
              {"scaled_width_height", Json{placement.scaled.width, placement.scaled.height}},
              {"kept_x_y_width_height", Box(placement.kept)},
              {"flip", placement.flip},
              {"by_tile_index", counters.by_tiles == 1},
              {"damaged_but_decoded", counters.damaged == 1}};
}

}  // namespace

void AddFeedShow(CLI::App& feed, int& exit_code) {
  auto flags = std::make_shared<FeedShowFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = feed.add_subcommand("show", "What a job is given of an image: its crop, and the pixels");
  command->add_option("IMAGE", flags->image, "JPEG, PNG or WebP")->required();
  command->add_option("-o,--out", flags->out, "File to write the pixels to, PPM");
  command->add_option("--size", flags->size, "Pixels of a side of the result")->capture_default_str();
  command->add_flag("--center", flags->center, "Shorter side to 256 and the centre of that, as for evaluation");
  command->add_option("--max-pixels", flags->limits.max_pixels, "An image of more is refused")->capture_default_str();
  command->add_option("--seed", flags->key.seed, "Of the job's data")->capture_default_str();
  command->add_option("--epoch", flags->key.epoch, "From 0 on")->capture_default_str();
  command->add_option("--item", flags->key.item, "Its number in the data set")->capture_default_str();
  command->add_option("--job", flags->key.job, "Its number among jobs with this seed")->capture_default_str();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep feed show photo.jpg --epoch 3 --item 17 --out seen.ppm");
  command->callback([flags, &exit_code] { exit_code = PrintReport(Show(*flags), flags->json); });
}

}  // namespace lockstep::cli
