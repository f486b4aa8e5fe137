// SPDX-License-Identifier: Apache-2.0
// The recorder's files: what is written is read, whatever happens to the bytes; the folder is
// private and bounded.
#include "core/comm/record/recorder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "core/comm/record/record_file.h"
#include "core/comm/record/record_folder.h"
#include "core/engine/call.h"
#include "core/engine/control.h"
#include "trace/temporary_folder.h"

namespace weir::comm {
namespace {

using test::TemporaryFolder;

engine::Call call_of(size_t count) {
  engine::Call call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = count;
  return call;
}

RecorderIdentity identity_of(Rank rank) {
  RecorderIdentity identity;
  identity.comm_id = 0x1122334455667788u;
  identity.instance = 42;
  identity.rank = rank;
  identity.rank_count = 4;
  identity.name = "world";
  identity.transport = "shm";
  identity.earlier = ClockReading::now();
  usleep(2000);  // so that the rate of the ticks is known
  return identity;
}

void begin(Recorder& recorder, uint64_t sequence, size_t count, bool waits) {
  const engine::Call call = call_of(count);
  recorder.begun(sequence, engine::call_flag(sequence, engine::fingerprint(call, 2)),
                 engine::pack_what(call), count, waits ? ticks() : 0);
}

Record read(const Recorder& recorder) {
  Result<Record> record = read_record(recorder.path());
  EXPECT_TRUE(record.ok()) << record.status().text();
  return record.ok() ? record.take() : Record();
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Recorder, KeepsTheLatestOperationsInOrder) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(3), folder.path());
  ASSERT_TRUE(recorder.on());
  for (uint64_t k = 1; k <= 1000; ++k) {
    begin(recorder, k, k * 10, k % 3 == 0);
    if (k < 1000) {
      if (k % 2 == 0) recorder.finished_at(k, ticks());
      recorder.finished(k);
    }
  }
  const Record record = read(recorder);
  EXPECT_EQ(record.comm_id, 0x1122334455667788u);
  EXPECT_EQ(record.rank, 3u);
  EXPECT_EQ(record.rank_count, 4u);
  EXPECT_EQ(record.name, "world");
  EXPECT_EQ(record.transport, "shm");
  EXPECT_EQ(record.process, static_cast<uint32_t>(getpid()));
  EXPECT_EQ(record.life, Life::kAlive);
  EXPECT_EQ(record.completed, 999u);
  EXPECT_EQ(record.begun(), 1000u);
  ASSERT_EQ(record.operations.size(), kOperationRecords);
  for (size_t i = 0; i < record.operations.size(); ++i) {
    const RecordedOperation& operation = record.operations[i];
    EXPECT_EQ(operation.sequence, 1000 - kOperationRecords + 1 + i);
    EXPECT_EQ(operation.count, operation.sequence * 10);
    EXPECT_EQ(operation.begin_ns != 0, operation.sequence % 3 == 0) << operation.sequence;
    EXPECT_TRUE(operation.end_ns == 0 || operation.end_ns >= operation.begin_ns);
  }
}

TEST(Recorder, KeepsHowLongThePartsOfTheStartTook) {
  TemporaryFolder folder;
  Recorder recorder;
  RecorderIdentity identity = identity_of(0);
  identity.start.rendezvous_ns = 1'000'000;
  identity.start.handshake_ns = 2'000'000;
  identity.start.exchange_ns = 3'000'000;
  identity.start.connect_ns = 4'000'000;
  identity.start.costs_ns = 5'500'000;
  recorder.open(identity, folder.path());
  ASSERT_TRUE(recorder.on());
  EXPECT_EQ(read(recorder).start.describe(),
            "15.50 ms: rendezvous 1.00, handshake 2.00, exchange 3.00, connect 4.00, costs 5.50");
}

TEST(Recorder, NumbersBeyond32BitsAreTold) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(0), folder.path());
  const uint64_t base = (uint64_t{5} << 32) - 10;
  for (uint64_t k = base; k < base + 20; ++k) {
    begin(recorder, k, 7, false);
    recorder.finished(k);
  }
  const Record record = read(recorder);
  ASSERT_EQ(record.operations.size(), 20u);
  EXPECT_EQ(record.operations.front().sequence, base);
  EXPECT_EQ(record.operations.back().sequence, base + 19);
}

