// Any bytes as a sound: a clip of it alone and, where all of it can be decoded, from what is kept: the same.
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/prepare/clip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep::prepare;
  static Clipper clipper;
  static Buffer kept;
  const Bytes bytes(data, size);
  const absl::StatusOr<SoundHead> head = ReadSoundHead(bytes);
  if (!head.ok()) return 0;
  for (const bool int16 : {false, true}) {
    const Clip clip{.rate = head->rate, .frames = 100, .int16 = int16};
    std::vector<uint8_t> alone(clip.bytes()), shared(clip.bytes());
    const bool good = clipper.Prepare(bytes, clip, {.item = size}, alone).ok();
    if (!clipper.Keep(bytes, kept).ok()) continue;
    LS_CHECK(kept.size() <= Clipper::kMaxKept + size + sizeof(SoundHead), "{}", kept.size());
    LS_CHECK(clipper.Cut(kept.bytes(), clip, {.item = size}, shared).ok() == good, "{}", good);
    LS_CHECK(!good || alone == shared, "{}", size);
  }
  return 0;
}
