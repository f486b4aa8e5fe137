// SPDX-License-Identifier: Apache-2.0
// Whatever lies in a file of the recorder gets an answer: a record whose numbers are in range and
// that every report can show, alone and beside another rank's, or an error whose text is not empty.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/record/record_file.h"
#include "weir_trace/report.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void show(std::vector<weir::comm::Record> records) {
  weir::trace::JudgeOptions options;
  options.now_ns = 1'800'000'000'000'000'000u;
  weir::trace::Report report;
  report.now_ns = options.now_ns;
  report.groups = weir::trace::group_records(std::move(records));
  require(!report.groups.empty());
  require(!weir::trace::latest_job(report.groups).empty());
  report.verdicts = weir::trace::judge_all(report.groups, options);
  for (const weir::trace::Verdict& verdict : report.verdicts) require(!verdict.text.empty());
  require(!weir::trace::text_of(report).empty());
  require(!nlohmann::json::parse(weir::trace::json_of(report), nullptr, false).is_discarded());
  require(!nlohmann::json::parse(weir::trace::chrome_of(report), nullptr, false).is_discarded());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const weir::Result<weir::comm::Record> parsed = weir::comm::parse_record(data, bytes, "input");
  if (!parsed.ok()) {
    require(!parsed.status().text().empty());
    return 0;
  }
  const weir::comm::Record& record = parsed.value();
  require(record.rank < record.rank_count);
  for (const weir::Rank rank : record.wait.awaited) require(rank < record.rank_count);
  for (const auto& message : record.messages) require(message.peer < record.rank_count);
  for (const auto& way : record.ways) {
    require(way.peer < record.rank_count && way.text.size() <= weir::comm::kWayTextBytesMax);
  }
  for (const auto& operation : record.operations)
    require(record.find(operation.sequence) != nullptr);

  show({record});
  // Beside a rank that is one operation behind, dead, and in the other state.
  weir::comm::Record other = record;
  other.rank = record.rank == 0 ? record.rank_count - 1 : record.rank - 1;
  if (!other.operations.empty()) other.operations.pop_back();
  other.life = weir::comm::Life::kDead;
  other.state = record.state == weir::comm::RecordState::kOpen ? weir::comm::RecordState::kFailed
                                                               : weir::comm::RecordState::kOpen;
  show({record, other});
  return 0;
}
