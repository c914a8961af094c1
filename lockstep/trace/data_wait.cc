#include "lockstep/trace/data_wait.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace lockstep::trace {
namespace {

constexpr double kWorthAWord = 0.05, kAlone = 0.9;  // of what was waited

std::string_view NameIn(const ls_data_body& body) {
  return {body.data_set, strnlen(body.data_set, sizeof body.data_set)};
}

DataParts PartsOf(const ls_record& record) {
  const ls_data_body& body = record.body.data;
  const auto ns = [&](uint32_t delta) { return ls_delta_ns(delta, record.delta_shift); };
  return {ns(body.gone), ns(body.behind), ns(body.read), ns(body.decode), ns(body.own)};
}

// Both as one, which ends with the later one.
ls_record Summed(const ls_record& earlier, const ls_record& later) {
  ls_record sum = later;
  DataParts parts = PartsOf(earlier);
  const DataParts own = PartsOf(later);
  const auto before = static_cast<double>(parts.waited_ns()), after = static_cast<double>(own.waited_ns());
  parts.Add(own);
  ls_data_set_parts(&sum, {parts.gone_ns, parts.behind_ns, parts.read_ns, parts.decode_ns, parts.own_ns});
  sum.body.data.threads = std::max(earlier.body.data.threads, later.body.data.threads);
  sum.body.data.relayed = std::max(earlier.body.data.relayed, later.body.data.relayed);
  sum.body.data.waits = earlier.body.data.waits + later.body.data.waits;
  if (before + after > 0)
    sum.body.data.busy = static_cast<uint8_t>(
        std::lround((before * earlier.body.data.busy + after * later.body.data.busy) / (before + after)));
  return sum;
}

}  // namespace

void DataParts::Add(const DataParts& more) {
  gone_ns += more.gone_ns;
  behind_ns += more.behind_ns;
  read_ns += more.read_ns;
  decode_ns += more.decode_ns;
  own_ns += more.own_ns;
}

DataWait ToDataWait(const ls_record& record) {
  const ls_data_body& body = record.body.data;
  DataWait wait;
  wait.rank = static_cast<int>(body.rank & INT32_MAX);
  wait.data_set = NameIn(body);
  wait.end_ns = wait.boot_end_ns = record.time_ns;
  wait.waits = body.waits;
  wait.parts = PartsOf(record);
  wait.threads = body.threads;
  wait.busy = std::min<double>(100, body.busy) / 100;
  wait.relayed = body.relayed != 0;
  return wait;
}

void DataSources::Add(const DataWait& wait, double share) {
  const auto part = [&](int64_t ns) { return static_cast<int64_t>(static_cast<double>(ns) * share); };
  const DataParts parts{part(wait.parts.gone_ns), part(wait.parts.behind_ns), part(wait.parts.read_ns),
                        part(wait.parts.decode_ns), part(wait.parts.own_ns)};
  OfSet& of_set = by_set_[wait.data_set];
  of_set.parts.Add(parts);
  of_set.busy_ns += wait.busy * static_cast<double>(parts.waited_ns());
  of_set.threads = std::max(of_set.threads, wait.threads);
  of_set.relayed = of_set.relayed || wait.relayed;
  waited_ns_ += parts.sum_ns();
}

std::string DataSources::Text() const {
  const auto longest = std::max_element(by_set_.begin(), by_set_.end(), [](const auto& a, const auto& b) {
    return a.second.parts.sum_ns() < b.second.parts.sum_ns();
  });
  if (longest == by_set_.end()) return "no data set";
  const auto& [name, of_set] = *longest;
  const DataParts& parts = of_set.parts;
  std::array<std::pair<int64_t, std::string_view>, 5> order = {
      {{parts.decode_ns, "decoding"},
       {parts.read_ns, of_set.relayed ? "reading there, or the way from that machine" : "reading from storage"},
       {parts.own_ns, "the script's own functions"},
       {parts.behind_ns, "the service was busy with other batches"},
       {parts.gone_ns, "there was no service"}}};
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string sources;
  for (const auto& [ns, what] : order) {
    const double share = parts.sum_ns() == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(parts.sum_ns());
    if (share < kWorthAWord && !sources.empty()) break;
    sources += sources.empty() ? std::string(what) : fmt::format(", {}", what);
    if (share >= kAlone) break;
    sources += fmt::format(" {:.0f} %", 100 * share);
  }
  const auto waited = static_cast<double>(parts.waited_ns());
  const double busy = waited == 0 ? 0 : of_set.busy_ns / waited;
  return fmt::format(
      "data set {}: {}{}", name, sources,
      of_set.threads == 0 || waited == 0
          ? ""
          : fmt::format(" ({:.0f} of {} threads busy)", busy * static_cast<double>(of_set.threads), of_set.threads));
}

void SumWaits(std::vector<ls_record>& records, size_t most) {
  if (most == 0 || records.size() <= most) return;
  const size_t together = (records.size() + most - 1) / most;
  std::vector<ls_record> sums;
  size_t summed = 0;
  for (const ls_record& record : records) {
    const bool goes_on =
        !sums.empty() && summed < together && NameIn(sums.back().body.data) == NameIn(record.body.data);
    if (!goes_on) {
      sums.push_back(record);
      summed = 1;
      continue;
    }
    sums.back() = Summed(sums.back(), record);
    ++summed;
  }
  records = std::move(sums);
}

}  // namespace lockstep::trace
