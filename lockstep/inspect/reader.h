// A source of readings: reads what the machine says and judges it with what it said before. Each source has its reader
// in a file of its own, and in it the judge, which is pure and which tests feed. Thread-compatible; a reading takes
// well below 1 ms, and at most 0.3 s where something does not answer.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/inspect/alert.h"
#include "lockstep/inspect/inspector.h"
#include "lockstep/inspect/tree.h"

namespace lockstep::inspect {

class Reader {
 public:
  virtual ~Reader() = default;
  virtual Reading Read(Nanos now) = 0;
};

struct Where {
  Tree tree;
  std::vector<std::string> paths;  // whose file systems the job uses; empty: all of the machine's that hold data
};

// One for each source.
class Readers {
 public:
  Readers(const Settings& settings, const Where& where);
  Reading Read(Source source, Nanos now) { return readers_[static_cast<size_t>(source)]->Read(now); }

 private:
  std::vector<std::unique_ptr<Reader>> readers_;
};

}  // namespace lockstep::inspect
