#include "lockstep/trace/fit_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

constexpr double kLeftOfStarts = 0.5;  // of the distance as numbered, where renumbered
constexpr double kClearly = 0.1;       // of what another answer leaves, where one is told
constexpr double kSame = 1e-5;         // s: a group's ends come together no closer
constexpr double kRounding = 2 * double{std::numeric_limits<float>::epsilon()};
constexpr size_t kMostFits = 1 << 18;  // rows times answers or what they cost to find: a few ms
constexpr size_t kBand = 512;          // ops that a row may be of, around the one that is nearest in time
constexpr size_t kTellIntervals = 3;   // rows: fewer agree with any answer by chance

struct Placed {
  Numbers numbers;
  double distance = 0;  // summed up, s
};

// Of each row by how many ops at least its number is off: not far from the op that is nearest in time.
std::vector<size_t> Bands(const std::vector<float>& own, const std::vector<float>& expected, double later,
                          size_t wide) {
  std::vector<double> until(expected.begin(), expected.end());  // ascending
  for (size_t op = 1; op < until.size(); ++op) until[op] = std::max(until[op - 1], until[op]);
  const size_t last = expected.size() - own.size() + 1 - wide;
  std::vector<size_t> bands(own.size());
  for (size_t row = 0; row < own.size(); ++row) {
    const auto op = static_cast<size_t>(std::ranges::lower_bound(until, double{own[row]} - later) - until.begin());
    const size_t begin = std::min(last, op > row + wide / 2 ? op - row - wide / 2 : 0);
    bands[row] = std::max(begin, row == 0 ? 0 : bands[row - 1]);
  }
  return bands;
}

// The ascending ops, so that the distances sum up to the least. `later` is taken off the own moments.
Placed Place(const std::vector<float>& own, const std::vector<float>& expected, double later) {
  const size_t wide = std::min(kBand, expected.size() - own.size() + 1);
  const std::vector<size_t> bands = Bands(own, expected, later, wide);
  std::vector<double> least(wide, 0), now(wide);    // [off - the row's band]: of the rows so far
  std::vector<uint16_t> before(own.size() * wide);  // [row][off - band]: the same of the row before
  for (size_t row = 0; row < own.size(); ++row) {
    const size_t band = bands[row], last_band = row == 0 ? band : bands[row - 1];
    size_t next = 0, best = 0;  // of the row before, in its band
    for (size_t i = 0; i < wide; ++i) {
      for (; next < wide && last_band + next <= band + i; ++next)
        if (least[next] < least[best]) best = next;
      before[row * wide + i] = static_cast<uint16_t>(best);
      now[i] = least[best] + std::abs(double{own[row]} - later - double{expected[row + band + i]});
    }
    std::swap(least, now);
  }
  size_t off = static_cast<size_t>(std::ranges::min_element(least) - least.begin()) + bands.back();
  Placed placed{Numbers(own.size()), least[off - bands.back()]};
  for (size_t row = own.size(); row-- > 0;) {
    placed.numbers[row] = static_cast<uint32_t>(row + off);
    if (row > 0) off = bands[row - 1] + before[row * wide + (off - bands[row])];
  }
  return placed;
}

