// SPDX-License-Identifier: Apache-2.0
// Checkpoints of an optimizer, and loading of state that another number of ranks saved.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/check.h"
#include "offload/io/open_disk.h"
#include "offload/optimizer/chunk_source.h"
#include "offload/optimizer/optimizer.h"
#include "offload/store/shard_set.h"
#include "offload/store/store_files.h"

namespace weir::offload {
namespace {

constexpr uint64_t kRunLengthMax = 64;

// Chunks of the present run out of the shards of an old one.
class Gatherer : public ChunkSource {
 public:
  Gatherer(const ShardSet* set, const std::vector<ParameterGroup>* groups, StateHome* home)
      : set_(*set), groups_(*groups), home_(*home) {}

  // Finds every group, compares what must agree, and lists what each run reads.
  Status prepare(uint32_t rank_count) {
    WEIR_RETURN_IF_ERROR(find_groups(rank_count));
    const Placement& placement = home_.placement();
    old_chunk_bytes_ = set_.shard(0).description().chunk_bytes;
    // Several new chunks are made from a large old one, so that it is read about once.
    run_length_ =
        std::clamp<uint64_t>(old_chunk_bytes_ / placement.chunk_bytes(), 1, kRunLengthMax);
    for (uint64_t chunk = 0; chunk < placement.state_count(); ++chunk) {
      if (chunk % run_length_ == 0) needed_.emplace_back();
      WEIR_RETURN_IF_ERROR(list(placement.state(chunk), &needed_.back()));
    }
    for (std::vector<OldChunk>& run : needed_) {
      std::sort(run.begin(), run.end());
      run.erase(std::unique(run.begin(), run.end()), run.end());
      most_needed_ = std::max<uint64_t>(most_needed_, run.size());
    }
    return {};
  }

  uint64_t run_length() const override { return run_length_; }
  uint64_t buffer_bytes() const override { return most_needed_ * old_chunk_bytes_; }

  Status reads(uint64_t run, std::vector<PipelineTransfer>* transfers) override {
    for (size_t i = 0; i < needed_[run].size(); ++i) {
      const auto [shard, chunk] = needed_[run][i];
      const Result<Transfer> read = set_.shard(shard).read_transfer(chunk, nullptr);
      if (!read.ok()) return read.status();
      transfers->push_back(
          {read.value().file, read.value().offset_bytes, i * old_chunk_bytes_, read.value().bytes});
    }
    return {};
  }

  Status check(uint64_t run, const unsigned char* buffer) override {
    for (size_t i = 0; i < needed_[run].size(); ++i) {
      const auto [shard, chunk] = needed_[run][i];
      WEIR_RETURN_IF_ERROR(set_.shard(shard)
                               .check_read(chunk, buffer + i * old_chunk_bytes_)
                               .with_context(fmt::format("shard {}", shard)));
    }
    return {};
  }

  Status fill(uint64_t run, uint64_t number, const unsigned char* buffer,
              unsigned char* state) override {
    const StateChunk chunk = home_.placement().state(number);
    const ParameterGroup& group = groups_[chunk.group];
    const uint64_t first = group.first_element + chunk.first;
    uint16_t* const copies = home_.copy(chunk.group);
    uint16_t* const copy = copies == nullptr ? nullptr : copies + chunk.first;
    const auto pieces = set_.pieces(state_[chunk.group], first, chunk.count);
    if (!pieces.ok()) return pieces.status();
    const ShardPiece& whole = pieces.value().front();
    if (whole.element_count == chunk.count && whole.chunk_elements == chunk.count) {
      // The same elements in the same layout are the same bytes.
      const uint64_t payload = std::min(set_.shard(whole.shard).description().payload_bytes(),
                                        home_.placement().description().payload_bytes());
      std::memcpy(state, find(run, buffer, whole), std::min(chunk.layout->state_bytes, payload));
      if (copy == nullptr) return {};
      return gather_copy(run, buffer, chunk.group, first, chunk.count, copy);
    }
    Moments made(chunk.count);
    for (const ShardPiece& piece : pieces.value())
      WEIR_RETURN_IF_ERROR(
          fill_piece(run, buffer, chunk.group, piece, piece.first_element - first, &made));
    encode_state(*chunk.layout, 0, chunk.count, made.master.data(), made.m.data(), made.v.data(),
                 state, copy);
    return {};
  }

