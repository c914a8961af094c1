#include "lockstep/probe/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "lockstep/client/copy.h"
#include "lockstep/probe/cores.h"
#include "lockstep/probe/pattern.h"

namespace lockstep::probe {
namespace {

constexpr uint64_t kLeast = 16 << 20, kMost = 256 << 20;
constexpr uint64_t kSeed = 0x6d656d6f7279;
constexpr uint64_t kChunk = 8192;  // words that one core copies in one go

using Words = std::span<uint64_t>;

// Anonymous memory, so that a machine without enough of it says so.
class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : bytes_(bytes), base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (valid()) munmap(base_, bytes_);
  }
  bool valid() const { return base_ != MAP_FAILED; }
  Words words() { return {static_cast<uint64_t*>(base_), bytes_ / sizeof(uint64_t)}; }

 private:
  uint64_t bytes_;
  void* base_;
};

// The i-th of `parts` pieces, in whole chunks.
Words Part(Words words, size_t i, size_t parts) {
  const size_t chunks = words.size() / kChunk, begin = chunks * i / parts, end = chunks * (i + 1) / parts;
  return words.subspan(begin * kChunk, (end - begin) * kChunk);
}

// GB/s of copying `from` again and again, or a piece of it if time runs out.
double CopyRate(const Budget& budget, Words to, Words from) {
  const Nanos begin = budget.Now();
  uint64_t bytes = 0;
  do {
    for (size_t at = 0; at < from.size() && (at == 0 || !budget.Stopped()); at += kChunk) {
      ls_copy_nontemporal(to.data() + at, from.data() + at, kChunk * sizeof(uint64_t));
      bytes += kChunk * sizeof(uint64_t);
    }
  } while (!budget.Over());
  return static_cast<double>(bytes) / ToSeconds(budget.Now() - begin).value * 1e-9;
}

Measurement Slowest(const Budget& budget, const std::vector<int>& cores, Words to, Words from) {
  Measurement slowest{.name = "memory.slowest", .unit = "GB/s"};
  size_t tried = 0;
  for (; tried < cores.size() && (tried == 0 || !budget.Over()); ++tried) {
    const Budget share = budget.Of({budget.Left().value / static_cast<double>(cores.size() - tried)});
    // One core needs no more than a piece that is still larger than its caches, so that many cores get their turn.
    const Words piece = Part(from, tried % 2, 2);
    double rate = 0;
    OnEachCore({cores[tried]}, [&](size_t) { rate = CopyRate(share, to, piece); });
    if (tried > 0 && rate >= slowest.value) continue;
    slowest.value = rate;
    slowest.text = fmt::format("core {}", cores[tried]);
  }
  slowest.text += fmt::format(", of {} that had their turn; {} allowed", tried, cores.size());
  return slowest;
}

Measurement All(const Budget& budget, const std::vector<int>& cores, Words to, Words from) {
  std::vector<double> rates(cores.size());
  OnEachCore(cores,
             [&](size_t i) { rates[i] = CopyRate(budget, Part(to, i, cores.size()), Part(from, i, cores.size())); });
  Measurement all{.name = "memory.all", .value = 0, .unit = "GB/s"};
  for (const double rate : rates) all.value += rate;
  all.text = fmt::format("{} cores at once, {} MiB", cores.size(), from.size_bytes() >> 20);
  return all;
}

Measurement Bits(const std::vector<int>& cores, Words to) {
  std::vector<Difference> differences(cores.size());
  OnEachCore(cores, [&](size_t i) {
    const Words part = Part(to, i, cores.size());
    differences[i] = CompareWithPattern(kSeed, static_cast<uint64_t>(part.data() - to.data()), part);
  });
  Difference all;
  for (const Difference& difference : differences) all.Add(difference);
  Measurement bits{.name = "memory.bits", .value = static_cast<double>(all.words), .unit = "errors"};
  bits.ok = all.words == 0;
  bits.text = bits.ok ? fmt::format("{} MiB copied and compared", to.size_bytes() >> 20)
                      : fmt::format("{} words are not what was written; first at byte {}: {:016x}, expected {:016x}",
                                    all.words, all.position * sizeof(uint64_t), all.found, all.expected);
  return bits;
}

}  // namespace

std::vector<Measurement> MeasureMemory(const Budget& budget, const std::vector<int>& cores, const TamperWords& tamper) {
  const uint64_t bytes = std::clamp(2 * CacheBytes(), kLeast, kMost);
  Buffer source(bytes), copy(bytes);
  if (!source.valid() || !copy.valid()) {
    return {{.name = "memory.bits",
             .unit = "errors",
             .ok = false,
             .text = fmt::format("no memory for two buffers of {} MiB", bytes >> 20)}};
  }
  const Words from = source.words(), to = copy.words();
  OnEachCore(cores, [&](size_t i) {
    const Words part = Part(from, i, cores.size());
    FillPattern(kSeed, static_cast<uint64_t>(part.data() - from.data()), part);
    std::ranges::fill(Part(to, i, cores.size()), 0);
  });
  const Measurement slowest = Slowest(budget.Of({budget.Left().value / 2}), cores, to, from);
  const Measurement all = All(budget, cores, to, from);
  if (tamper) tamper(to);
  return {Bits(cores, to), all, slowest};
}

}  // namespace lockstep::probe
