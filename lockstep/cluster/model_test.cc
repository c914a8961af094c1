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
  EXPECT_EQ(ParametersOf("gpt-tiny"), 503'104);
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

}  // namespace
}  // namespace lockstep::cluster
