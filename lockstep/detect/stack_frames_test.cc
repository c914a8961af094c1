#include "lockstep/detect/stack_frames.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::detect {
namespace {

TEST(StackFrames, PythonOfAllToolsIsTheSame) {
  for (const char* frame : {"/usr/lib/python3/dist-packages/torch/_tensor.py:488 in backward",
                            "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py:503 in backward",
                            "  File \"/usr/lib/python3/dist-packages/torch/_tensor.py\", line 488 in backward",
                            "File \"/mnt/node7/site-packages/torch/_tensor.py\", line 12, in backward",
                            "backward (/usr/lib/python3/dist-packages/torch/_tensor.py:488)",
                            "backward(self=<Tensor object at 0x7f00aa12>, gradient=None, inputs=(1, 2)) "
                            "(/x/site-packages/torch/_tensor.py:9)"})
    EXPECT_EQ(NormalFrame(frame), "torch/_tensor.py in backward") << frame;
}

TEST(StackFrames, LinesAreKeptWhereTheyAreAskedFor) {
  EXPECT_EQ(NormalFrame("/home/me/job.py:41 in main", Lines::kKeep), "job.py:41 in main");
  EXPECT_EQ(NormalFrame("main (/home/me/job.py:41)", Lines::kKeep), "job.py:41 in main");
  EXPECT_EQ(NormalFrame("/home/me/job.py:41 in main"), "job.py in main");
}

struct Case {
  const char* frame;
  const char* normal;
};
const Case kNative[] = {
    {"libtorch_cpu.so.1.13.0+0x447e8f2", "libtorch_cpu.so.1.13.0"},
    {"gloo::transport::tcp::Loop::run (libgloo.so.0.5.0)", "gloo::transport::tcp::Loop::run (libgloo.so.0.5.0)"},
    {"c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) (/usr/lib/libtorch_cpu.so)",
     "c10d::Work::wait (libtorch_cpu.so)"},
    {"#0  0x00007f12ab in futex_wait (private=0, expected=2, futex_word=0x55aa) at "
     "../sysdeps/nptl/futex-internal.h:146",
     "futex_wait (futex-internal.h)"},
    {"#12 0x00007f12ab in pthread_cond_wait () from /lib/x86_64-linux-gnu/libc.so.6", "pthread_cond_wait (libc.so.6)"},
    {"void at::native::(anonymous namespace)::add_kernel<float>(at::TensorIterator&) (libtorch_cpu.so)",
     "void at::native::(anonymous namespace)::add_kernel<float> (libtorch_cpu.so)"},
    {"std::function<void (int)>::operator()(int) const (job)", "std::function<void (int)>::operator() (job)"},
    {"?+0x7f001122", "?"},
    {"pt_data_worker 12 of 16", "pt_data_worker N of N"},
    {"", ""},
    {"(", ""},
    {"#", ""},
    {" in ", "in"},
};

TEST(StackFrames, NativeFramesLoseWhatDiffers) {
  for (const Case& one : kNative) EXPECT_EQ(NormalFrame(one.frame), one.normal) << one.frame;
}

// A normal frame is one already.
TEST(StackFrames, TwiceIsAsGoodAsOnce) {
  for (const Case& one : kNative) EXPECT_EQ(NormalFrame(NormalFrame(one.frame)), NormalFrame(one.frame)) << one.frame;
}

std::string KeyOf(std::string_view frame) {
  std::string key = "what was there before";
  MakeFrameKey(frame, key);
  return key;
}

TEST(StackFrames, KeysLeaveOutNumbersAndAddressesAlone) {
  EXPECT_EQ(KeyOf("#3  0x00007f12 in wait (n=12) from /lib/libc.so.6"), KeyOf("wait (n=7) from /lib/libc.so.6"));
  EXPECT_EQ(KeyOf("/a/site-packages/x.py:12 in f"), KeyOf(" /a/site-packages/x.py:480 in f"));
  EXPECT_NE(KeyOf("f (python3.11+0x12)"), KeyOf("f (python3.12+0x12)"));
  EXPECT_NE(KeyOf("x.py:12 in f"), KeyOf("x.py:\1 in f"));
  EXPECT_NE(KeyOf("x.py:\3\1 in f"), KeyOf("x.py:\1 in f"));
  EXPECT_EQ(KeyOf(""), "");
}

// Frames of anything that means something to a reader of frames, in any order: those of one key are one to NormalFrame.
TEST(StackFrames, OfOneKeyHaveOneNormalFrame) {
  const std::vector<std::string> pieces = {"File \"",
                                           "\", line ",
                                           " in ",
                                           " at ",
                                           " from ",
                                           "(",
                                           ")",
                                           "<",
                                           ">",
                                           ":",
                                           ":",
                                           "/",
                                           ".py",
                                           "+0x",
                                           "0x",
                                           "#",
                                           "# ",
                                           "operator()",
                                           "(anonymous namespace)",
                                           "-packages/",
                                           " ",
                                           "\1",
                                           "\2",
                                           "\3",
                                           "f",
                                           "a_1",
                                           ".",
                                           ",",
                                           "=",
                                           "x",
                                           "python3.11"};
  std::mt19937_64 random(1);
  std::map<std::string, std::string> normal_of;
  int known = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string frame;
    for (uint64_t left = 1 + random() % 7; left > 0; --left)
      frame += random() % 3 == 0 ? std::to_string(random() % 120) : pieces[random() % pieces.size()];
    const auto [of_key, fresh] = normal_of.try_emplace(KeyOf(frame), NormalFrame(frame));
    EXPECT_EQ(of_key->second, NormalFrame(frame)) << frame;
    known += fresh ? 0 : 1;
  }
  EXPECT_GT(known, 50'000) << "hardly any two had one key";
}

TEST(StackFrames, CallsThatNeedOthers) {
  EXPECT_EQ(CommunicationCall("torch/distributed/distributed_c10d.py in barrier"), Partners::kGroup);
  EXPECT_EQ(CommunicationCall("p2p_communication.py in recv_forward"), Partners::kBefore);
  EXPECT_EQ(CommunicationCall("p2p_communication.py in recv_backward"), Partners::kBehind);
  EXPECT_EQ(CommunicationCall("torch/distributed/distributed_c10d.py in isend"), Partners::kNeighbours);
  EXPECT_EQ(CommunicationCall("irecv"), Partners::kNeighbours);
  EXPECT_EQ(CommunicationCall("socket.py in recv"), std::nullopt);
  EXPECT_EQ(CommunicationCall("threading.py in wait"), std::nullopt);
  EXPECT_EQ(CommunicationCall("torch/distributed/checkpoint/planner.py in load"), std::nullopt);
  EXPECT_EQ(CommunicationCall("torch/distributed/checkpoint/utils.py in all_reduce"), std::nullopt);
  EXPECT_EQ(CommunicationCall("torch/distributed/_shard/checkpoint/utils.py in reduce_scatter"), std::nullopt);
}

TEST(StackFrames, HintsOfAGroup) {
  EXPECT_EQ(DimensionHint("megatron/core/tensor_parallel/mappings.py in _reduce"), cluster::Dimension::kTp);
  EXPECT_EQ(DimensionHint("finalize_model_grads.py in _allreduce_layernorm_grads"), cluster::Dimension::kTp);
  EXPECT_EQ(DimensionHint("megatron/core/distributed/param_and_grad_buffer.py in finish_grad_sync"),
            cluster::Dimension::kDpCp);
  EXPECT_EQ(DimensionHint("c10d::Reducer::finalize_backward (libtorch_cpu.so)"), cluster::Dimension::kDpCp);
  // Below the wrapper runs all of a forward pass.
  EXPECT_EQ(DimensionHint("torch/nn/parallel/distributed.py in forward"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::detect
