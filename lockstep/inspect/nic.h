// Network interfaces and ports of InfiniBand: whether they have their link, how often it changed, what share of packets
// has errors. Watched are those with hardware behind them, bonds, the interface of the default route and those that the
// settings name. Down is who was up before: seen so by us, or, at the first look, told so by the kernel's count.
//
//   NicJudge judge(settings);
//   judge.Judge(ReadNics(tree), now, reading);
#pragma once

#include <map>

#include "lockstep/inspect/lately.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::inspect {

struct NicState {
  std::string name;         // "eth0"; "mlx5_0/1" for a port of InfiniBand
  std::string operstate{};  // as the kernel has it
  bool hardware = false;    // or a bond: it does not vanish in the course of things
  bool default_route = false;
  bool admin_up = true;
  bool carrier = false;
  uint64_t changes = 0;  // of the carrier, since it is there
  uint64_t ups = 0;      // of these
  uint64_t packets = 0, errors = 0;
};

std::vector<NicState> ReadNics(const Tree& tree);

class NicJudge {
 public:
  explicit NicJudge(const Settings& settings) : settings_(settings) {}
  void Judge(const std::vector<NicState>& nics, Nanos at, Reading& reading);

 private:
  struct Known {
    bool watched = false, was_up = false, keeps = false, present = false;
    Lately changes, packets, errors;
  };
  void JudgeOne(const NicState& nic, Nanos at, Reading& reading);
  void JudgeCounts(const NicState& nic, Known& known, Nanos at, Reading& reading) const;

  const Settings settings_;
  std::map<std::string, Known> known_;
};

std::unique_ptr<Reader> NicReader(const Settings& settings, const Where& where);

}  // namespace lockstep::inspect
