// SPDX-License-Identifier: Apache-2.0
// 05: communication that overlaps computation. A backward pass finishes one layer after the other;
// each layer's gradient is reduced while the next one is computed.
//
//   ./05_overlap
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "example.h"

namespace {

constexpr size_t kLayerCount = 4;
constexpr size_t kLayerSize = size_t{1} << 18;

// In place of real work: fills the layer's gradient, and lets Weir make progress now and then.
void compute_gradient(std::vector<float>& gradient, int rank, weir_request_t* in_flight) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = std::floor(std::sqrt(static_cast<float>(i % 100))) + static_cast<float>(rank);
    // Not needed for completion, but ranks that wait for this one continue sooner.
    if (i % (kLayerSize / 8) == 0 && *in_flight != nullptr) {
      int done = 0;
      check(weir_test(in_flight, &done), nullptr);  // sets *in_flight to NULL when it is done
    }
  }
}

int run_rank(weir_comm_t comm, int rank) {
  std::vector<std::vector<float>> gradients(kLayerCount, std::vector<float>(kLayerSize));
  std::array<weir_request_t, kLayerCount> requests = {};
  weir_request_t none = nullptr;

  for (size_t layer = 0; layer < kLayerCount; ++layer) {
    weir_request_t* previous = layer == 0 ? &none : &requests[layer - 1];
    compute_gradient(gradients[layer], rank, previous);
    // Returns at once. Until the request is complete the buffer belongs to Weir. In place: the
    // average over the ranks replaces the gradient.
    float* data = gradients[layer].data();
    check(weir_all_reduce(comm, data, data, kLayerSize, WEIR_FLOAT32, WEIR_AVG, &requests[layer]),
          comm);
  }
  // Requests that weir_test has already completed are NULL and are skipped.
  check(weir_wait_all(requests.data(), requests.size()), comm);

  for (const std::vector<float>& gradient : gradients) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float expected = std::floor(std::sqrt(static_cast<float>(i % 100))) + 0.5f;
      if (gradient[i] != expected) return 1;
    }
  }
  if (rank == 0) std::printf("%zu layers averaged behind the computation\n", kLayerCount);
  return 0;
}

}  // namespace

int main() { return run_ranks(2, run_rank) != 0 ? 1 : 0; }
