// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_record.h"

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/settings.h"
#include "core/engine/control.h"

namespace weir::comm {

namespace {

// Every so many calls the clocks are read together, to convert ticks to the time of day.
constexpr uint64_t kSampleCalls = 64;

}  // namespace

std::shared_ptr<StreamRecord> StreamRecord::open(const std::string& comm_name, Rank rank,
                                                 Rank rank_count, uint64_t number,
                                                 const ClockReading& earlier) {
  const Result<Settings>& settings = process_settings();
  if (!settings.ok() || !settings.value().recorder) return nullptr;
  RecorderIdentity identity;
  identity.comm_id = number;
  identity.instance = number;
  identity.rank = rank;
  identity.rank_count = rank_count;
  identity.name = comm_name + " (streams)";
  identity.transport = kStreamTransport;
  identity.earlier = earlier;
  std::shared_ptr<StreamRecord> made(new StreamRecord());
  made->rank_ = rank;
  made->recorder_.open(identity, settings.value().recorder_dir);
  return made->recorder_.on() ? made : nullptr;
}

void StreamRecord::begun(uint64_t call, const CallWords& words) {
  std::lock_guard lock(lock_);
  if (call % kSampleCalls == 0) recorder_.looked_after();
  recorder_.begun(call, engine::call_flag(call, words.fingerprint), words.what, words.count,
                  ticks());
}

void StreamRecord::ended(uint64_t call) {
  std::lock_guard lock(lock_);
  recorder_.wait_ended();
  recorder_.finished_at(call, ticks());
}

void StreamRecord::captured(uint64_t bytes) {
  std::lock_guard lock(lock_);
  recorder_.message_done(RecordKind::kCapture, rank_, bytes);
}

void StreamRecord::waits(uint64_t call, const CallWords& words, const CallWay& way,
                         uint64_t since_ns, const std::vector<Rank>& awaited) {
  Wait wait;
  wait.kind = RecordKind::kCollective;
  wait.sequence = call;
  wait.what = words.what;
  wait.count = words.count;
  wait.since_ns = since_ns;
  wait.algorithm = way.phases();
  wait.protocol = way.place();
  wait.awaited = awaited;
  write(wait);
}

void StreamRecord::write(const Wait& wait) {
  const uint64_t now = now_ns();
  std::lock_guard lock(lock_);
  if (failed_ || !recorder_.looked(wait.since_ns, now)) return;
  recorder_.waits(wait, now);
}

uint64_t StreamRecord::message_begun(bool sends, Rank peer, uint64_t bytes) {
  std::lock_guard lock(lock_);
  return recorder_.message_begun(sends ? RecordKind::kSend : RecordKind::kRecv, peer, bytes);
}

void StreamRecord::message_ended(uint64_t number) {
  std::lock_guard lock(lock_);
  recorder_.message_finished(number);
}

void StreamRecord::message_waits(uint64_t number, bool sends, uint64_t bytes, uint64_t since_ns,
                                 const std::vector<Rank>& awaited) {
  Wait wait;
  wait.kind = sends ? RecordKind::kSend : RecordKind::kRecv;
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

}  // namespace weir::comm
