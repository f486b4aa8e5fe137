// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/fabric_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/base/rank_list.h"
#include "core/comm/start/card_choice.h"

namespace weir::comm {
namespace {

using topo::CardKind;

constexpr size_t kTextBytesMax = 400;
constexpr size_t kHeadBytes = 4;
constexpr size_t kNearBytesMax = 4096;
constexpr CardKind kKinds[] = {CardKind::kInfiniBand, CardKind::kRoce, CardKind::kEfa};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Of another rank's text is printed only what this leaves.
std::string bounded(std::string_view text) {
  std::string out(text.substr(0, kTextBytesMax));
  std::replace_if(out.begin(), out.end(), is_control, '?');
  return out;
}

bool is_bounded(std::string_view text) {
  return text.size() <= kTextBytesMax && std::none_of(text.begin(), text.end(), is_control);
}

std::string kinds_in(uint8_t kinds) {
  std::string text;
  for (const CardKind kind : kKinds) {
    if ((kinds & static_cast<uint8_t>(kind)) == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : " and ", name_of(kind));
  }
  return text;
}

std::vector<Rank> ranks_where(const std::vector<CardsSeen>& all,
                              const std::function<bool(const CardsSeen&)>& is) {
  std::vector<Rank> ranks;
  for (Rank p = 0; p < all.size(); ++p) {
    if (is(all[p])) ranks.push_back(p);
  }
  return ranks;
}

// Why no card is used, as far as that follows from what the ranks have seen; else "".
std::string why_not(const std::vector<CardsSeen>& all, uint8_t common) {
  const auto refused =
      ranks_where(all, [](const CardsSeen& it) { return it.stance == FabricStance::kRefused; });
  if (!refused.empty()) return fmt::format("WEIR_FABRIC=0 on {}", describe_ranks(refused));
  const auto named =
      ranks_where(all, [](const CardsSeen& it) { return it.stance == FabricStance::kNamed; });
  if (!named.empty()) {
    return fmt::format("the program, WEIR_TRANSPORT or WEIR_FAILOVER names transports on {}",
                       describe_ranks(named));
  }
  const auto without = ranks_where(all, [](const CardsSeen& it) { return it.cards.kinds == 0; });
  if (!without.empty()) {
    const auto blind = std::find_if(without.begin(), without.end(),
                                    [&](Rank p) { return !all[p].cards.text.empty(); });
    return fmt::format("no active InfiniBand, RoCE or EFA on {}{}", describe_ranks(without),
                       blind == without.end()
                           ? ""
                           : fmt::format("; rank {} has {}", *blind, all[*blind].cards.text));
  }
  if (common != 0) return "";
  // Some rank lacks each kind that rank 0 has.
  std::string text = fmt::format("the ranks have no kind of card in common: rank 0 has {}",
                                 kinds_in(all[0].cards.kinds));
  uint8_t left = all[0].cards.kinds;
  for (Rank p = 1; p < all.size(); ++p) {
    if ((left & ~all[p].cards.kinds) == 0) continue;
    left &= all[p].cards.kinds;
    text += fmt::format(", rank {} {}", p, kinds_in(all[p].cards.kinds));
    if (left == 0) break;
  }
  return text;
}

}  // namespace

FabricStance stance_of(const Settings& settings) {
  if (settings.fabric == "0") return FabricStance::kRefused;
  const bool named = !settings.transport.empty() || !settings.failover.empty();
  return named ? FabricStance::kNamed : FabricStance::kFree;
}

std::string CardsSeen::pack() const {
  std::string bytes;
  bytes += static_cast<char>(stance);
  bytes += static_cast<char>(cards.kinds);
  std::string names;
  for (const std::string& name : near) {
    if (names.size() + name.size() >= kNearBytesMax) break;
    names += (names.empty() ? "" : ",") + name;
  }
  bytes += static_cast<char>(names.size());
  bytes += static_cast<char>(names.size() >> 8);
  return bytes + names + bounded(cards.text);
}

bool CardsSeen::unpack(const std::string& bytes, CardsSeen* seen) {
  if (bytes.size() < kHeadBytes) return false;
  const auto stance = static_cast<uint8_t>(bytes[0]);
  seen->stance = static_cast<FabricStance>(stance);
  seen->cards.kinds = static_cast<uint8_t>(bytes[1]);
  const size_t near_bytes =
      static_cast<unsigned char>(bytes[2]) + size_t{static_cast<unsigned char>(bytes[3])} * 256;
  if (near_bytes > kNearBytesMax || near_bytes > bytes.size() - kHeadBytes) return false;
  seen->near = split_names(bytes.substr(kHeadBytes, near_bytes));
  for (const std::string& name : seen->near) {
    if (!is_bounded(name)) return false;
  }
  seen->cards.text = bytes.substr(kHeadBytes + near_bytes);
  return stance <= static_cast<uint8_t>(FabricStance::kRefused) &&
         seen->cards.kinds <= topo::kCardKindsAll && is_bounded(seen->cards.text);
}

Result<FabricChoice> choose_fabric(const std::vector<CardsSeen>& all, const CanUse& can_use,
                                   const Exchange& exchange) {
  uint8_t common = topo::kCardKindsAll;
  for (const CardsSeen& it : all) common &= it.cards.kinds;
  if (const std::string reason = why_not(all, common); !reason.empty()) {
    return FabricChoice{"", reason};
  }
  const bool only_efa = common == static_cast<uint8_t>(CardKind::kEfa);
  const std::string have =
      fmt::format("all ranks have active {}, rank 0: {}", kinds_in(common), all[0].cards.text);
  std::string refusals;
  for (const std::string name : {"ucx", "ofi"}) {
    if (only_efa && name == "ucx") continue;
    const Status own = can_use(name);
    auto answers = exchange(own.ok() ? "+" : "-" + bounded(own.text()));
    if (!answers.ok()) return answers.status();
    Rank lacking = 0;
    while (lacking < all.size() && answers.value()[lacking] == "+") ++lacking;
    if (lacking == all.size()) {
      return FabricChoice{name, fmt::format("{}{}; all can use {}", have, refusals, name)};
    }
    for (Rank p = 0; p < all.size(); ++p) {
      const std::string& answer = answers.value()[p];
      if (answer == "+" || (answer.starts_with('-') && is_bounded(answer.substr(1)))) continue;
      return Status(Code::kRefused, fmt::format("what rank {} sent of its transports cannot be "
                                                "read; do all ranks run the same version of Weir?",
                                                p));
    }
    refusals += fmt::format("; rank {} cannot use {}: {}", lacking, name,
                            answers.value()[lacking].substr(1));
  }
  return FabricChoice{"", have + refusals};
}

}  // namespace weir::comm
