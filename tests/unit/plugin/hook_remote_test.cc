// SPDX-License-Identifier: Apache-2.0
// One-sided operations through the hooks, over a transport of one rank whose remote memory is its
// own and whose operations move their bytes when they are tested.
#include <gtest/gtest.h>
#include <string.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/plugin/registry.h"

namespace weir::plugins {
namespace {

namespace fs = std::filesystem;

struct Memory {
  unsigned char* base;
  uint64_t bytes;
};
struct Mirror {
  int remote_count = 0;
  int put_count = 0;
};
Mirror* of(weir_transport_t* t) { return reinterpret_cast<Mirror*>(t); }
Memory* of(const weir_transport_memory_t* m) {
  return const_cast<Memory*>(reinterpret_cast<const Memory*>(m));
}
Memory* of(const weir_transport_remote_t* r) {
  return const_cast<Memory*>(reinterpret_cast<const Memory*>(r));
}

weir_result_t post(unsigned char* to, const void* from, uint64_t bytes, weir_transport_op_t* op) {
  op->word[0] = 1;
  op->word[1] = reinterpret_cast<uint64_t>(to);
  op->word[2] = reinterpret_cast<uint64_t>(from);
  op->word[3] = bytes;
  return WEIR_IN_PROGRESS;
}

const weir_transport_functions_t* mirror() {
  static const weir_transport_functions_t table = [] {
    weir_transport_functions_t f = {};
    f.abi_version = WEIR_PLUGIN_ABI_VERSION;
    f.struct_bytes = sizeof f;
    f.name = "mirror";
    f.summary = "for tests";
    f.caps = {.bits = WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL | WEIR_CAP_SELF,
              .memory_kinds = WEIR_MEMORY_HOST,
              .lane_count = 1,
              .message_bytes_max = 1 << 20,
              .rank_count_max = 1,
              .credit = 1};
    f.open = [](void*, const weir_host_t*, const weir_transport_config_t*, weir_transport_t** t) {
      *t = reinterpret_cast<weir_transport_t*>(new Mirror);
      return WEIR_OK;
    };
    f.address = [](weir_transport_t*, unsigned char*, size_t* bytes) {
      *bytes = 0;
      return WEIR_OK;
    };
    f.connect = [](weir_transport_t*, const unsigned char* const*, const size_t*, uint64_t) {
      return WEIR_OK;
    };
    f.close = [](weir_transport_t* t) { delete of(t); };
    f.progress = [](weir_transport_t*) { return WEIR_OK; };
    f.test = [](weir_transport_t*, weir_transport_op_t* op) {
      if (op->word[3] != 0) {
        memcpy(reinterpret_cast<void*>(op->word[1]), reinterpret_cast<void*>(op->word[2]),
               op->word[3]);
      }
      return WEIR_OK;
    };
    f.remote_caps = [](weir_transport_t*, char* reason, size_t) {
      reason[0] = 0;
      return uint64_t{WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL};
    };
    f.memory_register = [](weir_transport_t*, void* base, uint64_t bytes,
                           weir_transport_memory_t** memory) {
      *memory = reinterpret_cast<weir_transport_memory_t*>(
          new Memory{static_cast<unsigned char*>(base), bytes});
      return WEIR_OK;
    };
    f.memory_key = [](weir_transport_t*, const weir_transport_memory_t* memory, unsigned char* key,
                      size_t* bytes) {
      memcpy(key, of(memory), sizeof(Memory));
      *bytes = sizeof(Memory);
      return WEIR_OK;
    };
    f.memory_deregister = [](weir_transport_t*, weir_transport_memory_t* m) { delete of(m); };
    f.remote_open = [](weir_transport_t* t, uint32_t, const unsigned char* key, size_t,
                       weir_transport_remote_t** remote) {
      auto* memory = new Memory;
      memcpy(memory, key, sizeof(Memory));
      *remote = reinterpret_cast<weir_transport_remote_t*>(memory);
      ++of(t)->remote_count;
      return WEIR_OK;
    };
    f.remote_close = [](weir_transport_t* t, weir_transport_remote_t* r) {
      --of(t)->remote_count;
      delete of(r);
    };
    f.put = [](weir_transport_t* t, const weir_transport_remote_t* r, uint64_t at, const void* data,
               uint64_t bytes, weir_transport_op_t* op) {
      ++of(t)->put_count;
      return post(of(r)->base + at, data, bytes, op);
    };
    f.get = [](weir_transport_t*, const weir_transport_remote_t* r, uint64_t at, void* data,
               uint64_t bytes, weir_transport_op_t* op) {
      return post(static_cast<unsigned char*>(data), of(r)->base + at, bytes, op);
    };
    f.put_signal = [](weir_transport_t*, const weir_transport_remote_t* r, uint64_t at,
                      const void* data, uint64_t bytes, const weir_transport_remote_t* s,
                      uint64_t word, uint64_t value, weir_transport_op_t* op) {
      uint64_t sum = 0;
      memcpy(&sum, of(s)->base + word, 8);
      sum += value;
      memcpy(of(s)->base + word, &sum, 8);
      return post(r != nullptr ? of(r)->base + at : nullptr, data, bytes, op);
    };
    f.signal_read = [](weir_transport_t*, const weir_transport_memory_t* m, uint64_t at,
                       uint64_t* value) {
      memcpy(value, of(m)->base + at, 8);
      return WEIR_OK;
    };
    f.describe_peer = [](weir_transport_t*, uint32_t peer, char* text, size_t text_bytes) {
      snprintf(text, text_bytes, "rank %u in the mirror", peer);
    };
    return f;
  }();
  return &table;
}

// The rank behind hooks, with 64 words of memory registered and open.
struct Stage {
  explicit Stage(const char* hooks, std::map<std::string, std::string> with = {},
                 const weir_transport_functions_t* inner = mirror())
      : f(*plugin::wrap_with_hooks(inner, hooks).value()), settings(std::move(with)) {
    host = {sizeof host, this,
            [](void* self, const char* text) { static_cast<Stage*>(self)->error = text; },
            [](void*, int, const char*) {},
            [](void* self, const char* name) -> const char* {
              const auto& known = static_cast<Stage*>(self)->settings;
              const auto found = known.find(name);
              return found == known.end() ? nullptr : found->second.c_str();
            }};
    const weir_transport_config_t config = {sizeof config, 0, 1, 9, secret, sizeof secret, 0, 0};
    EXPECT_EQ(f.open(f.context, &host, &config, &instance), WEIR_OK) << error;
    const unsigned char* addresses[] = {secret};
    const size_t bytes[] = {0};
    EXPECT_EQ(f.connect(instance, addresses, bytes, ~uint64_t{0}), WEIR_OK) << error;
    EXPECT_EQ(f.memory_register(instance, words.data(), words.size() * 8, &memory), WEIR_OK);
    EXPECT_EQ(f.memory_key(instance, memory, key, &key_bytes), WEIR_OK);
    EXPECT_EQ(f.remote_open(instance, 0, key, key_bytes, &remote), WEIR_OK);
  }
  ~Stage() { close(); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  void close() {
    if (instance == nullptr) return;
    if (remote != nullptr) f.remote_close(instance, remote);
    f.memory_deregister(instance, memory);
    f.close(instance);
    instance = nullptr;
  }
  weir_result_t put(uint64_t word, const uint64_t* value, weir_transport_op_t* op) {
    return f.put(instance, remote, word * 8, value, 8, op);
  }
  weir_result_t get(uint64_t word, uint64_t* value, weir_transport_op_t* op) {
    return f.get(instance, remote, word * 8, value, 8, op);
  }
  weir_result_t signal(uint64_t word, weir_transport_op_t* op) {
    return f.put_signal(instance, nullptr, 0, nullptr, 0, remote, word * 8, 1, op);
  }
  weir_result_t wait(weir_transport_op_t* op, weir_result_t posted, int tries = 100'000) {
    for (int i = 0; i < tries && posted == WEIR_IN_PROGRESS; ++i) posted = f.test(instance, op);
    return posted;
  }

  const weir_transport_functions_t& f;
  std::map<std::string, std::string> settings;
  std::vector<uint64_t> words = std::vector<uint64_t>(64);
  unsigned char secret[16] = {};
  weir_host_t host{};
  weir_transport_t* instance = nullptr;
  weir_transport_memory_t* memory = nullptr;
  weir_transport_remote_t* remote = nullptr;
  unsigned char key[WEIR_TRANSPORT_KEY_BYTES_MAX];
  size_t key_bytes = 0;
  std::string error;
};

TEST(HooksOfPuts, AllOfThemPassOnWhatIsAskedFor) {
  for (const char* hooks : {"check", "fault", "trace", "trace,check,fault"}) {
    Stage stage(hooks, {{"WEIR_TRACE_FILE", "/dev/null"}});
    char reason[8] = "?";
    EXPECT_EQ(stage.f.remote_caps(stage.instance, reason, sizeof reason),
              uint64_t{WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL});
    uint64_t value = 77, back = 0;
    weir_transport_op_t ops[3] = {};
    EXPECT_EQ(stage.wait(&ops[0], stage.put(5, &value, &ops[0])), WEIR_OK) << stage.error;
    EXPECT_EQ(stage.wait(&ops[1], stage.get(5, &back, &ops[1])), WEIR_OK) << stage.error;
    EXPECT_EQ(back, 77u);
    EXPECT_EQ(stage.wait(&ops[2], stage.signal(9, &ops[2])), WEIR_OK) << stage.error;
    EXPECT_EQ(stage.f.signal_read(stage.instance, stage.memory, 72, &back), WEIR_OK);
    EXPECT_EQ(back, 1u);
  }
}

TEST(Hooks, PassOnHowAPeerIsReachedAndSayNothingForATransportThatDoesNot) {
  static const weir_transport_functions_t earlier = [] {
    weir_transport_functions_t f = *mirror();
    f.name = "earlier";
    f.struct_bytes = offsetof(weir_transport_functions_t, describe_peer);
    return f;
  }();
  for (const char* hooks : {"check", "fault", "trace", "trace,check,fault"}) {
    Stage stage(hooks, {{"WEIR_TRACE_FILE", "/dev/null"}});
    char text[20] = "?";
    stage.f.describe_peer(stage.instance, 0, text, sizeof text);
    EXPECT_STREQ(text, "rank 0 in the mirro") << hooks;  // cut
    Stage silent(hooks, {{"WEIR_TRACE_FILE", "/dev/null"}}, &earlier);
    silent.f.describe_peer(silent.instance, 0, text, sizeof text);
    EXPECT_STREQ(text, "") << hooks;
  }
  Stage stage("check");
  char text[20] = "?";
  stage.f.describe_peer(stage.instance, 7, text, sizeof text);
  EXPECT_STREQ(text, "");
  EXPECT_NE(stage.error.find("no such rank"), std::string::npos) << stage.error;
}

TEST(HooksOfPuts, CheckTellsTheCallersBreaches) {
  Stage stage("check");
  uint64_t value = 1;
  weir_transport_op_t op{};
  const auto breach = [&](weir_result_t result, const char* text) {
    EXPECT_EQ(result, WEIR_ERROR_INVALID_USAGE);
    EXPECT_NE(stage.error.find(text), std::string::npos) << stage.error;
  };
  const auto* stranger = reinterpret_cast<const weir_transport_remote_t*>(&value);
  breach(stage.f.put(stage.instance, stranger, 0, &value, 8, &op), "not open");
  breach(stage.f.signal_read(stage.instance,
                             reinterpret_cast<const weir_transport_memory_t*>(&value), 0, &value),
         "not registered");
  ASSERT_EQ(stage.put(0, &value, &op), WEIR_IN_PROGRESS);
  breach(stage.put(0, &value, &op), "in flight already");
  value = 2;
  breach(stage.f.test(stage.instance, &op), "was changed");
  op.word[0] = 3;
  breach(stage.put(0, &value, &op), "not zeroed");
  stage.f.remote_close(stage.instance, stage.remote);
  op = {};
  breach(stage.put(0, &value, &op), "not open");
  stage.remote = nullptr;
}

TEST(HooksOfPuts, FaultDropsAPutAndNothingBehindIt) {
  Stage stage("fault", {{"WEIR_FAULT", "drop_at=2"}});
  uint64_t values[3] = {1, 2, 3};
  weir_transport_op_t ops[3] = {};
  weir_result_t posted[3];
  for (uint64_t i = 0; i < 3; ++i) posted[i] = stage.put(i, &values[i], &ops[i]);
  EXPECT_EQ(stage.wait(&ops[2], posted[2]), WEIR_OK);
  EXPECT_EQ(stage.wait(&ops[0], posted[0]), WEIR_OK);
  EXPECT_EQ(stage.wait(&ops[1], posted[1], 1000), WEIR_IN_PROGRESS);
  EXPECT_EQ(stage.words[0], 1u);
  EXPECT_EQ(stage.words[1], 0u);
  EXPECT_EQ(stage.words[2], 3u);
}

TEST(HooksOfPuts, FaultMakesASignalTwiceFlipsABitOfAGetAndFailsAnOperation) {
  Stage stage("fault", {{"WEIR_FAULT", "duplicate_at=1,corrupt_at=1,error_at=3"}});
  weir_transport_op_t ops[3] = {};
  uint64_t value = 0;
  EXPECT_EQ(stage.wait(&ops[0], stage.signal(4, &ops[0])), WEIR_OK);
  EXPECT_EQ(stage.words[4], 2u);
  EXPECT_EQ(stage.wait(&ops[1], stage.get(20, &value, &ops[1])), WEIR_OK);
  EXPECT_EQ(__builtin_popcountll(value), 1);
  EXPECT_EQ(stage.put(0, &value, &ops[2]), WEIR_ERROR_SYSTEM);
}

TEST(HooksOfPuts, WhatFaultHoldsBackKeepsItsRemoteMemoryOpen) {
  Stage stage("fault", {{"WEIR_FAULT", "delay_us=20000,seed=3"}});
  uint64_t values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  weir_transport_op_t ops[8] = {};
  weir_result_t posted[8];
  for (uint64_t i = 0; i < 8; ++i) posted[i] = stage.put(i, &values[i], &ops[i]);
  stage.f.remote_close(stage.instance, stage.remote);
  stage.remote = nullptr;
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(stage.wait(&ops[i], posted[i], 100'000'000), WEIR_OK);
    EXPECT_EQ(stage.words[i], i + 1);
  }
}

TEST(HooksOfPuts, TraceWritesThemUnderTheirNames) {
  std::string folder = fs::temp_directory_path() / "weir-trace-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    Stage stage("trace", {{"WEIR_TRACE_FILE", folder + "/t.json"}});
    uint64_t value = 7;
    weir_transport_op_t ops[3] = {};
    EXPECT_EQ(stage.wait(&ops[0], stage.put(0, &value, &ops[0])), WEIR_OK);
    EXPECT_EQ(stage.wait(&ops[1], stage.get(0, &value, &ops[1])), WEIR_OK);
    EXPECT_EQ(stage.wait(&ops[2], stage.signal(1, &ops[2])), WEIR_OK);
  }
  std::ifstream file(folder + "/t.json");
  std::vector<std::string> names;
  const auto trace = nlohmann::json::parse(file);
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") names.push_back(event["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"put", "get", "put_signal"}));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weir::plugins
