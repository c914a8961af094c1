#include "lockstep/sampling/stream.h"

#include <algorithm>
#include <charconv>

#include "lockstep/base/check.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kMostItems = uint64_t{1} << 62;
constexpr std::string_view kMark = "lockstep-stream-1";

uint64_t HashOf(const ItemSet& set) {
  uint64_t hash = set.size();
  for (const ItemRange& range : set.ranges()) hash = Hash(hash, range.first, range.last);
  return hash;
}

// The next word of a text, "" at its end.
std::string_view Word(std::string_view& text) {
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  text.remove_prefix(begin);
  const std::string_view word = text.substr(0, std::min(text.find(' '), text.size()));
  text.remove_prefix(word.size());
  return word;
}

// So that a damaged state is refused, and none begins where no stream ever was.
uint64_t Checksum(const StreamPlace& place) {
  return Hash(Hash(place.epoch, place.lap.number, place.lap.offset), place.taken, place.walked, place.last_lap);
}

absl::StatusOr<uint64_t> Number(std::string_view& text, std::string_view name) {
  const std::string_view word = Word(text);
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || rest != word.data() + word.size())
    return InvalidArgument("state of a stream: expected its {}, found \"{}\"", name, word.substr(0, 40));
  return value;
}

}  // namespace

Stream::Stream(StreamSpec spec) : spec_(std::move(spec)) {
  size_ = spec_.items ? spec_.items->size() : spec_.dataset.size();
}

absl::StatusOr<Stream> Stream::Create(StreamSpec spec) {
  if (spec.dataset.empty()) return InvalidArgument("a data set without items");
  if (spec.dataset.size() > kMostItems) return InvalidArgument("a data set of more than 2^62 items");
  if (spec.items && spec.items->empty()) return InvalidArgument("a job without items");
  if (spec.items) {
    for (const ItemRange& range : spec.items->ranges()) {
      const auto first = spec.dataset.IndexOf(range.first), last = spec.dataset.IndexOf(range.last);
      if (!first || !last || *last - *first != range.last - range.first)
        return InvalidArgument("items {}-{} are not all in the data set", range.first, range.last);
    }
    if (spec.items->size() == spec.dataset.size()) spec.items.reset();
  }
  Stream stream(std::move(spec));
  stream.Begin({}, 0);
  return stream;
}

void Stream::Seek(const StreamPlace& place) {
  if (order_.size() != spec_.dataset.size() || place.lap.number != place_.lap.number)
    order_ = Permutation(spec_.dataset.size(), KeyOf(Purpose::kLap, spec_.seed, place.lap.number));
  place_ = place;
}

void Stream::Begin(const Lap& lap, uint64_t epoch) { Seek({.lap = lap, .epoch = epoch}); }

uint64_t Stream::Next() {
  LS_CHECK(left() > 0);
  for (;;) {
    uint64_t at = place_.lap.offset + place_.walked++;
    if (at >= spec_.dataset.size()) at -= spec_.dataset.size();
    const uint64_t id = spec_.dataset.At(order_.At(at));
    if (spec_.items && !spec_.items->Contains(id)) continue;
    ++place_.taken;
    return id;
  }
}

void Stream::Skip(uint64_t count) {
  LS_CHECK(left() >= count, "{} of {}", count, left());
  if (spec_.items) {
    for (uint64_t i = 0; i < count; ++i) Next();
    return;
  }
  place_.walked += count;
  place_.taken += count;
}

std::optional<uint64_t> Stream::Ahead(uint64_t id) const {
  const auto index = spec_.dataset.IndexOf(id);
  if (!index || (spec_.items && !spec_.items->Contains(id))) return std::nullopt;
  const uint64_t universe = spec_.dataset.size();
  const uint64_t at = (order_.IndexOf(*index) + universe - place_.lap.offset) % universe;
  if (at < place_.walked) return std::nullopt;
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(at - place_.walked) * size_ / universe);
}

uint64_t Stream::Identity() const {
  return Hash(spec_.seed, HashOf(spec_.dataset), spec_.items ? HashOf(*spec_.items) : HashOf(spec_.dataset));
}

std::string Stream::SaveAt(const StreamPlace& place) const {
  return fmt::format("{} {} {} {} {} {} {} {} {}", kMark, Identity(), place.epoch, place.lap.number, place.lap.offset,
                     place.taken, place.walked, place.last_lap, Checksum(place));
}

absl::Status Stream::Load(std::string_view state) {
  if (Word(state) != kMark) return InvalidArgument("state of a stream: it does not begin with \"{}\"", kMark);
  StreamPlace place;
  LS_ASSIGN_OR_RETURN(const uint64_t identity, Number(state, "identity"));
  LS_ASSIGN_OR_RETURN(place.epoch, Number(state, "epoch"));
  LS_ASSIGN_OR_RETURN(place.lap.number, Number(state, "lap"));
  LS_ASSIGN_OR_RETURN(place.lap.offset, Number(state, "offset"));
  LS_ASSIGN_OR_RETURN(place.taken, Number(state, "items taken"));
  LS_ASSIGN_OR_RETURN(place.walked, Number(state, "places walked"));
  LS_ASSIGN_OR_RETURN(place.last_lap, Number(state, "last lap"));
  LS_ASSIGN_OR_RETURN(const uint64_t checksum, Number(state, "checksum"));
  if (!Word(state).empty()) return InvalidArgument("state of a stream: more than expected behind it");
  if (identity != Identity())
    return FailedPrecondition("state of a stream: of another seed, data set or set of items than this job's");
  if (checksum != Checksum(place)) return InvalidArgument("state of a stream: damaged, its checksum is another");
  Seek(place);
  return absl::OkStatus();
}

std::vector<uint64_t> TakeShare(Stream& stream, const Share& share) {
  LS_CHECK(share.rank < share.world && share.world <= UINT32_MAX, "rank {} of {}", share.rank, share.world);
  LS_CHECK(share.per_rank > 0 && share.per_rank <= UINT32_MAX, "{} a rank", share.per_rank);
  std::vector<uint64_t> ids;
  const uint64_t batch = std::min(stream.left(), share.world * share.per_rank);
  uint64_t at = 0;
  for (uint64_t mine = share.rank; mine < batch; mine += share.world) {
    stream.Skip(mine - at);
    ids.push_back(stream.Next());
    at = mine + 1;
  }
  stream.Skip(batch - at);
  return ids;
}

}  // namespace lockstep::sampling
