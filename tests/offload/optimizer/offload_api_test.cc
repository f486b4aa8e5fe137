// SPDX-License-Identifier: Apache-2.0
// The C API as a runtime uses it: a run through every kind of call, and what bad arguments get.
#include <string>
#include <vector>

#include "offload/optimizer/optimizer_support.h"
#include "weir/offload.h"

namespace weir::offload::test {
namespace {

#define ASSERT_WEIR_OK(call) ASSERT_EQ(call, WEIR_OK) << weir_last_error(nullptr)

struct Api {
  Api() {
    group.name = "w";
    group.element_count = 50'000;
    config.chunk_bytes = 16384;
  }
  weir_offload_config_t config = WEIR_OFFLOAD_CONFIG_INIT;
  weir_parameter_group_t group = WEIR_PARAMETER_GROUP_INIT;
  weir_step_report_t report = WEIR_STEP_REPORT_INIT;
  weir_optimizer_t optimizer = nullptr;
};

TEST(OffloadApi, ARunOverDrivesEqualsOneInMemory) {
  ScratchDirectory scratch;
  const std::string store = scratch / "store";
  const std::string held = scratch / "held";
  const char* const directories[] = {store.c_str()};
  const char* const checkpoint[] = {held.c_str()};
  std::vector<float> results[2];
  for (int drives = 0; drives < 2; ++drives) {
    Api api;
    if (drives == 1) {
      api.config.directories = directories;
      api.config.directory_count = 1;
    }
    ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
    const uint64_t count = api.group.element_count;
    const std::vector<float> first(count, 0.5f);
    ASSERT_WEIR_OK(
        weir_optimizer_set_parameters(api.optimizer, 0, 0, count, WEIR_FLOAT32, first.data()));
    std::vector<uint16_t> output(count);
    ASSERT_WEIR_OK(weir_optimizer_set_output(api.optimizer, 0, WEIR_BFLOAT16, output.data(), 1));
    const std::vector<unsigned char> gradient =
        gradient_bytes({"w", count, 0, {}, {}, {}}, 0, 0, count, 1, DataType::kFloat16);
    for (int step = 0; step < 3; ++step) {
      ASSERT_WEIR_OK(
          weir_optimizer_gradient(api.optimizer, 0, 0, count, WEIR_FLOAT16, gradient.data()));
      weir_step_options_t options = WEIR_STEP_OPTIONS_INIT;
      options.loss_scale = 16;
      if (step < 2) {
        ASSERT_WEIR_OK(weir_optimizer_step(api.optimizer, &options, &api.report));
      } else {
        ASSERT_WEIR_OK(weir_optimizer_step_start(api.optimizer, &options));
        ASSERT_WEIR_OK(weir_optimizer_wait(api.optimizer, 0, 0, count));
        ASSERT_WEIR_OK(weir_optimizer_step_finish(api.optimizer, &api.report));
      }
      EXPECT_EQ(api.report.step, static_cast<uint64_t>(step + 1));
      EXPECT_EQ(api.report.committed, drives);
    }
    results[drives].resize(count);
    ASSERT_WEIR_OK(weir_optimizer_get_parameters(api.optimizer, 0, 0, count, WEIR_FLOAT32,
                                                 results[drives].data()));
    uint64_t bytes = 0;
    ASSERT_WEIR_OK(weir_optimizer_memory(api.optimizer, &bytes));
    EXPECT_GT(bytes, 0u);
    EXPECT_NE(std::string(weir_optimizer_describe(api.optimizer)).find("step 3"),
              std::string::npos);
    if (drives == 1) {
      ASSERT_WEIR_OK(weir_optimizer_checkpoint(api.optimizer, checkpoint, 1));
    }
    ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  }
  EXPECT_TRUE(same_bits({results[0]}, {results[1]}));
  Api api;
  ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
  ASSERT_WEIR_OK(weir_optimizer_restore(api.optimizer, checkpoint, 1, 1));
  std::vector<float> restored(api.group.element_count);
  ASSERT_WEIR_OK(weir_optimizer_get_parameters(api.optimizer, 0, 0, restored.size(), WEIR_FLOAT32,
                                               restored.data()));
  EXPECT_TRUE(same_bits({results[0]}, {restored}));
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
}

TEST(OffloadApi, BadArgumentsAreNamedInTheText) {
  const auto refused = [](weir_result_t result, weir_result_t expected, const char* text) {
    EXPECT_EQ(result, expected);
    EXPECT_NE(std::string(weir_last_error(nullptr)).find(text), std::string::npos)
        << weir_last_error(nullptr);
  };
  Api api;
  weir_optimizer_t none = nullptr;
  const weir_result_t kArgument = WEIR_ERROR_INVALID_ARGUMENT;
  refused(weir_optimizer_create(nullptr, &api.config, &api.group, 1), kArgument,
          "optimizer is NULL");
  refused(weir_optimizer_create(&none, &api.config, nullptr, 1), kArgument, "groups is NULL");
  refused(weir_optimizer_create(&none, &api.config, &api.group, 0), kArgument, "group_count is 0");
  weir_offload_config_t config = api.config;
  config.struct_bytes = 8;
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "struct_bytes is 8");
  config = api.config;
  config.flags = 64;
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "flags 0x40");
  config = api.config;
  config.rank = 3;
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "config.rank is 3");
  config = api.config;
  config.durable_every = -1;
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "durable_every is -1");
  weir_parameter_group_t group = api.group;
  group.hyper.beta2 = 1;
  refused(weir_optimizer_create(&none, &api.config, &group, 1), kArgument, "beta2");
  refused(weir_optimizer_open(&none, &api.config, &api.group, 1), kArgument, "no directories");
  EXPECT_EQ(none, nullptr);
  refused(weir_optimizer_step(nullptr, nullptr, nullptr), kArgument, "the optimizer is NULL");
  ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
  float value = 0;
  refused(weir_optimizer_gradient(api.optimizer, -1, 0, 1, WEIR_FLOAT32, &value), kArgument,
          "group");
  refused(weir_optimizer_gradient(api.optimizer, 0, 0, 1, WEIR_INT8, &value), kArgument, "int8");
  refused(weir_optimizer_gradient(api.optimizer, 0, 0, 1, static_cast<weir_datatype_t>(99), &value),
          kArgument, "data type 99");
  refused(weir_optimizer_step(api.optimizer, nullptr, nullptr), kArgument, "have no gradient");
  refused(weir_optimizer_commit(api.optimizer), WEIR_ERROR_INVALID_USAGE, "without directories");
  refused(weir_optimizer_set_hyper(api.optimizer, 0, nullptr), kArgument, "hyper is NULL");
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  EXPECT_EQ(weir_optimizer_destroy(nullptr), WEIR_OK);
}

}  // namespace
}  // namespace weir::offload::test
