// Any bytes as what comes from elsewhere on the way to remote files: a URL, a Content-Range header, a name with braces,
// and lists of shards, text and JSON.
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/http/url.h"
#include "lockstep/prepare/shard_list.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  using namespace lockstep::prepare;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (const auto range = ParseContentRange(text))
    LS_CHECK(!range->has_range || (range->first <= range->last && range->last < range->size), "{}", text);
  if (const auto url = http::ParseUrl(text); url.ok()) {
    LS_CHECK(url->target.starts_with('/') && !url->host.empty(), "{}", text);
    (void)IsShardList(text);
    LS_CHECK(NameOf(text).find('/') == std::string::npos, "{}", text);
  }
  if (const auto names = ExpandBraces(text); names.ok())
    LS_CHECK(!names->empty() && names->size() <= 1'000'000, "{}", text);
  for (const char* list : {"http://host:1/a/index.json", "http://host/shards.txt", "/data/shards.txt"})
    if (const auto paths = ParseShardList(list, text); paths.ok())
      LS_CHECK(!paths->empty() && paths->size() <= 1'000'000, "{}", text);
  return 0;
}
