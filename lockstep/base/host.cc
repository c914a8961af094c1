#include "lockstep/base/host.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "lockstep/base/file.h"
#include "lockstep/base/number.h"
#include "lockstep/base/slow_call.h"

namespace lockstep {
namespace {

// A name may stand for several addresses of which only some answer ("localhost": ::1 and 127.0.0.1); more than these
// are not tried.
constexpr size_t kMostAddresses = 4;

// The numeric forms of the host's addresses; none if it is unknown.
std::vector<std::string> Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<std::string> addresses;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return addresses;
  for (const addrinfo* each = found; each != nullptr && addresses.size() < kMostAddresses; each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    addresses.emplace_back(text.data());
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

std::optional<std::string_view> TakeHost(std::string_view& text) {
  const bool bracketed = text.starts_with('[');
  const size_t end = text.find(bracketed ? ']' : ':');
  if (bracketed && end == std::string_view::npos) return std::nullopt;
  const std::string_view host = bracketed ? text.substr(1, end - 1) : text.substr(0, end);
  text.remove_prefix(host.size() + (bracketed ? 2 : 0));
  return host;
}

std::optional<Endpoint> ParseEndpoint(std::string_view text) {
  const std::optional<std::string_view> host = TakeHost(text);
  if (!host || host->empty()) return std::nullopt;
  if (text.empty()) return Endpoint{std::string(*host)};
  const auto port = text.front() == ':' ? WholeNumber<uint16_t>(text.substr(1)) : std::nullopt;
  return port ? std::optional(Endpoint{std::string(*host), *port}) : std::nullopt;
}

std::string EndpointText(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}{}", v6 ? "[" : "", endpoint.host, v6 ? "]" : "",
                     endpoint.port ? fmt::format(":{}", *endpoint.port) : "");
}

bool IsLoopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

absl::StatusOr<bool> IsOwnAddress(const std::string& host, bool numeric) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = numeric ? AI_NUMERICHOST : 0;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), "0", &hints, &found);
  if (error != 0) return NotFound("{}: {}", host, gai_strerror(error));
  bool own = false;
  for (const addrinfo* entry = found; entry != nullptr && !own; entry = entry->ai_next) {
    const Fd fd(socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    own = fd.valid() && bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0;
  }
  freeaddrinfo(found);
  return own;
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

std::optional<std::vector<std::string>> LookUp(const std::string& host, Seconds at_most, const std::stop_token& stop) {
  SlowCall<std::vector<std::string>> call([host] { return Resolve(host); });
  call.Begin();
  return call.Await(at_most, stop);
}

}  // namespace lockstep
