#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/feed.h"
#include "lockstep/sampling/cache_split.h"

namespace lockstep::cli {
namespace {

struct FeedPlanFlags {
  double cache_gb = 0, samples = 0, encoded_kb = 0, decoded_kb = 0, augmented_kb = 0, decode_ms = 0, augment_ms = 0;
  double storage = 0, network = 0, cache = 0, pcie = 0, cores = 0, gpu = 0;
  int jobs = 1;
  bool remote = false, json = false;
};

absl::StatusOr<Json> PlanCache(const FeedPlanFlags& flags) {
  const sampling::FeedMachine machine{.cores = flags.cores,
                                      .storage_bytes = flags.storage * 1e9,
                                      .network_bytes = flags.network * 1e9,
                                      .cache_bytes = flags.cache * 1e9,
                                      .pcie_bytes = flags.pcie * 1e9,
                                      .gpu_samples = flags.gpu};
  const double decoded_kb = flags.decoded_kb > 0 ? flags.decoded_kb : 6 * flags.encoded_kb;
  const sampling::FeedData data{.samples = flags.samples,
                                .encoded_bytes = flags.encoded_kb * 1e3,
                                .decoded_bytes = decoded_kb * 1e3,
                                .augmented_bytes = (flags.augmented_kb > 0 ? flags.augmented_kb : decoded_kb) * 1e3,
                                .decode_s = flags.decode_ms / 1e3,
                                .augment_s = flags.augment_ms / 1e3,
                                .shared = static_cast<double>(flags.jobs),
                                .uses = static_cast<double>(flags.jobs),
                                .remote_cache = flags.remote};
  if (!(flags.cache_gb >= 0 && flags.cache_gb < 1e9))
    return InvalidArgument("--cache-gb {}: expected gigabytes, 0 or more", flags.cache_gb);
  LS_RETURN_IF_ERROR(sampling::Validate(machine, data));
  return sampling::SplitReport(machine, data, flags.cache_gb * 1e9);
}

}  // namespace

void AddFeedPlan(CLI::App& feed, int& exit_code) {
  auto flags = std::make_shared<FeedPlanFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command =
      feed.add_subcommand("plan", "What a cache of so many GB should hold, and how fast jobs are fed then");
  command->add_option("--cache-gb", flags->cache_gb, "Of memory or disk, for all forms")->required();
  command->add_option("--samples", flags->samples, "Of the data set")->required();
  command->add_option("--encoded-kb", flags->encoded_kb, "Of a sample as it is stored")->required();
  command->add_option("--decoded-kb", flags->decoded_kb, "Of a decoded one (default: six times that)")
      ->check(AboveZero());
  command->add_option("--augmented-kb", flags->augmented_kb, "Of one ready for training (default: as decoded)")
      ->check(AboveZero());
  command->add_option("--decode-ms", flags->decode_ms, "Of one core, a sample")->required();
  command->add_option("--augment-ms", flags->augment_ms, "Of one core, a sample")->required();
  command->add_option("--cores", flags->cores, "That prepare samples")->required();
  command->add_option("--storage-gbs", flags->storage, "GB/s that storage gives (default: not in the way; so below)");
  command->add_option("--network-gbs", flags->network, "GB/s between storage and this machine");
  command->add_option("--cache-gbs", flags->cache, "GB/s that the cache gives");
  command->add_option("--pcie-gbs", flags->pcie, "GB/s to the GPUs");
  command->add_option("--gpu-rate", flags->gpu, "Samples/s that the jobs take in, together");
  command
      ->add_option("--jobs", flags->jobs,
                   "That read this data in step: each sample is read and decoded once for all (default 1)")
      ->check(Between(1, 100000));
  command->add_flag("--remote-cache", flags->remote, "What the cache serves crosses the network");
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->footer(
      "Example: lockstep feed plan --cache-gb 100 --samples 1.28e6 --encoded-kb 110 --decode-ms 1 --augment-ms 0.3 "
      "--cores 32 --storage-gbs 0.5 --gpu-rate 12000 --jobs 4");
  command->callback([flags, &exit_code] { exit_code = PrintReport(PlanCache(*flags), flags->json); });
}

}  // namespace lockstep::cli
