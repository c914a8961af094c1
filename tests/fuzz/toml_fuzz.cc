// Any bytes as job.toml: the reader answers with a job or an error, and never anything else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/cluster/cluster.h"
#include "lockstep/cluster/job.h"

namespace {

// A spec that was read is valid; one that was refused says where.
template <typename Spec>
void ExpectSane(const absl::StatusOr<Spec>& spec) {
  LS_CHECK(spec.ok() || lockstep::Message(spec.status()).starts_with("fuzz.toml:"), "{}",
           lockstep::Message(spec.status()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const lockstep::cluster::Presets none("");
  const auto job = lockstep::cluster::ParseJob(text, "fuzz.toml", none);
  ExpectSane(job);
  if (job.ok()) LS_CHECK(job->Validate().ok(), "{}", lockstep::Message(job->Validate()));
  ExpectSane(lockstep::cluster::ParseCluster(text, "fuzz.toml", none));
  ExpectSane(lockstep::cluster::ParseModel(text, "fuzz.toml"));
  return 0;
}
