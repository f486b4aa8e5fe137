// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/per_process.h"
#include "core/base/per_thread.h"
#include "core/base/settings.h"
#include "core/comm/record/recorder.h"
#include "core/engine/call.h"
#include "core/engine/control.h"
#include "nccl/api/translate.h"
#include "nccl/real/backend.h"

namespace weir::nccl {

namespace {

// Every so many calls the clocks are read together, to convert ticks to the time of day.
constexpr uint64_t kSampleCalls = 64;

// The real library's functions, which the recording functions call.
const Table* g_real = nullptr;

// The record of one communicator.
struct CommRecord {
  std::mutex lock;
  comm::Recorder recorder;
  uint64_t sequence = 0;  // of the latest collective
  bool failed = false;
};

struct CommRecords {
  std::shared_mutex lock;
  std::unordered_map<ncclComm_t, std::shared_ptr<CommRecord>> open;
};

// Threads may call while the process ends: never destroyed.
CommRecords& comm_records() {
  static constinit PerProcess<CommRecords> it;
  return it.get();
}

std::shared_ptr<CommRecord> record_of(ncclComm_t comm) {
  CommRecords& it = comm_records();
  std::shared_lock lock(it.lock);
  const auto found = it.open.find(comm);
  return found == it.open.end() ? nullptr : found->second;
}

std::shared_ptr<CommRecord> take_record(ncclComm_t comm) {
  CommRecords& it = comm_records();
  std::lock_guard lock(it.lock);
  const auto found = it.open.find(comm);
  if (found == it.open.end()) return nullptr;
  std::shared_ptr<CommRecord> record = std::move(found->second);
  it.open.erase(found);
  return record;
}

// A call that has begun and not returned.
struct Entry {
  std::shared_ptr<CommRecord> record;
  bool is_message = false;
  uint64_t number = 0;

  void returned() const {
    std::lock_guard lock(record->lock);
    if (is_message) {
      record->recorder.message_finished(number);
    } else {
      record->recorder.finished_at(number, comm::ticks());
    }
  }
  // The call was refused. If another thread has begun the next one meanwhile, the record stays.
  void refused() const {
    std::lock_guard lock(record->lock);
    if (is_message) {
      record->recorder.message_finished(number);
    } else if (record->sequence == number) {
      record->recorder.withdrawn(record->sequence--);
    }
  }
};

struct ThreadState {
  int depth = 0;             // of groups
  bool inside = false;       // a call of the real library, which may call its own exports
  std::vector<Entry> group;  // they return at the outermost end
};

ThreadState& my_state() { return PerThread<ThreadState>::get(); }

struct Inside {
  Inside() : before(std::exchange(my_state().inside, true)) {}
  ~Inside() { my_state().inside = before; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  const bool before;
};

bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// The fields of a record, from the arguments of a call in their order. A put's offset, signal and
// context follow them and are not recorded.
struct Described {
  ncclComm_t comm = nullptr;
  std::optional<size_t> elements;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  std::optional<int> number;  // peer or root; of a wait for signals, how many descriptors follow
  const ncclWaitSignalDesc_t* signals = nullptr;

  template <typename Argument>
  void add(const Argument& argument) {
    if constexpr (std::is_same_v<Argument, ncclComm_t>) comm = argument;
    if constexpr (std::is_same_v<Argument, size_t>) elements = elements.value_or(argument);
    if constexpr (std::is_same_v<Argument, ncclDataType_t>) type = argument;
    if constexpr (std::is_same_v<Argument, ncclRedOp_t>) op = argument;
    if constexpr (std::is_same_v<Argument, int>) number = number.value_or(argument);
    if constexpr (std::is_same_v<Argument, ncclWaitSignalDesc_t*>) signals = argument;
  }

