// The words of Slurm's commands, and what is read from their answers. Pure. Tested with Slurm 22.05.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::schedule {

using Words = std::vector<std::string>;

// What a job was given, as far as one more machine of the same kind needs it. Empty: nothing was said.
struct JobShape {
  std::string partition, account, qos, time_limit, constraint, reservation, memory_per_node, memory_per_cpu, gres;
  std::string gres_unclear;  // why there is no gres, though the job has some
  int cpus_per_node = 0;
  bool exclusive = false;
  bool requeues = false;  // a batch job that may begin anew
  bool pending = false;
};
// Of `scontrol show job --oneliner JOB`: NAME=VALUE, with spaces between them.
absl::StatusOr<JobShape> ParseJob(const std::string& text);

// A job that was submitted to bring a machine.
struct Request {
  std::string job, state;  // the latter as Slurm calls it: RUNNING
  Seconds ran;             // so long
  std::string host;        // where, once it is known
  bool HasBegun() const { return state != "PENDING" && state != "CONFIGURING"; }
};
// One line each: id|state|time|host. An error names the line that makes no sense.
absl::StatusOr<std::vector<Request>> ParseQueue(const std::string& text);
// The number in the answer of `sbatch --parsable`: "17", or "17;cluster".
absl::StatusOr<std::string> ParseSubmitted(const std::string& text);

std::vector<std::string> Lines(const std::string& text);
// As Slurm writes them: "n[08-10],login". Thousands of them are an argument that no system takes as they are.
std::string Folded(const std::vector<std::string>& hosts);

// Letters, digits, dots, dashes and underscores. Anything else could name several machines, or all of them.
bool IsHostName(const std::string& name);
// One line of printable ASCII, not too long.
std::string ReasonText(const std::string& reason);
// By which requests for machines of a run are known, to whoever leads it.
std::string RequestName(const std::string& job, const std::string& run_token);

Words ShowJob(const std::string& job);
Words ShowRequests(const std::string& name);
Words ShowHosts();  // all that Slurm knows, one a line
Words Cancel(const std::string& job);
Words DrainHost(const std::string& host, const std::string& reason);
Words RequeueJob(const std::string& job);
Words BeginSoon(const std::string& job);

// Of a batch script of the user's, which is told in its first argument where the coordinator is.
struct Submission {
  std::string name;
  std::vector<std::string> not_on;  // hosts
  std::optional<JobShape> shape;    // none: the script says it
  std::string script;
  Words arguments;
};
Words Submit(const Submission& submission);

// A batch script that runs its arguments: PROGRAM ARGUMENT... becomes PROGRAM run --node-name (Slurm's) ARGUMENT...
extern const char kStandbyScript[];

}  // namespace lockstep::schedule