TEST(Recorder, TimesAreThoseOfTheWallClock) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(0), folder.path());
  const uint64_t before = ClockReading::now().wall_ns;
  begin(recorder, 1, 1, true);
  recorder.finished_at(1, ticks());
  const uint64_t after = ClockReading::now().wall_ns;
  const Record record = read(recorder);
  ASSERT_EQ(record.operations.size(), 1u);
  // The rate of the ticks is known from two milliseconds that a busy machine may have stretched.
  constexpr uint64_t kSlackNs = 1'000'000'000;
  EXPECT_GT(record.operations[0].begin_ns, before - kSlackNs);
  EXPECT_LT(record.operations[0].end_ns, after + kSlackNs);
}

TEST(Recorder, ALongWaitNamesWhomItIsFor) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(0), folder.path());
  begin(recorder, 1, 8, true);
  EXPECT_FALSE(recorder.looked(1'000'000'000, 1'000'000'500)) << "too soon";
  EXPECT_TRUE(recorder.looked(1'000'000'000, 1'200'000'000));
  Wait wait;
  wait.kind = RecordKind::kCollective;
  wait.sequence = 1;
  wait.what = engine::pack_what(call_of(8));
  wait.count = 8;
  wait.since_ns = now_ns();
  wait.step = 2;
  wait.step_count = 5;
  wait.algorithm = "an_algorithm_with_a_name_that_is_longer_than_its_place";
  wait.protocol = "line";
  const std::vector<Rank> awaited = {1, 3};
  wait.awaited = awaited;
  recorder.waits(wait, now_ns());
  Record record = read(recorder);
  EXPECT_EQ(record.wait.kind, RecordKind::kCollective);
  EXPECT_EQ(record.wait.awaited, (std::vector<Rank>{1, 3}));
  EXPECT_EQ(record.wait.step, 2u);
  EXPECT_EQ(record.wait.step_count, 5u);
  EXPECT_EQ(record.wait.protocol, "line");
  EXPECT_EQ(record.wait.algorithm, "an_algorithm_with_a_name_that_i");
  EXPECT_FALSE(recorder.idle());
  recorder.finished(1);
  record = read(recorder);
  EXPECT_EQ(record.wait.kind, RecordKind::kNothing) << "what is completed is not waited for";
  recorder.wait_ended();
  EXPECT_TRUE(recorder.idle());
}

TEST(Recorder, MessagesAreKeptUntilLaterOnesTakeTheirPlace) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(0), folder.path());
  std::vector<uint64_t> numbers;
  for (uint32_t i = 0; i < 100; ++i) {
    numbers.push_back(recorder.message_begun(i % 2 == 0 ? RecordKind::kSend : RecordKind::kRecv,
                                             i % 4, 1000 + i));
  }
  recorder.message_finished(numbers[99]);
  recorder.message_finished(numbers[0]);  // long overwritten
  const Record record = read(recorder);
  ASSERT_EQ(record.messages.size(), kMessageRecords);
  EXPECT_EQ(record.messages.front().number, numbers[100 - kMessageRecords]);
  EXPECT_FALSE(record.messages.front().done);
  EXPECT_TRUE(record.messages.back().done);
  EXPECT_EQ(record.messages.back().bytes, 1099u);
  EXPECT_EQ(record.messages.back().peer, 3u);
}

TEST(Recorder, TheFileIsRemovedUnlessTheCommunicatorFailed) {
  TemporaryFolder folder;
  for (const bool fails : {false, true}) {
    Recorder recorder;
    recorder.open(identity_of(0), folder.path());
    ASSERT_EQ(folder.files().size(), 1u);
    const std::string path = recorder.path();
    if (fails) recorder.failed(Status(Code::kTimeout, "rank 1 is late\n"));
    recorder.close();
    EXPECT_EQ(folder.files().size(), fails ? 1u : 0u);
    if (!fails) continue;
    const Result<Record> record = read_record(path);
    ASSERT_TRUE(record.ok());
    EXPECT_EQ(record.value().state, RecordState::kFailed);
    EXPECT_EQ(record.value().code, static_cast<uint32_t>(Code::kTimeout));
    EXPECT_EQ(record.value().why, "rank 1 is late?");
  }
}

