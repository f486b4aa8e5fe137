// SPDX-License-Identifier: Apache-2.0
// Gloo over its TCP transport, as a program would use it: the options interface that PyTorch calls,
// with separate input and output. GLOO_ALGORITHM (ring or bcube) chooses the algorithm.
#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "layer.h"

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;
gloo::AllreduceOptions::Algorithm algorithm = gloo::AllreduceOptions::Algorithm::RING;

const char* wanted(const char* name) {
  const char* value = std::getenv(name);
  if (value != nullptr) return value;
  std::fprintf(stderr, "gloo: %s is not set\n", name);
  std::exit(3);
}

template <typename Body>
void or_exit(const char* what, Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo: %s: %s\n", what, error.what());
    std::exit(3);
  }
}

template <typename T, typename Function>
void all_reduce(const T* send, T* recv, size_t count, Function function) {
  or_exit("allreduce", [&] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(algorithm);
    options.setInput(const_cast<T*>(send), count);
    options.setOutput(recv, count);
    options.setReduceFunction(function);
    gloo::allreduce(options);
  });
}

}  // namespace

void compare_start(int rank, int rank_count) {
  const char* name = std::getenv("GLOO_ALGORITHM");
  if (name != nullptr && std::strcmp(name, "bcube") == 0) {
    algorithm = gloo::AllreduceOptions::Algorithm::BCUBE;
  }
  or_exit("start", [&] {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = wanted("COMPARE_ADDRESS");
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(wanted("COMPARE_FOLDER"));
    context = std::make_shared<gloo::rendezvous::Context>(rank, rank_count);
    context->setTimeout(std::chrono::seconds(COMPARE_SECONDS_MAX));
    context->connectFullMesh(store, device);
  });
}

// Gloo's threads still work when the last message has arrived.
void compare_end() {
  compare_barrier();
  context.reset();
}

void compare_barrier() {
  or_exit("barrier", [] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  });
}

double compare_max(double mine) {
  double all = 0;
  all_reduce(&mine, &all, 1, [](void* out, const void* a, const void* b, size_t count) {
    gloo::max<double>(out, a, b, count);
  });
  return all;
}

void compare_all_reduce(const float* send, float* recv, size_t count) {
  all_reduce(send, recv, count, [](void* out, const void* a, const void* b, size_t n) {
    gloo::sum<float>(out, a, b, n);
  });
}

void compare_exchange(const float*, float*, size_t) {
  std::fprintf(stderr, "gloo: an exchange is not measured here\n");
  std::exit(3);
}
