// The workers' output on the terminal: as it comes, or, for streams that --tee sends here too, line by line behind
// "[role0]:" as torchrun shows them, or what it was told to show.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "lockstep/agent/spec.h"
#include "lockstep/node/view.h"

namespace lockstep::node {

// Puts the prefix before each line. A line may come in pieces; what has no end yet is held back, up to 64 KiB. A
// carriage return ends a line too: progress bars draw with it.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string Take(std::string_view data);
  // The last line, which never ended.
  std::string Rest();

 private:
  std::string prefix_, held_;
  bool after_return_ = false;  // a newline now belongs to the line that is out
};

// Before the lines of a rank of this node.
std::string LinePrefix(const agent::RunSpec& spec, int rank);

class Console {
 public:
  Console(const agent::RunSpec& spec, View& view) : spec_(spec), view_(view) {}
  // stream: 1 = stdout, 2 = stderr.
  void Output(int rank, int stream, std::string_view data);
  // The workers are gone.
  void Flush();

 private:
  const agent::RunSpec& spec_;  // whose place may change
  View& view_;
  std::map<std::tuple<int, RankId, int>, LinePrefixer> prefixers_;  // by rank, here and in the job, and stream
};

}  // namespace lockstep::node
