// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cpuset.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>

namespace weir::topo {
namespace {

bool parse_number(std::string_view text, int base, uint64_t max, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  return error == std::errc() && end == text.data() + text.size() && *value <= max;
}

}  // namespace

Result<CpuSet> CpuSet::parse_mask(std::string_view text) {
  const std::string_view whole = text;
  std::vector<uint32_t> groups;  // most significant first
  while (true) {
    const size_t comma = text.find(',');
    std::string_view group = text.substr(0, comma);
    if (group.starts_with("0x") || group.starts_with("0X")) group.remove_prefix(2);
    uint64_t value = 0;
    if (!group.empty() && !parse_number(group, 16, UINT32_MAX, &value)) {
      return invalid_argument(
          fmt::format("\"{}\" is not a processor mask: groups of 8 hexadecimal digits, separated "
                      "by commas, are expected",
                      whole.substr(0, 80)));
    }
    groups.push_back(static_cast<uint32_t>(value));
    if (groups.size() > kCpuCountMax / 32) {
      return invalid_argument(fmt::format("processor mask has more than {} bits", kCpuCountMax));
    }
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  CpuSet set;
  set.words_.resize((groups.size() + 1) / 2);
  for (size_t i = 0; i < groups.size(); ++i) {
    const uint64_t group = groups[groups.size() - 1 - i];
    set.words_[i / 2] |= group << (i % 2 * 32);
  }
  set.trim();
  return set;
}

Result<CpuSet> CpuSet::parse_list(std::string_view text) {
  const std::string_view whole = text;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  CpuSet set;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    const size_t dash = range.find('-');
    uint64_t first = 0;
    bool good = parse_number(range.substr(0, dash), 10, kCpuCountMax - 1, &first);
    uint64_t last = first;
    if (dash != std::string_view::npos) {
      good = good && parse_number(range.substr(dash + 1), 10, kCpuCountMax - 1, &last);
    }
    if (!good || last < first) {
      return invalid_argument(
          fmt::format("\"{}\" is not a list of processors such as \"0-3,8\"", whole.substr(0, 80)));
    }
    for (uint64_t cpu = first; cpu <= last; ++cpu) set.add(static_cast<uint32_t>(cpu));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return set;
}

void CpuSet::add(uint32_t cpu) {
  WEIR_CHECK(cpu < kCpuCountMax, "processor number out of range");
  if (words_.size() <= cpu / 64) words_.resize(cpu / 64 + 1);
  words_[cpu / 64] |= uint64_t{1} << (cpu % 64);
}

void CpuSet::add(const CpuSet& other) {
  if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
  for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
}

bool CpuSet::contains(uint32_t cpu) const {
  return cpu / 64 < words_.size() && (words_[cpu / 64] >> (cpu % 64) & 1) != 0;
}

bool CpuSet::contains(const CpuSet& other) const {
  if (other.words_.size() > words_.size()) return false;
  for (size_t i = 0; i < other.words_.size(); ++i) {
    if ((other.words_[i] & ~words_[i]) != 0) return false;
  }
  return true;
}

bool CpuSet::intersects(const CpuSet& other) const {
  for (size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) {
    if ((other.words_[i] & words_[i]) != 0) return true;
  }
  return false;
}

size_t CpuSet::count() const {
  size_t count = 0;
  for (const uint64_t word : words_) count += static_cast<size_t>(std::popcount(word));
  return count;
}

std::vector<uint32_t> CpuSet::cpus() const {
  std::vector<uint32_t> cpus;
  for (size_t i = 0; i < words_.size(); ++i) {
    for (uint64_t word = words_[i]; word != 0; word &= word - 1) {
      cpus.push_back(static_cast<uint32_t>(i * 64 + static_cast<size_t>(std::countr_zero(word))));
    }
  }
  return cpus;
}

std::string CpuSet::list() const {
  std::string text;
  const std::vector<uint32_t> all = cpus();
  for (size_t i = 0; i < all.size();) {
    size_t end = i;
    while (end + 1 < all.size() && all[end + 1] == all[end] + 1) ++end;
    if (!text.empty()) text += ',';
    text += fmt::format("{}", all[i]);
    if (end > i) text += fmt::format("-{}", all[end]);
    i = end + 1;
  }
  return text;
}

std::string CpuSet::mask() const {
  if (words_.empty()) return "00000000";
  std::string text;
  for (size_t i = words_.size(); i-- > 0;) {
    const uint64_t high = words_[i] >> 32;
    if (!text.empty() || high != 0) text += fmt::format("{}{:08x}", text.empty() ? "" : ",", high);
    text += fmt::format("{}{:08x}", text.empty() ? "" : ",", words_[i] & UINT32_MAX);
  }
  return text;
}

void CpuSet::trim() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

}  // namespace weir::topo
