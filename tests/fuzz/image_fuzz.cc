// Any bytes as an image: whole, a random crop of it, and once more with a tile index.
#include "lockstep/base/check.h"
#include "lockstep/prepare/preparer.h"
#include "lockstep/prepare/transcode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::prepare;
  constexpr uint64_t kMaxPixels = 1 << 16;
  static Preparer preparer({.max_pixels = kMaxPixels});
  static Image whole;
  static Buffer tiled;
  const Recipe recipe{.size = {16, 16}};
  static std::vector<uint8_t> out(recipe.bytes());
  const Bytes bytes(data, size);
  if (preparer.Decode(bytes, whole).ok()) {
    LS_CHECK(whole.view.size.pixels() <= kMaxPixels, "{}", whole.view.size.pixels());
    preparer.Augment(whole.view, recipe, {.item = size}, out);
  }
  (void)preparer.Prepare(bytes, recipe, {.item = size}, out);  // an error is as good
  const absl::StatusOr<ImageHead> head = ReadImageHead(bytes, {.max_pixels = kMaxPixels});
  if (!head.ok() || head->codec != Codec::kJpeg || !AddTileIndex(bytes, head->jpeg, tiled).ok()) return 0;
  const uint64_t before = preparer.counters().by_tiles;
  const bool decoded = preparer.Prepare(tiled.bytes(), recipe, {.item = size}, out).ok();
  LS_CHECK(!decoded || preparer.counters().by_tiles == before + 1, "an index of our own was not used");
  return 0;
}
