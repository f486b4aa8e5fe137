// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/launch_slurm.h"

#include <charconv>

namespace weir::comm {
namespace {

// Takes a number from the front of `text`.
bool take_number(std::string_view* text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
  if (error != std::errc()) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

bool take(std::string_view* text, std::string_view what) {
  if (text->substr(0, what.size()) != what) return false;
  text->remove_prefix(what.size());
  return true;
}

}  // namespace

std::optional<uint64_t> slurm_tasks_of_node(std::string_view list, uint64_t node_index) {
  std::optional<uint64_t> found;
  uint64_t first = 0;
  for (;;) {
    uint64_t tasks = 0;
    uint64_t repeat = 1;
    if (!take_number(&list, &tasks)) return std::nullopt;
    if (take(&list, "(x") && (!take_number(&list, &repeat) || !take(&list, ")"))) {
      return std::nullopt;
    }
    if (!found && node_index >= first && node_index - first < repeat) found = tasks;
    if (repeat > UINT64_MAX - first) return std::nullopt;
    first += repeat;
    if (list.empty()) return found;
    if (!take(&list, ",")) return std::nullopt;
  }
}

}  // namespace weir::comm
