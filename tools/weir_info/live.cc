// SPDX-License-Identifier: Apache-2.0
#include "weir_info/live.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/comm/record/record_folder.h"
#include "weir_trace/report.h"

namespace weir::info {

namespace {

// The most ways shown for a rank; the JSON has them all.
constexpr size_t kWaysShownMax = 16;

std::string ways_of(const trace::Group& group) {
  std::string text;
  for (const comm::Record& record : group.records) {
    if (!record.ways.empty()) text += fmt::format("  rank {} reaches\n", record.rank);
    for (size_t i = 0; i < std::min(record.ways.size(), kWaysShownMax); ++i) {
      text += fmt::format("    {}\n", record.ways[i].text);
    }
    if (record.ways.size() > kWaysShownMax) {
      text +=
          fmt::format("    and {} more, which --json shows\n", record.ways.size() - kWaysShownMax);
    }
  }
  return text;
}

}  // namespace

std::string live_report(bool json) {
  const char* set = std::getenv("WEIR_RECORDER_DIR");
  trace::JudgeOptions options;
  options.now_ns = trace::wall_clock_ns();
  trace::Report report;
  report.now_ns = options.now_ns;
  std::string place;
  const Result<int> folder = comm::open_any_record_folder(set != nullptr ? set : "", false, &place);
  if (folder.ok()) {
    close(folder.value());
    const trace::Report all = trace::make_report({place}, options, true);
    for (size_t i = 0; i < all.groups.size(); ++i) {
      const auto& records = all.groups[i].records;
      const bool lives = std::any_of(records.begin(), records.end(), [](const comm::Record& one) {
        return one.life == comm::Life::kAlive || one.life == comm::Life::kStopped;
      });
      if (!lives) continue;
      report.groups.push_back(all.groups[i]);
      report.verdicts.push_back(all.verdicts[i]);
    }
  }
  if (json) return trace::json_of(report);
  if (report.groups.empty()) {
    return fmt::format("no communicator of this user runs here{}\n",
                       folder.ok() ? "" : " (" + folder.status().text() + ")");
  }
  std::string text;
  for (size_t i = 0; i < report.groups.size(); ++i) {
    text += trace::text_of(report.groups[i], report.now_ns) + ways_of(report.groups[i]);
    if (report.verdicts[i].finding != trace::Finding::kNothing) {
      text += fmt::format("  {}: {}\n", trace::name_of(report.verdicts[i].finding),
                          report.verdicts[i].text);
    }
  }
  return text;
}

}  // namespace weir::info
