// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/agreed_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/comm/start/program_files.h"

namespace weir::comm {

namespace {

// The lines of two lists of settings that differ.
std::string setting_difference(std::string_view of_0, Rank rank, std::string_view of_rank) {
  const auto take_line = [](std::string_view* text) {
    const size_t end = std::min(text->find('\n'), text->size());
    const std::string_view line = text->substr(0, end);
    text->remove_prefix(std::min(end + 1, text->size()));
    return line;
  };
  std::string texts[2];
  while (!of_0.empty() || !of_rank.empty()) {
    const std::string_view lines[] = {take_line(&of_0), take_line(&of_rank)};
    if (lines[0] == lines[1]) continue;
    for (int i = 0; i < 2; ++i) (texts[i] += texts[i].empty() ? "" : ", ") += lines[i];
  }
  return fmt::format("rank 0: {}; rank {}: {}", texts[0], rank, texts[1]);
}

}  // namespace

std::string describe_rules(const cost::Rules& rules) {
  std::string text;
  for (const cost::Rule& rule : rules.rules) {
    text += fmt::format("[{}={} {}-{} bytes {}-{} ranks slice {}]", weir::name_of(rule.collective),
                        rule.algorithm->name, rule.bytes_min, rule.bytes_max, rule.ranks_min,
                        rule.ranks_max, rule.slice_bytes);
  }
  return text.empty() ? "none" : text;
}

namespace {

std::string_view settings_part(std::string_view text) {
  return text.substr(0, std::min(text.find(kProgramsMark), text.size()));
}

std::string_view programs_part(std::string_view text) {
  const size_t at = text.find(kProgramsMark);
  return at == std::string_view::npos ? "" : text.substr(at + kProgramsMark.size());
}

}  // namespace

Status check_same_settings(const std::vector<Introduction>& all) {
  const std::string_view first = all[0].settings;
  for (Rank p = 0; p < all.size(); ++p) {
    const std::string_view other = all[p].settings;
    const std::string programs =
        program_difference(0, programs_part(first), p, programs_part(other));
    if (!programs.empty()) {
      return Status(
          Code::kMismatch,
          fmt::format("all ranks must have the same programs in WEIR_PROGRAMS; {}", programs));
    }
    if (settings_part(first) == settings_part(other)) continue;
    return Status(Code::kMismatch,
                  fmt::format("ranks 0 and {} must run with the same settings; {}", p,
                              setting_difference(settings_part(first), p, settings_part(other))));
  }
  return {};
}

}  // namespace weir::comm
