// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weir::tools {

using offload::GroupDescription;
using offload::InspectReport;
using offload::SlotReport;
using offload::SlotState;
using offload::StoreDescription;

namespace {

constexpr size_t kGroupsShown = 16;

const char* slot_name(uint32_t slot) { return slot == 0 ? "A" : "B"; }

// Names come from the disk: control characters are shown as \xNN.
std::string printable(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text;
}

const char* kind_of(const InspectReport& report) {
  return report.metadata.header.kind == offload::StoreKind::kStore ? "store" : "checkpoint";
}

std::string slot_text(const InspectReport& report, uint32_t slot) {
  const SlotReport& found = report.slots[slot];
  const SlotState& state = report.metadata.newest.slots[slot];
  const bool current = report.metadata.newest.current == slot;
  std::string text = fmt::format("slot {}{}: ", slot_name(slot), current ? " (current)" : "");
  if (!found.present) return text + "not part of a checkpoint\n";
  if (!found.missing.empty()) return text + "cannot be read: " + found.missing + "\n";
  text += state.committed ? fmt::format("epoch {}, step {}, {} of {} chunks", state.epoch,
                                        state.step, found.state_chunks, report.chunk_count)
                          : std::string("nothing committed");
  if (state.held) text += ", held by a checkpoint";
  if (found.other_chunks > 0) {
    text += fmt::format("; {} chunks of a step that was not committed", found.other_chunks);
  }
  if (found.empty_chunks > 0) text += fmt::format("; {} never written", found.empty_chunks);
  if (found.bad_chunks > 0) text += fmt::format("; {} BAD", found.bad_chunks);
  text += "\n";
  if (!found.grown.empty()) text += "  " + found.grown + "\n";
  for (const offload::BadChunk& bad : found.first_bad) {
    text += fmt::format("  chunk {}: {}\n", bad.chunk, bad.why);
  }
  if (found.bad_chunks > found.first_bad.size()) {
    text += fmt::format("  and {} more\n", found.bad_chunks - found.first_bad.size());
  }
  return text;
}

nlohmann::ordered_json slot_json(const InspectReport& report, uint32_t slot) {
  const SlotReport& found = report.slots[slot];
  const SlotState& state = report.metadata.newest.slots[slot];
  nlohmann::ordered_json json;
  json["slot"] = slot_name(slot);
  json["current"] = report.metadata.newest.current == slot;
  json["present"] = found.present;
  json["committed"] = state.committed;
  json["whole"] = report.whole(slot);
  json["epoch"] = state.epoch;
  json["step"] = state.step;
  json["held"] = state.held;
  json["missing"] = found.missing;
  json["grown"] = found.grown;
  json["state_chunks"] = found.state_chunks;
  json["other_chunks"] = found.other_chunks;
  json["empty_chunks"] = found.empty_chunks;
  json["bad_chunks"] = found.bad_chunks;
  json["first_bad"] = nlohmann::ordered_json::array();
  for (const offload::BadChunk& bad : found.first_bad) {
    json["first_bad"].push_back({{"chunk", bad.chunk}, {"why", bad.why}});
  }
  return json;
}

// Names come from the disk: invalid UTF-8 is replaced, not rejected.
std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

const char* name_of(offload::Verdict verdict) {
  switch (verdict) {
    case offload::Verdict::kGood:
      return "good";
    case offload::Verdict::kRecoverable:
      return "recoverable";
    case offload::Verdict::kLost:
      return "lost";
  }
  return "?";
}

std::string to_text(const InspectReport& report, const std::vector<std::string>& directories,
                    bool every_group) {
  const offload::Header& header = report.metadata.header;
  const StoreDescription& d = header.description;
  std::string text = fmt::format("{} {}, format {}, in {}\n", kind_of(report), header.id.text(),
                                 offload::kFormatVersion, fmt::join(directories, ", "));
  text += fmt::format("model '{}', fingerprint {:016x}, rank {} of {}\n", printable(d.model),
                      d.fingerprint, d.rank, d.rank_count);
  text += fmt::format("{} chunks of {} bytes, {} groups\n", report.chunk_count, d.chunk_bytes,
                      d.groups.size());
  const size_t shown = every_group ? d.groups.size() : std::min(d.groups.size(), kGroupsShown);
  for (size_t g = 0; g < shown; ++g) {
    const GroupDescription& group = d.groups[g];
    text += fmt::format("  '{}': elements {} to {}, method {}, state format {}, {} in a chunk\n",
                        printable(group.name), group.first_element,
                        group.first_element + group.element_count, group.method, group.state_format,
                        group.chunk_elements);
  }
  if (shown < d.groups.size()) {
    text += fmt::format("  and {} more (--groups shows all)\n", d.groups.size() - shown);
  }
  const auto good = std::count_if(report.metadata.copies.begin(), report.metadata.copies.end(),
                                  [](const offload::MetadataCopy& copy) { return copy.good; });
  text += fmt::format("metadata: {} of {} copies good, commit record {}\n", good,
                      report.metadata.copies.size(), report.metadata.newest.sequence);
  for (const std::string& problem : report.metadata.problems) text += "  " + problem + "\n";
  for (uint32_t slot = 0; slot < 2; ++slot) text += slot_text(report, slot);
  text += fmt::format("{}: {}\n", name_of(report.verdict()), report.summary());
  return text;
}

std::string to_json(const InspectReport& report, const std::vector<std::string>& directories) {
  const offload::Header& header = report.metadata.header;
  const StoreDescription& d = header.description;
  nlohmann::ordered_json json;
  json["verdict"] = name_of(report.verdict());
  json["summary"] = report.summary();
  json["kind"] = kind_of(report);
  json["directories"] = directories;
  json["id"] = header.id.text();
  json["format_version"] = offload::kFormatVersion;
  json["model"] = d.model;
  json["fingerprint"] = fmt::format("{:016x}", d.fingerprint);
  json["rank"] = d.rank;
  json["rank_count"] = d.rank_count;
  json["chunk_bytes"] = d.chunk_bytes;
  json["chunk_count"] = report.chunk_count;
  json["groups"] = nlohmann::ordered_json::array();
  for (const GroupDescription& group : d.groups) {
    json["groups"].push_back({{"name", group.name},
                              {"element_count", group.element_count},
                              {"first_element", group.first_element},
                              {"chunk_elements", group.chunk_elements},
                              {"method", group.method},
                              {"state_format", group.state_format}});
  }
  json["commit_sequence"] = report.metadata.newest.sequence;
  json["metadata_copies"] = nlohmann::ordered_json::array();
  for (const offload::MetadataCopy& copy : report.metadata.copies) {
    json["metadata_copies"].push_back({{"path", copy.path}, {"good", copy.good}});
  }
  json["metadata_problems"] = report.metadata.problems;
  json["slots"] = {slot_json(report, 0), slot_json(report, 1)};
  return dump(json);
}

std::string error_json(const Status& status, const std::vector<std::string>& directories,
                       bool lost) {
  nlohmann::ordered_json json;
  json["verdict"] = lost ? "lost" : "unknown";
  json["summary"] = status.text();
  json["directories"] = directories;
  return dump(json);
}

}  // namespace weir::tools
