// SPDX-License-Identifier: Apache-2.0
#include "core/cost/rules.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>

#include "core/base/private_files.h"

namespace weir::cost {

namespace {

constexpr uint64_t kSliceBytesMin = 64;
constexpr uint64_t kSliceBytesMax = uint64_t{1} << 30;
constexpr size_t kFileBytesMax = 1 << 20;

std::optional<Collective> collective_named(std::string_view name) {
  for (uint32_t i = 0; i < kCollectiveCount; ++i) {
    const Collective collective = static_cast<Collective>(i);
    if (name == name_of(collective)) return collective;
  }
  return std::nullopt;
}

std::string collective_names() {
  std::string names;
  for (uint32_t i = 0; i < kCollectiveCount; ++i) {
    names += std::string(i == 0 ? "" : ", ") + name_of(static_cast<Collective>(i));
  }
  return names;
}

using Algorithms = std::span<const algo::Algorithm* const>;

std::string algorithm_names(Collective collective, Algorithms among) {
  std::string names;
  for (const algo::Algorithm* algorithm : among) {
    if (algorithm->collective != collective) continue;
    names += std::string(names.empty() ? "" : ", ") + algorithm->name;
  }
  return names.empty() ? "none" : names;
}

// "64K" -> 65536.
std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  int shift = 0;
  if (unit == "K") shift = 10;
  if (unit == "M") shift = 20;
  if (unit == "G") shift = 30;
  if (shift == 0 && !unit.empty()) return std::nullopt;
  if (value > (~uint64_t{0} >> shift)) return std::nullopt;
  return value << shift;
}

class Reader {
 public:
  Reader(std::string file, Algorithms among) : among_(among) { rules_.file = std::move(file); }

  void fail(const toml::source_region& source, const std::string& reason) {
    if (!errors_.empty()) errors_ += "\n";
    errors_ += fmt::format("{}:{}: {}", rules_.file, source.begin.line, reason);
  }

  void read(const toml::table& document) {
    for (const auto& [key, node] : document) {
      if (key.str() != "rule") {
        fail(node.source(), fmt::format("unknown key '{}'; only [[rule]] is known", key.str()));
        continue;
      }
      const toml::array* list = node.as_array();
      if (list == nullptr || !list->is_array_of_tables()) {
        fail(node.source(), "'rule' needs double brackets: [[rule]]");
        continue;
      }
      for (const toml::node& element : *list) read_rule(*element.as_table());
    }
  }

  Result<Rules> take() {
    if (!errors_.empty()) return invalid_argument(errors_);
    return std::move(rules_);
  }

 private:
  void read_rule(const toml::table& table) {
    Rule rule;
    rule.line = table.source().begin.line;
    const size_t errors_before = errors_.size();
    const toml::node* algorithm = nullptr;
    bool has_collective = false;
    for (const auto& [key, node] : table) {
      const std::string_view name = key.str();
      if (name == "collective") {
        has_collective = read_collective(node, &rule);
      } else if (name == "algorithm") {
        algorithm = &node;
      } else if (name == "bytes_min") {
        read_bytes(name, node, &rule.bytes_min);
      } else if (name == "bytes_max") {
        read_bytes(name, node, &rule.bytes_max);
      } else if (name == "ranks_min") {
        read_ranks(name, node, &rule.ranks_min);
      } else if (name == "ranks_max") {
        read_ranks(name, node, &rule.ranks_max);
      } else if (name == "slice_bytes") {
        read_slice(node, &rule.slice_bytes);
      } else {
        fail(node.source(),
             fmt::format("unknown key '{}'; known are collective, algorithm, bytes_min, bytes_max, "
                         "ranks_min, ranks_max, slice_bytes",
                         name));
      }
    }
    if (table.get("collective") == nullptr) fail(table.source(), "the rule has no 'collective'");
    if (algorithm == nullptr) {
      fail(table.source(), "the rule has no 'algorithm'");
    } else if (has_collective) {
      read_algorithm(*algorithm, &rule);
    }
    check_range(table, "bytes", rule.bytes_min, rule.bytes_max);
    check_range(table, "ranks", rule.ranks_min, rule.ranks_max);
    if (errors_.size() != errors_before) return;
    check_overlap(table, rule);
    rules_.rules.push_back(rule);
  }

