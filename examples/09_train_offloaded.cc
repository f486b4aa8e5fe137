// SPDX-License-Identifier: Apache-2.0
// 09: a training run whose optimizer state is larger than its memory budget. A two-layer network
// learns a generated function, twice: with all state in memory, and with a budget that
// holds a part of it while the rest streams from and to a directory. The losses are equal, bit for
// bit.
//
//   ./09_train_offloaded [directory]
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <weir/offload.h>

#include "example.h"

namespace {

constexpr size_t kInputs = 128;
constexpr size_t kHidden = 8192;
constexpr size_t kBatch = 8;
constexpr int kSteps = 30;
constexpr uint64_t kBudgetBytes = uint64_t{6} << 20;
constexpr uint64_t kChunkBytes = uint64_t{64} << 10;

// Numbers in [-1, 1) that are the same everywhere.
class Random {
 public:
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  uint64_t state_ = 1;
};

// y = sum over the hidden units of out[h] * relu(hidden[h] · x). The optimizer writes the
// parameters and reads the gradients.
struct Network {
  enum Group { kHiddenWeights = 0, kOutWeights = 1 };

  std::vector<float> hidden = std::vector<float>(kHidden * kInputs);
  std::vector<float> out = std::vector<float>(kHidden);
  std::vector<float> hidden_gradient = std::vector<float>(kHidden * kInputs);
  std::vector<float> out_gradient = std::vector<float>(kHidden);

  // Returns the mean square error over the batch, and overwrites the gradients.
  float forward_and_backward(const std::vector<float>& inputs, const std::vector<float>& targets) {
    std::fill(hidden_gradient.begin(), hidden_gradient.end(), 0.0f);
    std::fill(out_gradient.begin(), out_gradient.end(), 0.0f);
    std::vector<float> active(kHidden);
    float loss = 0;
    for (size_t sample = 0; sample < kBatch; ++sample) {
      const float* x = &inputs[sample * kInputs];
      float y = 0;
      for (size_t h = 0; h < kHidden; ++h) {
        const float* w = &hidden[h * kInputs];
        float sum = 0;
        for (size_t i = 0; i < kInputs; ++i) sum += w[i] * x[i];
        active[h] = sum > 0 ? sum : 0;
        y += out[h] * active[h];
      }
      const float error = y - targets[sample];
      loss += error * error / kBatch;
      for (size_t h = 0; h < kHidden; ++h) {
        out_gradient[h] += 2 * error / kBatch * active[h];
        if (active[h] == 0) continue;
        const float back = 2 * error / kBatch * out[h];
        float* gradient = &hidden_gradient[h * kInputs];
        for (size_t i = 0; i < kInputs; ++i) gradient[i] += back * x[i];
      }
    }
    return loss;
  }
};

void make_batch(Random& random, std::vector<float>& inputs, std::vector<float>& targets) {
  for (float& x : inputs) x = random.next();
  for (size_t sample = 0; sample < kBatch; ++sample) {
    const float* x = &inputs[sample * kInputs];
    targets[sample] = x[0] * x[1] + std::abs(x[2]) - 0.5f * x[3];
  }
}

// Trains and returns the losses. `directory` NULL: all state in memory.
std::vector<float> train(const char* directory) {
  const char* names[] = {"hidden", "out"};
  const uint64_t counts[] = {kHidden * kInputs, kHidden};
  weir_parameter_group_t groups[2];
  for (int g = 0; g < 2; ++g) {
    groups[g] = WEIR_PARAMETER_GROUP_INIT;
    groups[g].name = names[g];
    groups[g].element_count = counts[g];
    groups[g].hyper.learning_rate = 1e-3;
    groups[g].hyper.weight_decay = 0.01;
  }
  weir_offload_config_t config = WEIR_OFFLOAD_CONFIG_INIT;
  config.chunk_bytes = kChunkBytes;
  if (directory != nullptr) {
    config.directories = &directory;
    config.directory_count = 1;
    config.memory_bytes = kBudgetBytes;
  }
  weir_optimizer_t optimizer = nullptr;
  check(weir_optimizer_create(&optimizer, &config, groups, 2), nullptr);

  Random random;
  Network network;
  for (float& w : network.hidden) w = random.next() / std::sqrt(static_cast<float>(kInputs));
  for (float& w : network.out) w = random.next() / std::sqrt(static_cast<float>(kHidden));
  float* parameters[] = {network.hidden.data(), network.out.data()};
  const float* gradients[] = {network.hidden_gradient.data(), network.out_gradient.data()};
  for (int g = 0; g < 2; ++g) {
    check(weir_optimizer_set_parameters(optimizer, g, 0, counts[g], WEIR_FLOAT32, parameters[g]),
          nullptr);
    check(weir_optimizer_set_output(optimizer, g, WEIR_FLOAT32, parameters[g], 0), nullptr);
  }

  std::vector<float> inputs(kBatch * kInputs), targets(kBatch), losses;
  uint64_t streamed_bytes = 0;
  make_batch(random, inputs, targets);
  for (int step = 0; step < kSteps; ++step) {
    losses.push_back(network.forward_and_backward(inputs, targets));
    for (int g = 0; g < 2; ++g)
      check(weir_optimizer_gradient(optimizer, g, 0, counts[g], WEIR_FLOAT32, gradients[g]),
            nullptr);
    weir_step_options_t options = WEIR_STEP_OPTIONS_INIT;
    options.norm_max = 1;
    // The state streams while the next batch is generated.
    check(weir_optimizer_step_start(optimizer, &options), nullptr);
    make_batch(random, inputs, targets);
    // A runtime would continue here with the layers whose parameters are complete.
    check(weir_optimizer_wait(optimizer, Network::kHiddenWeights, 0, counts[0]), nullptr);
    weir_step_report_t report = WEIR_STEP_REPORT_INIT;
    check(weir_optimizer_step_finish(optimizer, &report), nullptr);
    streamed_bytes += report.read_bytes + report.written_bytes;
  }
  uint64_t memory_bytes = 0;
  check(weir_optimizer_memory(optimizer, &memory_bytes), nullptr);
  std::printf("%s: %.1f MB of state, %.1f MB of memory, %.1f MB moved a step, loss %.4f -> %.4f\n",
              directory == nullptr ? "in memory" : "offloaded",
              static_cast<double>((counts[0] + counts[1]) * 12) / 1e6,
              static_cast<double>(memory_bytes) / 1e6,
              static_cast<double>(streamed_bytes) / kSteps / 1e6, losses.front(), losses.back());
  check(weir_optimizer_destroy(optimizer), nullptr);
  return losses;
}

void remove_directory(const std::string& path) {
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return;
  while (const dirent* entry = readdir(directory))
    (void)unlinkat(dirfd(directory), entry->d_name, 0);
  closedir(directory);
  rmdir(path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  std::string path = std::string(argc > 1 ? argv[1] : ".") + "/weir_09.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    std::perror(path.c_str());
    return 1;
  }
  const std::vector<float> in_memory = train(nullptr);
  const std::vector<float> offloaded = train(path.c_str());
  remove_directory(path);

  for (int step = 0; step < kSteps; step += 10)
    std::printf("step %2d: loss %.9g in memory, %.9g offloaded\n", step, in_memory[step],
                offloaded[step]);
  const bool same = std::memcmp(in_memory.data(), offloaded.data(), kSteps * sizeof(float)) == 0;
  const bool learned = in_memory.back() < in_memory.front();
  std::printf("%d losses are %s\n", kSteps, same ? "equal, bit for bit" : "NOT equal");
  return same && learned ? 0 : 1;
}
