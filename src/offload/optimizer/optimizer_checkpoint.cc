// SPDX-License-Identifier: Apache-2.0
// Checkpoints of an optimizer, and state from those of another number of ranks.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "offload/io/open_disk.h"
#include "offload/optimizer/optimizer.h"
#include "offload/store/shard_set.h"

namespace weir::offload {
namespace {

// Reads chunks of the present run out of the shards of an old one.
class Gatherer {
 public:
  Gatherer(ShardSet* set, const std::vector<ParameterGroup>* groups)
      : set_(*set), groups_(*groups) {}

  // Finds every group and compares what must agree.
  Status find_groups(uint32_t rank_count) {
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

  // `copy`: of the group in memory, or nullptr.
  Status read(const StateChunk& chunk, unsigned char* state, uint16_t* copy) {
    const ParameterGroup& group = groups_[chunk.group];
    const uint64_t first = group.first_element + chunk.first;
    for (std::vector<float>* values : {&master_, &m_, &v_}) values->assign(chunk.count, 0.0f);
    const auto pieces = set_.pieces(state_[chunk.group], first, chunk.count);
    if (!pieces.ok()) return pieces.status();
    for (const ShardPiece& piece : pieces.value())
      WEIR_RETURN_IF_ERROR(read_piece(group, chunk.group, piece, piece.first_element - first));
    encode_state(*chunk.layout, 0, chunk.count, master_.data(), m_.data(), v_.data(), state,
                 copy == nullptr ? nullptr : copy + chunk.first);
    return {};
  }

 private:
  Status read_piece(const ParameterGroup& group, uint32_t index, const ShardPiece& piece,
                    uint64_t at) {
    const ChunkLayout layout = state_layout(group.method, group.format, piece.chunk_elements);
    const uint64_t payload = set_.shard(piece.shard).description().payload_bytes();
    old_.resize(std::max(layout.state_bytes, payload));
    WEIR_RETURN_IF_ERROR(set_.read_payload(piece.shard, piece.chunk, 0,
                                           std::min(layout.state_bytes, payload), old_.data()));
    // Whole blocks of moments, then what is wanted of them.
    const uint64_t begin = piece.element_in_chunk / kMomentBlock * kMomentBlock;
    const uint64_t wanted_end = piece.element_in_chunk + piece.element_count;
    const uint64_t end = std::min(piece.chunk_elements,
                                  (wanted_end + kMomentBlock - 1) / kMomentBlock * kMomentBlock);
    const uint64_t count = end - begin;
    const uint64_t skip = piece.element_in_chunk - begin;
    old_copy_.assign(count, 0);
    if (has_half_master(group.format))
      WEIR_RETURN_IF_ERROR(
          read_copy(copy_[index], piece.first_element - skip, count, old_copy_.data()));
    for (std::vector<float>* values : {&old_master_, &old_m_, &old_v_}) values->assign(count, 0.0f);
    decode_state(layout, begin, count, old_.data(), old_copy_.data(), old_master_.data(),
                 old_m_.data(), old_v_.data());
    for (const auto& [from, to] :
         {std::pair{&old_master_, &master_}, std::pair{&old_m_, &m_}, std::pair{&old_v_, &v_}})
      std::copy_n(from->begin() + static_cast<std::ptrdiff_t>(skip), piece.element_count,
                  to->begin() + static_cast<std::ptrdiff_t>(at));
    return {};
  }

  Status read_copy(uint32_t group, uint64_t first, uint64_t count, uint16_t* to) {
    const auto pieces = set_.pieces(group, first, count);
    if (!pieces.ok()) return pieces.status();
    for (const ShardPiece& piece : pieces.value())
      WEIR_RETURN_IF_ERROR(
          set_.read_payload(piece.shard, piece.chunk, piece.element_in_chunk * sizeof(uint16_t),
                            piece.element_count * sizeof(uint16_t),
                            reinterpret_cast<unsigned char*>(to + (piece.first_element - first))));
    return {};
  }

  ShardSet& set_;
  const std::vector<ParameterGroup>& groups_;
  std::vector<uint32_t> state_;  // by group: its number in the shards
  std::vector<uint32_t> copy_;
  std::vector<float> master_, m_, v_;
  std::vector<unsigned char> old_;
  std::vector<uint16_t> old_copy_;
  std::vector<float> old_master_, old_m_, old_v_;
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
  // A disk of its own, since that of the store is busy with what is restored.
  Result<std::unique_ptr<Disk>> disk = open_disk({});
  if (!disk.ok()) return disk.status().with_context("restore");
  Result<std::unique_ptr<ShardSet>> set = ShardSet::open(*disk.value(), shards);
  if (!set.ok()) return set.status().with_context("restore");
  Gatherer gatherer(set.value().get(), &groups_);
  WEIR_RETURN_IF_ERROR(gatherer.find_groups(options_.rank_count).with_context("restore"));
  const uint64_t step = set.value()->step();
  if (home_->on_drives() && step > 0)
    WEIR_RETURN_IF_ERROR(home_->begin_step(step).with_context("restore"));
  const Placement& placement = home_->placement();
  std::mutex gathering;
  Status status = home_->visit(all_chunks(placement), Visit::kCommit,
                               [&](uint64_t c, unsigned char* state) -> Status {
                                 const std::lock_guard one_at_a_time(gathering);
                                 const StateChunk chunk = placement.state(c);
                                 return gatherer.read(chunk, state, home_->copy(chunk.group));
                               });
  if (status.ok() && home_->on_drives()) status = home_->commit();
  if (!status.ok()) return lost(status.with_context("restore"));
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
  if (home_->has_open_step()) {
    if (Status status = home_->commit(); !status.ok())
      return home_->is_poisoned() ? lost(status) : status.with_context("checkpoint");
  }
  return home_->store().checkpoint(directories).with_context("checkpoint");
}

// Through a store that lives only for this: what it commits is what the checkpoint holds.
Status Optimizer::copy_checkpoint(const std::string& directory) {
  OptimizerOptions options = options_;
  const std::string making = directory + "/making";
  options.directories = {making};
  options.memory_bytes = 0;
  options.thread_count = 1;
  options.undo_in_memory = false;
  options.trace_file.clear();
  Result<std::unique_ptr<Disk>> disk = open_disk({});
  if (!disk.ok()) return disk.status();
  options.disk = disk.value().get();
  WEIR_RETURN_IF_ERROR(disk.value()->make_directory(directory));
  Result<std::unique_ptr<StateHome>> made = StateHome::create(options, groups_);
  if (!made.ok()) return made.status();
  std::unique_ptr<StateHome> copy = made.take();
  const Placement& placement = copy->placement();
  const auto fill = [&]() -> Status {
    if (step_ > 0) WEIR_RETURN_IF_ERROR(copy->begin_step(step_));
    for (uint32_t i = 0; i < groups_.size(); ++i)
      if (copy->copy(i) != nullptr)
        std::memcpy(copy->copy(i), home_->copy(i), groups_[i].element_count * sizeof(uint16_t));
    WEIR_RETURN_IF_ERROR(copy->visit(
        all_chunks(placement), Visit::kCommit, [&](uint64_t c, unsigned char* state) -> Status {
          std::memcpy(state, home_->resident(c),
                      std::min(placement.state(c).layout->state_bytes,
                               placement.description().payload_bytes()));
          return {};
        }));
    WEIR_RETURN_IF_ERROR(copy->commit());
    return copy->store().checkpoint({directory});
  };
  const Status status = fill();
  copy.reset();
  const Status removed = Store::remove(*disk.value(), options.directories);
  static_cast<void>(::rmdir(making.c_str()));
  return status.ok() ? removed : status;
}

}  // namespace weir::offload
