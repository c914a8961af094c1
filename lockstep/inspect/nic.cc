#include "lockstep/inspect/nic.h"

#include <algorithm>
#include <set>

namespace lockstep::inspect {
namespace {

constexpr uint64_t kFewErrors = 100;  // one packet in error of a handful is no share
constexpr uint64_t kUpFlag = 1;       // IFF_UP

std::set<std::string, std::less<>> DefaultRoutes(const Tree& tree) {
  std::set<std::string, std::less<>> names;
  const std::string text = tree.OwnProc("net/route").value_or("");
  for (const std::string_view line : Lines(text)) {
    const std::vector<std::string_view> word = Words(line);
    if (word.size() > 7 && word[1] == "00000000" && word[7] == "00000000") names.emplace(word[0]);
  }
  return names;
}

NicState ReadInterface(const Tree& tree, const std::string& name) {
  const std::string at = "/sys/class/net/" + name + "/";
  const auto number = [&](const char* file) { return tree.Number(at + file).value_or(0); };
  NicState nic{.name = name, .operstate = tree.Text(at + "operstate").value_or("unknown")};
  nic.hardware = tree.Has(at + "device") || tree.Has(at + "bonding");
  nic.admin_up = (tree.Number(at + "flags").value_or(kUpFlag) & kUpFlag) != 0;
  nic.carrier = tree.Number(at + "carrier").value_or(nic.operstate == "up" ? 1 : 0) != 0;
  nic.changes = number("carrier_changes");
  nic.ups = tree.Number(at + "carrier_up_count").value_or(nic.changes / 2);
  nic.packets = number("statistics/rx_packets") + number("statistics/tx_packets");
  nic.errors = number("statistics/rx_errors") + number("statistics/tx_errors");
  return nic;
}

NicState ReadPort(const Tree& tree, const std::string& device, const std::string& port) {
  const std::string at = "/sys/class/infiniband/" + device + "/ports/" + port + "/";
  const auto counter = [&](const char* name) { return tree.Number(at + "counters/" + name).value_or(0); };
  NicState nic{.name = device + "/" + port, .operstate = tree.Text(at + "state").value_or("unknown"), .hardware = true};
  nic.carrier = nic.operstate.find("ACTIVE") != std::string::npos;
  nic.ups = counter("link_downed");  // whoever went down was up
  nic.changes = 2 * nic.ups;
  nic.packets = counter("port_rcv_packets") + counter("port_xmit_packets");
  nic.errors = counter("port_rcv_errors") + counter("symbol_error");
  return nic;
}

const char* WhyDown(const NicState& nic) { return nic.admin_up ? "no carrier" : "set down"; }

class SystemNics final : public Reader {
 public:
  SystemNics(const Settings& settings, const Where& where) : settings_(settings), tree_(where.tree), judge_(settings) {}
  Reading Read(Nanos now) override {
    Reading reading{.source = Source::kNic, .at = now};
    const std::vector<NicState> nics = ReadNics(tree_);
    if (nics.empty()) MissAll(settings_, "there is no interface in " + tree_.Path("/sys/class/net"), reading);
    judge_.Judge(nics, now, reading);
    return reading;
  }

 private:
  const Settings settings_;
  const Tree tree_;
  NicJudge judge_;
};

}  // namespace

std::vector<NicState> ReadNics(const Tree& tree) {
  std::vector<NicState> nics;
  const auto routes = DefaultRoutes(tree);
  for (const std::string& name : tree.List("/sys/class/net")) {
    if (name == "lo" || !tree.Has("/sys/class/net/" + name + "/operstate")) continue;
    nics.push_back(ReadInterface(tree, name));
    nics.back().default_route = routes.contains(name);
  }
  for (const std::string& device : tree.List("/sys/class/infiniband"))
    for (const std::string& port : tree.List("/sys/class/infiniband/" + device + "/ports"))
      nics.push_back(ReadPort(tree, device, port));
  return nics;
}

void NicJudge::Judge(const std::vector<NicState>& nics, Nanos at, Reading& reading) {
  for (auto& [name, known] : known_) known.present = false;
  for (const NicState& nic : nics) JudgeOne(nic, at, reading);
  for (const auto& [name, known] : known_)
    if (!known.present && known.watched && known.keeps && known.was_up)
      reading.conditions.push_back({"nic_down", name, "it is gone"});
  std::erase_if(known_, [](const auto& entry) { return !entry.second.present && !entry.second.keeps; });
}

void NicJudge::JudgeOne(const NicState& nic, Nanos at, Reading& reading) {
  const auto [place, is_new] = known_.try_emplace(nic.name);
  Known& known = place->second;
  const bool named = std::find(settings_.nics.begin(), settings_.nics.end(), nic.name) != settings_.nics.end();
  known.present = true;
  known.keeps |= nic.hardware || named;
  known.watched |= known.keeps || nic.default_route;
  const bool up = nic.admin_up && nic.carrier;
  known.was_up |= up || (is_new && nic.admin_up && nic.ups > 0) || named;
  if (known.watched && !up && known.was_up)
    reading.conditions.push_back({"nic_down", nic.name, fmt::format("{} (operstate {})", WhyDown(nic), nic.operstate)});
  JudgeCounts(nic, known, at, reading);
}

void NicJudge::JudgeCounts(const NicState& nic, Known& known, Nanos at, Reading& reading) const {
  const Item& flapping = settings_["port_flapping"];
  const Item& errors = settings_["nic_errors"];
  const uint64_t changes = known.changes.Add(at, nic.changes, flapping.window);
  const uint64_t packets = known.packets.Add(at, nic.packets, errors.window);
  const uint64_t bad = known.errors.Add(at, nic.errors, errors.window);
  if (!known.watched) return;
  reading.figures.push_back({nic.name, fmt::format("{}, {} changes of the carrier, {} of {} packets had errors",
                                                   nic.operstate, nic.changes, nic.errors, nic.packets)});
  if (static_cast<double>(changes) >= *flapping.threshold)
    reading.conditions.push_back(
        {"port_flapping", nic.name,
         fmt::format("{} changes of the carrier in {:.0f} s", changes, flapping.window.value)});
  const double share = static_cast<double>(bad) / static_cast<double>(std::max(packets + bad, uint64_t{1}));
  if (bad >= kFewErrors && share >= *errors.threshold)
    reading.conditions.push_back(
        {"nic_errors", nic.name,
         fmt::format("{} of {} packets in {:.0f} s had errors", bad, packets + bad, errors.window.value)});
}

std::unique_ptr<Reader> NicReader(const Settings& settings, const Where& where) {
  return std::make_unique<SystemNics>(settings, where);
}

}  // namespace lockstep::inspect
