// SPDX-License-Identifier: Apache-2.0
#include "core/comm/record/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <type_traits>

#include "core/comm/record/record_folder.h"
#include "core/engine/call.h"

namespace weir::comm {

namespace {

// The bytes of a file as the structure: every member is a plain number or text there, so any bytes
// are a valid value.
static_assert(std::is_standard_layout_v<RecordFile>);

template <typename T>
T get(const std::atomic<T>& from) {
  return from.load(std::memory_order_relaxed);
}

std::string printable(const char* text, size_t bytes) {
  std::string out(text, strnlen(text, bytes));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return out;
}

template <size_t kWords>
std::string text_of(const std::atomic<uint64_t> (&from)[kWords]) {
  char text[kWords * sizeof(uint64_t)];
  for (size_t i = 0; i < kWords; ++i) {
    const uint64_t word = get(from[i]);
    std::memcpy(text + i * sizeof word, &word, sizeof word);
  }
  return printable(text, sizeof text);
}

// Turns ticks and monotonic time into wall-clock time.
class Clocks {
 public:
  explicit Clocks(const RecordFile& file)
      : ticks_(get(file.latest.ticks)),
        monotonic_ns_(get(file.latest.monotonic_ns)),
        wall_ns_(get(file.latest.wall_ns)) {
    const auto ticks = static_cast<double>(ticks_ - get(file.made.ticks));
    const auto ns = static_cast<double>(monotonic_ns_ - get(file.made.monotonic_ns));
    if (ticks_ > get(file.made.ticks) && monotonic_ns_ > get(file.made.monotonic_ns)) {
      ns_per_tick_ = ns / ticks;
    }
    // Plausible rates: from 0.01 to 100 ns per tick.
    if (!(ns_per_tick_ > 0.01 && ns_per_tick_ < 100)) ns_per_tick_ = 0;
  }
  uint64_t wall_of_ticks(uint64_t ticks) const {
    if (ticks == 0 || ns_per_tick_ == 0) return 0;
    const bool later = ticks > ticks_;
    const auto apart = static_cast<double>(later ? ticks - ticks_ : ticks_ - ticks) * ns_per_tick_;
    return apart < kFarNs ? moved(later, static_cast<uint64_t>(apart)) : 0;
  }
  uint64_t wall_of_monotonic(uint64_t ns) const {
    if (ns == 0) return 0;
    const bool later = ns > monotonic_ns_;
    const uint64_t apart = later ? ns - monotonic_ns_ : monotonic_ns_ - ns;
    return static_cast<double>(apart) < kFarNs ? moved(later, apart) : 0;
  }

 private:
  static constexpr double kFarNs = 3.2e17;  // ten years

  uint64_t moved(bool later, uint64_t apart) const {
    if (!later) return wall_ns_ > apart ? wall_ns_ - apart : 0;
    return wall_ns_ < UINT64_MAX - apart ? wall_ns_ + apart : 0;
  }