 private:
  using OldChunk = std::pair<uint32_t, uint64_t>;  // shard, chunk

  struct Moments {
    explicit Moments(uint64_t count) : master(count), m(count), v(count) {}
    std::vector<float> master, m, v;
  };

  // The elements of a piece's chunk that are decoded for it: whole blocks of moments.
  struct Decoded {
    explicit Decoded(const ShardPiece& piece)
        : begin(piece.element_in_chunk / kMomentBlock * kMomentBlock),
          skip(piece.element_in_chunk - begin),
          count(std::min(piece.chunk_elements,
                         (piece.element_in_chunk + piece.element_count + kMomentBlock - 1) /
                             kMomentBlock * kMomentBlock) -
                begin),
          first_element(piece.first_element - skip) {}
    uint64_t begin;  // in the chunk
    uint64_t skip;   // before the piece
    uint64_t count;
    uint64_t first_element;  // in the whole group
  };

  // Each group of the checkpoint must be one of the optimizer's: none may be left out silently.
  Status check_all_taken() const {
    std::vector<std::string> left_out;
    uint64_t count = 0;
    for (const GroupDescription& group : set_.shard(0).description().groups) {
      if (group.state_format >= kCopyFormat) continue;
      ++count;
      if (std::none_of(groups_.begin(), groups_.end(),
                       [&](const ParameterGroup& own) { return own.name == group.name; }))
        left_out.push_back(group.name);
    }
    if (left_out.empty()) return {};
    return Status(Code::kMismatch,
                  fmt::format("the checkpoint has {} groups, the optimizer {}: '{}' of the "
                              "checkpoint is not among them; create the optimizer with all groups",
                              count, groups_.size(), left_out[0]));
  }

  Status find_groups(uint32_t rank_count) {
    WEIR_RETURN_IF_ERROR(check_all_taken());
    for (const ParameterGroup& group : groups_) {
      const Result<uint32_t> found = set_.find_group(group.name);
      if (!found.ok()) return found.status();
      const GroupDescription& old = set_.shard(0).description().groups[found.value()];
      const auto differs = [&](const char* what, uint64_t expected, uint64_t is) {
        return Status(Code::kMismatch, fmt::format("group '{}': expected {} {}, found {}",
                                                   group.name, what, expected, is));
      };
      if (old.method != static_cast<uint32_t>(group.method))
        return differs("method", static_cast<uint32_t>(group.method), old.method);
      if (old.state_format != static_cast<uint32_t>(group.format))
        return differs("state format", static_cast<uint32_t>(group.format), old.state_format);
      const uint64_t whole = set_.element_count(found.value());
      const uint64_t end = group.first_element + group.element_count;
      if (rank_count == 1 ? end != whole : end > whole) return differs("elements", end, whole);
      state_.push_back(found.value());
      copy_.push_back(0);
      if (!has_half_master(group.format)) continue;
      const Result<uint32_t> copy = set_.find_group(copy_name(group.name));
      if (!copy.ok()) return copy.status();
      copy_.back() = copy.value();
    }
    return {};
  }

  Status list(const StateChunk& chunk, std::vector<OldChunk>* needed) const {
    const ParameterGroup& group = groups_[chunk.group];
    const auto pieces =
        set_.pieces(state_[chunk.group], group.first_element + chunk.first, chunk.count);
    if (!pieces.ok()) return pieces.status();
    for (const ShardPiece& piece : pieces.value()) {
      needed->emplace_back(piece.shard, piece.chunk);
      if (!has_half_master(group.format)) continue;
      const Decoded decoded(piece);
      const auto copies = set_.pieces(copy_[chunk.group], decoded.first_element, decoded.count);
      if (!copies.ok()) return copies.status();
      for (const ShardPiece& copy : copies.value()) needed->emplace_back(copy.shard, copy.chunk);
    }
    return {};
  }

