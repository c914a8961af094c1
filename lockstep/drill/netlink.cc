#include "lockstep/drill/netlink.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cerrno>

namespace lockstep::drill {
namespace {

constexpr size_t kLargestDatagram = 256 << 10;  // the kernel fills at most 32 KiB of a dump at once

nlmsghdr HeaderOf(const std::string& message) {
  nlmsghdr header{};
  std::memcpy(&header, message.data(), sizeof(header));
  return header;
}

// The error of an answer, as a positive errno; 0: it is an acknowledgement.
int ErrorOf(const std::string& message) { return -Netlink::Head<nlmsgerr>(message).error; }

}  // namespace

std::string Netlink::BodyOf(const std::string& message) { return message.substr(NLMSG_HDRLEN); }

absl::StatusOr<Netlink> Netlink::Open() {
  Fd fd(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd.valid()) return Errno(errno, "a netlink socket");
  return Netlink(std::move(fd));
}

absl::Status Netlink::Send(uint16_t type, uint16_t flags, const std::string& body) {
  nlmsghdr header{};
  header.nlmsg_len = static_cast<uint32_t>(NLMSG_LENGTH(body.size()));
  header.nlmsg_type = type;
  header.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  header.nlmsg_seq = ++sequence_;
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  message += body;
  if (send(socket_.get(), message.data(), message.size(), 0) < 0) return Errno(errno, "asking the kernel by netlink");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Netlink::Receive() {
  std::string datagram(kLargestDatagram, '\0');
  const ssize_t size = recv(socket_.get(), datagram.data(), datagram.size(), MSG_TRUNC);
  if (size < 0) return Errno(errno, "the kernel's answer by netlink");
  if (static_cast<size_t>(size) > datagram.size())
    return DataLoss("the kernel's answer by netlink has {} bytes, more than expected", size);
  datagram.resize(static_cast<size_t>(size));
  std::vector<std::string> messages;
  while (datagram.size() >= sizeof(nlmsghdr)) {
    const nlmsghdr header = HeaderOf(datagram);
    if (header.nlmsg_len < sizeof(nlmsghdr) || header.nlmsg_len > datagram.size())
      return DataLoss("a netlink message says that it has {} bytes of {}", header.nlmsg_len, datagram.size());
    if (header.nlmsg_seq == sequence_) messages.push_back(datagram.substr(0, header.nlmsg_len));
    datagram.erase(0, NLMSG_ALIGN(header.nlmsg_len));
  }
  return messages;
}

absl::StatusOr<std::vector<std::string>> Netlink::DumpAll(uint16_t type, const std::string& body) {
  LS_RETURN_IF_ERROR(Send(type, NLM_F_DUMP, body));
  std::vector<std::string> all;
  while (true) {
    LS_ASSIGN_OR_RETURN(std::vector<std::string> messages, Receive());
    for (std::string& message : messages) {
      const uint16_t kind = HeaderOf(message).nlmsg_type;
      if (kind == NLMSG_DONE) return all;
      if (kind == NLMSG_ERROR) return Errno(ErrorOf(message), "netlink request {}", type);
      all.push_back(std::move(message));
    }
  }
}

absl::Status Netlink::Change(uint16_t type, uint16_t flags, const std::string& body) {
  LS_RETURN_IF_ERROR(Send(type, static_cast<uint16_t>(NLM_F_ACK | flags), body));
  while (true) {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> messages, Receive());
    for (const std::string& message : messages) {
      if (HeaderOf(message).nlmsg_type != NLMSG_ERROR) continue;
      const int error = ErrorOf(message);
      return error == 0 ? absl::OkStatus() : Errno(error, "netlink request {}", type);
    }
  }
}

}  // namespace lockstep::drill
