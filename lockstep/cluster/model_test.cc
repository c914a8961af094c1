#include "lockstep/cluster/model.h"

#include <gtest/gtest.h>

#include "lockstep/cluster/presets.h"

namespace lockstep::cluster {
namespace {

int64_t ParametersOf(const std::string& preset) {
  const auto model = ReadModel(*Presets(LOCKSTEP_PRESETS).Find("models", preset, "."));
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? model->Parameters() : 0;
}

// vocabulary * hidden * 2 + layers * (2 h^2 + 2 h kv + 3 h ffn + 2 h) + h, kv = h / heads * kv_heads
TEST(Model, ParametersOfThePresets) {
  EXPECT_EQ(ParametersOf("llama3-8b"), 8'030'261'248);
  EXPECT_EQ(ParametersOf("llama3-70b"), 70'553'706'496);
  EXPECT_EQ(ParametersOf("llama3-405b"), 405'853'388'800);
  EXPECT_EQ(ParametersOf("gpt-tiny"), 503'104);
  EXPECT_EQ(ParametersOf("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(ParametersOf("qwen3-30b-a3b"), 30'532'122'624);
  EXPECT_EQ(ParametersOf("qwen3-235b-a22b"), 235'093'634'560);
  EXPECT_EQ(ParametersOf("deepseek-v3"), 671'026'404'352);
  EXPECT_EQ(ParametersOf("gpt-oss-120b"), 116'829'156'672 + 201'088);
  EXPECT_EQ(ParametersOf("gpt-oss-20b"), 20'914'757'184 + 201'088);
  EXPECT_EQ(ParametersOf("vit-l16"), 304'326'632);
}

TEST(Model, TiedEmbeddingsCountOnce) {
  Model model;
  model.hidden = 4;
  model.vocabulary = 10;
  const int64_t untied = model.Parameters();
  model.tied_embeddings = true;
  EXPECT_EQ(untied - model.Parameters(), 40);
}

TEST(Model, HeadsMustDivide) {
  const std::string head = "name = 'm'\nlayers = 1\nhidden = 10\nffn_hidden = 4\nvocabulary = 8\ncontext = 8\n";
  EXPECT_EQ(Message(ParseModel(head + "heads = 3\n", "m.toml").status()),
            "m.toml:7:9: heads must divide hidden, found 3 heads for hidden 10");
  EXPECT_EQ(Message(ParseModel(head + "heads = 5\nkv_heads = 2\n", "m.toml").status()),
            "m.toml:8:12: kv_heads must divide heads, found 2 for 5 heads");
}

TEST(Model, NoCountOverflows) {
  const std::string most = "1048576", head = "name = 'm'\nlayers = " + most + "\nhidden = " + most + "\n";
  const std::string sizes = "ffn_hidden = " + most + "\nheads = " + most + "\nvocabulary = 8\ncontext = 8\n";
  EXPECT_EQ(Message(ParseModel(head + sizes + "head_dim = " + most + "\n", "m.toml").status()),
            "m.toml:2:10: layers and the other sizes make 4.8e+24 parameters, expected at most 1e+18");
}

TEST(Model, AMixtureThatMakesNoSense) {
  const std::string head =
      "name = 'm'\nlayers = 2\nhidden = 8\nffn_hidden = 4\nheads = 2\nvocabulary = 8\ncontext = 8\n";
  EXPECT_EQ(Message(ParseModel(head + "[moe]\nexperts = 4\ntop_k = 5\nffn_hidden = 4\n", "m.toml").status()),
            "m.toml:10:9: moe.top_k must be at most the 4 experts, found 5");
  EXPECT_EQ(Message(ParseModel(head + "[moe]\nexperts = 4\ntop_k = 2\n", "m.toml").status()),
            "m.toml:8:1: moe.ffn_hidden is missing");
  const std::string moe = "[moe]\nexperts = 4\ntop_k = 2\nffn_hidden = 4\n";
  EXPECT_EQ(Message(ParseModel(head + moe + "dense_layers = 2\n", "m.toml").status()),
            "m.toml:1:1: moe.dense_layers must be fewer than the 2 layers, found 2");
  EXPECT_EQ(Message(ParseModel(head + moe + "every = 3\n", "m.toml").status()),
            "m.toml:1:1: moe.every must be at most the 2 layers behind the dense ones, found 3");
  EXPECT_EQ(Message(ParseModel(head + "[window]\ntokens = 8\nlayers = 3\n", "m.toml").status()),
            "m.toml:1:1: window.layers must be at most the 2 layers, found 3");
  EXPECT_EQ(Message(ParseModel(head + "[latent]\nkv_rank = 2\nrope = 4\nvalue_dim = 4\n", "m.toml").status()),
            "m.toml:1:1: head_dim must be more than latent.rope, found 4 and 4");
}

}  // namespace
}  // namespace lockstep::cluster
