// The starter's end of join.h, as far as one worker in a test needs it: a thread that answers, a board, a ring and
// memfds. Not for production: the real one is in `agent`.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/test_folder.h"
#include "lockstep/client/board.h"
#include "lockstep/client/join.h"
#include "lockstep/record/ring.h"

namespace lockstep::client {

// A memfd and this process's mapping of it.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes), fd_(memfd_create("test", MFD_CLOEXEC)) {
    if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) std::abort();
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  }
  void Grow(size_t bytes) {
    if (bytes <= bytes_) return;
    if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) std::abort();
    data_ = mremap(data_, bytes_, bytes, MREMAP_MAYMOVE);
    bytes_ = bytes;
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() {
    munmap(data_, bytes_);
    close(fd_);
  }
  int fd() const { return fd_; }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  int fd_;
  void* data_;
};

// Serves one connection after the other until destroyed. Set `refusal` before a request to refuse it.
class FakeStarter {
 public:
  explicit FakeStarter(uint32_t ranks) : board_(ls_board_bytes(ranks)), ring_(ls_ring_bytes(16)) {
    board()->magic = LS_BOARD_MAGIC;
    board()->version = LS_BOARD_VERSION;
    board()->ranks = board()->world_size = ranks;
    ls_ring_format(ring_.data(), ring_.bytes());
    Listen();
    thread_ = std::jthread([this] { Serve(); });
  }
  ~FakeStarter() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  ls_board* board() { return static_cast<ls_board*>(board_.data()); }
  ls_ring* ring() { return ls_ring_attach(ring_.data(), ring_.bytes()); }
  const std::string& run() const { return run_.path(); }
  char* slot(size_t index) { return static_cast<char*>(slots_[index]->data()); }

  // The environment of a worker of this epoch, and the restore point it will find.
  void StartEpoch(uint64_t epoch, uint64_t restore_epoch = 0, int64_t restore_step = -1, int rank = 0) {
    setenv("LOCKSTEP_RUN", run().c_str(), 1);
    setenv("LOCKSTEP_RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCKSTEP_EPOCH", std::to_string(epoch).c_str(), 1);
    board()->restore_epoch = restore_epoch;
    board()->restore_step = restore_step;
    __atomic_store_n(&board()->epoch, epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&board()->restore_for, epoch, __ATOMIC_RELEASE);
  }

  std::string refusal;
  std::vector<int> own_slots;  // given instead of memfds, of `own_bytes` each
  uint64_t own_bytes = 0;

 private:
  void Listen() {
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = run_ / LS_JOIN_SOCKET;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
    if (listen(listener_, 4) != 0) std::abort();
  }
  void Serve() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; close(fd)) {
      ls_join_message request;
      while (recv(fd, &request, sizeof request, 0) == sizeof request) Answer(fd, request);
    }
  }
  void Answer(int fd, const ls_join_message& request) {
    ls_join_message reply{};
    reply.kind = refusal.empty() ? LS_JOIN_OK : LS_JOIN_REFUSED;
    reply.world_size = board()->world_size;
    std::strncpy(reply.text, refusal.c_str(), sizeof reply.text - 1);
    std::vector<int> fds;
    if (refusal.empty() && request.kind == LS_JOIN_HELLO) fds = {board_.fd(), ring_.fd()};
    if (refusal.empty() && request.kind == LS_JOIN_BUFFERS) fds = Slots(request.bytes);
    reply.bytes = own_slots.empty() ? slot_bytes_ : own_bytes;
    Send(fd, reply, fds);
  }
  std::vector<int> Slots(uint64_t bytes) {
    if (!own_slots.empty()) return own_slots;
    std::vector<int> fds;
    for (std::unique_ptr<SharedMemory>& slot : slots_) {
      if (slot == nullptr) slot = std::make_unique<SharedMemory>(bytes);
      slot->Grow(bytes);
      fds.push_back(slot->fd());
    }
    slot_bytes_ = std::max(slot_bytes_, bytes);
    return fds;
  }
  static void Send(int fd, ls_join_message& reply, const std::vector<int>& fds) {
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    iovec part{&reply, sizeof reply};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
    }
    sendmsg(fd, &header, MSG_NOSIGNAL);
  }

  SharedMemory board_, ring_;
  std::array<std::unique_ptr<SharedMemory>, LS_SLOTS> slots_;
  uint64_t slot_bytes_ = 0;
  const TestFolder run_;
  int listener_ = -1;
  std::jthread thread_;
};

}  // namespace lockstep::client
