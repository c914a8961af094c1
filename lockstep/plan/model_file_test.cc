#include "lockstep/plan/model_file.h"

#include <gmock/gmock.h>

#include "lockstep/plan/inference.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

TEST(ModelFile, OfHuggingFace) {
  Workload work;
  const auto status = TakeHuggingFace(
      R"({"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
          "hidden_act": "silu"})",
      "config.json", work);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(work.head_dim, 128);
  EXPECT_EQ(work.expert_ffn, 14336);
  EXPECT_TRUE(work.gated);
  EXPECT_THAT(Message(TakeHuggingFace(R"({"hidden_size": 4096})", "c.json", work)), HasSubstr("num_hidden_layers"));
  EXPECT_EQ(Message(TakeHuggingFace("[]", "c.json", work)), "c.json: it is no JSON object");
  EXPECT_EQ(Message(TakeHuggingFace("[", "c.json", work)), "c.json: it is no JSON object: byte 2: not JSON");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const char* key : {"attn_config", "hidden_size", "expansion_ratio", "hidden_act"})
    EXPECT_EQ(Message(TakeHuggingFace(fmt::format(R"({{"{}": {}}})", key, deep), "c.json", work)),
              "c.json: it is no JSON object: nested more than 128 deep");
  EXPECT_THAT(
      Message(TakeHuggingFace(R"({"text_config": {"hidden_size": 5120}, "vision_config": {}})", "c.json", work)),
      HasSubstr("save its text_config as a config.json of its own"));
  EXPECT_THAT(Message(TakeHuggingFace(R"({"audio_config": {"d_model": 512}})", "c.json", work)),
              HasSubstr("it has \"audio_config\", but encoders are not known here, and it has no hidden_size"));
}

// What is no decoder by the usual keys is refused, and one that nobody has held against them told of.
TEST(ModelFile, OfOtherArchitectures) {
  const auto read = [](const std::string& more, Workload& work, std::string* note = nullptr) {
    return Message(TakeHuggingFace(
        R"({"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 4096,
            "vocab_size": 1000, )" +
            more + "}",
        "c.json", work, note));
  };
  const auto error = [&](const std::string& more) {
    Workload work;
    return read(more, work);
  };
  for (const char* type : {"albert", "xlm-roberta", "modernbert", "esm", "nomic_bert", "jetmoe"})
    EXPECT_THAT(error(fmt::format(R"("model_type": "{}")", type)), HasSubstr("is no decoder")) << type;
  EXPECT_THAT(error(R"("block_types": ["recurrent", "attention"])"), HasSubstr("it has \"block_types\""));
  EXPECT_THAT(error(R"("model_type": "qwen2_vl", "vision_config": {"depth": 32})"),
              HasSubstr("it has \"vision_config\", but a decoder beside encoders is not known here: take that out"));
  EXPECT_THAT(error(R"("word_embed_proj_dim": 512)"), HasSubstr("\"word_embed_proj_dim\" is 512"));
  EXPECT_EQ(error(R"("word_embed_proj_dim": 1024)"), "");
  EXPECT_THAT(error(R"("parallel_attn_mlp_res": true)"), HasSubstr("\"parallel_attn_mlp_res\" is true"));
  EXPECT_THAT(error(R"("shared_intermediate_size": 1024)"), HasSubstr("describe the model in a .toml"));
  EXPECT_THAT(error(R"("num_hidden_groups": 1)"), HasSubstr("\"num_hidden_groups\" is 1"));
  EXPECT_THAT(error(R"("attn_type_list": [1, 0, 1, 1])"), HasSubstr("it has \"attn_type_list\""));
  EXPECT_EQ(error(R"("attn_type_list": [1, 1, 1, 1])"), "") << "whole attention everywhere";
  EXPECT_EQ(error(R"("layers_block_type": ["attention", "attention", "attention", "attention"])"), "");
  EXPECT_THAT(error(R"("layers_block_type": ["attention", "mamba"])"), HasSubstr("it has \"layers_block_type\""));
  EXPECT_THAT(error(R"("model_type": "new", "is_encoder_decoder": true)"), HasSubstr("\"is_encoder_decoder\" is true"));
  EXPECT_EQ(error(R"("model_type": "new", "is_encoder_decoder": false)"), "");
  for (const char* part : {R"("add_cross_attention": true)", R"("use_cla": true)", R"("num_kv_shared_layers": 15)",
                           R"("hidden_size_per_layer_input": 256)"})
    EXPECT_THAT(error(part), HasSubstr("of which nothing is known here")) << part;
  EXPECT_EQ(
      error(R"("add_cross_attention": false, "use_cla": false, "cla_share_factor": 2, "num_kv_shared_layers": 0)"), "");
  Workload work;
  std::string note;
  EXPECT_EQ(read(R"("model_type": "llama")", work, &note), "");
  EXPECT_EQ(note, "");
  EXPECT_EQ(read(R"("model_type": "new")", work, &note), "");
  EXPECT_EQ(note,
            "c.json: model_type new is not known here: read as a decoder by the usual keys, which make 0.06916 billion "
            "parameters; hold that against what is published");
  EXPECT_EQ(read(R"("model_type": "deepseek_v3", "num_nextn_predict_layers": 1)", work, &note), "");
  EXPECT_EQ(note, "c.json: \"num_nextn_predict_layers\" is 1: layers that predict further tokens are not counted");
  EXPECT_EQ(read(R"("model_type": "kimi_k2", "num_nextn_predict_layers": 0)", work, &note), "");
  EXPECT_EQ(note, "");
  EXPECT_EQ(read(R"("num_mtp_modules": 3)", work, &note), "");
  EXPECT_THAT(note, HasSubstr("hold that against what is published; c.json: \"num_mtp_modules\" is 3"));
  EXPECT_EQ(read(R"("model_type": "qwen")", work), "");
  EXPECT_EQ(work.ffn, 2048) << "both halves of a gated MLP are counted there";
  EXPECT_EQ(read(R"("model_type": "bailing_moe", "num_experts": 8, "num_experts_per_tok": 2, "num_shared_experts": 2,
                     "moe_intermediate_size": 512)",
                 work),
            "");
  EXPECT_EQ(work.shared_experts, 2);
  ASSERT_TRUE(TakeHuggingFace(R"({"model_type": "bloom", "n_embed": 1024, "n_layer": 4, "num_attention_heads": 8,
                                  "vocab_size": 1000})",
                              "c.json", work)
                  .ok());
  EXPECT_EQ(work.hidden, 1024);
}