TEST(Recorder, KeepsHowItReachesItsPeersWithinBounds) {
  TemporaryFolder folder;
  RecorderIdentity identity = identity_of(1);
  identity.ways = {{0, "rank 0 at 10.0.0.1:4000 (over eth0: same subnet)"},
                   {2, ""},
                   {3, std::string(1000, 'x') + "\n"}};
  {
    Recorder recorder;
    recorder.open(identity, folder.path());
    const Record record = read(recorder);
    ASSERT_EQ(record.ways.size(), 2u);
    EXPECT_EQ(record.ways[0].peer, 0u);
    EXPECT_EQ(record.ways[0].text, identity.ways[0].text);
    EXPECT_EQ(record.ways[1].peer, 3u);
    EXPECT_EQ(record.ways[1].text, std::string(kWayTextBytesMax, 'x'));
  }
  identity.rank_count = 4096;
  identity.rank = 4095;
  identity.ways.clear();
  for (Rank p = 0; p < 4095; ++p) identity.ways.push_back({p, std::string(100, 'y')});
  Recorder recorder;
  recorder.open(identity, folder.path());
  EXPECT_LE(std::filesystem::file_size(recorder.path()), sizeof(RecordFile) + kWaysBytesMax);
  const Record record = read(recorder);
  ASSERT_EQ(record.ways.size(), kWaysBytesMax / (kWayHeaderBytes + 100));
  EXPECT_EQ(record.ways.back().peer, record.ways.size() - 1);
}

TEST(Recorder, HowAPeerIsReachedMayChangeWithinTheRoomLeftForIt) {
  TemporaryFolder folder;
  RecorderIdentity identity = identity_of(1);
  identity.ways = {{0, "on trial", 20}, {2, "settled"}, {3, "last"}};
  Recorder recorder;
  recorder.open(identity, folder.path());
  const auto told = [&] {
    std::vector<std::string> texts;
    for (const RecordedWay& way : read(recorder).ways) texts.push_back(way.text);
    return texts;
  };
  EXPECT_EQ(told(), (std::vector<std::string>{"on trial", "settled", "last"}));
  recorder.way_changed(0, "measured");
  EXPECT_EQ(told(), (std::vector<std::string>{"measured", "settled", "last"}));
  recorder.way_changed(0, std::string(40, 'a'));
  recorder.way_changed(2, "longer than settled");
  recorder.way_changed(3, "x");
  recorder.way_changed(5, "nobody");
  EXPECT_EQ(told(), (std::vector<std::string>{std::string(20, 'a'), "longer ", "x"}));
  recorder.way_changed(3, "");
  EXPECT_EQ(told().back(), "x") << "a text that says nothing changes nothing";
}

TEST(RecordFile, WaysThatAreNoneEndTheListAndTheRestIsRead) {
  TemporaryFolder folder;
  Recorder recorder;
  RecorderIdentity identity = identity_of(1);
  identity.ways = {{0, "one\nline"}, {2, "two"}, {3, "three"}};
  recorder.open(identity, folder.path());
  const std::string whole = bytes_of(recorder.path());
  const size_t second = sizeof(RecordFile) + kWayHeaderBytes + 8;
  const auto count_with = [&](size_t at, char value) {
    std::string bytes = whole;
    bytes[at] = value;
    const Result<Record> record = parse_record(bytes.data(), bytes.size(), "bytes");
    EXPECT_TRUE(record.ok()) << record.status().text();
    if (!record.ok()) return size_t{99};
    EXPECT_EQ(record.value().ways.empty() ? "one?line" : record.value().ways[0].text, "one?line");
    return record.value().ways.size();
  };
  EXPECT_EQ(count_with(second + kWayHeaderBytes, 'T'), 3u);
  EXPECT_EQ(count_with(second, 4), 1u);       // no rank
  EXPECT_EQ(count_with(second, 1), 1u);       // its own
  EXPECT_EQ(count_with(second, 0), 1u);       // once more
  EXPECT_EQ(count_with(second + 4, 0), 1u);   // no text
  EXPECT_EQ(count_with(second + 4, 99), 1u);  // beyond the end
  EXPECT_EQ(count_with(second + 5, 1), 1u);   // too long
  EXPECT_EQ(count_with(whole.size() - 6, 9), 2u);

  // A file of an earlier library ends before them.
  std::string earlier = whole.substr(0, sizeof(RecordFile));
  const uint64_t file_bytes = earlier.size();
  std::memcpy(earlier.data() + offsetof(RecordFile, file_bytes), &file_bytes, sizeof file_bytes);
  EXPECT_FALSE(parse_record(earlier.data(), earlier.size(), "bytes").ok());
  std::memset(earlier.data() + offsetof(RecordFile, ways_bytes), 0, sizeof(uint32_t));
  const Result<Record> record = parse_record(earlier.data(), earlier.size(), "bytes");
  ASSERT_TRUE(record.ok()) << record.status().text();
  EXPECT_TRUE(record.value().ways.empty());
  // More than there may be.
  std::string large = whole;
  const uint32_t ways_bytes = 1u << 30;
  std::memcpy(large.data() + offsetof(RecordFile, ways_bytes), &ways_bytes, sizeof ways_bytes);
  EXPECT_FALSE(parse_record(large.data(), large.size(), "bytes").ok());
}

