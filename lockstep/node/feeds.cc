#include "lockstep/node/feeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestName = 64;
constexpr char kNameLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
constexpr std::string_view kKeys[] = {"cache",   "documents",   "end-token",  "listen",      "max-pixels",
                                      "pack",    "patience",    "policy",     "ring-memory", "tensor",
                                      "threads", "token-bytes", "token-file", "tokens"};

bool IsUrl(std::string_view data) { return data.find("://") != std::string_view::npos; }

// Where the first ",KEY=" begins; the end, if there is none, or if a file has that very name.
size_t OptionsIn(const std::string& text) {
  if (fs::exists(text)) return text.size();
  for (size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', comma + 1)) {
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", comma + 1);
    if (end != std::string::npos && end > comma + 1 && text[end] == '=') return comma;
  }
  return text.size();
}

// The colon in front of a name; none: it has none, or a file has that very name. In a URL, neither that of the scheme
// nor that of a port.
std::optional<size_t> ColonIn(const std::string& data) {
  const size_t colon = data.rfind(':');
  if (colon == std::string::npos || data.find('/', colon) != std::string::npos || fs::exists(data)) return std::nullopt;
  size_t host = IsUrl(data) ? data.find("://") + 3 : 0;
  if (data[host] == '[') host = std::min(data.find(']', host), data.size());  // the colons of an IPv6 address
  const size_t path = IsUrl(data) ? data.find_first_of("/:", host) : 0;
  return path == colon ? std::nullopt : std::optional(colon);
}

absl::Status TakeOptions(std::string_view options, agent::FeedSpec& feed) {
  while (!options.empty()) {
    options.remove_prefix(1);
    const std::string_view option = options.substr(0, options.find(','));
    options.remove_prefix(option.size());
    const std::string_view key = option.substr(0, option.find('='));
    if (key.size() == option.size() || std::ranges::find(kKeys, key) == std::end(kKeys))
      return InvalidArgument("\"{}\": expected KEY=VALUE, and KEY one of {}", option, fmt::join(kKeys, ", "));
    feed.options.push_back(fmt::format("--{}", key));
    feed.options.emplace_back(option.substr(key.size() + 1));
  }
  return absl::OkStatus();
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.front() != '.' && name.size() <= kLongestName &&
      name.find_first_not_of(kNameLetters) == std::string::npos)
    return absl::OkStatus();
  return InvalidArgument(
      "\"{}\" is no name; expected up to {} letters, digits, _, - and dots, none in front: DATA:NAME gives one", name,
      kLongestName);
}

absl::StatusOr<agent::FeedSpec> ParseFeed(const std::string& text) {
  const size_t options = OptionsIn(text);
  const std::string set = text.substr(0, options);
  const std::optional<size_t> colon = ColonIn(set);
  agent::FeedSpec feed;
  feed.data = set.substr(0, colon.value_or(set.size()));
  if (!IsUrl(feed.data)) feed.data = fs::absolute(feed.data).lexically_normal().string();
  feed.name = colon ? set.substr(*colon + 1) : NameOfData(feed.data);
  LS_RETURN_IF_ERROR(TakeOptions(std::string_view(text).substr(options), feed));
  const bool is_pattern = feed.data.find('{') != std::string::npos;
  if (!IsUrl(feed.data) && !is_pattern && !fs::exists(feed.data)) return NotFound("{} does not exist", feed.data);
  LS_RETURN_IF_ERROR(CheckName(feed.name));
  return feed;
}

}  // namespace

std::string NameOfData(const std::string& data) {
  if (data.starts_with("feed://")) return "";
  const fs::path path = data.substr(0, IsUrl(data) ? data.find('?') : std::string::npos);
  const std::string last = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  if (!IsUrl(data) && last.find('{') == std::string::npos) return last;
  return last.substr(0, std::max<size_t>(std::min(last.find_first_of(".{"), last.size()), 1));
}

absl::StatusOr<std::vector<agent::FeedSpec>> ParseFeeds(const std::vector<std::string>& texts) {
  std::vector<agent::FeedSpec> feeds;
  for (const std::string& text : texts) {
    absl::StatusOr<agent::FeedSpec> feed = ParseFeed(text);
    if (!feed.ok()) return At("--feed " + text, feed.status());
    if (std::ranges::find(feeds, feed->name, &agent::FeedSpec::name) != feeds.end())
      return InvalidArgument("--feed {}: another data set is called {}, too: DATA:NAME gives it another name", text,
                             feed->name);
    feeds.push_back(*std::move(feed));
  }
  return feeds;
}

}  // namespace lockstep::node