TEST(ModelFile, IsReadStrictly) {
  const auto read = [](const std::string& more, Workload& work) {
    return TakeHuggingFace(
        R"({"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000)" + more + "}",
        "c.json", work);
  };
  const auto error = [&](const std::string& more) {
    Workload work;
    return Message(read(more, work));
  };
  EXPECT_THAT(error(""), HasSubstr("\"intermediate_size\" is missing"));
  EXPECT_THAT(error(R"(, "intermediate_size": -5)"), HasSubstr("\"intermediate_size\" is -5"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "num_key_value_heads": "8")"), HasSubstr("is \"8\"; expected"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "model_type": "t5")"), HasSubstr("no decoder"));
  const std::string mixture = R"(, "intermediate_size": 2048, "num_experts": 8, "num_experts_per_tok": 2, )";
  EXPECT_THAT(error(mixture + R"("mlp_only_layers": [0, 2])"), HasSubstr("\"mlp_only_layers\" is [0,2]"));
  EXPECT_THAT(error(mixture + R"("moe_layer_freq": [0, 1, 1, 1])"), HasSubstr("moe_layer_freq is [0,1,1,1]"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "mamba_d_state": 16)"), HasSubstr("it has \"mamba_d_state\""));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "moe_num_experts": 64)"), HasSubstr("it has \"moe_num_experts\""));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "tie_word_embeddings": "true")"),
              HasSubstr("expected true or false"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "num_attention_heads": 7)"),
              HasSubstr("7 heads must divide hidden_size 512"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "layer_types": "sliding")"), HasSubstr("expected a list"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "hidden_act": 5)"),
              HasSubstr("\"hidden_act\" is 5; expected a text"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "layer_types": ["full_attention"])"), HasSubstr("1 entries for 4"));
  EXPECT_THAT(error(R"(, "intermediate_size": 2048, "layer_types": ["a", "a", "a", "a"])"), HasSubstr("has \"a\""));
  Workload work;
  ASSERT_TRUE(read(R"(, "intermediate_size": 2048, "max_position_embeddings": 8192, "hidden_act": "silu")", work).ok());
  EXPECT_EQ(work.sequence, 8192);
  EXPECT_TRUE(work.gated);
  EXPECT_FALSE(work.tied_embeddings);
  for (const char* ungated : {R"("hidden_act": "relu2")", R"("hidden_act": "gelu_pytorch_tanh")",
                              R"("activation_function": "relu")", R"("model_type": "bloom")"}) {
    ASSERT_TRUE(read(std::string(R"(, "intermediate_size": 2048, )") + ungated, work).ok());
    EXPECT_FALSE(work.gated) << ungated;
  }
  ASSERT_TRUE(read(R"(, "intermediate_size": 2048, "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
                      "tie_word_embeddings": true)",
                   work)
                  .ok());
  EXPECT_TRUE(work.gated);
  EXPECT_TRUE(work.tied_embeddings);
  ASSERT_TRUE(read(R"(, "ffn_dim": 2048, "model_type": "opt", "activation_function": "relu")", work).ok());
  EXPECT_TRUE(work.tied_embeddings);
  ASSERT_TRUE(read(R"(, "model_type": "falcon", "multi_query": true)", work).ok());
  EXPECT_EQ(work.kv_heads, 1);
  EXPECT_EQ(work.ffn, 2048);
  ASSERT_TRUE(read(R"(, "intermediate_size": 2048, "num_experts": 60, "num_experts_per_tok": 4,
                      "moe_intermediate_size": 256, "shared_expert_intermediate_size": 1024)",
                   work)
                  .ok());
  EXPECT_EQ(work.shared_experts, 4);
}

