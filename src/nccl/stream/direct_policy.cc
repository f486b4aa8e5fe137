// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/direct_policy.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/base/log.h"
#include "core/base/settings.h"
#include "core/comm/stream/stream_memory.h"

namespace weir::nccl {

namespace {

bool is_copy(OperationKind kind) {
  return kind == OperationKind::kBroadcast || kind == OperationKind::kAllGather ||
         kind == OperationKind::kAllToAll || kind == OperationKind::kGather ||
         kind == OperationKind::kScatter;
}

}  // namespace

bool goes_by_stream(const Operation& operation) {
  const comm::StreamMemory* memory = operation.comm->devices().stream_memory().get();
  if (memory == nullptr || operation.options.need_sibling()) return false;
  // Also messages without data, which keep the order of their pair.
  if (is_message(operation.kind)) return memory->has_kernels();
  if (operation.count == 0) return false;
  return is_copy(operation.kind) || (is_reduction(operation.kind) && memory->has_kernels());
}

void explain(const Comm& comm, const std::string& text) {
  std::string line = fmt::format("communicator of {} ranks", comm.rank_count());
  if (!comm.config().name.empty()) line += fmt::format(" '{}'", comm.config().name);
  line += ": " + text;
  log_info(line);
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().explain) std::fprintf(stderr, "%s\n", line.c_str());
}

void explain_first(Comm& comm, OperationKind kind, bool in_windows) {
  using Event = DeviceState::Event;
  if (is_message(kind)) {
    if (!comm.devices().note(Event::kSent)) return;
    explain(comm, fmt::format("messages of rank {} on device memory are copied directly between "
                              "the ranks",
                              comm.rank()));
    return;
  }
  if (in_windows && comm.devices().note(Event::kInWindows) && comm.rank() == 0) {
    explain(comm, "collectives use buffers in windows on devices where they lie");
  }
  const Event event = is_reduction(kind) ? Event::kReduced : Event::kCopied;
  if (!comm.devices().note(event) || comm.rank() != 0) return;
  explain(comm, is_reduction(kind) ? "device memory is reduced directly on the devices"
                                   : "device memory is copied directly between the ranks");
}

void explain_way(Comm& comm, const engine::Call& call, const comm::CallWay& way) {
  const Result<Settings>& settings = process_settings();
  if (!settings.ok() || !settings.value().explain || comm.rank() != 0) return;
  const std::string text = fmt::format("{}: {}", engine::describe(call), way.text());
  if (comm.devices().is_new(text)) explain(comm, text);
}

}  // namespace weir::nccl