  bool read_collective(const toml::node& node, Rule* rule) {
    const auto name = node.value_exact<std::string>();
    const auto collective = name ? collective_named(*name) : std::nullopt;
    if (!name) {
      fail(node.source(), "'collective' needs text in quotes");
    } else if (!collective) {
      fail(node.source(),
           fmt::format("unknown collective '{}'; known are {}{}", *name, collective_names(),
                       name->ends_with("_v") ? " (rules for these hold for v-variants, too)" : ""));
    } else {
      rule->collective = *collective;
    }
    return collective.has_value();
  }

  void read_algorithm(const toml::node& node, Rule* rule) {
    const auto name = node.value_exact<std::string>();
    if (!name) {
      fail(node.source(), "'algorithm' needs text in quotes");
      return;
    }
    rule->algorithm = algo::find_algorithm(rule->collective, *name, among_);
    if (rule->algorithm == nullptr) {
      fail(node.source(),
           fmt::format("unknown algorithm '{}' of {}; known are {}", *name,
                       weir::name_of(rule->collective), algorithm_names(rule->collective, among_)));
    }
  }

  void read_bytes(std::string_view key, const toml::node& node, uint64_t* bytes) {
    if (const auto number = node.value_exact<int64_t>(); number && *number >= 0) {
      *bytes = static_cast<uint64_t>(*number);
      return;
    }
    const auto text = node.value_exact<std::string>();
    const auto parsed = text ? parse_bytes(*text) : std::nullopt;
    if (!parsed) {
      fail(node.source(),
           fmt::format("'{}' needs bytes: an integer >= 0, or text such as \"64K\", \"1M\"", key));
      return;
    }
    *bytes = *parsed;
  }

  void read_ranks(std::string_view key, const toml::node& node, uint32_t* ranks) {
    const auto number = node.value_exact<int64_t>();
    if (!number || *number < 1 || *number > 0xffffffff) {
      fail(node.source(), fmt::format("'{}' needs an integer >= 1", key));
      return;
    }
    *ranks = static_cast<uint32_t>(*number);
  }

  void read_slice(const toml::node& node, uint64_t* bytes) {
    const size_t errors_before = errors_.size();
    read_bytes("slice_bytes", node, bytes);
    if (errors_.size() != errors_before) return;
    if (*bytes < kSliceBytesMin || *bytes > kSliceBytesMax || *bytes % 64 != 0) {
      fail(node.source(),
           fmt::format("'slice_bytes' is {}; allowed are multiples of 64 from {} to {}", *bytes,
                       kSliceBytesMin, kSliceBytesMax));
    }
  }

  void check_range(const toml::table& table, const char* what, uint64_t least, uint64_t most) {
    if (least <= most) return;
    const toml::node* node = table.get(std::string(what) + "_min");
    fail(node != nullptr ? node->source() : table.source(),
         fmt::format("empty range: {0}_min {1} is above {0}_max {2}", what, least, most));
  }

  void check_overlap(const toml::table& table, const Rule& rule) {
    for (const Rule& other : rules_.rules) {
      if (other.collective != rule.collective) continue;
      if (other.bytes_max < rule.bytes_min || rule.bytes_max < other.bytes_min) continue;
      if (other.ranks_max < rule.ranks_min || rule.ranks_max < other.ranks_min) continue;
      fail(table.source(), fmt::format("overlaps with the rule of line {}: both apply to {} of {} "
                                       "bytes on {} rank{}",
                                       other.line, weir::name_of(rule.collective),
                                       std::max(other.bytes_min, rule.bytes_min),
                                       std::max(other.ranks_min, rule.ranks_min),
                                       std::max(other.ranks_min, rule.ranks_min) == 1 ? "" : "s"));
      return;
    }
  }

  Algorithms among_;
  Rules rules_;
  std::string errors_;
};

}  // namespace

const Rule* Rules::find(Collective collective, uint64_t bytes, uint32_t rank_count) const {
  for (const Rule& rule : rules) {
    if (rule.collective == collective && rule.bytes_min <= bytes && bytes <= rule.bytes_max &&
        rule.ranks_min <= rank_count && rank_count <= rule.ranks_max) {
      return &rule;
    }
  }
  return nullptr;
}

Result<Rules> parse_rules(const std::string& text, const std::string& file_name, Algorithms among) {
  Reader reader(file_name, among);
  try {
    reader.read(toml::parse(text, file_name));
  } catch (const toml::parse_error& error) {
    reader.fail(error.source(), std::string(error.description()));
  }
  return reader.take();
}

Result<Rules> load_rules(const std::string& path, Algorithms among) {
  Result<std::string> text = read_any_file(path, kFileBytesMax);
  if (!text.ok()) return text.status().with_context("tuning file");
  return parse_rules(text.value(), path, among);
}

}  // namespace weir::cost