// The type says whether the MLP is gated and the output layer the embedding; of one that is not known the activation
// says the first.
TEST(ModelFile, WhatATypeSays) {
  const auto read = [](const char* type, const char* by) {
    Workload work;
    const auto status = TakeHuggingFace(
        fmt::format(R"({{"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
                        "intermediate_size": 2048, "model_type": "{}"{}}})",
                    type, by),
        "c.json", work);
    EXPECT_TRUE(status.ok()) << status;
    return work;
  };
  for (const char* by : {"", R"(, "hidden_act": "relu")", R"(, "hidden_act": "SiLU")", R"(, "hidden_act": "gelu")"}) {
    for (const char* type : {"llama", "mistral", "qwen2", "gemma", "phi3", "olmo", "cohere"})
      EXPECT_TRUE(read(type, by).gated) << type << by;
    for (const char* type : {"gpt_neox", "opt", "gpt2", "phi", "starcoder2", "nemotron"})
      EXPECT_FALSE(read(type, by).gated) << type << by;
  }
  EXPECT_TRUE(read("new", R"(, "hidden_act": "SiLU")").gated);
  EXPECT_TRUE(read("new", R"(, "hidden_act": "GEGLU")").gated);
  EXPECT_FALSE(read("new", R"(, "hidden_act": "gelu")").gated);
  for (const char* type : {"smollm3", "ernie4_5", "gpt2", "falcon"})
    EXPECT_TRUE(read(type, "").tied_embeddings) << type;
  for (const char* type : {"gptj", "gpt_neox", "llama", "new"}) EXPECT_FALSE(read(type, "").tied_embeddings) << type;
}

// As DeepSeek-V3's config.json has it; 671 billion parameters are published, 37 of them active.
constexpr const char* kLatent =
    R"({"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "hidden_act": "silu"})";

TEST(ModelFile, LatentAttentionSharedExpertsAndDenseLayers) {
  Workload work = TestWorkload();
  ASSERT_TRUE(TakeHuggingFace(kLatent, "config.json", work).ok());
  EXPECT_EQ(work.head_dim, 192);
  EXPECT_EQ(work.dense_layers, 3);
  EXPECT_EQ(work.shared_experts, 1);
  EXPECT_THAT(work.Parameters() / 671e9, DoubleNear(1, .002));
  // Its cache is the point of latent attention: 576 numbers a token and layer, of 2 x 128 x 128.
  work.accelerators = 1;
  const InferenceTime time = PredictInference(work, Rates{}, {.batch = 1, .prompt = 1000, .output = 1});
  EXPECT_THAT(time.cache, DoubleNear(1001 * 61 * 576 * 2.0, 1));
  std::string without = kLatent;
  without.replace(without.find("v_head_dim"), 10, "w_head_dim");
  EXPECT_THAT(Message(TakeHuggingFace(without, "c.json", work)), HasSubstr("latent attention needs"));
}

TEST(ModelFile, ExpertsInSomeLayersAlone) {
  Workload none = TestWorkload();
  none.experts = 8, none.top_k = 2, none.expert_ffn = 64, none.experts_every = 17;
  EXPECT_THAT(Message(none.ValidateModel()), HasSubstr("experts in every 17 of 16 layers"));

  // As Llama 4's text_config has them: every other layer, 16 times as wide a layer without them, and one shared expert.
  Workload work;
  const std::string llama4 =
      R"({"model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8,
          "vocab_size": 100, "intermediate_size": 32, "intermediate_size_mlp": 512, "num_local_experts": 4,
          "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "moe_layers": [1, 3, 5], "hidden_act": "silu",
          "attention_chunk_size": 8192)";
  work.sequence = 8192;
  ASSERT_TRUE(TakeHuggingFace(llama4 + "}", "c.json", work).ok());
  EXPECT_EQ(work.MixedLayers(), 3);
  const double experts = 64.0 * 4 + 3 * 64 * 32 * 5, dense = 3 * 64 * 512.0, attention = 4 * 64 * 64.0;
  EXPECT_EQ(work.Parameters(), 6 * attention + 3 * experts + 3 * dense + 2 * 100 * 64);
  EXPECT_EQ(work.ActiveParameters(), 6 * attention + 3 * (3 * 64 * 32 * 2) + 3 * dense);
  work.sequence = 8193;
  EXPECT_THAT(Message(TakeHuggingFace(llama4 + "}", "c.json", work)), HasSubstr("chunks of 8192, fewer than"));
}

