// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/split.h"

#include <fmt/format.h>
#include <strings.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace weir::perf {
namespace {

bool read_value(const char* text, int base, int* value) {
  while (*text == ' ') ++text;
  if (base == 0 && strncasecmp(text, "0b", 2) == 0) {
    text += 2;
    base = 2;
  }
  if (*text < '0' || *text > 'f') return false;  // strtol would take blanks and a sign
  errno = 0;
  char* end = nullptr;
  const long number = std::strtol(text, &end, base);
  while (*end == ' ') ++end;
  if (end == text || *end != '\0' || errno != 0 || number > INT_MAX) return false;
  *value = static_cast<int>(number);
  return true;
}

}  // namespace

int Split::color(int process) const {
  switch (rule) {
    case Rule::kNone:
      return 0;
    case Rule::kAnd:
      return process & value;
    case Rule::kOr:
      return process | value;
    case Rule::kMod:
      return process % value;
    case Rule::kDiv:
      return process / value;
  }
  return 0;
}

std::string read_split(const char* mask, const char* rule, Split* split) {
  if (mask != nullptr) {
    split->rule = Split::Rule::kAnd;
    if (read_value(mask, 16, &split->value)) return {};
    return fmt::format("NCCL_TESTS_SPLIT_MASK {}: not a hexadecimal number", mask);
  }
  if (rule == nullptr) return {};
  constexpr struct {
    const char* name;
    Split::Rule rule;
  } kRules[] = {{"AND", Split::Rule::kAnd}, {"&", Split::Rule::kAnd},   {"OR", Split::Rule::kOr},
                {"|", Split::Rule::kOr},    {"MOD", Split::Rule::kMod}, {"%", Split::Rule::kMod},
                {"DIV", Split::Rule::kDiv}, {"/", Split::Rule::kDiv}};
  for (const auto& known : kRules) {
    const size_t length = std::strlen(known.name);
    if (strncasecmp(rule, known.name, length) != 0) continue;
    split->rule = known.rule;
    const bool divides = known.rule == Split::Rule::kMod || known.rule == Split::Rule::kDiv;
    if (read_value(rule + length, 0, &split->value) && !(divides && split->value == 0)) return {};
  }
  return fmt::format(
      "NCCL_TESTS_SPLIT {}: give AND, OR, MOD or DIV and a number, as in \"MOD 2\" or \"AND 0x7\"",
      rule);
}

}  // namespace weir::perf
