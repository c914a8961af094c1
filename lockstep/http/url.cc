#include "lockstep/http/url.h"

#include <algorithm>
#include <charconv>

namespace lockstep::http {
namespace {

absl::Status ParsePort(std::string_view text, int& port) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535) return absl::OkStatus();
  return InvalidArgument("the URL's port must be between 1 and 65535, found \"{}\"", text);
}

// Splits "host:port" or "[v6]:port".
absl::Status ParseAuthority(std::string_view authority, Url& url) {
  if (authority.find('@') != std::string_view::npos)
    return InvalidArgument("the URL must not hold a user name or password");
  const bool bracketed = authority.starts_with('[');
  const size_t close = authority.find(']');
  if (bracketed && close == std::string_view::npos) return InvalidArgument("the URL's host lacks its closing bracket");
  const size_t colon = authority.find(':', bracketed ? close : 0);
  url.host = bracketed ? authority.substr(1, close - 1) : authority.substr(0, colon);
  if (url.host.empty()) return InvalidArgument("the URL names no host");
  return colon == std::string_view::npos ? absl::OkStatus() : ParsePort(authority.substr(colon + 1), url.port);
}

}  // namespace

std::string Url::Origin() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}", tls ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

absl::StatusOr<Url> ParseUrl(std::string_view text) {
  Url url;
  url.tls = text.starts_with("https://");
  if (!url.tls && !text.starts_with("http://")) return InvalidArgument("the URL must begin with http:// or https://");
  // A line break or space would let the URL write headers of its own.
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; })) {
    return InvalidArgument("the URL must not hold spaces or control characters");
  }
  text.remove_prefix(url.tls ? 8 : 7);
  text = text.substr(0, text.find('#'));
  url.port = url.tls ? 443 : 80;
  const size_t path = std::min(text.find_first_of("/?"), text.size());
  LS_RETURN_IF_ERROR(ParseAuthority(text.substr(0, path), url));
  url.target = text.substr(path);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  return url;
}

}  // namespace lockstep::http
