// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/loader.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/settings.h"
#include "core/plugin/choice.h"
#include "core/plugin/registry.h"

namespace weir::plugin {
namespace {

namespace fs = std::filesystem;

// A directory that only we may write, with copies of the sample plugins.
class Loader : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "weir-loader-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  // The copy's path. Its name is its own, since a registry never forgets a file.
  std::string copy(const std::string& sample) {
    const fs::path target = directory_ / (sample + ".so");
    fs::copy_file(fs::path(WEIR_SAMPLE_PLUGINS) / ("weir_sample_" + sample + ".so"), target);
    fs::permissions(target, fs::perms(0755));
    return target;
  }

  static void expect_refused(const std::string& path, const std::string& reason) {
    const auto loaded = load_transport(path);
    ASSERT_FALSE(loaded.ok()) << path;
    EXPECT_NE(loaded.status().text().find(path), std::string::npos) << loaded.status().text();
    EXPECT_NE(loaded.status().text().find(reason), std::string::npos) << loaded.status().text();
  }

  fs::path directory_;
};

TEST_F(Loader, AGoodPluginIsLoadedOnceAndFoundByItsName) {
  const std::string path = copy("good");
  const auto loaded = load_transport(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().text();
  EXPECT_STREQ(loaded.value()->name, "sample");
  const auto found = find_transport("sample");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found.value(), loaded.value());
  const auto again = load_transport(path);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value(), loaded.value());
  weir_host_t host = {};
  bool listed = false;
  for (const Viability& entry : list_transports(host)) {
    if (entry.transport != loaded.value()) continue;
    listed = true;
    EXPECT_FALSE(entry.viable);
    EXPECT_EQ(entry.reason, "a sample moves nothing");
    EXPECT_EQ(entry.origin, path);
  }
  EXPECT_TRUE(listed);
}

TEST(Transports, BehindTheFirstThatServesNoneIsAsked) {
  std::vector<std::string> asked_for;
  weir_host_t host = {};
  host.struct_bytes = sizeof host;
  host.context = &asked_for;
  host.setting = [](void* context, const char* name) -> const char* {
    static_cast<std::vector<std::string>*>(context)->push_back(name);
    return nullptr;
  };
  // tcp would list the interfaces.
  const auto is_tcp_asked = [&] {
    return std::count(asked_for.begin(), asked_for.end(), "WEIR_IFNAME") > 0;
  };
  const auto found = choose_transport(Settings(), host, 2, Spread::kOneHost);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_STREQ(found.value()->name, "shm");
  EXPECT_FALSE(is_tcp_asked());
  std::vector<std::string> visited;
  visit_transports(host, [&](const Viability& one) {
    visited.emplace_back(one.transport->name);
    return visited.size() < 2;
  });
  EXPECT_EQ(visited.size(), 2u);
  EXPECT_GT(list_transports(host).size(), 2u);
  EXPECT_TRUE(is_tcp_asked());
}

TEST_F(Loader, AnotherAbiVersionIsRefused) { expect_refused(copy("version"), "ABI version 999"); }

TEST_F(Loader, APluginOfTheFirstAbiIsToldBothVersionsAndWhatToDo) {
  expect_refused(copy("version_1"),
                 "it has ABI version 1, this library 2; rebuild it against this weir/plugin.h");
}

TEST_F(Loader, APluginThatSaysThatItIsMadeOfOthersIsRefused) {
  expect_refused(copy("parts"), "is made of others");
}

TEST_F(Loader, AnotherStructSizeIsRefused) { expect_refused(copy("size"), "8 bytes"); }