Numbers InARow(size_t rows, uint32_t first) {
  Numbers numbers(rows);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Of ends, as certain ops', by the clock that fits them best.
struct Answer {
  Numbers numbers;
  double later = 0;  // s
};

class Answers {
 public:
  Answers(const std::vector<float>& own, const std::vector<float>& group, Later told)
      : own_(own), group_(group), told_(told), floor_(kSame + kRounding * std::abs(double{group.back()})) {}

  NumberedByEnds Best() {
    Collect(Fit((double{told_.least} + double{told_.most}) / 2));
    const Answer* best = &all_.front();
    for (const Answer& one : all_)
      if (IsClearer(one, *best)) best = &one;
    std::vector<bool> doubtful(own_.size());
    NumberedByEnds done{InARow(own_.size(), 0), {}, {static_cast<float>(best->later), static_cast<float>(best->later)}};
    for (const Answer& one : all_) {
      if (one.numbers == best->numbers || IsClearer(*best, one)) continue;
      done.clock.least = std::min(done.clock.least, static_cast<float>(one.later));
      done.clock.most = std::max(done.clock.most, static_cast<float>(one.later));
      for (uint32_t row = 0; row < own_.size(); ++row)
        if (one.numbers[row] != row || best->numbers[row] != row) doubtful[row] = true;
    }
    for (uint32_t row = 0; row < own_.size(); ++row)
      if (doubtful[row]) done.doubtful.push_back(row);
    if (!done.doubtful.empty()) return done;
    // By its clock some rows may be of ops behind others than by the one that was told.
    Answer refined = Fit(best->later);
    done.numbers = IsClearer(refined, *best) ? std::move(refined.numbers) : best->numbers;
    return done;
  }

 private:
  double LaterOf(const Answer& answer, size_t row) const {
    return double{own_[row]} - double{group_[answer.numbers[row]]};
  }

  Answer Of(Numbers numbers) const {
    Answer answer{std::move(numbers)};
    std::vector<double> later(own_.size());
    for (size_t row = 0; row < later.size(); ++row) later[row] = LaterOf(answer, row);
    answer.later = LowerMedian(std::move(later));
    return answer;
  }

  // The ops and the clock that fit each other, from near that clock on.
  Answer Fit(double clock) const {
    const Answer first = Of(Place(own_, group_, clock).numbers);
    return Of(Place(own_, group_, first.later).numbers);
  }

  // A clock that is off by some of them makes other ops of all rows (of many rows the nearest ones); and as they are
  // numbered.
  void Collect(const Answer& fitted) {
    const uint32_t first = fitted.numbers.front(), wide = fitted.numbers.back() - first;
    const auto reach = static_cast<uint32_t>(std::max<size_t>(kMostFits / own_.size(), 1));
    for (uint32_t begin = first - std::min(first, reach); begin <= first + reach && begin + wide < group_.size();
         ++begin) {
      Numbers shifted = fitted.numbers;
      for (uint32_t& number : shifted) number = number - first + begin;
      all_.push_back(Of(std::move(shifted)));
    }
    all_.push_back(Of(InARow(own_.size(), 0)));
    // Intervals tell a clock that is far from what is told.
    const size_t shifts = group_.size() - own_.size() + 1;
    if (own_.size() < kTellIntervals || own_.size() * shifts * shifts > kMostFits) return;
    for (uint32_t shift = 0; shift < shifts; ++shift) all_.push_back(Fit(Of(InARow(own_.size(), shift)).later));
  }

  // s: what the rows of which two answers differ are off by one of them, in the mean.
  double Apart(const Answer& one, const Answer& other) const {
    double apart = 0;
    size_t rows = 0;
    for (size_t row = 0; row < own_.size(); ++row) {
      if (one.numbers[row] == other.numbers[row]) continue;
      apart += std::abs(LaterOf(one, row) - one.later);
      ++rows;
    }
    return floor_ + apart / static_cast<double>(std::max<size_t>(rows, 1));
  }

  double OffTold(const Answer& one) const {
    return std::max({double{told_.least} - one.later, one.later - double{told_.most}, 0.0});
  }

  // By the intervals between ends, else by the clock.
  bool IsClearer(const Answer& one, const Answer& other) const {
    const double apart = Apart(one, other), its = Apart(other, one);
    if (own_.size() >= kTellIntervals && std::min(apart, its) <= kClearly * std::max(apart, its)) return apart < its;
    return apart + OffTold(one) + double{told_.unsure} <= kClearly * (its + OffTold(other));
  }

  const std::vector<float>& own_;
  const std::vector<float>& group_;
  const Later told_;
  const double floor_;
  std::vector<Answer> all_;
};

}  // namespace

std::optional<Numbers> NumbersByStarts(const std::vector<float>& own, const std::vector<float>& expected) {
  double as_numbered = 0;
  for (size_t row = 0; row < own.size(); ++row) as_numbered += std::abs(double{own[row]} - double{expected[row]});
  Placed placed = Place(own, expected, 0);
  if (placed.distance > kLeftOfStarts * as_numbered) return std::nullopt;
  return std::move(placed.numbers);
}

NumberedByEnds NumbersByEnds(const std::vector<float>& own, const std::vector<float>& group, Later told) {
  return Answers(own, group, told).Best();
}

}  // namespace lockstep::trace
