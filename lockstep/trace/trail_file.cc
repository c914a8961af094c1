#include "lockstep/trace/trail_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/median.h"
#include "lockstep/trace/byte_source.h"
#include "lockstep/trace/data_wait.h"

namespace lockstep::trace {
namespace {

// As in /proc/PID/stat; 0: there is none.
char StateOf(pid_t pid) {
  const absl::StatusOr<std::string> stat = ReadFile(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = stat.ok() ? stat->rfind(") ") : std::string::npos;
  return name_end == std::string::npos || name_end + 2 >= stat->size() ? '\0' : (*stat)[name_end + 2];
}

}  // namespace

absl::StatusOr<TrailFile> TrailFile::Open(const std::string& path) {
  LS_RETURN_IF_ERROR(RefusePipe(path));
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (!file.valid() || fstat(file.get(), &info) != 0) return InvalidArgument("{}: {}", path, strerror(errno));
  const auto bytes = static_cast<size_t>(info.st_size);
  TrailFile opened;
  void* memory = bytes == 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory != MAP_FAILED) {
    opened.memory_ = std::unique_ptr<void, Unmap>(memory, {bytes});
    opened.trail_ = ls_trail_attach(memory, bytes);
  }
  if (opened.trail_ == nullptr)
    return InvalidArgument("{}: no trail of this version, or one cut short ({} bytes)", path, bytes);
  return opened;
}

void TrailFile::Unmap::operator()(void* memory) const { munmap(memory, bytes); }

bool TrailFile::IsElsewhere() const {
  std::array<char, sizeof trail_->origin.host> here{};
  gethostname(here.data(), here.size() - 1);
  return strncmp(trail_->origin.host, here.data(), here.size()) != 0;
}

TrailFile::State TrailFile::ProcessState() const {
  const auto pid = static_cast<pid_t>(trail_->origin.pid);
  if (pid <= 0 || IsElsewhere() || (kill(pid, 0) != 0 && errno != EPERM)) return State::kGone;
  const char state = StateOf(pid);
  if (state == 'Z' || state == 'X') return State::kGone;  // ended, and nobody has asked how
  return state == 'T' ? State::kStopped : State::kRuns;
}

std::pair<uint32_t, std::string> TrailSnapshot::owner() const {
  return {origin.rank, {origin.source, strnlen(origin.source, sizeof origin.source)}};
}

std::string TrailSnapshot::host() const { return {origin.host, strnlen(origin.host, sizeof origin.host)}; }

TrailSnapshot TakeSnapshot(const TrailFile& file, uint64_t* at) {
  const ls_trail& trail = *file;
  TrailSnapshot snapshot;
  snapshot.origin = trail.origin;
  snapshot.wall_minus_boot_ns = trail.wall_minus_boot_ns;
  snapshot.under_way.resize(LS_TRAIL_PLACES);
  snapshot.under_way.resize(ls_trail_under_way(&trail, snapshot.under_way.data()));
  std::array<ls_record, 256> batch;
  uint64_t begin = 0;
  if (at == nullptr) at = &begin;
  while (const size_t count = ls_trail_read(&trail, at, &snapshot.missed, batch.data(), batch.size()))
    snapshot.ended.insert(snapshot.ended.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(count));
  // After the records, which speak of communicators that are there.
  for (const ls_communicator& one : trail.communicator) {
    if (__atomic_load_n(&one.key, __ATOMIC_ACQUIRE) == 0) break;
    snapshot.communicators.push_back(one);
  }
  snapshot.no_place = trail.no_place;
  snapshot.no_communicator = trail.no_communicator;
  snapshot.no_peer = trail.no_peer;
  snapshot.no_cell = trail.no_cell;
  snapshot.no_op = trail.no_op;
  snapshot.libraries = trail.libraries;
  const TrailFile::State state = file.ProcessState();
  snapshot.alive = state != TrailFile::State::kGone;
  snapshot.stopped = state == TrailFile::State::kStopped;
  snapshot.elsewhere = file.IsElsewhere();
  snapshot.taken_ns = SystemClock().Now().value;
  return snapshot;
}

namespace {

// Of a message: of a receive always, of a send what the wire took.
bool TellsOfWay(const ls_transfer_body& transfer) {
  return transfer.direction == LS_RECEIVE || transfer.credit != LS_UNKNOWN;
}

// A send or receive outside of collectives that tells how long it took.
bool TellsAlone(const ls_record& record) {
  if (record.kind == LS_RECORD_OP) return record.body.op.number == 0 && record.body.op.alone != LS_UNKNOWN;
  const ls_transfer_body& transfer = record.body.transfer;
  return record.kind == LS_RECORD_TRANSFER && transfer.number == 0 && transfer.direction == LS_SEND &&
         TellsOfWay(transfer);
}

// The finalizer of MurmurHash3: of numbers in a row, its lowest bits look drawn by lot.
uint64_t Mixed(uint64_t number) {
  number = (number ^ number >> 33) * 0xff51afd7ed558ccdULL;
  number = (number ^ number >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return number ^ number >> 33;
}

// What comes up this rarely is not judged by fewer (detect/comm_thresholds.h, window_ops / 3), and ranks tell at
// different moments: twice as many.
constexpr size_t kOfWay = 8, kOfEach = 2 * kOfWay;
constexpr Seconds kRareFor{600};

// By communicator: of how many collectives one is told, so that no more than `most` are in all. Who still has most of
// them goes on with half, so who has few leaves room for the others.
std::vector<uint32_t> ToldOneOf(std::vector<size_t> counts, size_t most) {
  std::vector<uint32_t> told(counts.size(), 1);
  while (std::accumulate(counts.begin(), counts.end(), size_t{0}) > most) {
    const auto largest = std::ranges::max_element(counts);
    if (*largest <= 1) break;
    *largest = (*largest + 1) / 2;
    told[static_cast<size_t>(largest - counts.begin())] *= 2;
  }
  return told;
}

bool IsCollective(const ls_record& record) { return record.kind == LS_RECORD_OP && record.body.op.number != 0; }

// By communicator: `since_ns`, or longer ago where fewer than kOfEach of its collectives ended since then.
std::vector<int64_t> SinceOfEach(const TrailSnapshot& snapshot, int64_t since_ns, int64_t oldest_ns) {
  std::vector<std::vector<int64_t>> ended(snapshot.communicators.size());
  for (const ls_record& record : snapshot.ended)
    if (IsCollective(record) && record.body.op.communicator < ended.size() && record.time_ns >= oldest_ns)
      ended[record.body.op.communicator].push_back(record.time_ns);
  std::vector<int64_t> since;
  since.reserve(ended.size());
  for (std::vector<int64_t>& times : ended) {
    if (times.size() > kOfEach) std::ranges::nth_element(times, times.begin() + kOfEach - 1, std::greater());
    since.push_back(std::min(since_ns, times.size() > kOfEach ? times[kOfEach - 1] : oldest_ns));
  }
  return since;
}

int64_t AloneNs(const ls_record& op) {
  return op.body.op.alone == LS_UNKNOWN ? 0 : ls_delta_ns(op.body.op.alone, op.delta_shift);
}

// Half as long as the stretches in which, and in longer ones, half of the time goes by that the rank is by itself: so
// ranks that differ agree on which those are. 0: they are no rarity.
int64_t LongAloneNs(const std::vector<const ls_record*>& collectives) {
  std::vector<int64_t> alone;
  alone.reserve(collectives.size());
  for (const ls_record* record : collectives) alone.push_back(AloneNs(*record));
  const int64_t middle = MiddleOfSum(alone);
  if (middle == 0) return 0;
  const int64_t long_ns = std::max<int64_t>(middle / 2, 1);
  const auto longs = std::ranges::count_if(alone, [&](int64_t ns) { return ns >= long_ns; });
  return 4 * static_cast<size_t>(longs) <= alone.size() ? long_ns : 0;
}

// Of sends, or receives, outside of collectives: communicator, peer, and which of the two.
using LoneWay = std::tuple<uint32_t, int32_t, uint8_t>;
LoneWay LoneWayOf(const ls_record& record) {
  const ls_op_body& op = record.body.op;
  const ls_transfer_body& transfer = record.body.transfer;
  return record.kind == LS_RECORD_OP ? LoneWay{op.communicator, op.peer, op.function}
                                     : LoneWay{transfer.communicator, transfer.peer, transfer.direction};
}

// By how many there are more of each than shall be told: the same of each, a fourth of `most` in all, or what is enough
// to judge a way by where that is no more than `most`.
std::map<LoneWay, size_t> TooManyOf(const TrailSnapshot& snapshot, int64_t oldest_ns, size_t most) {
  std::map<LoneWay, size_t> counts;
  for (const ls_record& record : snapshot.ended)
    if (TellsAlone(record) && record.time_ns >= oldest_ns) ++counts[LoneWayOf(record)];
  const size_t ways = std::max<size_t>(counts.size(), 1);
  const size_t of_each = std::max({most / 4 / ways, std::min(kOfWay, most / ways), size_t{1}});
  for (auto& [way, count] : counts) count -= std::min(count, of_each);
  return counts;
}

}  // namespace

bool IsPicked(const ls_record& collective, uint32_t one_of) {
  const ls_op_body& op = collective.body.op;
  uint64_t number = op.tag != LS_NO_TAG ? op.tag : op.number;
  // Of two that one of so many would pick, one; of the next two the other, so that of what alternates half is seen.
  for (uint64_t half = 1; half < one_of; half *= 2, number /= 2)
    if ((number ^ number / 2 ^ Mixed(half << 32 | number / 4)) % 2 != 0) return false;
  return true;
}

bool TrailSnapshot::IsLong(const ls_record& op) const { return long_ns > 0 && AloneNs(op) >= long_ns; }

void Thin(TrailSnapshot& snapshot, int64_t since_ns, size_t most) {
  const int64_t oldest_ns = since_ns - ToNanos(kRareFor).value;
  const std::vector<int64_t> since = SinceOfEach(snapshot, since_ns, oldest_ns);
  std::vector<const ls_record*> wanted;
  for (const ls_record& record : snapshot.ended)
    if (IsCollective(record) && record.body.op.communicator < since.size() &&
        record.time_ns >= since[record.body.op.communicator])
      wanted.push_back(&record);
  snapshot.long_ns = LongAloneNs(wanted);
  std::vector<size_t> counts(since.size()), long_counts(since.size());
  for (const ls_record* record : wanted)
    ++(snapshot.IsLong(*record) ? long_counts : counts)[record->body.op.communicator];
  snapshot.long_told_one_of.clear();
  if (snapshot.long_ns > 0) snapshot.long_told_one_of = ToldOneOf(long_counts, std::max<size_t>(1, most / 2));
  const size_t longs = std::accumulate(long_counts.begin(), long_counts.end(), size_t{0});
  snapshot.told_one_of = ToldOneOf(counts, most - std::min(longs, most / 2));
  for (size_t i = 0; i < snapshot.long_told_one_of.size(); ++i)
    snapshot.long_told_one_of[i] = std::min(snapshot.long_told_one_of[i], snapshot.told_one_of[i]);
  std::vector<ls_record> waits;
  std::ranges::copy_if(snapshot.ended, std::back_inserter(waits), [&](const ls_record& record) {
    return record.kind == LS_RECORD_DATA && record.time_ns >= since_ns;
  });
  SumWaits(waits, std::max<size_t>(most / 4, 1));
  std::set<std::pair<uint32_t, uint32_t>> kept;  // communicator and number
  for (const ls_record* record : wanted) {
    const ls_op_body& op = record->body.op;
    if (IsPicked(*record, snapshot.told_one_of[op.communicator]) ||
        (snapshot.IsLong(*record) && IsPicked(*record, snapshot.long_told_one_of[op.communicator])))
      kept.emplace(op.communicator, op.number);
  }
  std::map<LoneWay, size_t> too_many = TooManyOf(snapshot, oldest_ns, most);
  std::erase_if(snapshot.ended, [&](const ls_record& record) {
    const ls_op_body& op = record.body.op;
    const ls_transfer_body& transfer = record.body.transfer;
    if (TellsAlone(record)) {
      if (record.time_ns < oldest_ns) return true;
      size_t& more = too_many[LoneWayOf(record)];
      return more != 0 && more-- != 0;
    }
    if (record.kind == LS_RECORD_OP) return !kept.contains({op.communicator, op.number});
    return record.kind != LS_RECORD_TRANSFER || !TellsOfWay(transfer) ||
           !kept.contains({transfer.communicator, transfer.number});
  });
  snapshot.ended.insert(snapshot.ended.end(), waits.begin(), waits.end());
}

void DropTwice(std::vector<ls_record>& records) {
  std::unordered_set<std::string_view> seen;
  seen.reserve(records.size());
  std::vector<ls_record> kept;
  kept.reserve(records.size());  // so that views into it hold
  for (const ls_record& record : records) {
    kept.push_back(record);
    if (!seen.emplace(reinterpret_cast<const char*>(&kept.back()), sizeof record).second) kept.pop_back();
  }
  records = std::move(kept);
}

}  // namespace lockstep::trace
