// SPDX-License-Identifier: Apache-2.0
// CallAgreement: what the ranks agree on before a collective begins, where they share memory: that
// all buffers lie in windows, or how long the longest block of an all_to_all_v is, that each block
// has the length that its receiver expects, and where it lies if all inputs lie in windows. Each
// rank publishes its part with the description of the call; all draw the same conclusion.
//
// Once the communicator has had an arena, whether a buffer lies in memory that all ranks know needs
// no agreement: each rank tells it with its first signal, and the engine asks here what the words
// of a peer mean (engine::ToldBuffers).
//
// With the communicator's lock held.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/collective/windows.h"
#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"
#include "core/engine/line_run.h"
#include "core/engine/mapped_run.h"
#include "core/engine/planner.h"

namespace weir::comm {

class CallAgreement final : public engine::ToldBuffers {
 public:
  // All outlive it.
  CallAgreement(CommState& state, Windows& windows, engine::LineRun& line_run)
      : context_(state.context), windows_(windows), line_run_(line_run) {}
  CallAgreement(const CallAgreement&) = delete;
  CallAgreement& operator=(const CallAgreement&) = delete;

  // True once the ranks agree, or there is nothing to agree on; to be called again until then.
  // `in_windows`: all ranks' buffers lie in windows, at `inputs` and `outputs`. Sets Call::told.
  // `failure`: why they cannot agree; then the result is false.
  bool reached(Request& request, engine::Planner& planner, bool* in_windows, Status* failure) {
    *in_windows = false;
    if (request.call.recv_counts != nullptr)
      return on_lengths(request, planner, in_windows, failure);
    const Windows::Need need = windows_.need();
    if (need == Windows::Need::kNothing) return true;
    request.call.told = need == Windows::Need::kTell && planner.tells(request.call.collective) &&
                        may_use_windows(request.call, planner);
    return request.call.told || on_windows(request, planner, in_windows);
  }

  // Whether a call with blocks of equal length may begin without.
  bool is_needless(const engine::Call& call) const {
    return call.recv_counts == nullptr && windows_.need() == Windows::Need::kNothing;
  }

  // Where this rank's input lies, in a call that is told. `call` must live until it is done.
  uint64_t tell(const engine::Call& call);
  unsigned char* find(Rank peer, uint64_t word) override;
  // A call has ended in which ranks read or wrote each other's buffers.
  void count_touched(uint64_t bytes) { windows_.add_touched(bytes); }

  // Publishes the blocks of the next call, an all_to_all_v, whose `plan` is one of lines, with its
  // description.
  void publish_blocks(const engine::Call& call, const engine::Plan& plan);
  // Whether the blocks of all ranks have arrived, each of the length that this rank expects. If so,
  // the ranks agree.
  bool blocks_arrived();

  // By rank, of the call that was agreed on last. Of an all_to_all_v: the block that this rank
  // receives, and no outputs.
  std::vector<unsigned char*>& inputs() { return inputs_; }
  std::vector<unsigned char*>& outputs() { return outputs_; }

 private:
  // Whether windows can make the call faster; the same on all ranks.
  bool may_use_windows(const engine::Call& call, const engine::Planner& planner) const;
  bool on_windows(Request& request, const engine::Planner& planner, bool* in_windows);
  bool on_lengths(Request& request, engine::Planner& planner, bool* in_windows, Status* failure);
  // The word of the input of an all_to_all_v; 0 where peers cannot read it.
  uint64_t word_of_blocks(const engine::Call& call) const;
  void publish_lengths(const engine::Call& call, uint64_t word);
  // False also while a rank has not published its lengths.
  bool lengths_match(const engine::Call& call, Status* failure) const;
  // Whether all ranks' inputs lie in windows. `failure`: the ranks do not agree on that.
  bool find_blocks(const engine::Call& call, const engine::Planner& planner, Status* failure);
  // Publishes this rank's part. True once every rank has described the same call.
  bool all_described(Request& request, uint64_t input_word, uint64_t output_word);

  engine::Context& context_;
  Windows& windows_;
  engine::LineRun& line_run_;
  std::vector<unsigned char*> inputs_, outputs_;
  const engine::Call* told_ = nullptr;  // the latest
  uint64_t uneven_count_ = 0;           // calls of all_to_all_v that were agreed on
};

}  // namespace weir::comm
