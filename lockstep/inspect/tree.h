// The files by which a kernel tells of its machine, under / or under another root: a test's folder, or a host's /proc
// and /sys as a container has them mounted. Nothing here can block: these are files of proc and sysfs. Thread-safe.
//
//   const Tree tree("/host");
//   tree.Number("/sys/class/net/eth0/carrier_changes");   // of /host/sys/...; nullopt: not there, or no number
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inspect {

class Tree {
 public:
  explicit Tree(std::string root = "") : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string Path(std::string_view path) const { return root_ + std::string(path); }
  // Of /proc/self, or under another root of its first process: /proc/1.
  std::optional<std::string> OwnProc(std::string_view name) const;
  // Without the white space at the end.
  std::optional<std::string> Text(std::string_view path) const;
  // Decimal, or hexadecimal behind 0x.
  std::optional<uint64_t> Number(std::string_view path) const;
  // Behind `key` and white space or '=' at the start of a line, or of a word in one.
  std::optional<uint64_t> Number(std::string_view path, std::string_view key) const;
  bool Has(std::string_view path) const;
  std::vector<std::string> List(std::string_view directory) const;  // names, sorted

 private:
  std::string root_;
};

std::optional<uint64_t> ParseNumber(std::string_view text);
// Split at white space, empty words left out. Views into `text`.
std::vector<std::string_view> Words(std::string_view text);
std::vector<std::string_view> Lines(std::string_view text);
// What stands behind `key`, as above.
std::optional<std::string_view> Behind(std::string_view text, std::string_view key);

}  // namespace lockstep::inspect
