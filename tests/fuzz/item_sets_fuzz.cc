// Any bytes as sets of items: the reader answers with sets that read back as themselves, or says where it is wrong.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/base/check.h"
#include "lockstep/sampling/item_set.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::sampling;
  const auto sets = ParseItemSets({reinterpret_cast<const char*>(data), size}, "fuzz.txt");
  if (!sets.ok()) {
    LS_CHECK(lockstep::Message(sets.status()).starts_with("fuzz.txt:"), "{}", lockstep::Message(sets.status()));
    return 0;
  }
  for (const ItemSet& set : *sets) {
    LS_CHECK(!set.empty());
    const auto again = ParseItemSet(set.ToString(), {.path = "again"});
    LS_CHECK(again.ok() && *again == set, "{}", set.ToString());
    LS_CHECK(set.IndexOf(set.At(set.size() - 1)) == set.size() - 1);
  }
  return 0;
}
