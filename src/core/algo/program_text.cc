// SPDX-License-Identifier: Apache-2.0
#include "core/algo/program_text.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "core/algo/msccl.h"

namespace weir::algo {
namespace {

// Takes `word` and the number after it from the front of `text`.
std::optional<uint32_t> take_number(std::string_view* text, std::string_view word) {
  if (!text->starts_with(word)) return std::nullopt;
  uint32_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data() + word.size(), end, number);
  if (error != std::errc()) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(rest - text->data()));
  return number;
}

}  // namespace

Result<ProgramText> read_programs(std::string_view text, std::string_view name) {
  if (text.size() > kProgramTextBytesMax) {
    return invalid_argument(fmt::format("{}: {} bytes are more than the {} of a file of programs",
                                        name, text.size(), kProgramTextBytesMax));
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) {
    return invalid_argument(fmt::format("{}: the file is empty", name));
  }
  if (text[first] == '<') return read_msccl(text, name);
  Result<sched::ProgramSet> set = sched::from_json(text);
  if (!set.ok()) return set.status().with_context(std::string(name));
  return ProgramText{set.take(), {}};
}

std::string with_origins(const std::string& text, const ProgramText& programs) {
  std::string all = text;
  std::set<std::pair<uint32_t, uint32_t>> told;
  constexpr std::string_view kRank = "rank ";
  for (size_t at = text.find(kRank); at != std::string::npos; at = text.find(kRank, at + 1)) {
    std::string_view rest = std::string_view(text).substr(at);
    const std::optional<uint32_t> rank = take_number(&rest, kRank);
    const std::optional<uint32_t> op = rank ? take_number(&rest, " op ") : std::nullopt;
    if (!op || *rank >= programs.origins.size() || *op >= programs.origins[*rank].size()) continue;
    const std::string& origin = programs.origins[*rank][*op];
    if (origin.empty() || !told.insert({*rank, *op}).second) continue;
    all += fmt::format("; rank {} op {} is of gpu {} {}", *rank, *op, *rank, origin);
  }
  return all;
}

}  // namespace weir::algo
