// SPDX-License-Identifier: Apache-2.0
// StateHome::fill: a pipeline that reads from other files and writes the chunks of this state.
#include <algorithm>

#include "offload/optimizer/chunk_source.h"
#include "offload/optimizer/state_home.h"
#include "offload/optimizer/state_sweep.h"

namespace weir::offload {
namespace {

constexpr uint64_t kFillBytes = uint64_t{64} << 20;  // of buffers, where they are not larger
constexpr uint32_t kFillBuffersMin = 3;              // one read, one computed, one written

}  // namespace

// An item is a run of chunks of state, and behind all of those one chunk of a bf16 copy. Its buffer
// has the chunks of the run first, then the data read for them.
class StateHome::Filling : public PipelineWork {
 public:
  Filling(StateHome* home, ChunkSource* source)
      : home_(*home),
        source_(*source),
        run_length_(source->run_length()),
        run_count_((home->placement_.state_count() + run_length_ - 1) / run_length_),
        body_([this](uint64_t chunk, unsigned char* state) {
          const uint64_t run = chunk / run_length_;
          return source_.fill(run, chunk, buffer_of_[run], state);
        }),
        sweep_(home, Sweep::Kind::kVisit, home->on_drives() ? Visit::kCommit : Visit::kChange,
               &body_),
        buffer_of_(run_count_) {
    const Placement& placement = home->placement_;
    const uint64_t count = home->on_drives() ? placement.chunk_count() : placement.state_count();
    for (uint64_t chunk = 0; chunk < count; ++chunk) sweep_.chunks.push_back(chunk);
  }

  uint64_t buffer_bytes() const { return chunks_bytes() + source_.buffer_bytes(); }
  uint64_t item_count() const override {
    return run_count_ + sweep_.chunks.size() - home_.placement_.state_count();
  }

  Status reads(uint64_t item, std::vector<PipelineTransfer>* transfers) override {
    WEIR_RETURN_IF_ERROR(of_chunks(item, transfers, &Sweep::reads));
    if (item >= run_count_) return {};
    const size_t before = transfers->size();
    WEIR_RETURN_IF_ERROR(source_.reads(item, transfers));
    for (size_t i = before; i < transfers->size(); ++i)
      (*transfers)[i].buffer_offset_bytes += chunks_bytes();
    return {};
  }

  Status compute(uint64_t item, unsigned char* buffer) override {
    if (item < run_count_) {
      buffer_of_[item] = buffer + chunks_bytes();
      WEIR_RETURN_IF_ERROR(source_.check(item, buffer_of_[item]));
    }
    for (uint64_t i = 0; i < count(item); ++i)
      WEIR_RETURN_IF_ERROR(sweep_.compute(first(item) + i, buffer + i * chunk_bytes()));
    return {};
  }

  Status writes(uint64_t item, std::vector<PipelineTransfer>* transfers) override {
    return of_chunks(item, transfers, &Sweep::writes);
  }

  bool computes_after_all(uint64_t item) const override {
    return sweep_.computes_after_all(first(item));
  }

  Status written(uint64_t item) override {
    for (uint64_t i = 0; i < count(item); ++i)
      WEIR_RETURN_IF_ERROR(sweep_.written(first(item) + i));
    return {};
  }

 private:
  uint64_t chunk_bytes() const { return home_.placement_.chunk_bytes(); }
  uint64_t chunks_bytes() const { return home_.on_drives() ? run_length_ * chunk_bytes() : 0; }
  // The items of the sweep that make up an item.
  uint64_t first(uint64_t item) const {
    return item < run_count_ ? item * run_length_
                             : home_.placement_.state_count() + item - run_count_;
  }
  uint64_t count(uint64_t item) const {
    if (item >= run_count_) return 1;
    return std::min(run_length_, home_.placement_.state_count() - first(item));
  }

  using Lister = Status (Sweep::*)(uint64_t, std::vector<PipelineTransfer>*);
  Status of_chunks(uint64_t item, std::vector<PipelineTransfer>* transfers, Lister list) {
    for (uint64_t i = 0; i < count(item); ++i) {
      const size_t before = transfers->size();
      WEIR_RETURN_IF_ERROR((sweep_.*list)(first(item) + i, transfers));
      for (size_t t = before; t < transfers->size(); ++t)
        (*transfers)[t].buffer_offset_bytes += i * chunk_bytes();
    }
    return {};
  }

  StateHome& home_;
  ChunkSource& source_;
  const uint64_t run_length_;
  const uint64_t run_count_;
  const ChunkBody body_;
  Sweep sweep_;
  std::vector<const unsigned char*> buffer_of_;  // by run
};

Status StateHome::fill(Disk* disk, ChunkSource* source) {
  Filling filling(this, source);
  PipelineOptions options;
  options.buffer_bytes = filling.buffer_bytes();
  options.drive_count = std::max<uint32_t>(1, static_cast<uint32_t>(options_.directories.size()));
  options.compute_thread_count = options_.disk != nullptr ? 0 : thread_count();
  options.compute_cores = options_.cores;
  options.timeout_ms = options_.timeout_ms;
  const uint64_t most = std::max<uint64_t>(kFillBytes / options.buffer_bytes,
                                           options.compute_thread_count + kFillBuffersMin);
  options.buffer_count =
      static_cast<uint32_t>(std::min(most, Pipeline::memory_bytes(options) / options.buffer_bytes));
  ArenaOptions arena;
  arena.budget_bytes = Pipeline::memory_bytes(options);
  Result<std::unique_ptr<Arena>> made = Arena::create(arena);
  if (!made.ok()) return made.status();
  // Transfers that do not end keep their memory until the disk is destroyed.
  fill_arena_ = made.take();
  Result<std::unique_ptr<Pipeline>> pipeline = Pipeline::create(disk, fill_arena_.get(), options);
  if (!pipeline.ok()) return pipeline.status();
  Status status = pipeline.value()->run(&filling, nullptr);
  pipeline.value().reset();
  if (disk->in_flight() == 0) fill_arena_.reset();
  return status;
}

}  // namespace weir::offload
