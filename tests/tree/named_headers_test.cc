// SPDX-License-Identifier: Apache-2.0
// Every file includes what it names of the headers that are precompiled
// (cmake/WeirPrecompiled.cmake), itself or by a header of ours: a build with precompiled headers
// does not see that one is missing.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

// What stands for a header: names of namespace std, unless another one is written.
struct Names {
  const char* header;
  std::vector<const char*> names;
  std::vector<const char*> also_in;  // headers that have them, too
};

const std::vector<Names>& known() {
  static const std::vector<Names> kKnown = {
      {"algorithm",
       {"all_of",
        "any_of",
        "clamp",
        "copy",
        "copy_if",
        "copy_n",
        "count",
        "count_if",
        "equal",
        "fill",
        "fill_n",
        "find",
        "find_if",
        "find_if_not",
        "generate",
        "is_sorted",
        "lower_bound",
        "max",
        "max_element",
        "min",
        "min_element",
        "minmax",
        "mismatch",
        "move_backward",
        "next_permutation",
        "none_of",
        "nth_element",
        "partial_sort",
        "partition",
        "replace",
        "reverse",
        "rotate",
        "shuffle",
        "sort",
        "stable_sort",
        "swap_ranges",
        "transform",
        "unique",
        "upper_bound",
        "adjacent_find",
        "binary_search",
        "ranges",
        "lexicographical_compare"},
       {}},
      {"array", {"array", "to_array"}, {}},
      {"atomic",
       {"atomic", "atomic_ref", "atomic_flag", "atomic_thread_fence", "memory_order",
        "memory_order_relaxed", "memory_order_acquire", "memory_order_release",
        "memory_order_acq_rel", "memory_order_seq_cst"},
       {}},
      {"chrono", {"chrono"}, {}},
      {"condition_variable", {"condition_variable", "condition_variable_any", "cv_status"}, {}},
      {"deque", {"deque"}, {}},
      {"filesystem", {"filesystem"}, {}},
      {"fmt/format.h",
       {"fmt::format", "fmt::format_to", "fmt::format_to_n", "fmt::print", "fmt::runtime",
        "fmt::memory_buffer"},
       {"fmt/ranges.h", "fmt/core.h", "fmt/args.h"}},
      {"fstream", {"fstream", "ifstream", "ofstream"}, {}},
      {"functional", {"function", "hash", "ref", "cref", "less", "greater", "plus", "bind"}, {}},
      {"gtest/gtest.h", {"testing::"}, {"gmock/gmock.h"}},
      {"map", {"map", "multimap"}, {}},
      {"memory",
       {"unique_ptr", "shared_ptr", "weak_ptr", "make_unique", "make_shared", "addressof",
        "construct_at", "destroy_at", "enable_shared_from_this"},
       {}},
      {"mutex",
       {"mutex", "recursive_mutex", "lock_guard", "unique_lock", "scoped_lock", "call_once",
        "once_flag", "try_to_lock", "adopt_lock", "defer_lock"},
       {}},
      {"optional", {"optional", "nullopt", "make_optional"}, {}},
      {"random",
       {"mt19937", "mt19937_64", "random_device", "uniform_int_distribution",
        "uniform_real_distribution", "normal_distribution"},
       {}},
      {"set", {"set", "multiset"}, {}},
      {"span", {"span", "as_bytes", "as_writable_bytes", "dynamic_extent"}, {}},
      {"sstream", {"istringstream", "ostringstream", "stringstream"}, {}},
      {"string",
       {"string", "to_string", "stoi", "stol", "stoll", "stoul", "stoull", "stod", "getline"},
       {}},
      {"thread", {"thread", "jthread", "this_thread"}, {}},
      {"unordered_map", {"unordered_map", "unordered_multimap"}, {}},
      {"vector", {"vector"}, {}},
  };
  return kKnown;
}

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// "std::vector<…>" -> "vector", "fmt::print(…)" -> "fmt::print", "testing::Values(…)" ->
// "testing::".
std::set<std::string> names_in(const std::string& code) {
  std::set<std::string> names;
  for (const std::string_view space : {"std::", "fmt::", "testing::"}) {
    for (size_t at = code.find(space); at != std::string::npos; at = code.find(space, at + 1)) {
      if (at > 0 && is_of_name(code[at - 1])) continue;
      size_t end = at + space.size();
      while (end < code.size() && is_of_name(code[end])) ++end;
      const std::string name = code.substr(at + space.size(), end - at - space.size());
      if (space == "testing::")
        names.insert(std::string(space));
      else
        names.insert(space == "std::" ? name : std::string(space) + name);
    }
  }
  return names;
}

// All that `path` includes of others' headers, itself and by ours.
const std::set<std::string>& headers_behind(const std::string& path) {
  static std::map<std::string, std::set<std::string>> found;
  const auto [at, is_new] = found.try_emplace(path);
  if (!is_new) return at->second;
  std::set<std::string> headers;
  for (const Include& include : includes_of(read(path))) {
    const std::string ours = included_file(path, include.path);
    if (ours.empty()) {
      headers.insert(include.path);
    } else {
      const std::set<std::string>& more = headers_behind(ours);
      headers.insert(more.begin(), more.end());
    }
  }
  return found[path] = headers;
}

// The headers that a file with these names and these headers behind it lacks, each with a name of
// it.
std::vector<std::string> missing(const std::set<std::string>& names,
                                 const std::set<std::string>& headers) {
  std::vector<std::string> lacking;
  for (const Names& row : known()) {
    bool there = headers.count(row.header) != 0;
    for (const char* other : row.also_in) there = there || headers.count(other) != 0;
    if (there) continue;
    for (const char* name : row.names) {
      if (names.count(name) == 0) continue;
      lacking.push_back(std::string(row.header) + " for " + name);
      break;
    }
  }
  return lacking;
}

TEST(NamedHeaders, EveryFileIncludesThem) {
  for (const std::string& path : files()) {
    bool compiled = false;
    for (const char* folder : {"src/", "tools/", "perf/", "tests/"})
      compiled = compiled || starts_with(path, folder);
    if (!compiled || !(ends_with(path, ".h") || ends_with(path, ".cc"))) continue;
    for (const std::string& header : missing(names_in(code_of(read(path))), headers_behind(path)))
      ADD_FAILURE() << path << " does not include " << header;
  }
}

TEST(NamedHeaders, EveryPrecompiledHeaderIsKnown) {
  std::set<std::string> headers;
  for (const Names& row : known()) headers.insert(row.header);
  int count = 0;
  for (const std::string& line : lines_of(read("cmake/WeirPrecompiled.cmake"))) {
    if (!starts_with(line, "  <")) continue;
    ++count;
    const std::string header = line.substr(3, line.find('>') - 3);
    EXPECT_EQ(headers.count(header), 1u) << header << " is precompiled, and no name of it is known";
  }
  EXPECT_GT(count, 10);
}

TEST(NamedHeaders, AMissingOneIsSeen) {
  const std::set<std::string> names = names_in(
      "std::vector<int> a; my_std::map b; fmt::print(\"\", std::max(1, 2)); std::array<int, 2> c;");
  EXPECT_EQ(names, (std::set<std::string>{"array", "fmt::print", "max", "vector"}));
  EXPECT_EQ(missing(names, {"array", "fmt/core.h", "vector"}),
            std::vector<std::string>{"algorithm for max"});
  EXPECT_TRUE(missing(names, {"algorithm", "array", "fmt/format.h", "vector"}).empty());
}

}  // namespace
}  // namespace weir::tree