TEST(RecordFile, ACallThatIsHalfWrittenIsLeftOut) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(0), folder.path());
  begin(recorder, 1, 8, false);
  begin(recorder, 2, 9, false);
  std::string bytes = bytes_of(recorder.path());
  // The arguments of a later call stand there, its number not yet.
  const uint64_t count = 10;
  std::memcpy(bytes.data() + offsetof(RecordFile, operations) + 2 * sizeof(OperationRecord) + 24,
              &count, sizeof count);
  const Result<Record> record = parse_record(bytes.data(), bytes.size(), "bytes");
  ASSERT_TRUE(record.ok());
  ASSERT_EQ(record.value().operations.size(), 1u);
  EXPECT_EQ(record.value().operations[0].sequence, 1u);
}

TEST(RecordFile, AnyBytesGetAnAnswerInRange) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(1), folder.path());
  for (uint64_t k = 1; k < 300; ++k) begin(recorder, k, k, true);
  recorder.message_begun(RecordKind::kSend, 2, 10);
  Wait wait;
  wait.kind = RecordKind::kQueued;
  wait.sequence = 300;
  const std::vector<Rank> awaited = {0, 2};
  wait.awaited = awaited;
  recorder.waits(wait, now_ns());
  const std::string good = bytes_of(recorder.path());
  const char* given = std::getenv("WEIR_TEST_SEED");
  const auto seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  size_t read = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    const size_t changes = 1 + random() % 64;
    for (size_t i = 0; i < changes; ++i) {
      // The first bytes decide most; so they are hit more often.
      const size_t limit = random() % 2 == 0 ? 2048 : bytes.size();
      bytes[random() % limit] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    const Result<Record> record = parse_record(bytes.data(), bytes.size(), "bytes");
    if (!record.ok()) {
      EXPECT_FALSE(record.status().text().empty());
      continue;
    }
    ++read;
    const Record& it = record.value();
    EXPECT_LT(it.rank, it.rank_count);
    for (const Rank rank : it.wait.awaited) EXPECT_LT(rank, it.rank_count);
    for (const RecordedMessage& message : it.messages) EXPECT_LT(message.peer, it.rank_count);
    for (size_t i = 1; i < it.operations.size(); ++i) {
      EXPECT_LT(it.operations[i - 1].sequence, it.operations[i].sequence);
    }
    for (const std::string* text : {&it.host, &it.name, &it.program, &it.why}) {
      for (const char c : *text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
    }
  }
  EXPECT_GT(read, 100u) << "hardly any was still readable: the test tests little";
}

TEST(RecordName, IsReadBackAndNothingElseIs) {
  const RecordName name{123, 456, 0xabcdefu, 7};
  EXPECT_EQ(name.text(), "123-456-0000000000abcdef-7.rec");
  const auto parsed = RecordName::parse(name.text());
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->text(), name.text());
  for (const char* text : {"", ".rec", "1-2-3-4", "1-2-3-4.rec2", "x-2-3-4.rec", "-1-2-3-4.rec",
                           "1-2-3.rec", "0-2-3-4.rec", "99999999999999-2-3-4.rec"}) {
    EXPECT_FALSE(RecordName::parse(text).has_value()) << text;
  }
}

TEST(RecordFolder, OneThatOthersCanReadOrWriteIsRefused) {
  TemporaryFolder parent;
  const std::string path = parent.path() + "/run";
  const auto opens = [&](bool wanted) {
    const Result<int> folder = open_record_folder(path, true, wanted);
    if (folder.ok()) close(folder.value());
    return folder.ok();
  };
  EXPECT_TRUE(opens(false));
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_FALSE(opens(false));
  EXPECT_TRUE(opens(true)) << "a folder that the user names may be read by others; its files not";
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  EXPECT_FALSE(opens(true));
  ASSERT_EQ(chmod(path.c_str(), 01777), 0);
  EXPECT_FALSE(opens(true));
}

