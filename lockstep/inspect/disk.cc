#include "lockstep/inspect/disk.h"

#include <algorithm>
#include <array>

namespace lockstep::inspect {
namespace {

// Without hardware of their own, or slow by nature.
bool IsNoDisk(const std::string& name) {
  constexpr std::array kOthers = {"loop", "ram", "zram", "sr", "fd", "nbd", "dm-"};
  return std::any_of(kOthers.begin(), kOthers.end(), [&](const char* other) { return name.starts_with(other); });
}

// /sys/block/X/stat: reads, merged, sectors, ms, writes, merged, sectors, ms, in flight, ..., discards (11), flushes
// (15)
void ReadStat(const std::string& text, DiskState& disk) {
  const std::vector<std::string_view> word = Words(text);
  const auto number = [&](size_t i) { return i < word.size() ? ParseNumber(word[i]).value_or(0) : 0; };
  disk.in_flight = number(8);
  disk.done = number(0) + number(4) + number(11) + number(15);
}

bool IsDead(const std::string& state) {
  constexpr std::array kDead = {"offline", "transport-offline", "dead", "deleting", "deleting (no IO)", "cancel"};
  return std::any_of(kDead.begin(), kDead.end(), [&](const char* dead) { return state == dead; });
}

class SystemDisks final : public Reader {
 public:
  SystemDisks(const Settings& settings, const Where& where)
      : settings_(settings), tree_(where.tree), judge_(settings) {}
  Reading Read(Nanos now) override {
    Reading reading{.source = Source::kDisk, .at = now};
    const std::vector<DiskState> disks = ReadDisks(tree_);
    if (disks.empty()) MissAll(settings_, "there is no disk in " + tree_.Path("/sys/block"), reading);
    judge_.Judge(disks, now, reading);
    return reading;
  }

 private:
  const Settings settings_;
  const Tree tree_;
  DiskJudge judge_;
};

}  // namespace

std::vector<DiskState> ReadDisks(const Tree& tree) {
  std::vector<DiskState> disks;
  for (const std::string& name : tree.List("/sys/block")) {
    const std::string at = "/sys/block/" + name + "/";
    if (IsNoDisk(name) || !tree.Has(at + "stat")) continue;
    DiskState disk{.name = name, .state = tree.Text(at + "device/state").value_or("")};
    disk.errors = tree.Number(at + "device/ioerr_cnt").value_or(0);
    disk.degraded = tree.Number(at + "md/degraded").value_or(0);
    ReadStat(tree.Text(at + "stat").value_or(""), disk);
    disks.push_back(disk);
  }
  for (const std::string& name : tree.List("/sys/fs/ext4")) {
    const auto errors = tree.Number("/sys/fs/ext4/" + name + "/errors_count");
    if (errors) disks.push_back({.name = name + " (ext4)", .state = {}, .errors = *errors, .of_filesystem = true});
  }
  return disks;
}

void DiskJudge::Judge(const std::vector<DiskState>& disks, Nanos at, Reading& reading) {
  for (const DiskState& disk : disks) {
    const auto [place, is_new] = known_.try_emplace(disk.name);
    Known& known = place->second;
    if (is_new) known.degraded = disk.degraded;
    JudgeErrors(disk, known, at, reading);
    if (!is_new && known.busy && disk.in_flight > 0 && disk.done == known.done)
      reading.conditions.push_back(
          {"disk_stuck", disk.name, fmt::format("{} requests are under way and none ends", disk.in_flight)});
    known.busy = disk.in_flight > 0;
    known.done = disk.done;
  }
}

void DiskJudge::JudgeErrors(const DiskState& disk, Known& known, Nanos at, Reading& reading) const {
  const Item& item = settings_["disk_errors"];
  const uint64_t errors = known.errors.Add(at, disk.errors, item.window);
  const double most = disk.of_filesystem ? 1 : *item.threshold;
  std::string figures = fmt::format("{}{} errors", disk.state.empty() ? "" : disk.state + ", ", disk.errors);
  if (!disk.of_filesystem) figures += fmt::format(", {} requests under way, {} done", disk.in_flight, disk.done);
  reading.figures.push_back({disk.name, std::move(figures)});
  if (IsDead(disk.state)) {
    reading.conditions.push_back({"disk_errors", disk.name, fmt::format("its state is \"{}\"", disk.state)});
  } else if (static_cast<double>(errors) >= most) {
    reading.conditions.push_back(
        {"disk_errors", disk.name, fmt::format("{} errors in {:.0f} s", errors, item.window.value)});
  } else if (disk.degraded > known.degraded) {
    reading.conditions.push_back(
        {"disk_errors", disk.name, fmt::format("{} disks of the array failed", disk.degraded), FaultClass::kWarning});
  }
}

std::unique_ptr<Reader> DiskReader(const Settings& settings, const Where& where) {
  return std::make_unique<SystemDisks>(settings, where);
}

}  // namespace lockstep::inspect
