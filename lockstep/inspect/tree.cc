#include "lockstep/inspect/tree.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "lockstep/base/file.h"

namespace lockstep::inspect {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (size_t begin = text.find_first_not_of(separators); begin != std::string_view::npos;
       begin = text.find_first_not_of(separators, begin)) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return parts;
}

}  // namespace

std::vector<std::string_view> Words(std::string_view text) { return Split(text, kSpace); }
std::vector<std::string_view> Lines(std::string_view text) { return Split(text, "\n"); }

std::optional<uint64_t> ParseNumber(std::string_view text) {
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, hexadecimal ? 16 : 10);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

std::optional<std::string_view> Behind(std::string_view text, std::string_view key) {
  for (size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    const size_t end = at + key.size();
    const bool begins = at == 0 || kSpace.find(text[at - 1]) != std::string_view::npos;
    if (!begins || end >= text.size() || std::string_view(" \t=:").find(text[end]) == std::string_view::npos) continue;
    const size_t value = text.find_first_not_of(" \t=:", end);
    return value == std::string_view::npos ? std::string_view() : text.substr(value);
  }
  return std::nullopt;
}

std::optional<std::string> Tree::OwnProc(std::string_view name) const {
  if (root_.empty()) return Text("/proc/self/" + std::string(name));
  if (auto text = Text("/proc/1/" + std::string(name))) return text;
  return Text("/proc/self/" + std::string(name));
}

std::optional<std::string> Tree::Text(std::string_view path) const {
  absl::StatusOr<std::string> text = ReadFile(Path(path));
  if (!text.ok()) return std::nullopt;
  text->erase(text->find_last_not_of(kSpace) + 1);
  return *std::move(text);
}

std::optional<uint64_t> Tree::Number(std::string_view path) const {
  const std::optional<std::string> text = Text(path);
  return text ? ParseNumber(*text) : std::nullopt;
}

std::optional<uint64_t> Tree::Number(std::string_view path, std::string_view key) const {
  const std::optional<std::string> text = Text(path);
  const std::optional<std::string_view> value = text ? Behind(*text, key) : std::nullopt;
  return value ? ParseNumber(*value) : std::nullopt;
}

bool Tree::Has(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(Path(path), error);
}

std::vector<std::string> Tree::List(std::string_view directory) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(Path(directory), error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lockstep::inspect
