// SPDX-License-Identifier: Apache-2.0
#include "texts.h"

#include <string_view>
#include <utility>

namespace weir::pytorch {

namespace {

constexpr std::pair<std::string_view, std::string_view> kPhrases[] = {
    {"weir_comm_lost_ranks", "weir.lost_ranks"},
    {"weir_comm_shrink", "weir.shrink"},
    {"weir_comm_split", "torch.distributed.new_group"},
    {"weir_comm_abort", "abort"},
    {"weir_window_create", "weir.Window"},
    {"weir_wait_signal", "Window.wait_signal"},
    {"weir_arena_alloc", "allocate_tensor"},
    {"use weir_send and weir_recv, or another transport", "use another transport"},
    // PyTorch gives each group its deadline.
    {"or raise WEIR_TIMEOUT_MS", "or give the group or the call a longer timeout"},
    {"raise the timeout (WEIR_TIMEOUT_MS)", "give the group a longer timeout"},
    // A process that ends in order does so too.
    {" destroyed the communicator", " ended, or destroyed the group"},
};

}  // namespace

std::string for_python(std::string text) {
  for (const auto& [ours, theirs] : kPhrases) {
    for (size_t at = 0; (at = text.find(ours, at)) != std::string::npos; at += theirs.size()) {
      text.replace(at, ours.size(), theirs);
    }
  }
  return text;
}

}  // namespace weir::pytorch
