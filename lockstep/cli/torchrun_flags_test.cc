#include "lockstep/cli/torchrun_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/base/test_folder.h"
#include "lockstep/cli/torchrun_values.h"
#include "lockstep/node/endpoint.h"

namespace lockstep::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<node::RunOptions> Parse(std::vector<std::string> words) {
  CLI::App app;
  TorchrunFlags flags;
  flags.Declare(app);
  app.prefix_command();
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  app.parse(words);
  node::RunOptions options;
  options.command = app.remaining();
  LS_RETURN_IF_ERROR(flags.Apply(options));
  return options;
}

node::RunOptions Parsed(std::vector<std::string> words) {
  const auto options = Parse(std::move(words));
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : node::RunOptions{};
}

std::string Error(std::vector<std::string> words) { return Message(Parse(std::move(words)).status()); }

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(TorchrunFlags, NothingGivenIsLockstepsDefault) {
  const node::RunOptions options = Parsed({"train.py", "--nproc-per-node", "3"});
  EXPECT_THAT(options.command, ElementsAre("train.py", "--nproc-per-node", "3"));
  EXPECT_EQ(options.ranks, 1);
  EXPECT_FALSE(options.max_restarts.has_value());
  EXPECT_EQ(options.torchrun.master_port, 0);
  EXPECT_EQ(options.torchrun.role, "default");
  EXPECT_THAT(options.torchrun.streams, IsEmpty());
  EXPECT_THAT(options.stop_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(options.notices, IsEmpty());
}

TEST(TorchrunFlags, EndpointsOfSeveralCoordinators) {
  EXPECT_THAT(node::SplitEndpoints("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(node::SplitEndpoints("a:1,[::1]:2,b:3"), ElementsAre("a:1", "[::1]:2", "b:3"));
  EXPECT_THAT(node::SplitEndpoints("a:1,"), ElementsAre("a:1", "")) << "which is refused";
}

TEST(TorchrunFlags, DashesAndUnderscoresAreTheSame) {
  for (const char* name : {"--nproc_per_node", "--nproc-per-node"}) EXPECT_EQ(Parsed({name, "3", "x"}).ranks, 3);
  EXPECT_EQ(Parsed({"--max_restarts=2", "x"}).max_restarts, 2);
  EXPECT_TRUE(Parsed({"--no_python", "x"}).torchrun.no_python);
}

TEST(TorchrunFlags, AFlagWinsOverItsVariable) {
  const Variable ranks("PET_NPROC_PER_NODE", "2"), restarts("PET_MAX_RESTARTS", "5"), module("PET_MODULE", "1"),
      python("PET_NO_PYTHON", "0");
  EXPECT_EQ(Parsed({"x"}).ranks, 2);
  EXPECT_EQ(Parsed({"--nproc_per_node=4", "x"}).ranks, 4);
  EXPECT_EQ(Parsed({"x"}).max_restarts, 5);
  EXPECT_TRUE(Parsed({"x"}).module);
  EXPECT_FALSE(Parsed({"x"}).torchrun.no_python);
}

TEST(TorchrunFlags, AnErrorTellsWhatTheEnvironmentSays) {
  const Variable nodes("PET_NNODES", "2");
  EXPECT_THAT(Error({"x"}), HasSubstr("say where the nodes meet"));
  EXPECT_THAT(Error({"x"}), HasSubstr("(the environment says PET_NNODES=2)"));
  EXPECT_EQ(Parsed({"--nnodes=1", "x"}).ranks, 1);
}

TEST(TorchrunFlags, OneNode) {
  for (const char* nodes : {"1", "1:1"}) EXPECT_THAT(Parsed({"--nnodes", nodes, "x"}).notices, IsEmpty());
  EXPECT_THAT(Parsed({"--nnodes", "1:4", "x"}).notices, ElementsAre(HasSubstr("on this one node")));
  for (const char* nodes : {"2", "2:4"})
    EXPECT_THAT(Error({"--nnodes", nodes, "x"}), HasSubstr("say where the nodes meet, with --rdzv-endpoint"));
  for (const char* nodes : {"0", "x", "2:1", "1:", ":1", "1:2:3", "1x"})
    EXPECT_THAT(Error({"--nnodes", nodes, "x"}), HasSubstr("must be N or MIN:MAX"));
  EXPECT_EQ(Parsed({"--node_rank", "0", "x"}).ranks, 1);
  EXPECT_THAT(Error({"--node_rank", "1", "x"}), HasSubstr("--node-rank 1 is not below --nnodes 1"));
  EXPECT_EQ(Parsed({"--standalone", "--nnodes=1:4", "--rdzv-endpoint", "127.0.0.1:1", "x"}).nodes.endpoint, "");
}

TEST(TorchrunFlags, SeveralNodesMeetAtAnEndpoint) {
  const node::Nodes first = Parsed({"--nnodes=2", "--master-addr", "127.0.0.1", "--master-port", "5", "x"}).nodes;
  EXPECT_EQ(first.endpoint, "127.0.0.1:5");
  EXPECT_EQ(first.own_rank, 0) << "as under torchrun's static backend";
  EXPECT_TRUE(first.must_lead);
  const node::Nodes second = Parsed({"--nnodes=2", "--node_rank=1", "--rdzv-endpoint", "127.0.0.1", "x"}).nodes;
  EXPECT_EQ(second.endpoint, "127.0.0.1:29500");
  EXPECT_FALSE(second.may_lead);
  const node::Nodes dynamic =
      Parsed({"--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1", "--rdzv-conf=join_timeout=7", "x"})
          .nodes;
  EXPECT_EQ(dynamic.endpoint, "127.0.0.1:29400");
  EXPECT_EQ(dynamic.least, 1);
  EXPECT_EQ(dynamic.most, 3);
  EXPECT_EQ(dynamic.own_rank, -1);
  EXPECT_TRUE(dynamic.may_lead);
  EXPECT_FALSE(dynamic.must_lead);
  EXPECT_EQ(dynamic.join_timeout.value, 7);
  EXPECT_EQ(Parsed({"--nnodes=2", "--rdzv-endpoint=127.0.0.1:9", "x"}).torchrun.master_addr, "") << "found later";
  EXPECT_EQ(Parsed({"--nnodes=2", "--rdzv-endpoint=nowhere.example:9", "x"}).nodes.endpoint, "nowhere.example:9")
      << "a name may come to be known";
  EXPECT_EQ(node::ListenAddress({"node0", 9}), "[::]:9");
  EXPECT_EQ(node::ListenAddress({"127.0.0.1", 9}), "127.0.0.1:9");
  EXPECT_THAT(Error({"--nnodes=2", "--rdzv-endpoint", "a:b", "x"}), HasSubstr("--rdzv-endpoint must be HOST[:PORT]"));
  EXPECT_THAT(Error({"--nnodes=2", "--rdzv-endpoint=127.0.0.1", "--rdzv-conf=join_timeout=x", "x"}),
              HasSubstr("seconds"));
  EXPECT_THAT(Parsed({"--nnodes=2", "--rdzv-endpoint=127.0.0.1", "--rdzv-conf=close_timeout=3,timeout=5", "x"}).notices,
              Contains(HasSubstr("--rdzv-conf close_timeout=3 has no effect")));
  EXPECT_THAT(Error({"--nnodes=2", "--node-rank=2", "--rdzv-endpoint=127.0.0.1", "x"}), HasSubstr("not below"));
}

TEST(TorchrunFlags, RankCountIsANumberOrADevice) {
  EXPECT_GE(Parsed({"--nproc-per-node", "cpu", "x"}).ranks, 1);
  EXPECT_GE(Parsed({"--nproc-per-node", "auto", "x"}).ranks, 1);
  for (const char* count : {"0", "65", "-1"})
    EXPECT_THAT(Error({std::string("--nproc-per-node=") + count, "x"}), HasSubstr("must be 1 to 64"));
  for (const char* count : {"x", "2x", "tpu"})
    EXPECT_THAT(Error({"--nproc-per-node", count, "x"}), HasSubstr("must be a number, auto, cpu or gpu"));
}

TEST(TorchrunFlags, TheVariableOfThePrefixOfLines) {
  EXPECT_EQ(Parsed({"x"}).torchrun.line_prefix, "[${role_name}${local_rank}]:");
  for (const auto& [value, prefix] : {std::pair("[${rank}]:", "[${rank}]:"), {"", agent::kLinePrefix}}) {
    const Variable variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", value);
    EXPECT_EQ(Parsed({"x"}).torchrun.line_prefix, prefix);
  }
}

TEST(RankCount, IsThatOfTheGpusWhateverTheirNumbers) {
  const TestFolder devices;
  for (const char* name :
       {"nvidia3", "nvidia5", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia", "null"})
    devices.Write(name, "");
  unsetenv("CUDA_VISIBLE_DEVICES");
  for (const char* text : {"gpu", "auto"}) EXPECT_EQ(RankCount(text, devices.path()).value(), 3);
  const Variable visible("CUDA_VISIBLE_DEVICES", "0,1");
  EXPECT_EQ(RankCount("gpu", devices.path()).value(), 2);
  const TestFolder none;
  EXPECT_THAT(Message(RankCount("gpu", none.path()).status()), HasSubstr("shows no GPU"));
  EXPECT_FALSE(RankCount("gpu", none / "absent").ok());
  EXPECT_EQ(RankCount("auto", none.path()).value(), RankCount("cpu").value());
}

TEST(TorchrunFlags, StaticEndpointIsTheMaster) {
  const node::RunOptions plain = Parsed({"--master_addr", "localhost", "--master_port", "29500", "x"});
  EXPECT_EQ(plain.torchrun.master_addr, "localhost");
  EXPECT_EQ(plain.torchrun.master_port, 29500);
  const node::RunOptions endpoint = Parsed({"--rdzv_endpoint", "127.0.0.1:400", "--rdzv_id", "job7", "x"});
  EXPECT_EQ(endpoint.torchrun.master_addr, "127.0.0.1");
  EXPECT_EQ(endpoint.torchrun.master_port, 400);
  EXPECT_EQ(endpoint.torchrun.run_id, "job7");
  EXPECT_THAT(endpoint.notices, IsEmpty());
  EXPECT_THAT(Error({"--rdzv_endpoint", "127.0.0.1:99999", "x"}), HasSubstr("must be HOST[:PORT]"));
  EXPECT_THAT(Error({"--master_port", "70000", "x"}), HasSubstr("0 to 65535"));
  EXPECT_THAT(Error({"--master_addr", "192.0.2.1", "x"}), HasSubstr("not an address of this machine"));
}

TEST(TorchrunFlags, WhatHasNoEffectSaysSo) {
  const node::RunOptions options =
      Parsed({"--standalone", "--rdzv_backend=c10d", "--rdzv_endpoint=far.away:1", "--rdzv_conf=timeout=3",
              "--monitor_interval=0.1", "--start_method=fork", "x"});
  EXPECT_THAT(options.notices, ElementsAre(HasSubstr("--start-method fork"), HasSubstr("--monitor-interval 0.1"),
                                           HasSubstr("--rdzv-conf timeout=3"), HasSubstr("--rdzv-backend c10d"),
                                           HasSubstr("--rdzv-endpoint far.away:1")));
  EXPECT_EQ(options.torchrun.master_addr, "127.0.0.1");
  EXPECT_THAT(Parsed({"--standalone", "x"}).notices, IsEmpty());
}

TEST(TorchrunFlags, StreamsByRank) {
  const auto streams = Parsed({"--nproc_per_node=3", "-r", "0:1,1:2", "-t", "1:1", "x"}).torchrun.streams;
  ASSERT_EQ(streams.size(), 3u);
  EXPECT_TRUE(streams[0].ToFile(1) && !streams[0].ToConsole(1) && !streams[0].ToFile(2) && streams[0].ToConsole(2));
  EXPECT_TRUE(streams[1].ToFile(1) && streams[1].ToConsole(1) && streams[1].Prefixed(1));
  EXPECT_TRUE(streams[1].ToFile(2) && !streams[1].ToConsole(2));
  EXPECT_TRUE(!streams[2].ToFile(1) && streams[2].ToConsole(1) && !streams[2].Prefixed(1));
  const auto filtered = Parsed({"--nproc_per_node=2", "--local-ranks-filter", "1", "x"}).torchrun.streams;
  EXPECT_TRUE(!filtered[0].ToConsole(1) && filtered[1].ToConsole(2));
  for (const char* mask : {"4", "-1", "0:4", "0:", "x", "0:1;1:2", "31"})
    EXPECT_THAT(Error({std::string("--redirects=") + mask, "x"}), HasSubstr("--redirects must be")) << mask;
}

TEST(TorchrunFlags, StreamsOfRanksThatTheNodeHasNotAreIgnoredAsInTorchrun) {
  const node::RunOptions options =
      Parsed({"--nproc-per-node=1", "--redirects=5:3,2:1", "--tee", "0:3,1:3", "--local-ranks-filter", "0,1", "x"});
  EXPECT_THAT(options.notices, ElementsAre("--redirects 5:3,2:1 has no effect on ranks 2, 5: this node has 1 rank",
                                           "--tee 0:3,1:3 has no effect on rank 1: this node has 1 rank",
                                           "--local-ranks-filter 0,1 has no effect on rank 1: this node has 1 rank"));
  ASSERT_EQ(options.torchrun.streams.size(), 1u);
  EXPECT_TRUE(options.torchrun.streams[0].ToFile(1) && options.torchrun.streams[0].ToConsole(2));
  EXPECT_THAT(Parsed({"--nproc-per-node=2", "--tee", "0:3,1:3", "--local-ranks-filter=00", "x"}).notices, IsEmpty());
  EXPECT_THAT(Error({"--nproc-per-node=2", "--local-ranks-filter=2,9", "x"}),
              HasSubstr("--local-ranks-filter 2,9 leaves no rank of this node, which has 0 to 1"));
  EXPECT_THAT(Error({"--local-ranks-filter=0,x", "x"}), HasSubstr("must be ranks such as 0,1, found \"x\""));
}

TEST(TorchrunFlags, WhatCantBeHonouredIsRefused) {
  EXPECT_THAT(Error({"-m", "--no-python", "x"}), HasSubstr("exclude each other"));
  EXPECT_THAT(Error({"--logs-specs", "mine", "x"}), HasSubstr("plug-ins"));
  EXPECT_THAT(Error({"--start-method", "thread", "x"}), HasSubstr("found \"thread\""));
  EXPECT_THAT(Error({"--max-restarts=-1", "x"}), HasSubstr("at least 0"));
  EXPECT_THAT(Error({"--signals-to-handle", "SIGKILL", "x"}), HasSubstr("no signal that can be handled"));
  EXPECT_THAT(Parsed({"--signals-to-handle", "SIGTERM,SIGUSR1", "x"}).stop_signals, ElementsAre(SIGTERM, SIGUSR1));
}

}  // namespace
}  // namespace lockstep::cli
