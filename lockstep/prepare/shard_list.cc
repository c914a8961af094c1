#include "lockstep/prepare/shard_list.h"

#include <absl/strings/ascii.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "lockstep/base/json_text.h"
#include "lockstep/base/number.h"
#include "lockstep/base/split.h"

namespace lockstep::prepare {
namespace {

constexpr size_t kMaxFiles = 1'000'000, kMaxBytes = 64 << 20;  // that braces stand for; of all names together
constexpr size_t kMaxListed = 10'000'000;

// "000..146": as many digits as the longer of both has, where one begins with 0.
std::optional<std::vector<std::string>> NumbersOf(std::string_view body) {
  const size_t dots = body.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const std::string_view low = body.substr(0, dots), high = body.substr(dots + 2);
  const auto first = WholeNumber<uint32_t>(low), last = WholeNumber<uint32_t>(high);
  if (!first || !last || *last < *first || *last - *first >= kMaxFiles) return std::nullopt;
  const bool padded = (low.size() > 1 && low[0] == '0') || (high.size() > 1 && high[0] == '0');
  const size_t width = padded ? std::max(low.size(), high.size()) : 0;
  if (width > 32) return std::nullopt;
  std::vector<std::string> numbers;
  for (uint64_t number = *first; number <= *last; ++number) numbers.push_back(fmt::format("{:0{}}", number, width));
  return numbers;
}

std::vector<std::string> AlternativesOf(std::string_view body) {
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t comma = std::min(body.find(',', begin), body.size());
    parts.emplace_back(body.substr(begin, comma - begin));
    if (comma == body.size()) return parts;
    begin = comma + 1;
  }
}

// A name in a list.
struct Entry {
  std::string name;
  size_t number = 0;  // of its line, or of its entry in an index, from 1
};

std::vector<Entry> EntriesOf(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // editors of some systems begin a text with it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<Entry> entries;
  for (size_t line = 1; !text.empty(); ++line) {
    const std::string_view name = Trim(TakeLine(text));
    if (!name.empty() && name[0] != '#') entries.push_back({std::string(name), line});
  }
  return entries;
}

absl::StatusOr<std::vector<Entry>> EntriesOfIndex(const std::string& path, const std::string& text) {
  const Json index = ParseJson(text);
  const auto wrong = [&] {
    return InvalidArgument(R"({}: expected {{"shardlist": [{{"url": NAME}}, ...]}})", WithoutQuery(path));
  };
  if (!index.is_object() || !index.contains("shardlist") || !index["shardlist"].is_array()) return wrong();
  std::vector<Entry> entries;
  for (const Json& shard : index["shardlist"]) {
    if (!shard.is_object() || !shard.contains("url") || !shard["url"].is_string()) return wrong();
    entries.push_back({shard["url"].get<std::string>(), entries.size() + 1});
  }
  return entries;
}

// "./a/./b" is "a/b".
std::string WithoutDots(std::string_view path) {
  std::string plain;
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const bool is_dot = path.substr(0, slash) == ".";
    size_t next = slash == std::string_view::npos ? path.size() : slash + 1;
    if (is_dot) next = std::min(path.find_first_not_of('/', next), path.size());
    if (!is_dot) plain += path.substr(0, next);
    path.remove_prefix(next);
  }
  return plain;
}

