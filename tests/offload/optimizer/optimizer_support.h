// SPDX-License-Identifier: Apache-2.0
// What the tests of the optimizer share: groups of every method and format, gradients that are a
// function of (group, element, step) and exact in every type, steps whose gradients come in ranges
// of any division, directories that vanish.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "offload/kernels/random.h"
#include "offload/optimizer/number_format.h"
#include "offload/optimizer/optimizer.h"

namespace weir::offload::test {

inline uint64_t seed() {
  static const uint64_t value = [] {
    const char* text = std::getenv("WEIR_TEST_SEED");
    const uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 0) : 20264;
    std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return value;
}

class ScratchDirectory {
 public:
  explicit ScratchDirectory(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "weir-optimizer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

using Groups = std::vector<ParameterGroup>;
using Values = std::vector<std::vector<float>>;  // by group

// Every method and every format, with lengths that are round in nothing.
inline Groups mixed_groups() {
  Groups groups;
  const auto add = [&](const char* name, uint64_t count, Method method, StateFormat format) {
    ParameterGroup group;
    group.name = name;
    group.element_count = count;
    group.method = method;
    group.format = format;
    group.hyper.learning_rate = 0.01;
    group.hyper.weight_decay = 0.1;
    groups.push_back(group);
  };
  add("adamw", 10007, Method::kAdamW, StateFormat::kFloat32);
  add("half", 9001, Method::kAdamW, StateFormat::kHalfMaster);
  add("none", 0, Method::kAdamW, StateFormat::kHalfMaster8);
  add("half8", 7777, Method::kAdam, StateFormat::kHalfMaster8);
  add("lion", 3001, Method::kLion, StateFormat::kHalfMaster);
  add("sgd", 1, Method::kSgdMomentum, StateFormat::kFloat32);
  add("adagrad", 5003, Method::kAdagrad, StateFormat::kHalfMaster8);
  return groups;
}

// Multiples of 1/64 below 2 in magnitude: exact in bf16 and f16.
inline float gradient_value(uint32_t group, uint64_t element, uint64_t step) {
  const RandomKey key = random_key(step + 1, group, RandomStream::kMoments);
  return static_cast<float>(static_cast<int>(random_bits(key, element) % 255) - 127) / 64.0f;
}

inline float first_value(uint32_t group, uint64_t element) {
  return gradient_value(group, element, 999);
}

inline std::vector<unsigned char> gradient_bytes(const ParameterGroup& group, uint32_t index,
                                                 uint64_t first, uint64_t count, uint64_t step,
                                                 DataType type) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i)
    values[i] = gradient_value(index, group.first_element + first + i, step);
  std::vector<unsigned char> bytes(count * element_bytes(type));
  from_float(values.data(), count, {}, type, bytes.data());
  return bytes;
}

// Gives gradients to an optimizer and keeps their memory.
class Giver {
 public:
  // 0: each group as one f32 range; else ranges of random length and type, in random order.
  explicit Giver(uint64_t split_seed = 0) : random_(split_seed), split_(split_seed != 0) {}

  Status give(Optimizer& optimizer, const Groups& groups, uint64_t step) {
    kept_.clear();
    struct Range {
      uint32_t group;
      uint64_t first, count;
    };
    std::vector<Range> ranges;
    for (uint32_t g = 0; g < groups.size(); ++g)
      for (uint64_t at = 0; at < groups[g].element_count;) {
        uint64_t count = groups[g].element_count - at;
        if (split_) count = std::min<uint64_t>(count, 1 + random_() % (1u << (random_() % 13)));
        ranges.push_back({g, at, count});
        at += count;
      }
    if (split_) std::shuffle(ranges.begin(), ranges.end(), random_);
    for (const Range& range : ranges) {
      constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16};
      const DataType type = split_ ? kTypes[random_() % 3] : DataType::kFloat32;
      kept_.push_back(
          gradient_bytes(groups[range.group], range.group, range.first, range.count, step, type));
      WEIR_RETURN_IF_ERROR(
          optimizer.gradient(range.group, range.first, range.count, type, kept_.back().data()));
    }
    return {};
  }

