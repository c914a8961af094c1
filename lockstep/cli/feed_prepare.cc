#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/feed.h"
#include "lockstep/prepare/index_folder.h"
#include "lockstep/prepare/measure.h"

namespace lockstep::cli {

void AddFeedBench(CLI::App& feed, int& exit_code) {
  struct Flags {
    prepare::MeasureOptions options;
    int size = 224;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = feed.add_subcommand(
      "bench",
      "How many images of a directory one core turns into tensors per second: random resized crops, RGB bytes");
  command->add_option("--dir", flags->options.directory, "Images, or folders of them")->required();
  command->add_option("--size", flags->size, "Pixels of a side of the result")
      ->check(Between(1, 4096))
      ->capture_default_str();
  command->add_option("--images", flags->options.images, "At most so many, evenly spread")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_option("--passes", flags->options.passes, "Times through them; the median counts")
      ->check(Between(1, 1000))
      ->capture_default_str();
  command->add_option("--max-pixels", flags->options.limits.max_pixels, "An image of more is left out")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "Of the crops")->capture_default_str();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep feed bench --dir photos --json");
  command->callback([flags, &exit_code] {
    flags->options.recipe.size = {flags->size, flags->size};
    exit_code = PrintReport(prepare::MeasureFolder(flags->options), flags->json);
  });
}

void AddFeedIndex(CLI::App& feed, int& exit_code) {
  struct Flags {
    std::string from, to;
    prepare::Limits limits;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();  // lives as long as the callbacks of the parser
  CLI::App* command = feed.add_subcommand(
      "index", "Write the images of a directory once more, without loss, so that crops of them are decoded faster");
  command->add_option("DIR", flags->from, "Images, or folders of them")->required();
  command->add_option("-o,--out", flags->to, "Directory to write")->required();
  command->add_option("--max-pixels", flags->limits.max_pixels, "An image of more is copied as it is")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer("Example: lockstep feed index photos --out photos-indexed");
  command->callback([flags, &exit_code] {
    const absl::StatusOr<prepare::IndexCounts> counts = prepare::IndexFolder(flags->from, flags->to, flags->limits);
    exit_code = counts.ok() ? PrintReport(prepare::ToJson(*counts), flags->json) : PrintError(counts.status());
  });
}

}  // namespace lockstep::cli