  size_t count() const {
    if (signals == nullptr) return elements.value_or(0);
    size_t sum = 0;
    for (int i = 0; i < *number; ++i) sum += static_cast<size_t>(std::max(signals[i].opCnt, 0));
    return sum;
  }
  Rank peer_or_root() const {
    return static_cast<Rank>(signals != nullptr && *number > 0 ? signals[0].peer
                                                               : number.value_or(0));
  }
};

engine::Call call_of(Collective collective, const Described& described) {
  engine::Call call;
  call.collective = collective;
  if (const auto type = to_weir(described.type)) call.type = static_cast<DataType>(*type);
  if (described.op == ncclAvg) {
    call.average = true;
  } else if (const auto op = to_weir(described.op)) {
    call.fold = static_cast<Fold>(*op);
  } else {
    call.scaled = true;
  }
  call.root = described.peer_or_root();
  call.count = described.count();
  return call;
}

Entry begin(Collective collective, std::shared_ptr<CommRecord> record, const Described& described) {
  const engine::Call call = call_of(collective, described);
  const uint64_t what = engine::pack_what(call);
  std::lock_guard lock(record->lock);
  const uint64_t number = ++record->sequence;
  if (number % kSampleCalls == 0) record->recorder.looked_after();
  record->recorder.begun(number, engine::call_flag(number, engine::fingerprint(what, call.count)),
                         what, call.count, comm::ticks());
  return {std::move(record), false, number};
}

Entry begin(comm::RecordKind kind, std::shared_ptr<CommRecord> record, const Described& described) {
  const auto type = to_weir(described.type);
  const size_t bytes = described.count() * (type.has_value() ? element_bytes(*type) : 1);
  std::lock_guard lock(record->lock);
  const uint64_t number = record->recorder.message_begun(kind, described.peer_or_root(), bytes);
  return {std::move(record), true, number};
}

// Empty when there is nothing to record, or no memory for it.
template <typename Kind>
Entry begin_safely(Kind kind, const Described& described) noexcept {
  try {
    if (my_state().inside) return {};
    std::shared_ptr<CommRecord> record = record_of(described.comm);
    if (record == nullptr) return {};
    if (my_state().depth > 0) my_state().group.reserve(my_state().group.size() + 1);
    return begin(kind, std::move(record), described);
  } catch (...) {
    return {};
  }
}

template <auto member, auto kind>
struct Recorded;

template <typename... Arguments, ncclResult_t (*Table::*member)(Arguments...), auto kind>
struct Recorded<member, kind> {
  static ncclResult_t call(Arguments... arguments) {
    Described described;
    (described.add(arguments), ...);
    Entry entry = begin_safely(kind, described);
    if (entry.record == nullptr) return (g_real->*member)(arguments...);
    ncclResult_t result = ncclSuccess;
    {
      const Inside inside;
      result = (g_real->*member)(arguments...);
    }
    if (is_error(result)) {
      entry.refused();
    } else if (my_state().depth > 0) {
      my_state().group.push_back(std::move(entry));
    } else {
      entry.returned();
    }
    return result;
  }
};

// ---- Groups -------------------------------------------------------------------------------------

ncclResult_t group_start() {
  const ncclResult_t result = g_real->GroupStart();
  if (!my_state().inside && result == ncclSuccess) ++my_state().depth;
  return result;
}

// The calls of the group, when its outermost level ends.
std::vector<Entry> leave_group() {
  if (my_state().inside || my_state().depth == 0 || --my_state().depth > 0) return {};
  return std::exchange(my_state().group, {});
}

ncclResult_t group_end() {
  const std::vector<Entry> entries = leave_group();
  ncclResult_t result = ncclSuccess;
  {
    const Inside inside;
    result = g_real->GroupEnd();
  }
  // After an error it is unknown which of them were begun: they stay as they are.
  if (!is_error(result)) {
    for (const Entry& entry : entries) entry.returned();
  }
  return result;
}

ncclResult_t group_simulate_end(ncclSimInfo_t* info) {
  const std::vector<Entry> entries = leave_group();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) entry->refused();
  const Inside inside;
  return g_real->GroupSimulateEnd(info);
}

// ---- Communicators ------------------------------------------------------------------------------

ncclResult_t async_error(ncclComm_t comm, ncclResult_t* error) {
  const ncclResult_t result = g_real->CommGetAsyncError(comm, error);
  if (result != ncclSuccess || error == nullptr) return result;
  const std::shared_ptr<CommRecord> record = record_of(comm);
  if (record == nullptr) return result;
  std::lock_guard lock(record->lock);
  record->recorder.looked_after();
  if (!is_error(*error) || std::exchange(record->failed, true)) return result;
  try {
    const char* text = g_real->GetLastError(comm);
    record->recorder.failed(Status(
        Code::kPeerLost,
        fmt::format("{}{}{}", g_real->GetErrorString(*error),
                    text != nullptr && *text != '\0' ? ": " : "", text != nullptr ? text : "")));
  } catch (...) {
    // Without memory its text is missing.
  }
  return result;
}

ncclResult_t destroy(ncclComm_t comm) {
  const std::shared_ptr<CommRecord> record = take_record(comm);
  return g_real->CommDestroy(comm);
}

ncclResult_t abort(ncclComm_t comm) {
  if (const std::shared_ptr<CommRecord> record = take_record(comm); record != nullptr) {
    record->recorder.aborted();
  }
  return g_real->CommAbort(comm);
}

// `kind` nullptr: not recorded.
template <auto member, auto kind>
void record_calls(Table* table) {
  if constexpr (!std::is_same_v<decltype(kind), std::nullptr_t>) {
    table->*member = Recorded<member, kind>::call;
  }
}

Table recording_table(const Table& real) {
  Table table = real;
#define WEIR_NCCL_KIND_Nothing nullptr
#define WEIR_NCCL_KIND_Collective(name) Collective::k##name
#define WEIR_NCCL_KIND_Message(name) comm::RecordKind::k##name
#define WEIR_NCCL_RECORDED(name, since, count, route, recorded) \
  record_calls<&Table::name, WEIR_NCCL_KIND_##recorded>(&table);
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_RECORDED)
#undef WEIR_NCCL_KIND_Nothing
#undef WEIR_NCCL_KIND_Collective
#undef WEIR_NCCL_KIND_Message
#undef WEIR_NCCL_RECORDED
  table.GroupStart = group_start;
  table.GroupEnd = group_end;
  table.GroupSimulateEnd = group_simulate_end;
  table.CommGetAsyncError = async_error;
  table.CommDestroy = destroy;
  table.CommAbort = abort;
  return table;
}

}  // namespace

void wrap_with_recording(bool on, Backend* backend) {
  if (!on || backend->real == nullptr || backend->disabled) return;
  g_real = backend->real;
  // Never freed, since threads may call until the process ends.
  backend->real = new Table(recording_table(*g_real));
}

void start_recording(ncclComm_t real, const RecordedComm& comm) {
  const Result<Settings>& settings = process_settings();
  if (g_real == nullptr || comm.rank_count < 2 || !settings.ok() || !settings.value().recorder) {
    return;
  }
  comm::RecorderIdentity identity;
  identity.comm_id = comm.comm_id;
  identity.instance = comm.instance;
  identity.rank = static_cast<Rank>(comm.rank);
  identity.rank_count = static_cast<Rank>(comm.rank_count);
  identity.name = comm.name.empty() ? fmt::format("{:08x}", comm.comm_id & 0xffffffffu) : comm.name;
  identity.transport = comm::kForwardedTransport;
  identity.earlier = comm.earlier;
  auto record = std::make_shared<CommRecord>();
  record->recorder.open(identity, settings.value().recorder_dir);
  if (!record->recorder.on()) return;
  CommRecords& it = comm_records();
  std::lock_guard lock(it.lock);
  it.open[real] = std::move(record);
}

}  // namespace weir::nccl
