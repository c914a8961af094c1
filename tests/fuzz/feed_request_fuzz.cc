// Any bytes as a rank's request: it is refused in one sentence, or is within what the service promises to handle.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/base/json_text.h"
#include "lockstep/client/feed_ring.h"
#include "lockstep/feed/request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto request = feed::ParseJoin(ParseJson(text));
  if (!request.ok()) {
    LS_CHECK(!Message(request.status()).empty());
    return 0;
  }
  LS_CHECK(request->batch >= 1 && request->slots >= 2 && request->slots <= LS_FEED_MAX_SLOTS);
  LS_CHECK(request->rank < request->world && !request->job.empty());
  LS_CHECK(prepare::Validate(request->recipe).ok());
  LS_CHECK(!feed::TermsOf(*request).empty());
  return 0;
}
