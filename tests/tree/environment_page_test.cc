// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/base/settings.h"
#include "tree/tree_files.h"

namespace weir::tree {
namespace {

TEST(EnvironmentPage, EqualsTheTextThatTheCodeGenerates) {
  EXPECT_EQ(read("docs/environment.md"), settings_markdown())
      << "write it anew: build/dev/bin/weir-info --markdown > docs/environment.md";
}

TEST(EnvironmentPage, ListsEveryVariableOnceWithAName) {
  std::set<std::string> names;
  for (const SettingInfo& info : setting_table()) {
    const std::string name = info.name;
    EXPECT_TRUE(starts_with(name, "WEIR_")) << name;
    EXPECT_TRUE(names.insert(name).second) << name << " stands twice in the table";
    EXPECT_NE(std::string(info.help), "") << name;
    EXPECT_NE(read("docs/environment.md").find("`" + name + "`"), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace weir::tree