// As MPT-7B's config.json has it; what is said of attention is in a table of its own.
TEST(ModelFile, OfMpt) {
  const auto read = [](const std::string& more, Workload& work) {
    return Message(TakeHuggingFace(
        R"({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432)" + more + "}",
        "c.json", work));
  };
  const auto error = [&](const std::string& more) {
    Workload work;
    return read(more, work);
  };
  const auto sizes = [&](const std::string& more) {
    Workload work;
    EXPECT_EQ(read(more, work), "");
    return std::pair(work.ffn, work.kv_heads);
  };
  using Sizes = std::pair<int, int>;
  EXPECT_EQ(sizes(""), Sizes(16384, 32));
  EXPECT_EQ(sizes(R"(, "expansion_ratio": 2)"), Sizes(8192, 32));
  EXPECT_EQ(sizes(R"(, "expansion_ratio": 4, "attn_config": {"attn_type": "multihead_attention"})"), Sizes(16384, 32));
  EXPECT_EQ(sizes(R"(, "attn_config": {"attn_type": "multiquery_attention", "sliding_window_size": -1})"),
            Sizes(16384, 1));
  EXPECT_EQ(sizes(R"(, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8})"), Sizes(16384, 8));
  EXPECT_THAT(error(R"(, "attn_config": {"attn_type": "grouped_query_attention"})"), HasSubstr("no \"kv_n_heads\""));
  EXPECT_THAT(error(R"(, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": "8"})"),
              HasSubstr("attn_config: \"kv_n_heads\" is \"8\""));
  EXPECT_THAT(error(R"(, "attn_config": {"attn_type": "linear"})"), HasSubstr("expected multihead_attention"));
  EXPECT_THAT(error(R"(, "attn_config": {"sliding_window_size": 1024})"), HasSubstr("is 1024, of which nothing"));
  EXPECT_THAT(error(R"(, "attn_config": "flash")"), HasSubstr("expected an object"));
  EXPECT_THAT(error(R"(, "expansion_ratio": 2.5)"), HasSubstr("\"expansion_ratio\" is 2.5; expected a whole number"));
  EXPECT_THAT(error(R"(, "expansion_ratio": 900000)"), HasSubstr("makes an MLP 3686400000 wide"));
}

// Which layers have a window, by the habits of each kind of model.
TEST(ModelFile, SlidingWindows) {
  const auto read = [](const std::string& more) {
    Workload work;
    const auto status = TakeHuggingFace(
        R"({"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 1000,
            "intermediate_size": 2048, "max_position_embeddings": 8192, )" +
            more + "}",
        "c.json", work);
    EXPECT_TRUE(status.ok()) << status;
    return std::pair(work.window.layers, work.window.tokens);
  };
  using Window = std::pair<int, int>;
  EXPECT_EQ(read(R"("model_type": "mistral", "sliding_window": 4096)"), Window(8, 4096));
  EXPECT_EQ(read(R"("model_type": "mixtral", "sliding_window": null)"), Window(0, 0));
  EXPECT_EQ(read(R"("model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": false)"), Window(0, 0));
  EXPECT_EQ(read(R"("model_type": "qwen2", "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 5)"),
            Window(3, 64));
  EXPECT_EQ(read(R"("model_type": "gemma2", "sliding_window": 4096)"), Window(4, 4096));
  EXPECT_EQ(read(R"("model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6)"), Window(7, 512));
  EXPECT_EQ(read(R"("model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["sliding_attention",
      "full_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention",
      "sliding_attention", "full_attention"])"),
            Window(4, 128));
}

// Every patch sees every other: twice the attention of a decoder.
TEST(ModelFile, AVisionTransformer) {
  Workload work = TestWorkload();
  work.sequence = 0;
  const auto status = TakeHuggingFace(
      R"({"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
          "intermediate_size": 4096, "image_size": 224, "patch_size": 16, "hidden_act": "gelu"})",
      "config.json", work);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(work.sequence, 197);
  EXPECT_FALSE(work.causal);
  EXPECT_FALSE(work.gated);
  work.accelerators = 1;
  const double all = PredictStep(work, Rates{})[Part::kAttention];
  work.causal = true;
  EXPECT_THAT(PredictStep(work, Rates{})[Part::kAttention], DoubleNear(all / 2, 1e-12));
}

}  // namespace
}  // namespace lockstep::plan
