#include "lockstep/drill/link_cut.h"

#include <fmt/ranges.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <thread>

namespace lockstep::drill {
namespace {

// A route by an IPv6 gateway can be made when the kernel has found the link's own address to be free, which takes it a
// second or two.
constexpr int kTries = 50;
constexpr std::chrono::milliseconds kBetweenTries{100};

// Not what the kernel makes by itself when a link comes up, asks routers for again, or holds in a cache.
bool IsOurs(const rtmsg& route) {
  return route.rtm_table != RT_TABLE_LOCAL && route.rtm_protocol != RTPROT_KERNEL && route.rtm_protocol != RTPROT_RA &&
         !(route.rtm_flags & RTM_F_CLONED);
}

std::string WithHead(const rtmsg& head, const std::string& body) {
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + body.substr(sizeof(head));
}

}  // namespace

absl::StatusOr<LinkCut> LinkCut::Prepare() {
  LS_ASSIGN_OR_RETURN(Netlink kernel, Netlink::Open());
  LinkCut cut(std::move(kernel));
  LS_RETURN_IF_ERROR(cut.Keep());
  if (cut.links_.empty()) return NotFound("its network has no link that is up but loopback");
  return cut;
}

absl::Status LinkCut::Keep() {
  LS_ASSIGN_OR_RETURN(const auto links, kernel_.Dump(RTM_GETLINK, ifinfomsg{}));
  for (const std::string& message : links) {
    const auto link = Netlink::Head<ifinfomsg>(message);
    if ((link.ifi_flags & IFF_UP) && !(link.ifi_flags & IFF_LOOPBACK)) links_.push_back(link.ifi_index);
  }
  ifaddrmsg addresses{};
  addresses.ifa_family = AF_INET6;
  LS_ASSIGN_OR_RETURN(const auto found, kernel_.Dump(RTM_GETADDR, addresses));
  for (const std::string& message : found) {
    if (Netlink::Head<ifaddrmsg>(message).ifa_flags & IFA_F_PERMANENT) addresses_.push_back(Netlink::BodyOf(message));
  }
  LS_ASSIGN_OR_RETURN(const auto neighbours, kernel_.Dump(RTM_GETNEIGH, ndmsg{}));
  for (const std::string& message : neighbours) {
    if (Netlink::Head<ndmsg>(message).ndm_state & NUD_PERMANENT) neighbours_.push_back(Netlink::BodyOf(message));
  }
  for (const uint8_t family : {uint8_t{AF_INET}, uint8_t{AF_INET6}}) {
    rtmsg filter{};
    filter.rtm_family = family;
    LS_ASSIGN_OR_RETURN(const auto routes, kernel_.Dump(RTM_GETROUTE, filter));
    for (const std::string& message : routes) {
      auto route = Netlink::Head<rtmsg>(message);
      if (!IsOurs(route)) continue;
      route.rtm_flags &= RTNH_F_ONLINK;  // the others tell how it stood, and are not to be asked for
      routes_.push_back(WithHead(route, Netlink::BodyOf(message)));
    }
  }
  return absl::OkStatus();
}

absl::Status LinkCut::SetLink(int index, bool up) {
  ifinfomsg link{};
  link.ifi_index = index;
  link.ifi_change = IFF_UP;
  link.ifi_flags = up ? IFF_UP : 0;
  absl::Status done = kernel_.Change(RTM_NEWLINK, 0, std::string(reinterpret_cast<const char*>(&link), sizeof(link)));
  if (done.ok()) return done;
  std::array<char, IF_NAMESIZE> name{};
  if_indextoname(static_cast<unsigned>(index), name.data());
  return At(fmt::format("link {} ({})", name.data(), index), done);
}

absl::Status LinkCut::Cut() {
  for (const int link : links_) LS_RETURN_IF_ERROR(SetLink(link, false));
  return absl::OkStatus();
}

// Those that could not be made stay. They are added behind what is there, in their order, so that routes to the same
// place keep theirs; the same one twice is refused by the kernel.
absl::Status LinkCut::MakeAgain(uint16_t type, std::vector<std::string>& bodies) {
  absl::Status why;
  std::erase_if(bodies, [&](const std::string& body) {
    const absl::Status made = kernel_.Change(type, NLM_F_CREATE | NLM_F_APPEND, body);
    if (made.ok() || absl::IsAlreadyExists(made)) return true;
    why = made;
    return false;
  });
  return why;
}

absl::Status LinkCut::Mend() {
  std::vector<std::string> wrong;
  for (const int link : links_) {
    if (const absl::Status up = SetLink(link, true); !up.ok()) wrong.push_back(Message(up));
  }
  const absl::Status addresses = MakeAgain(RTM_NEWADDR, addresses_), neighbours = MakeAgain(RTM_NEWNEIGH, neighbours_);
  absl::Status routes = MakeAgain(RTM_NEWROUTE, routes_);
  for (int tries = 1; wrong.empty() && !routes.ok() && tries < kTries; ++tries) {
    std::this_thread::sleep_for(kBetweenTries);
    routes = MakeAgain(RTM_NEWROUTE, routes_);
  }
  if (!addresses.ok()) wrong.push_back(fmt::format("{} addresses: {}", addresses_.size(), Message(addresses)));
  if (!neighbours.ok()) wrong.push_back(fmt::format("{} neighbours: {}", neighbours_.size(), Message(neighbours)));
  if (!routes.ok()) wrong.push_back(fmt::format("{} routes: {}", routes_.size(), Message(routes)));
  if (wrong.empty()) return absl::OkStatus();
  return FailedPrecondition("not as before: {}", fmt::join(wrong, "; "));
}

}  // namespace lockstep::drill
