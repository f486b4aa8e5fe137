// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/stream_record.h"

#include <fmt/format.h>

#include "api/handles.h"
#include "core/base/clock.h"
#include "core/base/settings.h"
#include "core/engine/control.h"

namespace weir::nccl {

namespace {

// Every so many calls the clocks are read together, to convert ticks to the time of day.
constexpr uint64_t kSampleCalls = 64;

}  // namespace

std::shared_ptr<StreamRecord> StreamRecord::open(const Comm& comm, uint64_t number,
                                                 const comm::ClockReading& earlier) {
  const Result<Settings>& settings = process_settings();
  if (!settings.ok() || !settings.value().recorder) return nullptr;
  comm::RecorderIdentity identity;
  identity.comm_id = number;
  identity.instance = number;
  identity.rank = static_cast<Rank>(comm.rank());
  identity.rank_count = static_cast<Rank>(comm.rank_count());
  identity.name = comm.weir()->comm->name() + " (streams)";
  identity.transport = comm::kStreamTransport;
  identity.earlier = earlier;
  std::shared_ptr<StreamRecord> made(new StreamRecord());
  made->recorder_.open(identity, settings.value().recorder_dir);
  return made->recorder_.on() ? made : nullptr;
}

void StreamRecord::begun(uint64_t call, const CallWords& words) {
  std::lock_guard lock(lock_);
  if (call % kSampleCalls == 0) recorder_.looked_after();
  recorder_.begun(call, engine::call_flag(call, words.fingerprint), words.what, words.count,
                  comm::ticks());
}

void StreamRecord::ended(uint64_t call) {
  std::lock_guard lock(lock_);
  recorder_.wait_ended();
  recorder_.finished_at(call, comm::ticks());
}

void StreamRecord::waits(uint64_t call, const CallWords& words, uint64_t since_ns,
                         const std::vector<Rank>& awaited) {
  comm::Wait wait;
  wait.kind = comm::RecordKind::kCollective;
  wait.sequence = call;
  wait.what = words.what;
  wait.count = words.count;
  wait.since_ns = since_ns;
  wait.awaited = awaited;
  write(wait);
}

void StreamRecord::write(const comm::Wait& wait) {
  const uint64_t now = now_ns();
  std::lock_guard lock(lock_);
  if (failed_ || !recorder_.looked(wait.since_ns, now)) return;
  recorder_.waits(wait, now);
}

uint64_t StreamRecord::message_begun(bool sends, Rank peer, uint64_t bytes) {
  std::lock_guard lock(lock_);
  return recorder_.message_begun(sends ? comm::RecordKind::kSend : comm::RecordKind::kRecv, peer,
                                 bytes);
}

void StreamRecord::message_ended(uint64_t number) {
  std::lock_guard lock(lock_);
  recorder_.message_finished(number);
}

void StreamRecord::message_waits(uint64_t number, bool sends, uint64_t bytes, uint64_t since_ns,
                                 const std::vector<Rank>& awaited) {
  comm::Wait wait;
  wait.kind = sends ? comm::RecordKind::kSend : comm::RecordKind::kRecv;
  wait.sequence = number;
  wait.count = bytes;
  wait.since_ns = since_ns;
  wait.awaited = awaited;
  write(wait);
}

void StreamRecord::waits_no_more() {
  std::lock_guard lock(lock_);
  recorder_.wait_ended();
}

void StreamRecord::failed(const std::string& why) {
  std::lock_guard lock(lock_);
  if (std::exchange(failed_, true)) return;
  recorder_.failed(Status(Code::kPeerLost, why));
}

}  // namespace weir::nccl
