// The kernel's log as it grows: /dev/kmsg without blocking, from when we began. Counts, per item and subject, the lines
// of the last window; a line that says that it is over forgets those before. Of another root, /dev/kmsg may be a file:
// it is read from its beginning.
//
//   LogJudge judge(settings);
//   judge.Take("e1000e: eth0 NIC Link is Down", now);  judge.Judge(now, reading);
#pragma once

#include <map>
#include <utility>

#include "lockstep/inspect/kernel_log.h"
#include "lockstep/inspect/lately.h"
#include "lockstep/inspect/reader.h"

namespace lockstep::inspect {

class LogJudge {
 public:
  explicit LogJudge(const Settings& settings) : settings_(settings) {}
  void Take(std::string_view text, Nanos at);
  void Judge(Nanos at, Reading& reading);

 private:
  struct Told {
    Lately lines;
    std::string last;
    std::optional<FaultClass> fault;  // where no line of them is of the item's class
  };
  const Settings settings_, defaults_{};
  std::map<std::pair<std::string, std::string>, Told> told_;  // by item, subject
};

std::unique_ptr<Reader> KernelLogReader(const Settings& settings, const Where& where);

}  // namespace lockstep::inspect