  const unsigned char* find(uint64_t run, const unsigned char* buffer,
                            const ShardPiece& piece) const {
    const std::vector<OldChunk>& needed = needed_[run];
    const OldChunk wanted(piece.shard, piece.chunk);
    const auto at = std::lower_bound(needed.begin(), needed.end(), wanted);
    WEIR_CHECK(at != needed.end() && *at == wanted, "prepare listed every chunk of the run");
    return buffer + static_cast<uint64_t>(at - needed.begin()) * old_chunk_bytes_;
  }

  // Elements of a group's bf16 copy.
  Status gather_copy(uint64_t run, const unsigned char* buffer, uint32_t index, uint64_t first,
                     uint64_t count, uint16_t* to) const {
    const auto pieces = set_.pieces(copy_[index], first, count);
    if (!pieces.ok()) return pieces.status();
    for (const ShardPiece& one : pieces.value())
      std::memcpy(to + (one.first_element - first),
                  find(run, buffer, one) + one.element_in_chunk * sizeof(uint16_t),
                  one.element_count * sizeof(uint16_t));
    return {};
  }

  Status fill_piece(uint64_t run, const unsigned char* buffer, uint32_t index,
                    const ShardPiece& piece, uint64_t at, Moments* made) const {
    const ParameterGroup& group = groups_[index];
    const ChunkLayout layout = state_layout(group.method, group.format, piece.chunk_elements);
    const Decoded decoded(piece);
    std::vector<uint16_t> copy(decoded.count);
    if (has_half_master(group.format))
      WEIR_RETURN_IF_ERROR(
          gather_copy(run, buffer, index, decoded.first_element, decoded.count, copy.data()));
    // A layout may end after the payload; the bytes there are not used.
    const uint64_t payload = set_.shard(piece.shard).description().payload_bytes();
    std::vector<unsigned char> old(std::max(layout.state_bytes, payload));
    std::memcpy(old.data(), find(run, buffer, piece), payload);
    Moments values(decoded.count);
    decode_state(layout, decoded.begin, decoded.count, old.data(), copy.data(),
                 values.master.data(), values.m.data(), values.v.data());
    for (const auto& [from, to] : {std::pair{&values.master, &made->master},
                                   std::pair{&values.m, &made->m}, std::pair{&values.v, &made->v}})
      std::copy_n(from->begin() + static_cast<std::ptrdiff_t>(decoded.skip), piece.element_count,
                  to->begin() + static_cast<std::ptrdiff_t>(at));
    return {};
  }

  const ShardSet& set_;
  const std::vector<ParameterGroup>& groups_;
  StateHome& home_;
  std::vector<uint32_t> state_;  // by group: its number in the shards
  std::vector<uint32_t> copy_;
  uint64_t old_chunk_bytes_ = 0;
  uint64_t run_length_ = 1;
  uint64_t most_needed_ = 0;
  std::vector<std::vector<OldChunk>> needed_;  // by run, in order
};

std::vector<uint64_t> all_chunks(const Placement& placement) {
  std::vector<uint64_t> chunks(placement.state_count());
  for (uint64_t c = 0; c < chunks.size(); ++c) chunks[c] = c;
  return chunks;
}

}  // namespace

Status Optimizer::restore(const std::vector<std::vector<std::string>>& shards) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("restore", Use::kChange));
  if (step_ > 0 || (home_->on_drives() && !home_->is_new()))
    return Status(Code::kInvalidUsage,
                  "restore: only into a new optimizer, before its first step and commit");
  // With directories one pipeline reads the shards and writes the store, over one disk.
  std::unique_ptr<Disk> own;
  Disk* disk = home_->on_drives() ? &home_->disk() : options_.disk;
  if (disk == nullptr) {
    Result<std::unique_ptr<Disk>> opened = open_disk({});
    if (!opened.ok()) return opened.status().with_context("restore");
    own = opened.take();
    disk = own.get();
  }
  Result<std::unique_ptr<ShardSet>> set = ShardSet::open(*disk, shards);
  if (!set.ok()) return set.status().with_context("restore");
  Gatherer gatherer(set.value().get(), &groups_, home_.get());
  WEIR_RETURN_IF_ERROR(gatherer.prepare(options_.rank_count).with_context("restore"));
  const uint64_t step = set.value()->step();
  if (home_->on_drives() && step > 0)
    WEIR_RETURN_IF_ERROR(home_->begin_step(step).with_context("restore"));
  Status status = home_->fill(disk, &gatherer);
  if (status.ok() && home_->on_drives()) status = home_->commit();
  if (!status.ok())
    return lost(
        status.with_context("restore"),
        "destroy it, create it again, and restore again; 'weir-fsck DIR…' of each shard says "
        "which is damaged");
  step_ = step;
  return {};
}