  uint64_t ticks_, monotonic_ns_, wall_ns_;
  double ns_per_tick_ = 0;
};

void take_operations(const RecordFile& file, const Clocks& clocks, Record* record) {
  // Numbers are kept to 32 bits: the completed one, which lags by the ring at most, tells the rest.
  const auto completed_low = static_cast<uint32_t>(record->completed);
  for (uint32_t i = 0; i < kOperationRecords; ++i) {
    const OperationRecord& slot = file.operations[i];
    const uint64_t flag = get(slot.flag);
    const auto low = static_cast<uint32_t>(flag >> 32);
    if (flag == 0 || low % kOperationRecords != i) continue;
    // From the ring before the completed one to one that is begun and not completed.
    const auto distance = static_cast<int32_t>(low - completed_low);
    if (distance <= -static_cast<int32_t>(kOperationRecords) ||
        distance > static_cast<int32_t>(kOperationRecords)) {
      continue;
    }
    if (distance < 0 && record->completed < static_cast<uint64_t>(-int64_t{distance})) continue;
    RecordedOperation operation;
    operation.sequence = record->completed + static_cast<uint64_t>(int64_t{distance});
    if (operation.sequence == 0) continue;
    operation.fingerprint = static_cast<uint32_t>(flag);
    operation.what = get(slot.what);
    operation.count = get(slot.count);
    // Half written: the next call's arguments under the number of one before.
    if (engine::fingerprint(operation.what, operation.count) != operation.fingerprint) continue;
    operation.begin_ns = clocks.wall_of_ticks(get(slot.begin_ticks));
    if (operation.begin_ns != 0 && operation.sequence <= record->completed) {
      // An end that lies before the beginning is that of an earlier operation in the same place.
      const uint64_t end_ns = clocks.wall_of_ticks(get(file.end_ticks[i]));
      if (end_ns >= operation.begin_ns) operation.end_ns = end_ns;
    }
    record->operations.push_back(operation);
  }
  std::sort(record->operations.begin(), record->operations.end(),
            [](const RecordedOperation& a, const RecordedOperation& b) {
              return a.sequence < b.sequence;
            });
  // A record that was being written can carry the time of another one.
  uint64_t before_ns = 0;
  for (RecordedOperation& operation : record->operations) {
    if (operation.begin_ns == 0) continue;
    if (operation.begin_ns < before_ns) {
      operation.begin_ns = operation.end_ns = 0;
      continue;
    }
    before_ns = operation.begin_ns;
  }
}

void take_messages(const RecordFile& file, const Clocks& clocks, Record* record) {
  for (uint32_t i = 0; i < kMessageRecords; ++i) {
    const MessageRecord& slot = file.messages[i];
    RecordedMessage message;
    message.number = get(slot.number);
    if (message.number == 0 || message.number % kMessageRecords != i) continue;
    const uint32_t kind = get(slot.kind);
    if (!is_message(static_cast<RecordKind>(kind))) continue;
    message.kind = static_cast<RecordKind>(kind);
    message.peer = get(slot.peer);
    if (message.peer >= record->rank_count) continue;
    message.bytes = get(slot.bytes);
    message.begin_ns = clocks.wall_of_ticks(get(slot.begin_ticks));
    const uint64_t end_ticks = get(slot.end_ticks);
    message.done = end_ticks != 0;
    message.end_ns = clocks.wall_of_ticks(end_ticks);
    if (message.end_ns < message.begin_ns) message.end_ns = 0;
    record->messages.push_back(message);
  }
  std::sort(record->messages.begin(), record->messages.end(),
            [](const RecordedMessage& a, const RecordedMessage& b) { return a.number < b.number; });
}

void take_wait(const RecordFile& file, const Clocks& clocks, Record* record) {
  const WaitBlock& block = file.wait;
  const uint32_t kind = get(block.kind);
  if (kind == 0 || kind > kRecordKindMax) return;
  RecordedWait wait;
  wait.kind = static_cast<RecordKind>(kind);
  wait.sequence = get(block.sequence);
  const bool collective = wait.kind == RecordKind::kCollective || wait.kind == RecordKind::kQueued;
  if (collective && wait.sequence <= record->completed) return;  // that wait is over
  wait.what = get(block.what);
  wait.count = get(block.count);
  wait.since_ns = clocks.wall_of_monotonic(get(block.since_ns));
  wait.step = get(block.step);
  wait.step_count = get(block.step_count);
  wait.slice = get(block.slice);
  wait.slice_count = get(block.slice_count);
  wait.algorithm = text_of(block.algorithm);
  wait.protocol = text_of(block.protocol);
  wait.awaited_count = std::min(get(block.awaited_count), record->rank_count);
  for (uint32_t i = 0; i < std::min(wait.awaited_count, kAwaitedRanksMax); ++i) {
    const Rank rank = get(block.awaited[i]);
    if (rank < record->rank_count && rank != record->rank) wait.awaited.push_back(rank);
  }
  record->wait = std::move(wait);
}

// Bytes that are no such list end it.
void take_ways(const unsigned char* at, size_t bytes, Record* record) {
  while (bytes >= kWayHeaderBytes) {
    uint32_t peer;
    uint16_t text_bytes;
    std::memcpy(&peer, at, sizeof peer);
    std::memcpy(&text_bytes, at + sizeof peer, sizeof text_bytes);
    const bool ascends = record->ways.empty() || peer > record->ways.back().peer;
    if (peer >= record->rank_count || peer == record->rank || !ascends || text_bytes == 0 ||
        text_bytes > kWayTextBytesMax || text_bytes > bytes - kWayHeaderBytes) {
      return;
    }
    const auto* text = reinterpret_cast<const char*>(at + kWayHeaderBytes);
    record->ways.push_back({peer, printable(text, text_bytes)});
    at += kWayHeaderBytes + text_bytes;
    bytes -= kWayHeaderBytes + text_bytes;
  }
}

Life life_of(const Record& record) {
  if (record.boot_id.empty() || record.boot_id != boot_id_of_machine() ||
      record.pid_namespace != pid_namespace_of_self()) {
    return Life::kUnknown;
  }
  const auto process = static_cast<pid_t>(record.process);
  if (process <= 0 || process_start_of(process) != record.process_start) return Life::kDead;
  switch (process_state_of(process)) {
    case 'T':
    case 't':
      return Life::kStopped;
    case 'Z':
    case 'X':
    case '\0':
      return Life::kDead;
    default:
      return Life::kAlive;
  }
}

}  // namespace

const char* name_of(Life life) {
  switch (life) {
    case Life::kUnknown:
      return "elsewhere";
    case Life::kAlive:
      return "alive";
    case Life::kStopped:
      return "stopped";
    case Life::kDead:
      return "dead";
  }
  return "?";
}

const RecordedOperation* Record::find(uint64_t sequence) const {
  const auto it = std::lower_bound(operations.begin(), operations.end(), sequence,
                                   [](const RecordedOperation& operation, uint64_t wanted) {
                                     return operation.sequence < wanted;
                                   });
  return it != operations.end() && it->sequence == sequence ? &*it : nullptr;
}

Result<Record> parse_record(const void* data, size_t bytes, const std::string& path) {
  const auto refused = [&](const std::string& why) {
    return Status(Code::kRefused, fmt::format("{}: {}", path, why));
  };
  if (bytes < sizeof(uint64_t) * 2 || std::memcmp(data, kRecordMagic, sizeof kRecordMagic) != 0) {
    return refused("not a file of Weir's recorder");
  }
  // Copied, so that the structure is aligned and a writer cannot change it meanwhile.
  const auto file = std::make_unique<RecordFile>();
  std::memcpy(static_cast<void*>(file.get()), data, std::min(bytes, sizeof(RecordFile)));
  if (file->byte_order != kRecordByteOrder) {
    return refused("written on a machine of another byte order");
  }
  if (file->version != kRecordVersion) {
    return refused(fmt::format("written in format version {}, and this program reads version {}",
                               file->version, kRecordVersion));
  }
  if (file->ways_bytes > kWaysBytesMax) {
    return refused(
        fmt::format("damaged: {} bytes of descriptions of connections", file->ways_bytes));
  }
  const size_t whole = sizeof(RecordFile) + file->ways_bytes;
  if (bytes != whole || file->file_bytes != whole) {
    return refused(fmt::format("{} bytes instead of {}: cut short, or damaged", bytes, whole));
  }
  if (file->rank_count == 0 || file->rank_count > (1u << 20) || file->rank >= file->rank_count) {
    return refused(fmt::format("rank {} of {}: damaged", file->rank, file->rank_count));
  }
  const uint32_t state = get(file->state);
  if (state < static_cast<uint32_t>(RecordState::kOpen) ||
      state > static_cast<uint32_t>(RecordState::kAborted)) {
    return refused(fmt::format("state {}: damaged", state));
  }
  Record record;
  record.path = path;
  record.comm_id = file->comm_id;
  record.instance = file->instance;
  record.rank = file->rank;
  record.rank_count = file->rank_count;
  record.process = file->process;
  record.process_start = file->process_start;
  record.pid_namespace = file->pid_namespace;
  record.boot_id = printable(file->boot_id, sizeof file->boot_id);
  record.host = printable(file->host, sizeof file->host);
  record.name = printable(file->name, sizeof file->name);
  record.program = printable(file->program, sizeof file->program);
  record.transport = printable(file->transport, sizeof file->transport);
  record.state = static_cast<RecordState>(state);
  record.code = get(file->code);
  record.completed = get(file->completed);
  if (record.state != RecordState::kOpen) record.why = printable(file->why, sizeof file->why);
  const Clocks clocks(*file);
  record.made_ns = get(file->made.wall_ns);
  record.start.rendezvous_ns = file->start_ns[0];
  record.start.handshake_ns = file->start_ns[1];
  record.start.exchange_ns = file->start_ns[2];
  record.start.connect_ns = file->start_ns[3];
  record.start.costs_ns = file->start_ns[4];
  record.latest_ns = get(file->latest.wall_ns);
  record.looked_ns = clocks.wall_of_monotonic(get(file->looked_ns));
  take_operations(*file, clocks, &record);
  take_messages(*file, clocks, &record);
  take_wait(*file, clocks, &record);
  take_ways(static_cast<const unsigned char*>(data) + sizeof(RecordFile), file->ways_bytes,
            &record);
  record.latest_ns = std::max(record.latest_ns, record.looked_ns);
  for (const RecordedOperation& operation : record.operations) {
    record.latest_ns = std::max({record.latest_ns, operation.begin_ns, operation.end_ns});
  }
  for (const RecordedMessage& message : record.messages) {
    record.latest_ns = std::max({record.latest_ns, message.begin_ns, message.end_ns});
  }
  return record;
}

namespace {

// The first `bytes` of the file, or what there is of them.
Result<std::vector<char>> read_all(int file, size_t bytes, const std::string& path) {
  std::vector<char> data(bytes);
  size_t got = 0;
  while (got < bytes) {
    const ssize_t part = pread(file, data.data() + got, bytes - got, static_cast<off_t>(got));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return system_error(path);
    if (part == 0) break;
    got += static_cast<size_t>(part);
  }
  data.resize(got);
  return data;
}

// Whether the wait stood still while `data` was read.
bool is_still(int file, const std::vector<char>& data) {
  constexpr size_t kAt = offsetof(RecordFile, wait) + offsetof(WaitBlock, version);
  uint64_t before = 0;
  uint64_t after = 0;
  if (data.size() < kAt + sizeof before) return true;
  std::memcpy(&before, data.data() + kAt, sizeof before);
  if (pread(file, &after, sizeof after, kAt) != sizeof after) return true;
  return before == after && before % 2 == 0;
}

}  // namespace

Result<Record> read_record(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return system_error(path);
  struct stat status {};
  Result<std::vector<char>> data = std::vector<char>();
  if (fstat(file, &status) != 0) {
    data = system_error(path);
  } else if (!S_ISREG(status.st_mode)) {
    data = Status(Code::kRefused, path + ": not a regular file");
  } else if (status.st_size < 0 || static_cast<size_t>(status.st_size) > kRecordFileBytesMax) {
    data = Status(Code::kRefused, path + ": too large for a file of Weir's recorder");
  } else {
    // A writer that died in the middle leaves it so: then the last reading counts.
    for (int attempt = 0; attempt < 8; ++attempt) {
      data = read_all(file, static_cast<size_t>(status.st_size), path);
      if (!data.ok() || is_still(file, data.value())) break;
    }
  }
  close(file);
  if (!data.ok()) return data.status();
  Result<Record> record = parse_record(data.value().data(), data.value().size(), path);
  if (record.ok()) record.value().life = life_of(record.value());
  return record;
}

Result<std::vector<std::string>> list_records(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error) return Status(Code::kSystem, fmt::format("{}: {}", path, error.message()));
  if (!std::filesystem::is_directory(status)) return std::vector<std::string>{path};
  std::vector<std::string> paths;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() != ".rec") continue;
    if (paths.size() == kRecordFilesMax) {
      return Status(Code::kNoMemory,
                    fmt::format("{} holds more than {} records", path, kRecordFilesMax));
    }
    paths.push_back(entry->path().string());
  }
  if (error) return Status(Code::kSystem, fmt::format("{}: {}", path, error.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace weir::comm