TEST(RecordFolder, ALinkIsRefused) {
  TemporaryFolder parent;
  std::filesystem::create_directory(parent.path() + "/real");
  std::filesystem::permissions(parent.path() + "/real", std::filesystem::perms::owner_all);
  std::filesystem::create_symlink("real", parent.path() + "/link");
  EXPECT_TRUE(open_record_folder(parent.path() + "/real", false, false).ok());
  EXPECT_FALSE(open_record_folder(parent.path() + "/link", true, false).ok());
  EXPECT_FALSE(open_record_folder(parent.path() + "/link", true, true).ok());
}

TEST(RecordFolder, AnothersIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  TemporaryFolder parent;
  const std::string path = parent.path() + "/run";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  EXPECT_FALSE(open_record_folder(path, true, false).ok());
  EXPECT_FALSE(open_record_folder(path, true, true).ok());
}

TEST(RecordFolder, AProcessThatEndsWhileItIsLookedAtIsNoProcess) {
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(0);
    std::thread reaper([child] { EXPECT_EQ(waitpid(child, nullptr, 0), child); });
    while (process_start_of(child) != 0) continue;
    reaper.join();
  }
}

TEST(RecordFolder, TheOldestOfTheDeadAreRemovedAndTheLivingStay) {
  TemporaryFolder folder;
  const uint64_t start = process_start_of(getpid());
  ASSERT_NE(start, 0u);
  const auto add = [&](pid_t process, uint64_t process_start, Rank rank, int seconds_ago) {
    std::string path = folder.path() + "/" + RecordName{process, process_start, 1, rank}.text();
    std::ofstream file(path);
    file.close();
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::seconds(seconds_ago));
    return path;
  };
  const std::string living = add(getpid(), start, 0, 100'000);
  const std::string reused = add(getpid(), start + 1, 1, 1000);  // the number of a later process
  std::vector<std::string> dead;
  // Not of this second, which a coarse clock may not have reached yet.
  for (int i = 0; i < 10; ++i) dead.push_back(add(getpid(), 1, static_cast<Rank>(10 + i), 10 + i));
  std::ofstream other(folder.path() + "/not-ours.txt");
  other.close();
  const int descriptor = open_record_folder(folder.path(), false, false).take();
  tidy_record_folder(descriptor, 5, 50'000);
  EXPECT_TRUE(std::filesystem::exists(living));
  EXPECT_FALSE(std::filesystem::exists(reused));
  for (size_t i = 0; i < dead.size(); ++i) EXPECT_EQ(std::filesystem::exists(dead[i]), i < 5) << i;
  tidy_record_folder(descriptor, 5, -1);
  EXPECT_EQ(folder.files().size(), 2u) << "the living one and the one that is not ours";
  close(descriptor);
}

TEST(RecordFolder, TheDefaultIsBelowTheRuntimeFolderWhereThereIsOne) {
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before != nullptr ? before : "";
  setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
  EXPECT_EQ(record_folder_candidates("").front(), "/run/user/1/weir-recorder");
  setenv("XDG_RUNTIME_DIR", "relative", 1);
  EXPECT_EQ(record_folder_candidates("").front(), "/dev/shm/weir-" + std::to_string(geteuid()));
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(record_folder_candidates("").size(), 2u);
  EXPECT_EQ(record_folder_candidates("/x"), std::vector<std::string>{"/x"});
  if (before != nullptr) setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
}

TEST(RecordFile, AProcessThatHasEndedIsDeadAndAnotherMachinesIsUnknown) {
  TemporaryFolder folder;
  Recorder recorder;
  recorder.open(identity_of(0), folder.path());
  std::string bytes = bytes_of(recorder.path());
  const auto life = [&] {
    std::ofstream(folder.path() + "/copy", std::ios::binary) << bytes;
    const Result<Record> record = read_record(folder.path() + "/copy");
    return record.ok() ? record.value().life : Life::kUnknown;
  };
  EXPECT_EQ(life(), Life::kAlive) << "a copy is as good";
  bytes[offsetof(RecordFile, process_start)] ^= 1;
  EXPECT_EQ(life(), Life::kDead);
  bytes[offsetof(RecordFile, boot_id)] ^= 1;
  EXPECT_EQ(life(), Life::kUnknown);
}

}  // namespace
}  // namespace weir::comm