Status Optimizer::checkpoint(const std::vector<std::string>& directories) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("checkpoint", Use::kChange));
  if (directories.size() != std::max<size_t>(1, options_.directories.size()))
    return invalid_argument(fmt::format("checkpoint: expected {} directories, found {}",
                                        std::max<size_t>(1, options_.directories.size()),
                                        directories.size()));
  if (!home_->on_drives()) return copy_checkpoint(directories[0]).with_context("checkpoint");
  if (home_->has_open_step())
    WEIR_RETURN_IF_ERROR(result_of("checkpoint", with_remedy(home_->commit())));
  WEIR_RETURN_IF_ERROR(check_committed().with_context("checkpoint"));
  return result_of("checkpoint", with_remedy(home_->store().checkpoint(directories)));
}

// Written through a temporary store: the checkpoint holds the state that this store commits.
Status Optimizer::copy_checkpoint(const std::string& directory) {
  Result<std::unique_ptr<Disk>> disk = open_disk({});
  if (!disk.ok()) return disk.status();
  const Result<bool> exists = disk.value()->exists(directory);
  if (!exists.ok()) return exists.status();
  WEIR_RETURN_IF_ERROR(disk.value()->make_directory(directory));
  const std::string making = directory + "/making";
  // What an interrupted earlier copy left is of no use.
  Status status = Store::remove(*disk.value(), {making}, kLockWaitMs);
  if (status.ok()) status = copy_through(disk.value().get(), making, directory);
  if (const Status removed = Store::remove(*disk.value(), {making}); status.ok()) status = removed;
  static_cast<void>(disk.value()->remove(making));
  if (!status.ok() && !exists.value()) static_cast<void>(disk.value()->remove(directory));
  return status;
}

Status Optimizer::copy_through(Disk* disk, const std::string& making,
                               const std::string& directory) {
  OptimizerOptions options = options_;
  options.directories = {making};
  options.memory_bytes = 0;
  options.thread_count = 1;
  options.undo_in_memory = false;
  options.trace_file.clear();
  options.disk = disk;
  Result<std::unique_ptr<StateHome>> made = StateHome::create(options, groups_);
  if (!made.ok()) return made.status();
  std::unique_ptr<StateHome> copy = made.take();
  const Placement& placement = copy->placement();
  if (step_ > 0) WEIR_RETURN_IF_ERROR(copy->begin_step(step_));
  for (uint32_t i = 0; i < groups_.size(); ++i)
    if (copy->copy(i) != nullptr)
      std::memcpy(copy->copy(i), home_->copy(i), groups_[i].element_count * sizeof(uint16_t));
  WEIR_RETURN_IF_ERROR(copy->visit(all_chunks(placement), Visit::kCommit,
                                   [&](uint64_t c, unsigned char* state) -> Status {
                                     std::memcpy(state, home_->resident(c),
                                                 std::min(placement.state(c).layout->state_bytes,
                                                          placement.description().payload_bytes()));
                                     return {};
                                   }));
  WEIR_RETURN_IF_ERROR(copy->commit());
  return copy->store().checkpoint({directory});
}

}  // namespace weir::offload