// Bytes of a file's name that may not stand in the path of a URL (RFC 3986) become "%XX".
std::string Escaped(std::string_view name) {
  std::string escaped;
  for (const char c : name) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       std::string_view("-._~!$&'()*+,;=:@/").find(c) != std::string_view::npos;
    plain ? escaped += c : escaped += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

// A name of a list whose names count from `folder`. Those of a text are names of files, with a query perhaps; those of
// an index are URLs already.
std::string Beside(const std::string& folder, const std::string& name, bool is_file) {
  if (IsUrl(name)) return name;
  if (!IsUrl(folder)) return (name.starts_with('/') ? "" : folder) + WithoutDots(name);
  const size_t query = std::min(name.find('?'), name.size());
  const std::string plain = WithoutDots(std::string_view(name).substr(0, query));
  const size_t base =
      plain.starts_with('/') ? folder.find('/', folder.find("://") + 3) : folder.size();  // the server's
  return folder.substr(0, base) + (is_file ? Escaped(plain) : plain) + name.substr(query);
}

bool IsJson(const std::string& path) { return ExtensionOf(path) == ".json"; }

// What it is by whatever way. Of files that are items the name decides: their folder may be a class.
std::string IdentityOf(const std::string& path) {
  struct stat info{};
  if (IsUrl(path) || ExtensionOf(path) != ".tar" || stat(path.c_str(), &info) != 0) return path;
  return fmt::format("{}:{}", info.st_dev, info.st_ino);
}

// Braces with this in them stand for themselves.
bool IsOfTheName(std::string_view body) {
  return body.find("..") == std::string_view::npos && body.find(',') == std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandBraces(const std::string& path) {
  std::vector<std::string> paths{""};
  std::string_view rest = path;
  while (!rest.empty()) {
    const size_t open = rest.find('{');
    const size_t close = open == std::string_view::npos ? open : rest.find('}', open);
    const bool has_more = close != std::string_view::npos;
    const std::string_view plain = rest.substr(0, has_more ? open : rest.size());
    const std::string_view body = has_more ? rest.substr(open + 1, close - open - 1) : std::string_view();
    std::vector<std::string> parts{""};
    if (has_more && IsOfTheName(body)) {
      parts = {fmt::format("{{{}}}", body)};
    } else if (has_more && body.find("..") != std::string_view::npos) {
      std::optional<std::vector<std::string>> numbers = NumbersOf(body);
      if (!numbers)
        return InvalidArgument("{}: {{{}}}: expected {{FIRST..LAST}}, at most {} numbers", WithoutQuery(path), body,
                               kMaxFiles);
      parts = *std::move(numbers);
    } else if (has_more) {
      parts = AlternativesOf(body);
    }
    if (paths.size() * parts.size() > kMaxFiles || paths.size() * parts.size() * path.size() > kMaxBytes)
      return InvalidArgument("{}: it stands for more than {} files", WithoutQuery(path), kMaxFiles);
    std::vector<std::string> next;
    for (const std::string& begun : paths)
      for (const std::string& part : parts) next.push_back(begun + std::string(plain) + part);
    paths = std::move(next);
    rest.remove_prefix(has_more ? close + 1 : rest.size());
  }
  return paths;
}

absl::StatusOr<std::vector<std::string>> ParseShardList(const std::string& path, const std::string& text) {
  const bool is_index = IsJson(path);
  std::vector<Entry> entries;
  if (is_index) {
    LS_ASSIGN_OR_RETURN(entries, EntriesOfIndex(path, text));
  } else {
    entries = EntriesOf(text);
  }
  const std::string folder = FolderOf(path);
  std::vector<std::string> paths;
  std::vector<size_t> numbers;  // of each path's entry
  for (const auto& [name, number] : entries) {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> expanded, ExpandBraces(name));
    if (paths.size() + expanded.size() > kMaxListed)
      return InvalidArgument("{}: more than {} files", WithoutQuery(path), kMaxListed);
    for (const std::string& one : expanded) paths.push_back(Beside(folder, one, !is_index));
    numbers.resize(paths.size(), number);
  }
  if (const auto repeated = FindRepeated(paths))
    return InvalidArgument("{}: {} {} names {}, as {} {} does: expected each file once", WithoutQuery(path),
                           is_index ? "entry" : "line", numbers[repeated->second],
                           WithoutQuery(paths[repeated->second]), is_index ? "entry" : "line",
                           numbers[repeated->first]);
  if (paths.empty()) return InvalidArgument("{}: the list has no name in it", WithoutQuery(path));
  return paths;
}

std::optional<Repeated> FindRepeated(const std::vector<std::string>& paths) {
  std::unordered_map<std::string, size_t> seen(paths.size());
  for (size_t i = 0; i < paths.size(); ++i)
    if (const auto [first, is_new] = seen.emplace(IdentityOf(paths[i]), i); !is_new) return Repeated{first->second, i};
  return std::nullopt;
}

std::string Located(const std::string& path) {
  if (IsUrl(path)) return path;
  std::error_code none;  // then as it is
  return WithoutDots((std::filesystem::current_path(none) / path).string());
}

std::string FolderOf(const std::string& path) {
  const std::string located = Located(std::string(WithoutQuery(path)));
  return located.substr(0, located.rfind('/') + 1);
}

std::string BeforeBraces(const std::string& path) {
  for (size_t open = path.find('{'); open != std::string::npos; open = path.find('{', open + 1)) {
    const size_t close = path.find('}', open);
    if (close == std::string::npos) break;
    if (!IsOfTheName(std::string_view(path).substr(open + 1, close - open - 1))) return path.substr(0, open);
    open = close;
  }
  return path;
}

bool IsShardList(const std::string& path) {
  const std::string extension = ExtensionOf(path);
  return extension == ".txt" || extension == ".json" || (IsUrl(path) && WithoutQuery(path).ends_with('/'));
}

absl::StatusOr<std::vector<std::string>> ReadShardList(Files& files, const std::string& path) {
  if (!WithoutQuery(path).ends_with('/')) {
    LS_ASSIGN_OR_RETURN(const std::string text, files.ReadText(path));
    return ParseShardList(path, text);
  }
  for (const char* name : {"index.json", "shards.txt"}) {
    const absl::StatusOr<std::string> text = files.ReadText(path + name);
    if (text.ok()) return ParseShardList(path + name, *text);
    if (!absl::IsNotFound(text.status())) return text.status();
  }
  return NotFound("{}: there is neither an index.json nor a shards.txt, which would say what files are there",
                  WithoutQuery(path));
}

}  // namespace lockstep::prepare
