#include "lockstep/node/view.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::node {
namespace {

constexpr size_t kMaxRanksShown = 16;
constexpr size_t kMaxIncidentsShown = 4;

// A terminal that is gone or stopped must not stop us: what it does not take now is lost.
void Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote <= 0) return;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

size_t TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double Number(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>() : std::nan("");
}

std::string Text(double value, const char* format_if_known) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format_if_known), value) : std::string("-");
}

const char* Colour(const std::string& state) {
  if (state == "running" || state == "finished") return "\033[32m";
  return state == "starting" ? "\033[33m" : "\033[31m";
}

std::string Bar(double value, double largest) {
  constexpr int kWidth = 24;
  if (!std::isfinite(value) || largest <= 0) return "";
  const int filled = std::clamp(static_cast<int>(std::lround(value / largest * kWidth)), 0, kWidth);
  std::string bar;
  for (int i = 0; i < filled; ++i) bar += "▇";
  return bar;
}

std::string HeadLine(const Json& status) {
  const Json ettr = status.value("ettr", Json::object());
  const Json checkpoint = status.value("checkpoint", Json::object());
  return fmt::format("\033[1m{}\033[0m  {}  epoch {}  step {}  loss {}  ETTR {}  checkpoint {}",
                     status.value("job", ""), status.value("state", ""), status.value("epoch", 0),
                     status.value("step", -1), Text(Number(status, "loss"), "{:.4f}"),
                     Text(100 * Number(ettr, "cumulative"), "{:.1f} %"),
                     Text(Number(checkpoint, "step"), "of step {:.0f}"));
}

std::string RankLine(const Json& rank, double slowest) {
  const std::string state = rank.value("state", "");
  const double step_time = Number(rank, "step_time_s");
  return fmt::format("  rank {:<4} {}{:<12}\033[0m step {:<7} {:>8}  {}", rank.value("rank", 0), Colour(state), state,
                     rank.value("step", -1), Text(1000 * step_time, "{:.0f} ms"), Bar(step_time, slowest));
}

std::string IncidentLine(const Json& incident) {
  const Json phases = incident.value("phases", Json::object());
  const bool open = incident["closed"].is_null();
  return fmt::format("  {}#{} {}\033[0m  detect {} decide {} restart {} recompute {}", open ? "\033[31m" : "\033[36m",
                     incident.value("id", 0), incident.value("headline", ""),
                     Text(Number(phases, "detect_s"), "{:.3f} s"), Text(Number(phases, "decide_s"), "{:.3f} s"),
                     Text(Number(phases, "restart_s"), "{:.3f} s"), Text(Number(phases, "recompute_s"), "{:.3f} s"));
}

std::vector<std::string> Lines(const Json& status, const Json& incidents) {
  std::vector<std::string> lines = {HeadLine(status)};
  const Json ranks = status.value("ranks", Json::array());
  double slowest = 0;
  for (const Json& rank : ranks) slowest = std::fmax(slowest, Number(rank, "step_time_s"));
  for (size_t i = 0; i < std::min(ranks.size(), kMaxRanksShown); ++i) lines.push_back(RankLine(ranks[i], slowest));
  if (ranks.size() > kMaxRanksShown) lines.push_back(fmt::format("  and {} ranks more", ranks.size() - kMaxRanksShown));
  const size_t skip = incidents.size() > kMaxIncidentsShown ? incidents.size() - kMaxIncidentsShown : 0;
  for (size_t i = skip; i < incidents.size(); ++i) lines.push_back(IncidentLine(incidents[i]));
  return lines;
}

// Cuts to `width` columns; escapes take no column, a UTF-8 sequence takes one.
std::string Fit(const std::string& line, size_t width) {
  std::string fitted;
  size_t columns = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto byte = static_cast<unsigned char>(line[i]);
    if (byte == '\033') {
      const size_t end = std::min(line.find('m', i), line.size() - 1);
      fitted.append(line, i, end - i + 1);
      i = end;
      continue;
    }
    const bool continuation = (byte & 0xC0) == 0x80;
    if (!continuation && ++columns > width) return fitted + "\033[0m";
    fitted += line[i];
  }
  return fitted;
}

}  // namespace

View::View(bool live) : live_(live && isatty(STDERR_FILENO) == 1) {}

View::~View() {
  if (output_mid_line_) Write(STDOUT_FILENO, "\n");
}

void View::Erase() {
  if (painted_lines_ > 0) Write(STDERR_FILENO, fmt::format("\033[{}F\033[J", painted_lines_));
  painted_lines_ = 0;
}

void View::Output(int stream, std::string_view data) {
  Erase();
  Write(stream == 2 ? STDERR_FILENO : STDOUT_FILENO, data);
  output_mid_line_ = live_ && !data.empty() && data.back() != '\n';
  last_.clear();
}

void View::Line(const std::string& text) {
  Erase();
  Write(STDERR_FILENO, "lockstep: " + text + "\n");
  last_.clear();
}

void View::Paint(const Json& status, const Json& incidents) {
  if (!live_ || output_mid_line_) return;
  const size_t width = TerminalWidth();
  std::string text;
  const std::vector<std::string> lines = Lines(status, incidents);
  for (const std::string& line : lines) text += Fit(line, width) + "\033[K\n";
  if (text == last_) return;
  // Overwrites in place: no blank frame between, no flicker.
  const std::string up = painted_lines_ > 0 ? fmt::format("\033[{}F", painted_lines_) : "";
  Write(STDERR_FILENO, up + text + "\033[J");
  painted_lines_ = static_cast<int>(lines.size());
  last_ = text;
}

}  // namespace lockstep::node
