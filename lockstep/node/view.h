// The terminal of `lockstep run`: workers' output as it comes, and below it, when stderr is a terminal, a live view of
// the job that repaints itself. Never blocks: what a stopped terminal does not take waits, and the view with it.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/node/outlet.h"

namespace lockstep::node {

class View {
 public:
  explicit View(bool live);
  ~View();
  void Output(int stream, std::string_view data);
  // One line of our own, above the live view.
  void Line(const std::string& text);
  // Repaints from the status document (control::StatusReport).
  void Paint(const Json& status, const Json& incidents);
  uint64_t dropped() const { return outlet_.dropped(); }  // bytes that nobody took
  bool is_live() const { return live_; }
  // What is painted now stays on the screen.
  void Settle() { painted_lines_ = 0; }

 private:
  void Erase();

  Outlet outlet_;
  bool live_;
  int painted_lines_ = 0;
  bool output_mid_line_ = false;  // where our own lines go
  std::string last_;
};

}  // namespace lockstep::node
