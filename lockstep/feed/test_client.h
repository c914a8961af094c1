// For tests: a data set of bytes, and a rank that joins a service as a loader does.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/json_text.h"
#include "lockstep/base/packets.h"
#include "lockstep/client/feed_ring.h"
#include "lockstep/feed/request.h"

namespace lockstep::feed {

inline constexpr int kLongMs = 60'000;
inline constexpr uint64_t kItems = 200;

// kItems items, each full of its number.
inline void WriteNpy(const std::string& path, size_t item_bytes = 16) {
  std::string header =
      fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {}), }}", kItems, item_bytes);
  header.resize(117, ' ');
  header += '\n';
  std::string text = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  for (uint64_t item = 0; item < kItems; ++item) text.append(item_bytes, static_cast<char>(item));
  ASSERT_TRUE(WriteFileAtomically(path, text).ok());
}

inline Json JoinPacket(const std::string& job) {
  return {{"op", "join"},       {"version", kProtocolVersion},
          {"dataset", "bytes"}, {"job", job},
          {"where", nullptr},   {"recipe", {{"crop", "center"}, {"size", {8, 8}}, {"shorter", 8}, {"flip", 0.0}}},
          {"batch", 10},        {"slots", 2},
          {"seed", 7},          {"rank", 0},
          {"world", 1},         {"drop_last", false},
          {"alone", true},      {"state", ""}};
}

inline Json With(Json packet, const std::string& key, Json value) {
  packet[key] = std::move(value);
  return packet;
}

// A rank, as a loader is one.
class Client {
 public:
  Client(const std::string& path, const Json& packet, std::span<const int> fds = {}) {
    absl::StatusOr<Fd> connected = ConnectTo(path);
    if (!connected.ok()) return;
    socket_ = *std::move(connected);
    EXPECT_TRUE(SendPacket(socket_.get(), OneLine(packet), fds).ok());
    Receive();
  }
  Client(Client&& other) noexcept
      : answer(std::move(other.answer)),
        socket_(std::move(other.socket_)),
        ring_(std::exchange(other.ring_, nullptr)),
        bytes_(other.bytes_),
        ticket_(other.ticket_) {}
  ~Client() {
    if (ring_ != nullptr) munmap(ring_, bytes_);
  }
  void Receive() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, kLongMs), 1);
    std::optional<Packet> packet = ReceivePacket(socket_.get());
    ASSERT_TRUE(packet);
    if (packet->closed) return;
    answer = ParseJson(packet->text);
    if (packet->fds.size() != 1) return;
    struct stat info{};
    fstat(packet->fds[0].get(), &info);
    bytes_ = static_cast<size_t>(info.st_size);
    ring_ =
        static_cast<ls_feed_ring*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, packet->fds[0].get(), 0));
  }
  std::vector<uint64_t> Next() {
    const int slot = ls_feed_await(ring_, ticket_++, socket_.get(), kLongMs);
    if (slot < 0) return {};
    const char* at =
        reinterpret_cast<const char*>(ring_) + LS_FEED_ALIGN + static_cast<uint64_t>(slot) * ring_->slot_stride;
    const auto& batch = *reinterpret_cast<const ls_feed_batch*>(at);
    const auto* ids = reinterpret_cast<const uint64_t*>(at + sizeof batch);
    std::vector<uint64_t> seen(ids, ids + batch.items);
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_EQ(static_cast<uint8_t>(at[ring_->payload_offset + (i + 1) * ring_->item_bytes - 1]), seen[i]);
    state = batch.state;
    ls_feed_release(ring_, static_cast<uint32_t>(slot), socket_.get());
    return seen;
  }
  std::string error() const { return answer.value("error", ""); }
  void Close() { socket_.Close(); }

  Json answer;
  std::string state;  // after the last batch

 private:
  Fd socket_;
  ls_feed_ring* ring_ = nullptr;
  size_t bytes_ = 0;
  uint64_t ticket_ = 0;
};

}  // namespace lockstep::feed
