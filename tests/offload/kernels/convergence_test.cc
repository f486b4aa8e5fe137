// SPDX-License-Identifier: Apache-2.0
// A small real training problem: a two-layer network (16 -> 32 tanh -> 1) learns a function that
// another such network made, by each method in each state format. What the smaller formats cost is
// held against f32; docs/offload_kernels.md quotes the figures that this prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "offload/kernels/support.h"

namespace weir::offload {
namespace {

using namespace test;

constexpr int kInputs = 16, kHidden = 32;
constexpr int kWeights = kInputs * kHidden + kHidden + kHidden + 1;
constexpr int kSamples = 512, kBatch = 64, kSteps = 3000;

struct Data {
  std::vector<float> x, y;
};

// Layout of the weights: kHidden rows of kInputs, kHidden biases, kHidden output weights, a bias.
float forward(const float* w, const float* x, float* hidden) {
  const float* bias = w + kInputs * kHidden;
  const float* out = bias + kHidden;
  float y = out[kHidden];
  for (int h = 0; h < kHidden; ++h) {
    float sum = bias[h];
    for (int i = 0; i < kInputs; ++i) sum += w[h * kInputs + i] * x[i];
    hidden[h] = std::tanh(sum);
    y += out[h] * hidden[h];
  }
  return y;
}

Data make_data() {
  Values values(20263, Draw::kTame);  // one problem, so that the bounds below mean something
  std::vector<float> teacher(kWeights);
  for (float& w : teacher) w = values.next(0.5f);
  Data data;
  float hidden[kHidden];
  for (int s = 0; s < kSamples; ++s) {
    for (int i = 0; i < kInputs; ++i) data.x.push_back(values.next(1));
    data.y.push_back(forward(teacher.data(), &data.x[static_cast<size_t>(s) * kInputs], hidden));
  }
  return data;
}

double gradient_of(const Data& data, const std::vector<float>& w, int first, int count, float* g) {
  std::fill(g, g + kWeights, 0.0f);
  double loss = 0;
  float hidden[kHidden];
  for (int k = 0; k < count; ++k) {
    const size_t s = static_cast<size_t>((first + k) % kSamples);
    const float* x = &data.x[s * kInputs];
    const float error = forward(w.data(), x, hidden) - data.y[s];
    loss += 0.5 * static_cast<double>(error) * error;
    const float scaled = error / static_cast<float>(count);
    float* g_bias = g + kInputs * kHidden;
    float* g_out = g_bias + kHidden;
    const float* out = w.data() + kInputs * kHidden + kHidden;
    g_out[kHidden] += scaled;
    for (int h = 0; h < kHidden; ++h) {
      g_out[h] += scaled * hidden[h];
      const float back = scaled * out[h] * (1 - hidden[h] * hidden[h]);
      g_bias[h] += back;
      for (int i = 0; i < kInputs; ++i) g[h * kInputs + i] += back * x[i];
    }
  }
  return loss / count;
}

Hyper hyper_of(Method method) {
  Hyper hyper;
  hyper.weight_decay = method == Method::kAdamW || method == Method::kLion ? 1e-4 : 0;
  hyper.learning_rate = method == Method::kSgdMomentum ? 0.05
                        : method == Method::kAdagrad   ? 0.05
                        : method == Method::kLion      ? 1e-3
                                                       : 3e-3;
  if (method == Method::kLion) hyper.beta2 = 0.99;
  return hyper;
}

double untrained_loss = 0;

// Final loss over all samples; forward and backward use the f32 master, so that the state format is
// all that differs.
double train(const Data& data, Method method, StateFormat format, uint64_t start) {
  Values values(start, Draw::kTame);
  std::vector<float> w(kWeights), g(kWeights);
  for (float& weight : w) weight = values.next(0.2f);
  untrained_loss = gradient_of(data, w, 0, kSamples, g.data());
  const ChunkLayout layout = chunk_layout(method, format, kWeights);
  GuardedBytes chunk(layout.chunk_bytes);
  std::vector<uint16_t> copy(kWeights);
  encode_state(layout, 0, kWeights, w.data(), nullptr, nullptr, chunk.data(), copy.data());
  Hyper hyper = hyper_of(method);
  const double rate = hyper.learning_rate;
  for (int step = 1; step <= kSteps; ++step) {
    gradient_of(data, w, step * kBatch, kBatch, g.data());
    hyper.learning_rate = rate * 0.5 * (1.02 + std::cos(M_PI * step / kSteps));
    StepRange range;
    range.layout = &layout;
    range.source = range.destination = chunk.data();
    range.count = kWeights;
    range.gradient = g.data();
    range.copy_in = range.copy_out = copy.data();
    range.parameter_out = w.data();
    range.parameter_type = DataType::kFloat32;
    step_range(step_factors(method, hyper, static_cast<uint64_t>(step)), range);
  }
  return gradient_of(data, w, 0, kSamples, g.data());
}

// Geometric mean over a few starting points: single runs of a method that steps by signs differ.
double mean_loss(const Data& data, Method method, StateFormat format) {
  double sum = 0;
  for (const uint64_t start : {7u, 8u, 9u}) sum += std::log(train(data, method, format, start));
  return std::exp(sum / 3);
}

TEST(Convergence, EveryFormatLearnsWhatFloat32Learns) {
  const Data data = make_data();
  for (const Method method : kMethods) {
    const double plain = mean_loss(data, method, StateFormat::kFloat32);
    const double half = mean_loss(data, method, StateFormat::kHalfMaster);
    const double bytes = mean_loss(data, method, StateFormat::kHalfMaster8);
    std::printf(
        "%-13s untrained %.4f  float32 %.3e  half_master %.3e (%.2f x)  half_master8 %.3e "
        "(%.2f x)\n",
        name_of(method), untrained_loss, plain, half, half / plain, bytes, bytes / plain);
    EXPECT_LT(plain, untrained_loss / 50) << name_of(method);
    EXPECT_LT(half, plain * 1.5) << name_of(method);
    EXPECT_LT(bytes, plain * 3) << name_of(method);
  }
}

// The working copy is what a training runtime computes with: 16-bit weights from a f32 master.
TEST(Convergence, TrainingOnTheBf16CopyLearns) {
  const Data data = make_data();
  const ChunkLayout layout = chunk_layout(Method::kAdamW, StateFormat::kHalfMaster, kWeights);
  GuardedBytes chunk(layout.chunk_bytes);
  Values values(7, Draw::kTame);
  std::vector<float> w(kWeights), g(kWeights);
  for (float& weight : w) weight = values.next(0.2f);
  const double before = gradient_of(data, w, 0, kSamples, g.data());
  std::vector<uint16_t> copy(kWeights);
  encode_state(layout, 0, kWeights, w.data(), nullptr, nullptr, chunk.data(), copy.data());
  for (int step = 1; step <= kSteps; ++step) {
    for (int i = 0; i < kWeights; ++i)
      w[static_cast<size_t>(i)] = of_bf16(copy[static_cast<size_t>(i)]);
    gradient_of(data, w, step * kBatch, kBatch, g.data());
    StepRange range;
    range.layout = &layout;
    range.source = range.destination = chunk.data();
    range.count = kWeights;
    range.gradient = g.data();
    range.copy_in = range.copy_out = copy.data();
    Hyper hyper;
    hyper.learning_rate = 3e-3 * 0.5 * (1.02 + std::cos(M_PI * step / kSteps));
    step_range(step_factors(Method::kAdamW, hyper, static_cast<uint64_t>(step)), range);
  }
  for (int i = 0; i < kWeights; ++i)
    w[static_cast<size_t>(i)] = of_bf16(copy[static_cast<size_t>(i)]);
  const double after = gradient_of(data, w, 0, kSamples, g.data());
  std::printf("on the bf16 copy: %.4f -> %.3e\n", before, after);
  EXPECT_LT(after, before / 50);
}

}  // namespace
}  // namespace weir::offload
