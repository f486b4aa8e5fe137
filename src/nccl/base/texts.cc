// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/texts.h"

#include <cctype>
#include <string_view>
#include <utility>

namespace weir::nccl {

namespace {

using Words = std::pair<std::string_view, std::string_view>;

constexpr Words kPhrases[] = {
    {"call weir_comm_lost_ranks again and exclude", "exclude"},
    {"rank_count", "nranks"},
    {"weir_comm_shrink", "ncclCommShrink"},
    {"weir_comm_split", "ncclCommSplit"},
    {"weir_wait_signal", "ncclWaitSignal"},
    {"weir_window_create", "ncclCommWindowRegister"},
    {"window_create()", "ncclCommWindowRegister"},
    {"window_destroy()", "ncclCommWindowDeregister"},
    {" aborted communicator '",
     " called ncclCommAbort (or ncclCommShrink with NCCL_SHRINK_ABORT) on communicator '"},
    {" revoked communicator '", " called ncclCommRevoke on communicator '"},
    {" was aborted on this rank (", " was aborted by ncclCommAbort on this rank ("},
    {" was revoked on this rank (", " was revoked by ncclCommRevoke on this rank ("},
    {" destroyed the communicator", " destroyed the communicator with ncclCommDestroy"},
    {"send of ", "ncclSend of "},
    {"receive of ", "ncclRecv of "},
};

// The names before a call's parenthesis.
constexpr Words kFunctions[] = {
    {"all_reduce", "ncclAllReduce"}, {"reduce_scatter", "ncclReduceScatter"},
    {"all_gather", "ncclAllGather"}, {"broadcast", "ncclBroadcast"},
    {"reduce", "ncclReduce"},        {"all_to_all", "ncclAlltoAll"},
    {"gather", "ncclGather"},        {"scatter", "ncclScatter"},
};

constexpr Words kArguments[] = {
    {"int8", "ncclInt8"},
    {"uint8", "ncclUint8"},
    {"int32", "ncclInt32"},
    {"uint32", "ncclUint32"},
    {"int64", "ncclInt64"},
    {"uint64", "ncclUint64"},
    {"float16", "ncclFloat16"},
    {"float32", "ncclFloat32"},
    {"float64", "ncclFloat64"},
    {"bfloat16", "ncclBfloat16"},
    {"float8_e4m3", "ncclFloat8e4m3"},
    {"float8_e5m2", "ncclFloat8e5m2"},
    {"sum", "ncclSum"},
    {"prod", "ncclProd"},
    {"max", "ncclMax"},
    {"min", "ncclMin"},
    {"avg", "ncclAvg"},
    {"premul_sum", "a pre-multiplied sum"},
};

bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// The whole word that ends before `end`.
size_t begin_of_word(std::string_view text, size_t end) {
  while (end > 0 && is_of_word(text[end - 1])) --end;
  return end;
}

template <size_t kCount>
std::string_view found(const Words (&words)[kCount], std::string_view word) {
  for (const auto& [ours, theirs] : words) {
    if (ours == word) return theirs;
  }
  return {};
}

void replace_phrases(std::string* text) {
  for (const auto& [ours, theirs] : kPhrases) {
    for (size_t at = 0; (at = text->find(ours, at)) != std::string::npos; at += theirs.size()) {
      if (is_of_word(ours.front()) && begin_of_word(*text, at) != at) {
        at += ours.size() - theirs.size();  // within another word
        continue;
      }
      text->replace(at, ours.size(), theirs);
    }
  }
}

// "float32, sum, count 7" in NCCL's names.
std::string arguments(std::string_view ours) {
  std::string text;
  while (!ours.empty()) {
    const size_t comma = ours.find(", ");
    const std::string_view one = ours.substr(0, comma);
    text += argument_of_nccl(one);
    if (comma == std::string_view::npos) break;
    text += ", ";
    ours.remove_prefix(comma + 2);
  }
  return text;
}

// "all_reduce(float32, sum, count 7)" wherever it stands.
void replace_calls(std::string* text) {
  for (size_t at = 0; (at = text->find('(', at)) != std::string::npos; ++at) {
    const size_t begin = begin_of_word(*text, at);
    const std::string_view theirs =
        found(kFunctions, std::string_view(*text).substr(begin, at - begin));
    const size_t end = text->find(')', at);
    if (theirs.empty() || end == std::string::npos) continue;
    const std::string call =
        std::string(theirs) + "(" + arguments(std::string_view(*text).substr(at + 1, end - at - 1));
    text->replace(begin, end - begin, call);
    at = begin + theirs.size();
  }
}

}  // namespace

std::string_view argument_of_nccl(std::string_view ours) {
  const std::string_view theirs = found(kArguments, ours);
  return theirs.empty() ? ours : theirs;
}

std::string for_callers_of_nccl(std::string text) {
  replace_phrases(&text);
  replace_calls(&text);
  return text;
}

}  // namespace weir::nccl