 private:
  std::mt19937_64 random_;
  bool split_;
  std::deque<std::vector<unsigned char>> kept_;
};

inline Status set_first(Optimizer& optimizer, const Groups& groups) {
  for (uint32_t g = 0; g < groups.size(); ++g) {
    std::vector<float> values(groups[g].element_count);
    for (uint64_t i = 0; i < values.size(); ++i)
      values[i] = first_value(g, groups[g].first_element + i);
    // In two ranges that meet anywhere.
    const uint64_t cut = values.size() / 3;
    WEIR_RETURN_IF_ERROR(optimizer.set_parameters(g, cut, values.size() - cut, DataType::kFloat32,
                                                  values.data() + cut));
    WEIR_RETURN_IF_ERROR(optimizer.set_parameters(g, 0, cut, DataType::kFloat32, values.data()));
  }
  return {};
}

// Steps `from` + 1 to `to`.
inline Status run_steps(Optimizer& optimizer, const Groups& groups, uint64_t from, uint64_t to,
                        uint64_t split_seed = 0, const StepOptions& options = {}) {
  Giver giver(split_seed);
  for (uint64_t step = from + 1; step <= to; ++step) {
    WEIR_RETURN_IF_ERROR(giver.give(optimizer, groups, step));
    StepReport report;
    WEIR_RETURN_IF_ERROR(optimizer.step(options, &report));
    if (report.step != step || report.skipped)
      return Status(Code::kInternal, "the report says step " + std::to_string(report.step));
  }
  return {};
}

inline Values values_of(Optimizer& optimizer, const Groups& groups) {
  Values values;
  for (uint32_t g = 0; g < groups.size(); ++g) {
    values.emplace_back(groups[g].element_count);
    const Status status = optimizer.get_parameters(g, 0, groups[g].element_count,
                                                   DataType::kFloat32, values.back().data());
    EXPECT_TRUE(status.ok()) << status.text();
  }
  return values;
}

inline bool same_bits(const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t g = 0; g < a.size(); ++g) {
    if (a[g].size() != b[g].size()) return false;
    if (!a[g].empty() && std::memcmp(a[g].data(), b[g].data(), a[g].size() * 4) != 0) return false;
  }
  return true;
}

inline OptimizerOptions small_options() {
  OptimizerOptions options;
  options.chunk_bytes = 16384;
  options.thread_count = 1;
  options.seed = 7;
  return options;
}

inline std::unique_ptr<Optimizer> made(Result<std::unique_ptr<Optimizer>> result) {
  EXPECT_TRUE(result.ok()) << result.status().text();
  return result.ok() ? result.take() : nullptr;
}

// A new one after so many steps; nullptr when that fails.
inline std::unique_ptr<Optimizer> stepped(const OptimizerOptions& options, const Groups& groups,
                                          uint64_t steps, const StepOptions& step = {}) {
  std::unique_ptr<Optimizer> optimizer = made(Optimizer::create(options, groups));
  if (optimizer == nullptr) return nullptr;
  Status status = set_first(*optimizer, groups);
  if (status.ok()) status = run_steps(*optimizer, groups, 0, steps, 0, step);
  EXPECT_TRUE(status.ok()) << status.text();
  return status.ok() ? std::move(optimizer) : nullptr;
}

// The parameters after so many steps in memory.
inline Values in_memory(const Groups& groups, uint64_t steps, const StepOptions& step = {}) {
  const auto optimizer = stepped(small_options(), groups, steps, step);
  return optimizer == nullptr ? Values() : values_of(*optimizer, groups);
}

#define ASSERT_OK(expression)                        \
  do {                                               \
    const ::weir::Status ok_status = (expression);   \
    ASSERT_TRUE(ok_status.ok()) << ok_status.text(); \
  } while (false)

}  // namespace weir::offload::test
