// What ranks waited for batches of their data service, and what their own functions took for them: what
// `lockstep.feed.Loader` tells (record/record.h, "data").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/record/record.h"

namespace lockstep::trace {

// What was waited for; the parts add up. As the record has them.
struct DataParts {
  int64_t gone_ns = 0, behind_ns = 0, read_ns = 0, decode_ns = 0, own_ns = 0;

  int64_t waited_ns() const { return gone_ns + behind_ns + read_ns + decode_ns; }
  int64_t sum_ns() const { return waited_ns() + own_ns; }
  void Add(const DataParts& more);
};

struct DataWait {
  int rank = -1;  // of the job
  std::string data_set;
  int64_t end_ns = 0;       // wall, on one clock for all
  int64_t boot_end_ns = 0;  // CLOCK_BOOTTIME of the rank's host
  int64_t waits = 1;
  DataParts parts;
  int threads = 0;  // of the service
  double busy = 0;  // a share: of their time meanwhile
  bool relayed = false;

  int64_t begin_ns() const { return end_ns - parts.sum_ns(); }
};

// Requires a record of that kind. Its times are those of its host.
DataWait ToDataWait(const ls_record& record);

// Waits of one data set, or of several, summed.
class DataSources {
 public:
  // Of it, `share`: as much of it as lies within what is looked at.
  void Add(const DataWait& wait, double share = 1);
  int64_t waited_ns() const { return waited_ns_; }
  // "data set photos: decoding (2 of 2 threads busy)", of the one that was waited for longest; parts of more than a
  // twentieth, by size.
  std::string Text() const;

 private:
  struct OfSet {
    DataParts parts;
    double busy_ns = 0;  // weighted by how long was waited
    int threads = 0;
    bool relayed = false;
  };
  std::map<std::string, OfSet> by_set_;
  int64_t waited_ns_ = 0;
};

// Of records of one trail, in the order of time: sums those of one data set that lie side by side, until about `most`
// are left.
void SumWaits(std::vector<ls_record>& records, size_t most);

}  // namespace lockstep::trace
