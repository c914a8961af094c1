// What only a torchrun command line says about the workers: who hosts the store and where, which names they see, where
// their output goes. Part of RunSpec. docs/from-torchrun.md maps torchrun's options to it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

// Where the two streams of one rank go; bit 1 is stdout, bit 2 is stderr, as in torchrun's --redirects.
struct Streams {
  int file = 0;         // to a file of their own in the log directory: redirected or teed
  int tee = 0;          // of these, the ones that the console shows too, each line behind a prefix
  bool console = true;  // false: --local-ranks-filter leaves this rank out

  bool ToFile(int stream) const { return (file & stream) != 0; }
  bool ToConsole(int stream) const { return console && (!ToFile(stream) || (tee & stream) != 0); }
  bool Prefixed(int stream) const { return (tee & stream) != 0; }
};

// What stands before a teed line; torchrun takes another one from TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.
inline constexpr char kLinePrefix[] = "[${role_name}${local_rank}]:";

struct Torchrun {
  std::string run_id{};                   // TORCHELASTIC_RUN_ID; empty: none was given
  std::string role = "default";           // ROLE_NAME
  std::string master_addr = "127.0.0.1";  // by which all ranks reach a store on this node
  int master_port = 0;                    // of the first epoch; 0: any free one. Later epochs have a fresh one each
  bool no_python = false;                 // the command is a program, not a Python script
  bool virtual_local_rank = false;        // LOCAL_RANK 0 for all; CUDA_VISIBLE_DEVICES says which GPU
  std::string log_dir{};                  // of this run; empty: no files of torchrun's layout
  std::vector<Streams> streams{};         // by rank; empty: everything to the console
  std::string line_prefix = kLinePrefix;  // $role_name, $rank and $local_rank stand for what they are
};

Json ToJson(const Torchrun& torchrun);
// Missing fields keep their defaults: run.json of an older run has none of them.
absl::StatusOr<Torchrun> TorchrunFromJson(const Json& json);

Streams StreamsOf(const Torchrun& torchrun, int rank);
// log_dir/attempt_<restart_count>/<rank>, where torchrun keeps stdout.log, stderr.log and error.json.
std::string AttemptDir(const Torchrun& torchrun, int restart_count, int rank);

// Of a name as in Python, or of a variable.
inline constexpr char kNameLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

// What Python's string.Template(text).safe_substitute(values) gives, by which torchrun fills in values.
std::string Substituted(std::string_view text, const std::map<std::string, std::string, std::less<>>& values);

}  // namespace lockstep::agent
