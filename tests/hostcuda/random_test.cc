// SPDX-License-Identifier: Apache-2.0
// Random programs of streams, events, default streams and graphs against the same program done one
// operation after another. Whatever two streams do with one word is ordered by an event, by the
// legacy stream, or within a graph by capture; so the outcome is that of the serial program.
// WEIR_TEST_SEED: only this program. WEIR_TEST_COUNT: how many.
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr size_t kWords = 12;

struct Update {
  uint32_t* to;
  const uint32_t* from;
  uint32_t add;
};

void update(void* data) {
  const auto* const mine = static_cast<const Update*>(data);
  *mine->to = *mine->to * 5 + *mine->from + mine->add;
}

struct Step {
  enum class Kind { kFill, kCopy, kUpdate, kWrite } kind;
  size_t to;
  size_t from;
  uint32_t value;
};

class Program {
 public:
  Program(uint64_t seed, bool with_legacy) : random_(seed) {
    void* memory = nullptr;
    EXPECT_CUDA(cudaMallocManaged(&memory, kWords * sizeof(uint32_t), 1));
    words_ = static_cast<uint32_t*>(memory);
    for (size_t i = 0; i < kWords; ++i) words_[i] = model_[i] = below(1000);
    const size_t count = 2 + below(4);
    for (size_t i = 0; i < count; ++i) {
      const bool blocking = with_legacy && below(2) == 0;
      streams_.push_back({make_stream(blocking ? 0 : kNonBlocking), blocking});
    }
    own_count_ = streams_.size();
    streams_.push_back({kPerThread, true});
    if (with_legacy) streams_.push_back({nullptr, true});
    last_.assign(kWords, 0);
  }

  ~Program() {
    for (size_t i = 0; i < own_count_; ++i) EXPECT_CUDA(cudaStreamDestroy(streams_[i].handle));
    EXPECT_CUDA(cudaFree(words_));
  }

  void run() {
    for (int i = 0; i < 60; ++i) {
      if (below(8) == 0) {
        graph();
      } else {
        plain();
      }
    }
    // The default streams of this thread and of the device are among them.
    for (const auto& stream : streams_) ASSERT_CUDA(cudaStreamSynchronize(stream.handle));
    for (size_t i = 0; i < kWords; ++i) ASSERT_EQ(words_[i], model_[i]) << "word " << i;
  }

 private:
  struct OneStream {
    cudaStream_t handle;
    bool blocking;
  };

  size_t below(size_t bound) { return random_() % bound; }

  Step random_step() {
    return {static_cast<Step::Kind>(below(4)), below(kWords), below(kWords),
            static_cast<uint32_t>(random_())};
  }

  void issue(const Step& step, cudaStream_t stream) {
    uint32_t* const to = words_ + step.to;
    switch (step.kind) {
      case Step::Kind::kFill:
        EXPECT_CUDA(cuMemsetD32Async(device_address(to), step.value, 1, stream));
        break;
      case Step::Kind::kCopy:
        EXPECT_CUDA(cudaMemcpyAsync(to, words_ + step.from, 4, cudaMemcpyDeviceToDevice, stream));
        break;
      case Step::Kind::kUpdate:
        updates_.push_back({to, words_ + step.from, step.value});
        EXPECT_CUDA(cudaLaunchHostFunc(stream, update, &updates_.back()));
        break;
      case Step::Kind::kWrite:
        EXPECT_CUDA(cuStreamWriteValue32_v2(stream, device_address(to), step.value, 0));
        break;
    }
  }

  void apply(const Step& step) {
    uint32_t& to = model_[step.to];
    switch (step.kind) {
      case Step::Kind::kFill:
      case Step::Kind::kWrite:
        to = step.value;
        break;
      case Step::Kind::kCopy:
        to = model_[step.from];
        break;
      case Step::Kind::kUpdate:
        to = to * 5 + model_[step.from] + step.value;
        break;
    }
  }

  void order(cudaStream_t before, cudaStream_t after) {
    const cudaEvent_t event = make_event(2);
    EXPECT_CUDA(cudaEventRecord(event, before));
    EXPECT_CUDA(cudaStreamWaitEvent(after, event, 0));
    EXPECT_CUDA(cudaEventDestroy(event));
  }

  // `stream` may touch the word: what others did with it comes before.
  void take(size_t word, size_t stream) {
    const size_t before = last_[word];
    last_[word] = stream;
    if (before == stream) return;
    const bool by_legacy =
        streams_[before].blocking && streams_[stream].blocking &&
        (streams_[before].handle == nullptr || streams_[stream].handle == nullptr);
    if (!by_legacy) order(streams_[before].handle, streams_[stream].handle);
  }

  void plain() {
    const Step step = random_step();
    const size_t stream = below(streams_.size());
    take(step.to, stream);
    take(step.from, stream);
    issue(step, streams_[stream].handle);
    apply(step);
  }

  void graph() {
    const size_t main = below(own_count_);
    const size_t side = (main + 1) % own_count_;
    const cudaStream_t pair[] = {streams_[main].handle, streams_[side].handle};
    std::vector<Step> steps;
    std::vector<size_t> where(kWords, 0);
    ASSERT_CUDA(cudaStreamBeginCapture(pair[0], cudaStreamCaptureModeThreadLocal));
    const bool forked = below(2) == 0;
    if (forked) order(pair[0], pair[1]);
    const size_t count = 1 + below(8);
    for (size_t i = 0; i < count; ++i) {
      const Step step = random_step();
      const size_t branch = forked ? below(2) : 0;
      for (const size_t word : {step.to, step.from}) {
        if (where[word] != branch) order(pair[where[word]], pair[branch]);
        where[word] = branch;
      }
      issue(step, pair[branch]);
      steps.push_back(step);
    }
    if (forked) order(pair[1], pair[0]);
    cudaGraph_t made = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_CUDA(cudaStreamEndCapture(pair[0], &made));
    ASSERT_CUDA(cudaGraphInstantiate(&executable, made, 0));
    const size_t launches = below(4);
    for (size_t i = 0; i < launches; ++i) {
      const size_t stream = below(streams_.size());
      for (size_t word = 0; word < kWords; ++word) take(word, stream);
      ASSERT_CUDA(cudaGraphLaunch(executable, streams_[stream].handle));
      for (const Step& step : steps) apply(step);
    }
    EXPECT_CUDA(cudaGraphExecDestroy(executable));
    EXPECT_CUDA(cudaGraphDestroy(made));
  }

  std::mt19937_64 random_;

  uint32_t* words_ = nullptr;
  uint32_t model_[kWords] = {};
  std::vector<OneStream> streams_;
  size_t own_count_ = 0;
  std::vector<size_t> last_;  // the stream that touched each word last
  std::deque<Update> updates_;
};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(HostCudaRandom, ProgramsEndAsTheirSerialForms) {
  const uint64_t count = from_environment("WEIR_TEST_COUNT", 200);
  const bool one = std::getenv("WEIR_TEST_SEED") != nullptr;
  const uint64_t first = from_environment("WEIR_TEST_SEED", 1);
  for (uint64_t seed = first; seed < (one ? first + 1 : first + count); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    Program(seed, true).run();
    if (HasFailure()) break;
  }
}

TEST(HostCudaRandom, ProgramsOfSeveralThreadsDoNotDisturbEachOther) {
  const uint64_t count = from_environment("WEIR_TEST_COUNT", 200) / 10;
  const uint64_t first = from_environment("WEIR_TEST_SEED", 1);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([=] {
      cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t seed = first + i * 4 + thread;
        SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
        Program(seed, false).run();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weir::test
