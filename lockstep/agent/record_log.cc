#include "lockstep/agent/record_log.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>

#include "lockstep/record/file.h"

namespace lockstep::agent {

RecordLog::~RecordLog() {
  for (const auto& [rank, own] : rings_) munmap(own.ring, own.bytes);
}

void RecordLog::Attach(int rank, const Fd& ring) {
  struct stat info{};
  if (fstat(ring.get(), &info) != 0) return;
  const auto known = rings_.find(rank);
  if (known != rings_.end() && known->second.inode == info.st_ino) return;
  const auto bytes = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring.get(), 0);
  if (memory == MAP_FAILED) return;
  ls_ring* attached = ls_ring_attach(memory, bytes);
  if (attached == nullptr) {
    munmap(memory, bytes);
    return;
  }
  if (known != rings_.end()) munmap(known->second.ring, known->second.bytes);
  rings_[rank] = {attached, bytes, info.st_ino};
}

void RecordLog::Drain() {
  std::array<ls_record, 256> cells;
  for (const auto& [rank, own] : rings_) {
    // Attached anew each time: its worker may have written over the header.
    while (ls_ring* ring = ls_ring_attach(own.ring, own.bytes)) {
      const size_t count = ls_ring_pop(ring, cells.data(), cells.size());
      if (count == 0) break;
      Keep(cells.data(), count);
    }
  }
}

void RecordLog::Keep(const ls_record* cells, size_t count) {
  const uint64_t bytes = count * LS_CELL_BYTES;
  if (!file_.valid()) Open();
  if (file_.valid() && bytes_ + bytes > limit_.value / 2 && bytes_ > sizeof(ls_record_file_header)) {
    file_.Close();
    if (rename(path_.c_str(), (path_ + kOlderRecords).c_str()) == 0) Open();
  }
  if (file_.valid() && ls_record_file_append(file_.get(), cells, count)) {
    bytes_ += bytes;
    kept_ += count;
  } else {
    not_kept_ += count;
  }
}

void RecordLog::Open() {
  file_ = Fd(ls_record_file_create(path_.c_str()));
  struct stat info{};
  bytes_ = file_.valid() && fstat(file_.get(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

uint64_t RecordLog::dropped() const {
  uint64_t sum = 0;
  for (const auto& [rank, own] : rings_) sum += __atomic_load_n(&own.ring->dropped, __ATOMIC_RELAXED);
  return sum;
}

}  // namespace lockstep::agent
