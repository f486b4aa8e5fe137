// SPDX-License-Identifier: Apache-2.0
// Modules: transports in files beside the library. The build puts sample modules beside this
// program: `beside` and `listed` are good, `misnamed` holds a transport of another name.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "core/plugin/module_folder.h"
#include "core/plugin/registry.h"

namespace weir::plugin {
namespace {

namespace fs = std::filesystem;

bool is_listed(const std::string& name) {
  weir_host_t host = {};
  const auto list = list_transports(host);
  return std::any_of(list.begin(), list.end(),
                     [&](const Viability& entry) { return name == entry.transport->name; });
}

class ModuleFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "weir-modules-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path root_;
};

TEST_F(ModuleFolder, LiesBesideTheLibraryAndIsFoundFromProgramsToo) {
  EXPECT_EQ(module_folder_of(root_ / "lib/libweir.so.0"), "");
  const fs::path folder = root_ / "lib/weir/plugins";
  fs::create_directories(folder);
  fs::create_directories(root_ / "bin");
  const std::string expected = fs::canonical(folder);
  EXPECT_EQ(module_folder_of(root_ / "lib/libweir.so.0"), expected);
  EXPECT_EQ(module_folder_of(root_ / "lib/weir/libnccl.so.2"), expected);
  EXPECT_EQ(module_folder_of(root_ / "bin/weir-info"), expected);
  EXPECT_EQ(module_folder_of("lib/libweir.so.0"), "") << "a relative name says nothing";
  EXPECT_EQ(module_folder_of(""), "");
}

// Before any of them is loaded.
TEST(Modules, AnUnknownNameIsAnErrorThatTellsThem) {
  const auto found = find_transport("pigeon");
  ASSERT_FALSE(found.ok());
  for (const char* words : {"known are shm, tcp, self", ", beside", ", listed"}) {
    EXPECT_NE(found.status().text().find(words), std::string::npos) << found.status().text();
  }
  EXPECT_FALSE(is_listed("beside")) << "it is told, but not loaded";
}

TEST(Modules, TheirPathHasNothingButTheirName) {
  ASSERT_FALSE(module_folder().empty());
  EXPECT_EQ(module_path("ucx"), module_folder() + "/libweir_ucx.so");
  for (const char* name : {"", "../ucx", "a/b", "UCX", "a b", "a.so"}) {
    EXPECT_EQ(module_path(name), "") << name;
  }
  EXPECT_EQ(module_path(std::string(33, 'a')), "");
}

TEST(Modules, AreLoadedWhenTheyAreAskedForAndNotBefore) {
  EXPECT_FALSE(is_listed("beside"));
  const auto found = find_transport("beside");
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_STREQ(found.value()->name, "beside");
  EXPECT_TRUE(is_listed("beside"));
  EXPECT_EQ(find_transport("beside").value(), found.value());
  EXPECT_FALSE(is_listed("listed"));
  load_modules();
  EXPECT_TRUE(is_listed("listed"));
  EXPECT_TRUE(is_listed("libweir_misnamed.so")) << "what is refused is listed, too";
  weir_host_t host = {};
  const size_t count = list_transports(host).size();
  load_modules();
  EXPECT_EQ(list_transports(host).size(), count);
}

TEST(Modules, ATransportOfAnotherNameThanItsFileIsRefused) {
  const auto found = find_transport("misnamed");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kRefused);
  for (const char* word : {"libweir_misnamed.so", "'another'", "'misnamed'"}) {
    EXPECT_NE(found.status().text().find(word), std::string::npos) << found.status().text();
  }
}

TEST(Modules, OneThatIsNotThereIsAnErrorThatTellsTheFile) {
  const auto found = find_transport("pigeon");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kUnsupported);
  EXPECT_NE(found.status().text().find("libweir_pigeon.so"), std::string::npos)
      << found.status().text();
}

}  // namespace
}  // namespace weir::plugin
