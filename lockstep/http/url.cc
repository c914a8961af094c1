#include "lockstep/http/url.h"

#include <algorithm>

#include "lockstep/base/host.h"
#include "lockstep/base/number.h"

namespace lockstep::http {
namespace {

absl::Status ParseAuthority(std::string_view text, Url& url) {
  if (text.find('@') != std::string_view::npos) return InvalidArgument("the URL must not hold a user name or password");
  const std::optional<std::string_view> host = TakeHost(text);
  if (!host) return InvalidArgument("the URL's host lacks its closing bracket");
  if (host->empty()) return InvalidArgument("the URL names no host");
  url.host = *host;
  if (text.empty()) return absl::OkStatus();
  const bool told = text.front() == ':';
  if (told) text.remove_prefix(1);
  url.port = told ? WholeNumber<uint16_t>(text).value_or(0) : 0;
  if (url.port > 0) return absl::OkStatus();
  return InvalidArgument("the URL's port must be between 1 and 65535, found \"{}\"", text);
}

}  // namespace

std::string Url::Origin() const { return fmt::format("{}://{}", tls ? "https" : "http", EndpointText({host, port})); }

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
