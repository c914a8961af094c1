// Any bytes as job.toml: the reader answers with a job or an error, and never anything else. Two ways to run it:
//   ctest -R cluster_toml_fuzz                                             the corpus below, as a test
//   clang++ -std=c++20 -DLOCKSTEP_LIBFUZZER -fsanitize=fuzzer,address -I. ... with the sources of base and cluster
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

#ifndef LOCKSTEP_LIBFUZZER
#include <gtest/gtest.h>

#include <string>

namespace {

TEST(TomlFuzz, Corpus) {
  const std::string whole =
      "name = 'x'\n[layout]\ntp = 2\ndp = 4\norder = 'tp-dp'\n[run]\nargs = ['a', \"\\u00e9\"]\nhang_limit_s = 1e3\n";
  const std::string corpus[] = {whole,
                                "",
                                "\0",
                                "=",
                                "name",
                                "[",
                                "[[run]]",
                                "name = 1979-05-27T07:32:00Z",
                                "name = 'x'\nlayout = 3",
                                "name = 'x'\n[layout]\ntp = 9223372036854775807\n",
                                "name = 'x'\n[run]\nhang_limit_s = nan\n",
                                "a = " + std::string(2000, '['),
                                "name = '\xff\xfe'",
                                "name = 'x'\n[layout]\norder = '--'\n",
                                "name = 'x'\n[layout]\norder = 'tp-'\n",
                                "\"\" = {a = {b = {}}}"};
  for (const std::string& text : corpus)
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  // Every prefix, and every single byte replaced, of a whole file.
  for (size_t i = 0; i < whole.size(); ++i) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(whole.data()), i);
    for (const char byte : {'\0', '\n', '"', '[', '=', '-', '9', '\xff'}) {
      std::string bent = whole;
      bent[i] = byte;
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bent.data()), bent.size());
    }
  }
}

}  // namespace
#endif
