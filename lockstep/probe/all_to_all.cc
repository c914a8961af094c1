#include "lockstep/probe/all_to_all.h"

#include <algorithm>
#include <barrier>
#include <cstring>

#include "lockstep/client/client.h"
#include "lockstep/probe/cores.h"
#include "lockstep/probe/pattern.h"

namespace lockstep::probe {
namespace {

constexpr size_t kMostParties = 16, kWords = 32 * 1024;  // of a block: 256 KiB

std::vector<int> Parties(const std::vector<int>& cores) {
  if (cores.size() == 1) return {cores[0], cores[0]};
  const size_t count = std::min(cores.size(), kMostParties);
  std::vector<int> parties;
  for (size_t i = 0; i < count; ++i) parties.push_back(cores[i * cores.size() / count]);
  return parties;
}

uint64_t Seed(size_t from, size_t to) { return 0xa2a000000 + from * 0x1000 + to; }

// What `to` saw of `from`.
struct Way {
  double seconds = 0;
  uint64_t blocks = 0, wrong = 0;
  double Rate() const { return static_cast<double>(blocks * kWords * sizeof(uint64_t)) / seconds * 1e-9; }
};

class Exchange {
 public:
  Exchange(const Budget& budget, std::vector<int> cores, const TamperBlock& tamper)
      : budget_(budget), cores_(std::move(cores)), tamper_(tamper) {}

  std::vector<Measurement> Run() {
    std::barrier turn(static_cast<std::ptrdiff_t>(cores_.size()), [this]() noexcept { go_on_ = !budget_.Over(); });
    const Nanos begin = budget_.Now();
    OnEachCore(cores_, [&](size_t self) {
      Prepare(self);
      turn.arrive_and_wait();
      do {
        for (size_t round = 1; round < Count(); ++round) Fetch((self + round) % Count(), self);
        turn.arrive_and_wait();
      } while (go_on_);
    });
    return Measured(ToSeconds(budget_.Now() - begin));
  }

 private:
  size_t Count() const { return cores_.size(); }
  size_t At(size_t from, size_t to) const { return from * Count() + to; }
  std::span<uint64_t> Block(std::vector<uint64_t>& of, size_t which) { return {of.data() + which * kWords, kWords}; }

  // Each party writes its own blocks, so that they lie in its part of memory and in its caches.
  void Prepare(size_t self) {
    for (size_t to = 0; to < Count(); ++to) {
      const std::span<uint64_t> block = Block(out_, At(self, to));
      FillPattern(Seed(self, to), 0, block);
      crc_[At(self, to)] = ls_crc32c(0, block.data(), block.size_bytes());
    }
  }

  void Fetch(size_t from, size_t to) {
    const std::span<uint64_t> source = Block(out_, At(from, to)), arrived = Block(in_, At(from, to));
    Way& way = ways_[At(from, to)];
    const Nanos begin = budget_.Now();
    std::memcpy(arrived.data(), source.data(), arrived.size_bytes());
    way.seconds += ToSeconds(budget_.Now() - begin).value;
    if (tamper_) tamper_(from, to, arrived);
    way.wrong += ls_crc32c(0, arrived.data(), arrived.size_bytes()) != crc_[At(from, to)];
    ++way.blocks;
  }

  std::string Name(size_t from, size_t to) const { return fmt::format("core {} to {}", cores_[from], cores_[to]); }

  std::vector<Measurement> Measured(Seconds wall) const {
    uint64_t blocks = 0, wrong = 0;
    double rates = 0, slowest_rate = 0;
    std::string slowest, first_wrong;
    for (size_t from = 0; from < Count(); ++from) {
      for (size_t to = 0; to < Count(); ++to) {
        if (from == to) continue;
        const Way& way = ways_[At(from, to)];
        blocks += way.blocks;
        wrong += way.wrong;
        if (way.wrong > 0) first_wrong += (first_wrong.empty() ? "" : ", ") + Name(from, to);
        rates += way.Rate();
        if (!slowest.empty() && way.Rate() >= slowest_rate) continue;
        slowest_rate = way.Rate();
        slowest = Name(from, to);
      }
    }
    const std::string whole = fmt::format("{} blocks of 256 KiB, {} parties, {:.2f} s", blocks, Count(), wall.value);
    return {{.name = "all_to_all.bits",
             .value = static_cast<double>(wrong),
             .unit = "errors",
             .ok = wrong == 0,
             .text = wrong == 0 ? whole : fmt::format("{} of {}: wrong from {}", wrong, whole, first_wrong)},
            {.name = "all_to_all.all",
             .value = rates / static_cast<double>(Count() - 1),
             .unit = "GB/s",
             .text = "while copying, all parties together"},
            {.name = "all_to_all.slowest", .value = slowest_rate, .unit = "GB/s", .text = slowest}};
  }

  const Budget& budget_;
  const std::vector<int> cores_;
  const TamperBlock& tamper_;
  bool go_on_ = true;  // written while all stand at the barrier
  std::vector<uint64_t> out_ = std::vector<uint64_t>(cores_.size() * cores_.size() * kWords);
  std::vector<uint64_t> in_ = std::vector<uint64_t>(cores_.size() * cores_.size() * kWords);
  std::vector<uint32_t> crc_ = std::vector<uint32_t>(cores_.size() * cores_.size());
  std::vector<Way> ways_ = std::vector<Way>(cores_.size() * cores_.size());
};

}  // namespace

std::vector<Measurement> MeasureAllToAll(const Budget& budget, const std::vector<int>& cores,
                                         const TamperBlock& tamper) {
  return Exchange(budget, Parties(cores), tamper).Run();
}

}  // namespace lockstep::probe
