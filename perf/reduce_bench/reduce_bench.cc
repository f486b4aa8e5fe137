// SPDX-License-Identifier: Apache-2.0
// reduce_bench: nanoseconds per call and memory traffic of the reduction and copy kernels. Traffic
// counts each source and each destination once; names are type/fold/sources/bytes[/streaming].
// Buffers are page-aligned and stay in the smallest cache that holds them.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/reduce.h"

namespace {

using weir::DataType;
using weir::Fold;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

constexpr size_t kPageBytes = 4096;

// Bytes of 0x3f: about one in every float type, so that neither sum nor product is special.
Memory make_memory(size_t bytes) {
  const size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  Memory memory(std::aligned_alloc(kPageBytes, rounded));
  std::memset(memory.get(), 0x3f, rounded);
  return memory;
}

struct Options {
  DataType type;
  Fold fold;
  uint32_t source_count;
  size_t bytes;
  bool streaming = false;
  uint32_t divisor = 1;
};

void run_reduce(benchmark::State& state, const Options& options) {
  std::vector<Memory> memory;
  std::vector<const void*> sources;
  for (uint32_t s = 0; s < options.source_count; ++s) {
    memory.push_back(make_memory(options.bytes));
    sources.push_back(memory.back().get());
  }
  memory.push_back(make_memory(options.bytes));
  weir::ReduceArgs args;
  args.dst = memory.back().get();
  args.sources = sources.data();
  args.source_count = options.source_count;
  args.element_count = options.bytes / weir::element_bytes(options.type);
  args.streaming = options.streaming;
  args.divisor = options.divisor;
  const weir::ReduceKernel kernel = weir::reduce_kernel(options.type, options.fold);
  for (auto _ : state) {
    kernel(args);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(options.bytes * (options.source_count + 1)));
}

void run_copy(benchmark::State& state, size_t bytes, bool streaming) {
  const Memory from = make_memory(bytes);
  const Memory to = make_memory(bytes);
  for (auto _ : state) {
    weir::copy_bytes(to.get(), from.get(), bytes, streaming);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(2 * bytes));
}

void add_reduce(const Options& options) {
  const std::string name = std::string(name_of(options.type)) + "/" + name_of(options.fold) + "/" +
                           std::to_string(options.source_count) + "/" +
                           std::to_string(options.bytes) +
                           (options.divisor != 1 ? "/by" + std::to_string(options.divisor) : "") +
                           (options.streaming ? "/streaming" : "");
  benchmark::RegisterBenchmark(name.c_str(),
                               [options](benchmark::State& state) { run_reduce(state, options); });
}

void add_all() {
  for (const size_t bytes : {size_t{8}, size_t{64}, size_t{256}, size_t{1024}, size_t{16} << 10,
                             size_t{256} << 10, size_t{4} << 20, size_t{64} << 20}) {
    for (const uint32_t source_count : {2u, 3u, 4u, 8u}) {
      add_reduce({DataType::kFloat32, Fold::kSum, source_count, bytes});
    }
    for (const bool streaming : {false, true}) {
      if (bytes < 4096) break;
      if (streaming) add_reduce({DataType::kFloat32, Fold::kSum, 2, bytes, streaming});
      benchmark::RegisterBenchmark(
          ("copy/" + std::to_string(bytes) + (streaming ? "/streaming" : "")).c_str(),
          [bytes, streaming](benchmark::State& state) { run_copy(state, bytes, streaming); });
    }
  }
  for (uint32_t type = 0; type < weir::kDataTypeCount; ++type) {
    for (uint32_t fold = 0; fold < weir::kFoldCount; ++fold) {
      add_reduce({static_cast<DataType>(type), static_cast<Fold>(fold), 2, 16 << 10});
    }
    add_reduce({static_cast<DataType>(type), Fold::kSum, 2, 16 << 10, false, 3});
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("instruction_set", weir::reduce_kernel_target());
  add_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
