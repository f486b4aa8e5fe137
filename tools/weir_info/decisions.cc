// SPDX-License-Identifier: Apache-2.0
#include "weir_info/decisions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/printable.h"
#include "core/base/private_files.h"
#include "core/cost/cache.h"
#include "core/cost/text.h"

namespace weir::info {

namespace {

constexpr size_t kTextBytesMax = 1000;

DecisionFile read_file(const std::string& directory, const std::string& name) {
  DecisionFile file;
  file.name = name;
  auto read = read_private_file(directory, name, 1 << 20);
  if (!read.ok() || !read.value()) {
    file.error = read.ok() ? "it is gone" : read.status().text();
    return file;
  }
  auto learned = cost::learned_from_json(read.value()->text);
  if (!learned.ok()) {
    file.error = learned.status().text();
    return file;
  }
  file.learned = learned.take();
  const std::string expected = cost::learned_file_name(file.learned.of);
  file.not_used = expected == name ? cost::load_learned(directory, file.learned.of).ignored
                                   : "what it holds belongs into " + expected;
  return file;
}

std::string text_of_regret(const std::optional<double>& regret) {
  return regret ? fmt::format("{:.2f}", *regret) : "-";
}

std::string text_of(const cost::LearnedCall& call, Rank rank_count) {
  std::string text =
      fmt::format("  {}: {}, {}\n", cost::describe(call.shape, rank_count), printable(call.choice),
                  call.reason.empty() ? "no reason given" : printable(call.reason, kTextBytesMax));
  text += fmt::format("    {:<2}{:<24}{:>12}{:>8}{:>12}{:>12}{:>12}\n", "", "candidate",
                      "predicted", "calls", "least", "average", "median");
  for (const cost::AlgorithmTime& time : call.times) {
    const auto measured = [&](double ns) {
      return time.count == 0 ? std::string("-") : cost::text_of_ns(ns);
    };
    text += fmt::format("    {:<2}{:<24}{:>12}{:>8}{:>12}{:>12}{:>12}\n",
                        time.algorithm == call.choice ? ">" : "", printable(time.algorithm),
                        cost::text_of_ns(time.predicted_ns), time.count, measured(time.least_ns),
                        measured(time.average_ns), measured(time.middle_ns));
  }
  const Regret regret = regret_of(call);
  return text + fmt::format("    regret: predicted {}, measured {}\n",
                            text_of_regret(regret.predicted), text_of_regret(regret.measured));
}

nlohmann::ordered_json json_of(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

Regret regret_of(const cost::LearnedCall& call) {
  Regret regret;
  const cost::AlgorithmTime* choice = call.find(call.choice);
  if (choice == nullptr) return regret;
  double least_predicted_ns = choice->predicted_ns;
  double least_ns = choice->middle_ns;
  size_t measured_count = 0;
  for (const cost::AlgorithmTime& time : call.times) {
    if (time.predicted_ns > 0) least_predicted_ns = std::min(least_predicted_ns, time.predicted_ns);
    if (time.count < cost::kLearnedCountMin) continue;
    ++measured_count;
    least_ns = std::min(least_ns, time.middle_ns);
  }
  if (least_predicted_ns > 0) regret.predicted = choice->predicted_ns / least_predicted_ns;
  if (choice->count >= cost::kLearnedCountMin && measured_count >= 2) {
    regret.measured = choice->middle_ns / least_ns;
  }
  return regret;
}

RegretSummary summary_of(const cost::Learned& learned) {
  RegretSummary summary;
  double log_sum = 0;
  for (const cost::LearnedCall& call : learned.calls) {
    const Regret regret = regret_of(call);
    if (!regret.measured) continue;
    ++summary.call_count;
    log_sum += std::log(*regret.measured);
    if (*regret.measured > summary.worst || summary.worst_call.empty()) {
      summary.worst = *regret.measured;
      summary.worst_call = cost::describe(call.shape, learned.of.rank_count);
    }
  }
  if (summary.call_count > 0) {
    summary.mean = std::exp(log_sum / static_cast<double>(summary.call_count));
  }
  return summary;
}

Decisions read_decisions(const std::string& directory) {
  Decisions decisions;
  const char* set = std::getenv("WEIR_CACHE_DIR");
  auto found = cost::cache_directory(!directory.empty() ? directory : set != nullptr ? set : "");
  if (!found.ok()) {
    decisions.error = found.status().text();
    return decisions;
  }
  std::error_code ignored;
  if (!directory.empty() && !std::filesystem::is_directory(directory, ignored)) {
    decisions.error = "'" + directory + "' is no folder; name one that WEIR_LEARN=1 has written to";
    return decisions;
  }
  decisions.directory = found.take();
  for (const std::string& name : cost::learned_files(decisions.directory)) {
    decisions.files.push_back(read_file(decisions.directory, name));
  }
  return decisions;
}

std::string text_of(const Decisions& decisions) {
  if (decisions.directory.empty()) return decisions.error + "\n";
  if (decisions.files.empty()) {
    return fmt::format("no decisions are kept in '{}'; WEIR_LEARN=1 keeps them\n",
                       decisions.directory);
  }
  std::string text;
  for (const DecisionFile& file : decisions.files) {
    text += fmt::format("{}{}/{}\n", text.empty() ? "" : "\n", decisions.directory,
                        printable(file.name));
    if (!file.error.empty()) {
      text += fmt::format("  cannot be read: {}\n", printable(file.error, kTextBytesMax));
      continue;
    }
    const cost::LearnedFor& of = file.learned.of;
    text += fmt::format("  {}: {}; topology {:016x}\n", printable(of.transport),
                        printable(of.layout), of.topology_hash);
    if (!file.not_used.empty())
      text += fmt::format("  not used: {}\n", printable(file.not_used, kTextBytesMax));
    for (const cost::LearnedCall& call : file.learned.calls) {
      text += text_of(call, of.rank_count);
    }
    const RegretSummary summary = summary_of(file.learned);
    if (summary.call_count == 0) continue;
    text += fmt::format(
        "  regret measured over {} of {} decisions: geometric mean {:.3f}, worst {:.2f} ({})\n",
        summary.call_count, file.learned.calls.size(), summary.mean, summary.worst,
        summary.worst_call);
  }
  return text;
}

std::string json_of(const Decisions& decisions) {
  nlohmann::ordered_json json;
  json["directory"] = decisions.directory;
  json["error"] = decisions.error;
  json["files"] = nlohmann::ordered_json::array();
  for (const DecisionFile& file : decisions.files) {
    nlohmann::ordered_json one;
    one["name"] = file.name;
    one["error"] = file.error;
    if (file.error.empty()) {
      const cost::LearnedFor& of = file.learned.of;
      one["not_used"] = file.not_used;
      one["transport"] = of.transport;
      one["layout"] = of.layout;
      one["ranks"] = of.rank_count;
      one["topology"] = fmt::format("{:016x}", of.topology_hash);
      one["decisions"] = nlohmann::ordered_json::array();
      for (const cost::LearnedCall& call : file.learned.calls) {
        nlohmann::ordered_json decision;
        const Regret regret = regret_of(call);
        decision["call"] = algo::name_of(call.shape.collective, call.shape.lengths);
        decision["type"] = name_of(call.shape.type);
        decision["bytes"] = call.shape.bytes;
        decision["in_place"] = call.shape.in_place;
        decision["in_windows"] = call.shape.in_windows;
        decision["choice"] = call.choice;
        decision["reason"] = call.reason;
        decision["regret_predicted"] = json_of(regret.predicted);
        decision["regret_measured"] = json_of(regret.measured);
        decision["candidates"] = nlohmann::ordered_json::array();
        for (const cost::AlgorithmTime& time : call.times) {
          nlohmann::ordered_json candidate = {{"algorithm", time.algorithm},
                                              {"predicted_ns", time.predicted_ns},
                                              {"count", time.count}};
          if (time.count > 0) {
            candidate["least_ns"] = time.least_ns;
            candidate["average_ns"] = time.average_ns;
            candidate["median_ns"] = time.middle_ns;
          }
          decision["candidates"].push_back(std::move(candidate));
        }
        one["decisions"].push_back(std::move(decision));
      }
      const RegretSummary summary = summary_of(file.learned);
      if (summary.call_count > 0) {
        one["regret_measured"] = {{"decisions", summary.call_count},
                                  {"geometric_mean", summary.mean},
                                  {"worst", summary.worst},
                                  {"worst_call", summary.worst_call}};
      }
    }
    json["files"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace weir::info
