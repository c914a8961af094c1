#include "lockstep/sampling/stream.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/number.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kMostItems = uint64_t{1} << 62;
constexpr std::string_view kMark = "lockstep-stream-2";

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
  return Hash(Hash(place.epoch, place.lap.number, place.lap.offset, place.lap.window), place.taken, place.walked,
              Hash(place.aside, place.turns));
}

absl::StatusOr<uint64_t> Number(std::string_view& text, std::string_view name) {
  const std::string_view word = Word(text);
  const auto value = WholeNumber<uint64_t>(word);
  if (!value) return InvalidArgument("state of a stream: expected its {}, found \"{}\"", name, word.substr(0, 40));
  return *value;
}

}  // namespace

Stream::Stream(StreamSpec spec) : spec_(std::move(spec)) {
  size_ = spec_.items ? spec_.items->size() : spec_.dataset.size();
  if (spec_.items && NearestPlaces::IsCheaper(spec_.dataset.size(), size_)) nearest_.emplace(size_);
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

void Stream::GoTo(const StreamPlace& place) {
  const uint64_t size = spec_.dataset.size();
  if (order_.size() != size || place.lap.number != place_.lap.number)
    order_ = Permutation(size, KeyOf(Purpose::kLap, spec_.seed, place.lap.number));
  if (place.lap.window != 0 && (aside_.size() != size || place.lap != place_.lap))
    aside_ = Permutation(size, KeyOf(Purpose::kAside, spec_.seed, place.lap.number, place.lap.offset));
  place_ = place;
  empty_ = 0;
  found_.reset();
}

// With no more places than items, each place of the window has a turn, and the job takes another item where it doesn't
// read that one; with more, each item of the job in the window has one.
void Stream::Begin(const Lap& lap, uint64_t epoch) {
  StreamPlace place{.lap = lap, .epoch = epoch};
  if (lap.window >= spec_.dataset.size()) place.lap.window = 0;
  GoTo(place);
  place_.turns = place_.lap.window <= size_ ? place_.lap.window : CountInWindow(place_.lap);
}

uint64_t Stream::CountInWindow(const Lap& lap) const {
  if (!spec_.items) return lap.window;
  uint64_t count = 0;
  for (uint64_t i = 0; i < lap.window; ++i)
    count += Reads(spec_.dataset.At(order_.At((lap.offset + i) % spec_.dataset.size()))) ? 1 : 0;
  return count;
}

uint64_t Stream::IdAt(uint64_t place) const {
  uint64_t at = place_.lap.offset + place;
  if (at >= spec_.dataset.size()) at -= spec_.dataset.size();
  return spec_.dataset.At(order_.At(at));
}

uint64_t Stream::WalkLap() { return IdAt(place_.walked++); }

uint64_t Stream::WalkAside() {
  for (;;) {
    const uint64_t index = aside_.At(place_.aside++), id = spec_.dataset.At(index);
    if (Reads(id) && PlaceInLap(index) >= place_.lap.window) return id;
  }
}

// Counted from where the job began.
uint64_t Stream::PlaceInLap(uint64_t index) const {
  const uint64_t at = order_.IndexOf(index), offset = place_.lap.offset;
  return at >= offset ? at - offset : at + spec_.dataset.size() - offset;
}

// Turns are spread over the epoch by chance.
bool Stream::IsLapsTurn() const {
  if (place_.lap.window == 0 || place_.turns == left()) return true;
  if (place_.turns == 0) return false;
  Rng rng(KeyOf(Purpose::kTurn, spec_.seed, place_.lap.number, place_.lap.offset, place_.taken));
  return rng.Below(left()) < place_.turns;
}

// Of a window, nothing can be done before: data sets of jobs that have one are small.
bool Stream::Find(uint64_t& work) {
  if (found_) return true;
  if (work == 0) return false;
  if (place_.lap.window != 0) {
    work -= std::min(work, spec_.dataset.size() / size_ + 1);
    return true;
  }
  if (nearest_) {
    const auto place_of = [this](uint64_t item) { return PlaceInLap(*spec_.dataset.IndexOf(spec_.items->At(item))); };
    const auto place = nearest_->Find(place_.lap, place_.walked, place_of, work);
    if (!place) return false;
    empty_ = *place - place_.walked;
  }
  for (; work > 0 && !found_; --work) {
    const uint64_t id = IdAt(place_.walked + empty_);
    if (Reads(id)) {
      found_ = id;
    } else {
      ++empty_;
    }
  }
  return found_.has_value();
}

uint64_t Stream::Next() {
  LS_CHECK(left() > 0);
  const bool laps_turn = IsLapsTurn();
  uint64_t id = 0;
  if (!laps_turn) {
    id = WalkAside();
  } else if (place_.lap.window == 0) {
    uint64_t work = UINT64_MAX;
    LS_CHECK(Find(work));
    place_.walked += std::exchange(empty_, 0) + 1;
    id = *std::exchange(found_, std::nullopt);
  } else if (place_.lap.window > size_) {
    do id = WalkLap();
    while (!Reads(id));
  } else {
    id = WalkLap();
    if (!Reads(id)) id = WalkAside();
  }
  if (laps_turn && place_.turns > 0) --place_.turns;
  ++place_.taken;
  return id;
}

void Stream::Skip(uint64_t count) {
  LS_CHECK(left() >= count, "{} of {}", count, left());
  if (!SkipsAtOnce()) {
    for (uint64_t i = 0; i < count; ++i) Next();
    return;
  }
  place_.walked += count;
  place_.taken += count;
  found_.reset();
}

std::optional<uint64_t> Stream::Ahead(uint64_t id) const {
  const auto index = spec_.dataset.IndexOf(id);
  if (!index || !Reads(id)) return std::nullopt;
  __extension__ using Wide = unsigned __int128;
  const uint64_t universe = spec_.dataset.size(), window = place_.lap.window;
  uint64_t at = PlaceInLap(*index), behind = place_.walked, places = window == 0 ? universe : window;
  if (at >= places) {
    at = aside_.IndexOf(*index);
    behind = place_.aside;
    places = universe;
  }
  if (at < behind) return std::nullopt;
  return static_cast<uint64_t>(static_cast<Wide>(at - behind) * left() / (places - behind));
}

uint64_t Stream::Identity() const {
  return Hash(spec_.seed, HashOf(spec_.dataset), spec_.items ? HashOf(*spec_.items) : HashOf(spec_.dataset));
}

std::string Stream::SaveAt(const StreamPlace& place) const {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", kMark, Identity(), place.epoch, place.lap.number,
                     place.lap.offset, place.lap.window, place.taken, place.walked, place.aside, place.turns,
                     Checksum(place));
}

absl::Status Stream::Load(std::string_view state) {
  if (Word(state) != kMark) return InvalidArgument("state of a stream: it does not begin with \"{}\"", kMark);
  StreamPlace place;
  uint64_t identity = 0, checksum = 0;
  for (const auto& [name, value] : {std::pair("identity", &identity),
                                    {"epoch", &place.epoch},
                                    {"lap", &place.lap.number},
                                    {"offset", &place.lap.offset},
                                    {"window", &place.lap.window},
                                    {"items taken", &place.taken},
                                    {"places walked", &place.walked},
                                    {"places aside", &place.aside},
                                    {"turns", &place.turns},
                                    {"checksum", &checksum}}) {
    LS_ASSIGN_OR_RETURN(*value, Number(state, name));
  }
  if (!Word(state).empty()) return InvalidArgument("state of a stream: more than expected behind it");
  if (identity != Identity())
    return FailedPrecondition("state of a stream: of another seed, data set or set of items than this job's");
  if (checksum != Checksum(place)) return InvalidArgument("state of a stream: damaged, its checksum is another");
  GoTo(place);
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
