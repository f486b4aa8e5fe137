// SPDX-License-Identifier: Apache-2.0
// The C API as a runtime uses it: a run through every kind of call, and what bad arguments get.
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "offload/optimizer/optimizer_support.h"
#include "offload/store/file_names.h"
#include "weir/offload.h"

namespace weir::offload::test {
namespace {

#define ASSERT_WEIR_OK(call) ASSERT_EQ(call, WEIR_OK) << weir_last_error(nullptr)

// In memory, or in a directory.
struct Api {
  explicit Api(std::string directory = "") : store(std::move(directory)) {
    group.name = "w";
    group.element_count = 50'000;
    config.chunk_bytes = 16384;
    if (store.empty()) return;
    config.directories = directories;
    config.directory_count = 1;
  }
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;
  const std::string store;
  const char* const directories[1] = {store.c_str()};
  weir_offload_config_t config = WEIR_OFFLOAD_CONFIG_INIT;
  weir_parameter_group_t group = WEIR_PARAMETER_GROUP_INIT;
  weir_step_report_t report = WEIR_STEP_REPORT_INIT;
  weir_optimizer_t optimizer = nullptr;
};

TEST(OffloadApi, ARunOverDrivesEqualsOneInMemory) {
  ScratchDirectory scratch;
  const std::string held = scratch / "held";
  const char* const checkpoint[] = {held.c_str()};
  std::vector<float> results[2];
  for (int drives = 0; drives < 2; ++drives) {
    Api api(drives == 1 ? scratch / "store" : "");
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

// Each is had, with the same results, or refused with the reason; never left out in silence.
TEST(OffloadApi, PollingIsHadOrRefused) {
  for (const auto& [flag, name] : {std::pair<unsigned, const char*>{WEIR_OFFLOAD_SQPOLL, "SQPOLL"},
                                   {WEIR_OFFLOAD_IOPOLL, "IOPOLL"}}) {
    ScratchDirectory scratch;
    Api without;
    without.config.flags = flag;
    EXPECT_EQ(weir_optimizer_create(&without.optimizer, &without.config, &without.group, 1),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(weir_last_error(nullptr)).find(name), std::string::npos);
    Api api(scratch / "store");
    api.config.flags = flag;
    const weir_result_t result = weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1);
    if (result != WEIR_OK) {
      EXPECT_EQ(result, WEIR_ERROR_UNSUPPORTED);
      const std::string text = weir_last_error(nullptr);
      EXPECT_NE(text.find(name), std::string::npos) << text;
      std::printf("%s\n", text.c_str());
      EXPECT_FALSE(std::filesystem::exists(api.store));
      continue;
    }
    const std::string text = weir_optimizer_describe(api.optimizer);
    EXPECT_NE(text.find(name), std::string::npos) << text;
    const uint64_t count = api.group.element_count;
    std::vector<float> values(count, 0.5f);
    ASSERT_WEIR_OK(
        weir_optimizer_set_parameters(api.optimizer, 0, 0, count, WEIR_FLOAT32, values.data()));
    const std::vector<float> gradient(count, 1.0f);
    for (int step = 0; step < 3; ++step) {
      ASSERT_WEIR_OK(
          weir_optimizer_gradient(api.optimizer, 0, 0, count, WEIR_FLOAT32, gradient.data()));
      ASSERT_WEIR_OK(weir_optimizer_step(api.optimizer, nullptr, &api.report));
      EXPECT_EQ(api.report.committed, 1);
    }
    ASSERT_WEIR_OK(
        weir_optimizer_get_parameters(api.optimizer, 0, 0, count, WEIR_FLOAT32, values.data()));
    EXPECT_NEAR(values[0], 0.497f, 1e-5);
    EXPECT_EQ(values, std::vector<float>(count, values[0]));
    ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  }
}

// Whoever gives a sum that is finite for gradients that are not is told where they are.
TEST(OffloadApi, AGradientThatIsNotFiniteIsSkippedAndItsPlaceReported) {
  ScratchDirectory scratch;
  Api api(scratch / "store");
  ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
  const uint64_t count = api.group.element_count;
  std::vector<float> gradient(count, 1.0f);
  weir_step_options_t options = WEIR_STEP_OPTIONS_INIT;
  options.sum_of_squares_of_scaled_gradients = static_cast<double>(count);
  for (int step = 0; step < 3; ++step) {
    gradient[12'345] = step == 1 ? NAN : 1.0f;
    ASSERT_WEIR_OK(
        weir_optimizer_gradient(api.optimizer, 0, 0, count, WEIR_FLOAT32, gradient.data()));
    ASSERT_WEIR_OK(weir_optimizer_step(api.optimizer, &options, &api.report));
    EXPECT_EQ(api.report.skipped, step == 1);
    EXPECT_EQ(api.report.step, step == 2 ? 2u : 1u);
    EXPECT_EQ(api.report.not_finite_count, step == 1 ? 1u : 0u);
    EXPECT_EQ(api.report.not_finite_group, step == 1 ? 0 : -1);
    EXPECT_EQ(api.report.not_finite_element, step == 1 ? 12'345u : 0u);
  }
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
}

// Flips a byte of a file.
void damage(const std::string& path, long at) {
  std::FILE* const file = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(std::fseek(file, at, SEEK_SET), 0);
  const int byte = std::fgetc(file);
  ASSERT_EQ(std::fseek(file, at, SEEK_SET), 0);
  ASSERT_NE(std::fputc(byte ^ 1, file), EOF);
  ASSERT_EQ(std::fclose(file), 0);
}

TEST(OffloadApi, TheStoreReportTellsOfAStateThatWentBack) {
  for (const bool verify : {false, true}) {
    ScratchDirectory scratch;
    Api api(scratch / "store");
    weir_store_report_t report = WEIR_STORE_REPORT_INIT;
    const std::vector<float> gradient(api.group.element_count, 0.25f);
    const auto step = [&] {
      const weir_result_t given = weir_optimizer_gradient(api.optimizer, 0, 0, gradient.size(),
                                                          WEIR_FLOAT32, gradient.data());
      return given != WEIR_OK ? given : weir_optimizer_step(api.optimizer, nullptr, &api.report);
    };
    ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
    ASSERT_WEIR_OK(step());
    ASSERT_WEIR_OK(step());
    ASSERT_WEIR_OK(weir_optimizer_store_report(api.optimizer, &report));
    EXPECT_EQ(report.step, 2u);
    EXPECT_EQ(report.epoch, 3u);  // the state before the first step is a commit too
    EXPECT_EQ(report.went_back, WEIR_WENT_BACK_NOT);
    EXPECT_EQ(report.verified_chunk_count, report.chunk_count);
    EXPECT_STREQ(report.text, "");
    ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));

    const std::string slot = api.store + "/slot-a";  // the third commit went where the first was
    damage(slot, 3 * 16384 + 5);
    if (verify) api.config.flags = WEIR_OFFLOAD_VERIFY;
    std::pair<uint64_t, uint64_t> told{0, 0};
    api.config.verify_progress_context = &told;
    api.config.verify_progress = [](void* context, uint64_t done, uint64_t total) {
      *static_cast<std::pair<uint64_t, uint64_t>*>(context) = {done, total};
    };
    api.config.scrub_bytes_per_s = 0;
    ASSERT_WEIR_OK(weir_optimizer_open(&api.optimizer, &api.config, &api.group, 1));
    if (!verify) {
      std::vector<float> values(api.group.element_count);
      EXPECT_EQ(weir_optimizer_get_parameters(api.optimizer, 0, 0, values.size(), WEIR_FLOAT32,
                                              values.data()),
                WEIR_ERROR_REFUSED);
      ASSERT_WEIR_OK(weir_optimizer_store_report(api.optimizer, &report));
      EXPECT_EQ(report.damaged, 1);
      EXPECT_EQ(report.went_back, WEIR_WENT_BACK_NOT);
      EXPECT_EQ(report.bad_chunk_count, 1u);
      EXPECT_EQ(report.bad_chunk, 3u);
      EXPECT_EQ(report.bad_file, slot);
      EXPECT_EQ(report.bad_offset_bytes, 3u * 16384);
      EXPECT_NE(std::string(report.text).find("bad (3)"), std::string::npos) << report.text;
      EXPECT_EQ(step(), WEIR_ERROR_REFUSED);
      EXPECT_NE(std::string(weir_last_error(nullptr)).find("gradients of step 2"),
                std::string::npos)
          << weir_last_error(nullptr);
      EXPECT_EQ(api.report.step, 1u);
    }
    EXPECT_GT(told.second, 0u);
    EXPECT_EQ(told.first, told.second);
    ASSERT_WEIR_OK(weir_optimizer_store_report(api.optimizer, &report));
    EXPECT_EQ(report.went_back, WEIR_WENT_BACK_CHUNK);
    EXPECT_EQ(report.damaged, 0);
    EXPECT_EQ(report.step, 1u);
    EXPECT_EQ(report.epoch, 2u);
    EXPECT_EQ(report.lost_step, 2u);
    EXPECT_EQ(report.lost_epoch, 3u);
    EXPECT_EQ(report.bad_chunk_count, 1u);
    EXPECT_EQ(report.bad_chunk, 3u);
    EXPECT_EQ(report.bad_file, slot);
    EXPECT_EQ(report.bad_offset_bytes, 3u * 16384);
    EXPECT_NE(std::string(report.text).find("epoch 3 (step 2) was discarded"), std::string::npos);
    ASSERT_WEIR_OK(step());
    EXPECT_EQ(api.report.step, 2u);
    ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  }
}

TEST(OffloadApi, TheStoreReportTellsOfASlotFileThatWasMadeAnew) {
  ScratchDirectory scratch;
  const std::string store = scratch / "store";
  const char* const directories[] = {store.c_str()};
  Api api;
  api.config.directories = directories;
  api.config.directory_count = 1;
  ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
  ASSERT_WEIR_OK(weir_optimizer_commit(api.optimizer));
  weir_store_report_t report = WEIR_STORE_REPORT_INIT;
  ASSERT_WEIR_OK(weir_optimizer_store_report(api.optimizer, &report));
  EXPECT_STREQ(report.text, "");
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  const std::string other = slot_path(store, 1);  // the first commit lies in the first slot
  ASSERT_TRUE(std::filesystem::remove(other));
  ASSERT_WEIR_OK(weir_optimizer_open(&api.optimizer, &api.config, &api.group, 1));
  ASSERT_WEIR_OK(weir_optimizer_store_report(api.optimizer, &report));
  EXPECT_EQ(report.went_back, WEIR_WENT_BACK_NOT);
  EXPECT_NE(std::string(report.text).find("'" + other + "', found none; it was created again"),
            std::string::npos)
      << report.text;
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  weir_parameter_group_t larger = api.group;
  larger.element_count += 1;
  EXPECT_EQ(weir_optimizer_open(&api.optimizer, &api.config, &larger, 1), WEIR_ERROR_MISMATCH);
  EXPECT_NE(
      std::string(weir_last_error(nullptr)).find("in group 'w' element count 50001, found 50000"),
      std::string::npos)
      << weir_last_error(nullptr);
  larger = api.group;
  larger.format = WEIR_STATE_HALF_MASTER;
  EXPECT_EQ(weir_optimizer_open(&api.optimizer, &api.config, &larger, 1), WEIR_ERROR_MISMATCH);
  EXPECT_NE(std::string(weir_last_error(nullptr)).find("in group 'w' state format 1, found 0"),
            std::string::npos)
      << weir_last_error(nullptr);
}

TEST(OffloadApi, AConfigOfTheFirstVersionHasWhatTheInitializerSays) {
  ScratchDirectory scratch;
  Api api(scratch / "store");
  api.config.struct_bytes = offsetof(weir_offload_config_t, order);
  // What lies behind is not the struct's.
  api.config.verify_progress = reinterpret_cast<weir_verify_progress_t>(uintptr_t{16});
  api.config.scrub_bytes_per_s = 0;
  ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
  ASSERT_WEIR_OK(weir_optimizer_commit(api.optimizer));
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  api.config.flags = WEIR_OFFLOAD_VERIFY;
  ASSERT_WEIR_OK(weir_optimizer_open(&api.optimizer, &api.config, &api.group, 1));
  weir_store_report_t report = WEIR_STORE_REPORT_INIT;
  for (int i = 0; i < 6000 && report.scrub_pass_count == 0; ++i) {
    ASSERT_WEIR_OK(weir_optimizer_store_report(api.optimizer, &report));
    ::usleep(10'000);
  }
  EXPECT_GT(report.scrub_pass_count, 0u);
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
  config = api.config;
  config.order = static_cast<weir_sweep_order_t>(2);
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "config.order is 2");
  config = api.config;
  config.core_count = 1;
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "config.cores is NULL");
  const int core = 1 << 20;
  config.cores = &core;
  refused(weir_optimizer_create(&none, &config, &api.group, 1), kArgument, "core 1048576 is not");
  weir_parameter_group_t group = api.group;
  group.hyper.beta2 = 1;
  refused(weir_optimizer_create(&none, &api.config, &group, 1), kArgument, "beta2");
  refused(weir_optimizer_open(&none, &api.config, &api.group, 1), kArgument, "no directories");
  EXPECT_EQ(none, nullptr);
  refused(weir_optimizer_step(nullptr, nullptr, nullptr), kArgument, "the optimizer is NULL");
  ASSERT_WEIR_OK(weir_optimizer_create(&api.optimizer, &api.config, &api.group, 1));
  float value = 0;
  refused(weir_optimizer_gradient(api.optimizer, -1, 0, 1, WEIR_FLOAT32, &value), kArgument,
          "optimizer_gradient: group -1");
  refused(weir_optimizer_gradient(api.optimizer, 1, 0, 1, WEIR_FLOAT32, &value), kArgument,
          "group 1 of 1 groups");
  refused(weir_optimizer_wait(api.optimizer, -5, 0, 1), kArgument, "optimizer_wait: group -5");
  refused(weir_optimizer_gradient(api.optimizer, 0, 0, 1, WEIR_INT8, &value), kArgument, "int8");
  refused(weir_optimizer_gradient(api.optimizer, 0, 0, 1, static_cast<weir_datatype_t>(99), &value),
          kArgument, "data type 99");
  refused(weir_optimizer_step(api.optimizer, nullptr, nullptr), kArgument, "have no gradient");
  refused(weir_optimizer_commit(api.optimizer), WEIR_ERROR_INVALID_USAGE, "without directories");
  weir_store_report_t report = WEIR_STORE_REPORT_INIT;
  refused(weir_optimizer_store_report(api.optimizer, &report), WEIR_ERROR_INVALID_USAGE,
          "without directories");
  refused(weir_optimizer_store_report(api.optimizer, nullptr), kArgument, "NULL");
  report.struct_bytes = 4;
  refused(weir_optimizer_store_report(api.optimizer, &report), kArgument, "struct_bytes is 4");
  refused(weir_optimizer_set_hyper(api.optimizer, 0, nullptr), kArgument, "hyper is NULL");
  ASSERT_WEIR_OK(weir_optimizer_destroy(api.optimizer));
  EXPECT_EQ(weir_optimizer_destroy(nullptr), WEIR_OK);
}

}  // namespace
}  // namespace weir::offload::test
