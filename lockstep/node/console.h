// The workers' output on the terminal: as it comes, or, for streams that --tee sends here too, line by line behind
// "[role0]:" as torchrun shows them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/agent/torchrun.h"
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

class Console {
 public:
  Console(const agent::Torchrun& torchrun, View& view) : torchrun_(torchrun), view_(view) {}
  // stream: 1 = stdout, 2 = stderr.
  void Output(int rank, int stream, std::string_view data);
  // The workers are gone.
  void Flush();

 private:
  const agent::Torchrun& torchrun_;
  View& view_;
  std::map<std::pair<int, int>, LinePrefixer> prefixers_;  // by rank and stream
};

}  // namespace lockstep::node
