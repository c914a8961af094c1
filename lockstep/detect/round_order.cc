#include "lockstep/detect/round_order.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace lockstep::detect {
namespace {

std::vector<uint32_t> ByLastArrival(const std::vector<Round>& rounds) {
  std::vector<int64_t> last_ns;
  last_ns.reserve(rounds.size());
  for (const Round& round : rounds) {
    last_ns.push_back(round.began_ns);
    for (const Part& part : round.parts) last_ns.back() = std::max(last_ns.back(), part.came_ns);
  }
  std::vector<uint32_t> order(rounds.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](uint32_t one) { return last_ns[one]; });
  return order;
}

// A round follows once all of its members stand before it.
class Walk {
 public:
  explicit Walk(const std::vector<Round>& rounds) : rounds_(rounds), stand_(rounds.size()), is_done_(rounds.size()) {
    for (uint32_t one = 0; one < rounds.size(); ++one)
      for (const Part& part : rounds[one].parts) ranks_[part.rank].path.emplace_back(part.came_ns, part.left_ns, one);
    for (auto& [rank, own] : ranks_) {
      if (!std::ranges::is_sorted(own.path)) std::ranges::sort(own.path);
      ++stand_[own.before()];
    }
  }

  std::vector<uint32_t> Run() {
    const std::vector<uint32_t> by_last = ByLastArrival(rounds_);
    for (const uint32_t one : by_last)
      if (stand_[one] == rounds_[one].parts.size()) Add(one);
    Follow();
    for (const uint32_t one : by_last) {  // that are left: members stand before different ones of them
      if (is_done_[one]) continue;
      Add(one);
      Follow();
    }
    return std::move(order_);
  }

 private:
  struct Rank {
    std::vector<std::tuple<int64_t, int64_t, uint32_t>> path;  // when it came, when it left, which
    size_t next = 0;
    uint32_t before() const { return std::get<2>(path[next]); }
  };

  void Add(uint32_t one) {
    is_done_[one] = true;
    order_.push_back(one);
  }

  void Follow() {
    for (; followed_ < order_.size(); ++followed_)
      for (const Part& part : rounds_[order_[followed_]].parts) Advance(ranks_[part.rank], order_[followed_]);
  }

  void Advance(Rank& own, uint32_t from) {
    if (own.next == own.path.size() || own.before() != from) return;  // not its turn yet, then it is passed over
    while (own.next < own.path.size() && is_done_[own.before()]) ++own.next;
    if (own.next == own.path.size()) return;
    const uint32_t to = own.before();
    if (++stand_[to] == rounds_[to].parts.size()) Add(to);
  }

  const std::vector<Round>& rounds_;
  absl::flat_hash_map<int, Rank> ranks_;
  std::vector<size_t> stand_;  // by round: members that stand before it
  std::vector<bool> is_done_;
  std::vector<uint32_t> order_;
  size_t followed_ = 0;  // of `order_`: whose members have gone on
};

}  // namespace

std::vector<uint32_t> OrderOfRanks(const std::vector<Round>& rounds) { return Walk(rounds).Run(); }

}  // namespace lockstep::detect
