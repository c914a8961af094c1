// What it costs to stream steps of 256 KB from one process to another on the same machine, and to ask a model.
//
//   stage_path ROUNDS     prints arrays of microseconds:
//     put_get    in one process: reserve, copy in, commit, next, read all of it, release
//     in_place   the same without copying and reading: what staging itself costs
//     across     to another process that waits for it: from before reserve until all was read there
//     socket     the same through a unix socket, as stores of tensors do at best: copied in, sent, received, read
//     copies     256 KB copied, then read: what put_get does without staging
//     infer_1, infer_64   a call of ls_infer() for a layer of 1 x 1 (overhead alone), and 64-64-64-64
//     refresh    ls_infer_refresh() without news;  swap  with new weights of 64-64-64-64
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/stage/infer.h"
#include "lockstep/stage/stage.h"

namespace lockstep {
namespace {

constexpr int kFloats = 65'536;
constexpr size_t kBytes = kFloats * sizeof(float);
constexpr double kLimit = 30;
constexpr int64_t kShape[] = {256, 256};
using Samples = std::vector<double>;
using Field = std::vector<float>;

int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Reads each line: what a trainer does at least.
float ReadAll(const void* memory) {
  const auto* values = static_cast<const float*>(memory);
  float sum[16] = {};
  for (int i = 0; i < kFloats; i += 16) {
    for (int k = 0; k < 16; ++k) sum[k] += values[i + k];
  }
  float all = 0;
  for (const float one : sum) all += one;
  return all;
}
volatile float sink;

template <typename Work>
Samples Timed(int rounds, Work work) {
  Samples took;
  for (int round = -rounds / 10; round < rounds; ++round) {  // the first warm up
    const int64_t begin = Now();
    work();
    if (round >= 0) took.push_back(static_cast<double>(Now() - begin) * 1e-3);
  }
  return took;
}

ls_stage* OpenWriter(const char* name, uint32_t k) {
  const ls_stage_options how = {
      .policy = LS_STAGE_LOSSLESS, .k = k, .spare = 0, .readers = 1, .seed = 0, .spill = nullptr};
  ls_stage* writer = nullptr;
  LS_CHECK(ls_stage_open(name, 0, 1, LS_STAGE_F32, 2, kShape, &how, kLimit, &writer) == LS_STAGE_OK);
  return writer;
}

void Put(ls_stage* writer, int64_t step, const Field* field) {
  void* memory = nullptr;
  LS_CHECK(ls_stage_reserve(writer, step, kLimit, &memory) == LS_STAGE_OK);
  if (field != nullptr) std::memcpy(memory, field->data(), kBytes);
  LS_CHECK(ls_stage_commit(writer) == LS_STAGE_OK);
}

nlohmann::json InOneProcess(int rounds) {
  ls_stage *writer = OpenWriter("bench_own", 4), *reader = nullptr;
  LS_CHECK(ls_stage_attach("bench_own", 0, 1, kLimit, &reader) == LS_STAGE_OK);
  Field field(kFloats, 1), to(kFloats);
  int64_t step = 0;
  const auto round = [&](bool copies) {
    Put(writer, step++, copies ? &field : nullptr);
    ls_stage_step got;
    LS_CHECK(ls_stage_next(reader, kLimit, &got) == LS_STAGE_OK);
    if (copies) sink = ReadAll(got.memory);
    LS_CHECK(ls_stage_release(reader, &got) == LS_STAGE_OK);
  };
  nlohmann::json found;
  found["put_get"] = Timed(rounds, [&] { round(true); });
  found["in_place"] = Timed(rounds, [&] { round(false); });
  found["copies"] = Timed(rounds, [&] {
    std::memcpy(to.data(), field.data(), kBytes);
    sink = ReadAll(to.data());
  });
  LS_CHECK(ls_stage_close(writer, 0) == LS_STAGE_OK && ls_stage_detach(reader) == LS_STAGE_OK);
  return found;
}

// Two processes: `send` puts a field, the first 8 bytes of which say when that began; `receive` returns it, read, in
// the other one. Each waits for the one before to have been read.
template <typename Send, typename Receive>
Samples Across(int rounds, Send send, Receive receive) {
  const int all = rounds + rounds / 10;
  const size_t bytes = static_cast<size_t>(all) * sizeof(double);
  auto* took = static_cast<double*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t child = fork();
  if (child == 0) {
    receive.Begin();
    for (int i = 0; i < all; ++i) {
      const int64_t begin = receive.Next();
      took[i] = static_cast<double>(Now() - begin) * 1e-3;
      receive.Done();
    }
    receive.End();
    _exit(0);
  }
  Field field(kFloats, 1);
  for (int i = 0; i < all; ++i) {
    send.Ready(i);
    const int64_t begin = Now();
    std::memcpy(field.data(), &begin, sizeof begin);
    send.Put(i, field);
  }
  waitpid(child, nullptr, 0);
  Samples samples(took + rounds / 10, took + all);
  munmap(took, bytes);
  return samples;
}

int64_t Began(const void* memory) {
  int64_t begin;
  std::memcpy(&begin, memory, sizeof begin);
  sink = ReadAll(memory);
  return begin;
}

struct Acknowledged {  // by a byte through a pipe, so that no step waits in the stream
  int fd[2];
  void Say() const { LS_CHECK(write(fd[1], "x", 1) == 1); }
  void Hear() const {
    char byte;
    LS_CHECK(read(fd[0], &byte, 1) == 1);
  }
};

struct StageSender {
  ls_stage* writer;
  Acknowledged read;
  void Ready(int) const { read.Hear(); }
  void Put(int step, const Field& field) const { lockstep::Put(writer, step, &field); }
};
struct StageReceiver {
  Acknowledged read;
  ls_stage* reader = nullptr;
  ls_stage_step got = {};
  void Begin() {
    LS_CHECK(ls_stage_attach("bench_across", 0, 1, kLimit, &reader) == LS_STAGE_OK);
    read.Say();
  }
  int64_t Next() {
    LS_CHECK(ls_stage_next(reader, kLimit, &got) == LS_STAGE_OK);
    return Began(got.memory);
  }
  void Done() {
    LS_CHECK(ls_stage_release(reader, &got) == LS_STAGE_OK);
    read.Say();
  }
  void End() { ls_stage_detach(reader); }
};

struct SocketSender {
  int socket;
  Acknowledged read;
  void Ready(int) const { read.Hear(); }
  void Put(int, const Field& field) const {
    for (size_t at = 0; at < kBytes;) {
      const ssize_t sent = write(socket, reinterpret_cast<const char*>(field.data()) + at, kBytes - at);
      LS_CHECK(sent > 0);
      at += static_cast<size_t>(sent);
    }
  }
};
struct SocketReceiver {
  int socket;
  Acknowledged acknowledged;
  Field field = Field(kFloats);
  void Begin() { acknowledged.Say(); }
  int64_t Next() {
    for (size_t at = 0; at < kBytes;) {
      const ssize_t got = read(socket, reinterpret_cast<char*>(field.data()) + at, kBytes - at);
      LS_CHECK(got > 0);
      at += static_cast<size_t>(got);
    }
    return Began(field.data());
  }
  void Done() { acknowledged.Say(); }
  void End() {}
};

nlohmann::json InTwoProcesses(int rounds) {
  Acknowledged read;
  int sockets[2];
  LS_CHECK(pipe(read.fd) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  nlohmann::json found;
  ls_stage* writer = OpenWriter("bench_across", 4);
  found["across"] = Across(rounds, StageSender{writer, read}, StageReceiver{read});
  LS_CHECK(ls_stage_close(writer, 0) == LS_STAGE_OK);
  LS_CHECK(pipe(read.fd) == 0);
  found["socket"] = Across(rounds, SocketSender{sockets[0], read}, SocketReceiver{sockets[1], read});
  return found;
}

class Model {
 public:
  explicit Model(uint32_t width, int layers) : weights_(static_cast<size_t>(layers) * width * (width + 1), 0.01F) {
    const std::vector<ls_dense> dense(static_cast<size_t>(layers), ls_dense{width, width, LS_ACTIVATION_RELU, 0});
    LS_CHECK(ls_model_open("bench", layers, dense.data(), &trainer_) == LS_STAGE_OK);
    Publish();
    LS_CHECK(ls_infer_open("bench", kLimit, &solver_) == LS_STAGE_OK);
    input_.resize(width, 1);
    output_.resize(width);
  }
  ~Model() {
    ls_infer_close(solver_);
    ls_model_close(trainer_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  void Publish() { LS_CHECK(ls_model_publish(trainer_, weights_.data(), weights_.size()) == LS_STAGE_OK); }
  void Ask() { LS_CHECK(ls_infer(solver_, input_.data(), 1, output_.data()) == LS_STAGE_OK); }
  void Refresh() { LS_CHECK(ls_infer_refresh(solver_) != 0); }

 private:
  ls_model *trainer_ = nullptr, *solver_ = nullptr;
  Field weights_, input_, output_;
};

nlohmann::json Asked(int rounds) {
  nlohmann::json found;
  {
    Model one(1, 1);
    found["infer_1"] = Timed(rounds, [&] { one.Ask(); });
  }
  Model small(64, 3);
  found["infer_64"] = Timed(rounds, [&] { small.Ask(); });
  found["refresh"] = Timed(rounds, [&] { small.Refresh(); });
  Samples swaps;
  for (int round = 0; round < rounds; ++round) {
    small.Publish();
    const int64_t begin = Now();
    small.Refresh();
    swaps.push_back(static_cast<double>(Now() - begin) * 1e-3);
  }
  found["swap"] = swaps;
  return found;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  char folder[] = "/dev/shm/lockstep-stage-bench-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  setenv("LOCKSTEP_STAGE_DIR", folder, 1);
  nlohmann::json found = lockstep::InOneProcess(rounds);
  found.update(lockstep::InTwoProcesses(rounds));
  found.update(lockstep::Asked(rounds));
  rmdir(folder);
  std::cout << found.dump() << "\n";
}
