#include "lockstep/top/feed_frame.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/term/lines.h"
#include "lockstep/term/text.h"

namespace lockstep::top {
namespace {

using term::Number;
using term::Word;

constexpr int kStrip = 20;  // columns
constexpr double kGb = 1e9, kMb = 1e6;

const Json& Part(const Json& document, const char* key) {
  static const Json kNone = Json::object();
  const auto found = document.find(key);
  return document.is_object() && found != document.end() && found->is_object() ? *found : kNone;
}

double Count(const Json& object, const char* key) {
  const double value = Number(object, key);
  return value - value == 0 ? value : 0;
}

std::string BytesText(double bytes) {
  return bytes >= kGb ? fmt::format("{:.1f} GB", bytes / kGb) : fmt::format("{:.0f} MB", bytes / kMb);
}

std::string CleanWord(const Json& object, const char* key) { return term::Clean(Word(object, key)); }

class Painter {
 public:
  Painter(const FeedSeen& seen, Size size) : seen_(seen), size_(size) {}

  std::vector<std::string> Make() {
    AddHead();
    AddSharing();
    AddTime();
    AddCache();
    AddRanks();
    lines_.resize(std::max<size_t>(size_.rows, 1) - 1);
    lines_.push_back(seen_.trouble.empty() ? std::string(term::kDim) + "q quit" + term::kPlain
                                           : term::kRed + term::Clean(seen_.trouble) + term::kPlain);
    for (std::string& line : lines_) line = term::Fit(line, size_.columns);
    return std::move(lines_);
  }

 private:
  template <typename... Values>
  void Add(fmt::format_string<Values...> format, Values&&... values) {
    lines_.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  // What came since the document before, a second.
  double Rate(const char* part, const char* key) const {
    const bool since_begin = seen_.before.is_null() || seen_.apart_s <= 0;
    const double seconds = since_begin ? Count(seen_.now, "up_s") : seen_.apart_s;
    const double before = since_begin ? 0 : Count(Part(seen_.before, part), key);
    return seconds <= 0 ? 0 : std::max(0.0, Count(Part(seen_.now, part), key) - before) / seconds;
  }

  void AddHead() {
    Add("{}{}{}  {:.0f} items of {}  up {:.0f} s  pid {:.0f}", term::kBold, CleanWord(seen_.now, "data_set"),
        term::kPlain, Count(seen_.now, "items"), CleanWord(seen_.now, "path"), Count(seen_.now, "up_s"),
        Count(seen_.now, "pid"));
  }

  void AddSharing() {
    const double delivered = Rate("sharing", "deliveries"), prepared = Rate("sharing", "preparations");
    Add("{:.0f} items/s delivered, {:.0f} prepared{}; {} read", delivered, prepared,
        prepared > 0 ? fmt::format(": each serves {:.2f}", delivered / prepared) : "",
        BytesText(Rate("time", "read_bytes")) + "/s");
    if (const double corrupt = Count(seen_.now, "corrupt_items"); corrupt > 0)
      Add("{}{:.0f} items could not be prepared{}: see `lockstep feed status`", term::kRed, corrupt, term::kPlain);
  }

  // Of the threads' time.
  void AddTime() {
    const double threads = Count(Part(seen_.now, "time"), "threads");
    constexpr std::array<std::pair<const char*, const char*>, 4> kWhat = {
        {{"read_s", "read"}, {"decode_s", "decode"}, {"cut_s", "resize"}, {"idle_s", "idle"}}};
    double known = 0;
    for (const auto& [key, what] : kWhat) {
      const double share = threads > 0 ? std::min(1.0, Rate("time", key) / threads) : 0;
      known += share;
      AddShare(what, share);
    }
    AddShare("other", std::max(0.0, 1 - known));
    lines_.back() += fmt::format("   of {:.0f} threads", threads);
  }
  void AddShare(const char* what, double share) {
    Add("  {:<8}{:>4.0f} % {}", what, 100 * share, term::Strip(share, 1, kStrip));
  }

  void AddCache() {
    const Json& cache = Part(seen_.now, "cache");
    Add("memory  {} of {}, {} at most", BytesText(Count(cache, "used_bytes")), BytesText(Count(cache, "budget_bytes")),
        BytesText(Count(cache, "peak_bytes")));
    const Json& now = seen_.now;
    const auto forms = now.find("forms");
    if (!now.is_object() || forms == now.end() || !forms->is_array()) return;
    for (const Json& form : *forms)
      Add("  {:<10}{:>9.0f} items {:>10}  {:.0f} hits, {:.0f} evicted", Word(form, "form"), Count(form, "items"),
          BytesText(Count(form, "bytes")), Count(form, "hits"), Count(form, "evictions"));
  }

  void AddRanks() {
    std::vector<Json> ranks =
        seen_.now.is_object() ? seen_.now.value("jobs", std::vector<Json>()) : std::vector<Json>();
    std::ranges::stable_sort(ranks, {}, [](const Json& rank) { return !Waits(rank); });
    Add("{}{:<20}{:>10}{:>7}{:>9}{:>10}{:>7}  {}{}", term::kDim, "JOB", "RANK", "EPOCH", "DONE", "BATCHES/S", "AHEAD",
        "WAITS", term::kPlain);
    if (ranks.empty()) Add("no jobs");
    const size_t room = size_.rows > lines_.size() + 1 ? size_.rows - lines_.size() - 1 : 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (i + 1 == room && ranks.size() > room) return Add("... and {} ranks more", ranks.size() - i);
      AddRank(ranks[i]);
    }
  }
  static bool Waits(const Json& rank) { return Word(rank, "waits") == "for the service"; }

  // In its column.
  static std::string Name(const Json& rank) { return term::Colourless(term::Fit(CleanWord(rank, "job"), 19)); }

  void AddRank(const Json& rank) {
    const double items = Count(rank, "items");
    const std::string place = fmt::format("{:.0f}/{:.0f}", Count(rank, "rank"), Count(rank, "world"));
    const std::string ahead = fmt::format("{:.0f}/{:.0f}", Count(rank, "held"), Count(rank, "slots"));
    const char* colour = Waits(rank) ? term::kYellow : term::kPlain;
    Add("{:<20}{:>10}{:>7.0f}{:>7.1f} %{:>10}{:>7}  {}{}{}", Name(rank), place, Count(rank, "epoch"),
        items > 0 ? 100 * Count(rank, "taken") / items : 0.0, BatchesText(rank), ahead, colour, Word(rank, "waits"),
        term::kPlain);
  }

  // A second, since the document before; "-": it had not joined by then.
  std::string BatchesText(const Json& rank) const {
    if (!seen_.before.is_object() || seen_.apart_s <= 0) return "-";
    for (const Json& one : seen_.before.value("jobs", Json::array()))
      if (Word(one, "job") == Word(rank, "job") && Count(one, "rank") == Count(rank, "rank") &&
          Count(one, "pid") == Count(rank, "pid"))
        return fmt::format("{:.1f}", std::max(0.0, Count(rank, "batches") - Count(one, "batches")) / seen_.apart_s);
    return "-";
  }

  const FeedSeen& seen_;
  const Size size_;
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> MakeFeedFrame(const FeedSeen& seen, Size size) { return Painter(seen, size).Make(); }

}  // namespace lockstep::top
