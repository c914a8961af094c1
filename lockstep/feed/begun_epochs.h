// In which laps the epochs of jobs began, in a file beside the service's socket. When a service was killed, the ranks
// of a job come back one by one, and some only when others have done a step with them: who lags must not wait for those
// who know more. Of each job its newest epochs. Guarded by the dispatcher's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "lockstep/sampling/laps.h"

namespace lockstep::feed {

class BegunEpochs {
 public:
  // What the file holds, if it is there. What can't be read is passed over: then ranks wait until all have said.
  explicit BegunEpochs(std::string path);
  // Before anybody is told. Epochs behind it that were of another life of the job are forgotten.
  void Note(uint64_t job, uint64_t epoch, const sampling::Lap& lap);
  // Of the epoch after this one, if this one began in that lap.
  std::optional<sampling::Lap> After(uint64_t job, uint64_t epoch, const sampling::Lap& lap) const;
  // No job will go on here.
  void Remove();

 private:
  void Write();

  const std::string path_;
  std::map<uint64_t, std::map<uint64_t, sampling::Lap>> laps_;  // by job and epoch
  bool complained_ = false;
};

}  // namespace lockstep::feed