TEST_F(Loader, ATableOfAnEarlierHeaderIsTakenIfItsCapabilitiesEndWithIt) {
  const auto loaded = load_transport(copy("older"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().text();
  EXPECT_STREQ(loaded.value()->name, "older");
  expect_refused(copy("short"), "quiesce is missing");
  expect_refused(copy("before_put"), "remote_caps is missing");
  expect_refused(copy("before_whole"), "collectives is missing");
  expect_refused(copy("before_devices"), "device_viable is missing");
}

TEST_F(Loader, AMissingSymbolIsRefused) { expect_refused(copy("symbol"), "weir_transport_plugin"); }

TEST_F(Loader, ARefusedObjectStaysLoadedForTheThreadThatItHasStarted) {
  const std::string path = copy("thread");
  expect_refused(path, "weir_transport_plugin");
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(object, nullptr) << "its thread has no code any more";
  const auto ticks = reinterpret_cast<int (*)()>(dlsym(object, "sample_ticks"));
  const auto stop = reinterpret_cast<void (*)()>(dlsym(object, "sample_stop"));
  ASSERT_NE(ticks, nullptr);
  ASSERT_NE(stop, nullptr);
  const int before = ticks();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (ticks() < before + 2 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(ticks(), before + 2);
  stop();
}

TEST_F(Loader, ATakenNameIsRefusedAndItsOwnerNamed) {
  expect_refused(copy("taken"), "'shm' is taken");
}

TEST_F(Loader, ADeclaredCapabilityWithoutItsFunctionIsRefused) {
  expect_refused(copy("incomplete"), "segment is missing");
  expect_refused(copy("no_whole"), "collectives is missing");
}

TEST_F(Loader, MessagesOnDevicesWithoutAKindOfMemoryAreRefused) {
  expect_refused(copy("no_devices"), "no device memory");
}

TEST_F(Loader, ABadNameIsRefused) { expect_refused(copy("name"), "a-z"); }

TEST_F(Loader, ARelativePathIsRefused) { expect_refused("good.so", "not absolute"); }

TEST_F(Loader, AnEmptyPathIsRefused) { EXPECT_FALSE(load_transport("").ok()); }

TEST_F(Loader, AMissingFileIsRefused) { expect_refused(directory_ / "none.so", "No such file"); }

TEST_F(Loader, ADirectoryIsRefused) { expect_refused(directory_, "regular file"); }

TEST_F(Loader, AFileThatIsNoSharedObjectIsRefused) {
  const fs::path path = directory_ / "text.so";
  std::ofstream(path) << "no ELF file";
  fs::permissions(path, fs::perms(0644));
  expect_refused(path, "text.so");
}

TEST_F(Loader, AFileThatOthersMayWriteIsRefused) {
  for (const unsigned mode : {0757u, 0775u, 0777u}) {
    const std::string path = copy("version");
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    expect_refused(path, "written by others");
    fs::remove(path);
  }
}

TEST_F(Loader, AFileInADirectoryThatOthersMayWriteIsRefused) {
  const std::string path = copy("version");
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  expect_refused(path, "written by others");
}

TEST_F(Loader, AFileOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string path = copy("version");
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  expect_refused(path, "owned by user 65534");
}

TEST_F(Loader, TheTargetOfALinkIsWhatIsChecked) {
  const std::string path = copy("version");
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  const fs::path link = directory_ / "link.so";
  fs::create_symlink(path, link);
  expect_refused(link, "written by others");
}

TEST(Registry, BuiltInTransportsAreFoundAndListedBestFirst) {
  weir_host_t host = {};
  const auto list = list_transports(host);
  ASSERT_GE(list.size(), 2u);
  EXPECT_STREQ(list[0].transport->name, "shm");
  EXPECT_EQ(list[0].origin, "built in");
  for (const char* name : {"shm", "self"}) {
    const auto found = find_transport(name);
    ASSERT_TRUE(found.ok()) << found.status().text();
    EXPECT_STREQ(found.value()->name, name);
  }
}

TEST(Registry, AnUnknownNameIsAnErrorThatTellsTheKnownOnes) {
  const auto found = find_transport("pigeon");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kUnsupported);
  for (const char* word : {"pigeon", "shm", "self"}) {
    EXPECT_NE(found.status().text().find(word), std::string::npos) << found.status().text();
  }
}

TEST(Registry, HooksAreWrappedInsideOutAndOnce) {
  const auto* shm = find_transport("shm").value();
  const auto none = wrap_with_hooks(shm, "");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value(), shm);
  const auto both = wrap_with_hooks(shm, "trace,check");
  ASSERT_TRUE(both.ok());
  EXPECT_STREQ(both.value()->name, "trace(check(shm))");
  EXPECT_EQ(wrap_with_hooks(shm, "trace,check").value(), both.value());
  EXPECT_EQ(both.value()->caps.bits,
            shm->caps.bits & ~uint64_t{WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW});
  EXPECT_EQ(both.value()->caps.credit, shm->caps.credit);
}

// All of the transport's parts, in order, as "name role".
std::vector<std::string> parts_of(const weir_transport_functions_t& transport) {
  std::vector<std::string> list;
  for (auto* part = transport.parts; part != nullptr && part->transport != nullptr; ++part) {
    list.push_back(std::string(part->transport->name) + " " + part->role);
  }
  return list;
}

TEST(Registry, ACompositeTellsWhatItIsMadeOf) {
  const auto* shm = find_transport("shm").value();
  const auto* tcp = find_transport("tcp").value();
  EXPECT_EQ(shm->parts, nullptr);
  EXPECT_EQ(describe_parts(*shm), "");
  const auto* hosts = make_hosts(tcp, shm).value();
  EXPECT_STREQ(hosts->name, "hosts(tcp)");
  EXPECT_EQ(make_hosts(tcp, shm).value(), hosts);
  EXPECT_EQ(parts_of(*hosts), (std::vector<std::string>{"tcp between hosts", "shm within a host"}));
  const auto* traced = wrap_with_hooks(hosts, "trace").value();
  EXPECT_EQ(parts_of(*traced), (std::vector<std::string>{"hosts(tcp) wrapped"}));
  EXPECT_EQ(describe_parts(*traced), "hosts(tcp): tcp between hosts, shm within a host");
  const auto* chain = make_failover({tcp, wrap_with_hooks(tcp, "check").value()}).value();
  const auto* both = make_hosts(chain, shm).value();
  EXPECT_EQ(describe_parts(*both),
            "hosts(failover(tcp,check(tcp))): failover(tcp,check(tcp)) between hosts, shm within a "
            "host; failover(tcp,check(tcp)): tcp first, check(tcp) when it fails");
}

TEST(Registry, ACompositeIsViableWhereItsPartsAre) {
  static weir_transport_functions_t lame = *find_transport("tcp").value();
  lame.name = "lame";
  lame.viable = [](void*, const weir_host_t*, char* reason, size_t reason_bytes) {
    snprintf(reason, reason_bytes, "no leg");
    return WEIR_ERROR_UNSUPPORTED;
  };
  const auto* shm = find_transport("shm").value();
  const auto* tcp = find_transport("tcp").value();
  weir_host_t host = {};
  host.struct_bytes = sizeof host;
  char reason[512] = "";
  const auto* good = make_hosts(tcp, shm).value();
  EXPECT_EQ(good->viable(good->context, &host, reason, sizeof reason), WEIR_OK) << reason;
  EXPECT_NE(std::string(reason).find("; shm"), std::string::npos) << reason;
  for (const auto& made : {make_hosts(&lame, shm), make_failover({tcp, &lame})}) {
    const auto* bad = made.value();
    EXPECT_EQ(bad->viable(bad->context, &host, reason, sizeof reason), WEIR_ERROR_UNSUPPORTED);
    EXPECT_STREQ(reason, "lame: no leg") << bad->name;
  }
}

TEST(Registry, AnyNumberOfTransportsCanBeWrapped) {
  static std::vector<weir_transport_functions_t> many(100, *find_transport("tcp").value());
  for (const auto& one : many) {
    const auto wrapped = wrap_with_hooks(&one, "check,trace");
    ASSERT_TRUE(wrapped.ok()) << wrapped.status().text();
    EXPECT_EQ(wrapped.value()->parts->transport->parts->transport, &one);
  }
}

TEST(Registry, UnknownAndEmptyHookNamesAreErrors) {
  const auto* shm = find_transport("shm").value();
  for (const char* hooks : {"chekc", "check,", ",check", "check,,trace", " check"}) {
    const auto wrapped = wrap_with_hooks(shm, hooks);
    ASSERT_FALSE(wrapped.ok()) << hooks;
    EXPECT_NE(wrapped.status().text().find("WEIR_HOOKS"), std::string::npos)
        << wrapped.status().text();
  }
}

// They are made of several transports, so that one around each transport makes no sense.
TEST(Registry, ACompositeThatIsNoHookIsRefusedByNameAsHookAndAsTransport) {
  const auto* tcp = find_transport("tcp").value();
  const struct {
    const char* name;
    const char* remedy;
  } cases[] = {{"hosts", "ranks share hosts"}, {"failover", "WEIR_FAILOVER"}};
  for (const auto& one : cases) {
    const std::string quoted = std::string("'") + one.name + "'";
    const auto wrapped = wrap_with_hooks(tcp, one.name);
    ASSERT_FALSE(wrapped.ok()) << one.name;
    const auto found = find_transport(one.name);
    ASSERT_FALSE(found.ok()) << one.name;
    for (const std::string& text : {wrapped.status().text(), found.status().text()}) {
      EXPECT_NE(text.find(quoted), std::string::npos) << text;
      EXPECT_NE(text.find(one.remedy), std::string::npos) << text;
    }
    EXPECT_TRUE(wrapped.status().text().ends_with("known are check, fault, seal, sum, trace"))
        << wrapped.status().text();
  }
  const auto hook = find_transport("check");
  ASSERT_FALSE(hook.ok());
  EXPECT_NE(hook.status().text().find("WEIR_HOOKS"), std::string::npos) << hook.status().text();
}

}  // namespace
}  // namespace weir::plugin
