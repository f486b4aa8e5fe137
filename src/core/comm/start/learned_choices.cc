// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/learned_choices.h"

#include <fmt/format.h>

#include <ctime>
#include <map>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/cost/cache.h"
#include "core/engine/call.h"
#include "net/little_endian.h"

namespace weir::comm {

namespace {

constinit InheritedState<std::map<std::string, cost::LearnedTimes>> of_process;
constexpr size_t kPlacesMax = 256;

}  // namespace

std::string learned_directory(const Settings& settings) {
  if (!settings.hooks.empty() || (!settings.probe && !settings.learn)) return "";
  auto found = cost::cache_directory(settings.cache_dir);
  if (!found.ok() && settings.learn) {
    log_warn(fmt::format("WEIR_LEARN=1: what is measured is not kept: {}", found.status().text()));
  }
  if (!found.ok()) return "";
  const bool has_any = settings.learn || !cost::learned_files(found.value()).empty();
  return has_any ? found.take() : "";
}

cost::LearnedTimes learned_times(const LearnedPlace& place) {
  const std::string key = place.directory + "/" + cost::learned_file_name(place.of);
  const auto places = of_process.use();
  if (const auto known = places->find(key); known != places->end()) return known->second;
  const cost::LearnedLookup lookup = cost::load_learned(place.directory, place.of);
  cost::LearnedTimes times(lookup.calls);
  if (!times.empty()) {
    log_info(fmt::format("choices take what was measured by earlier runs, from '{}'", key));
  }
  if (places->size() < kPlacesMax) places->emplace(key, times);
  return times;
}

void keep_learned(const LearnedPlace& place, const cost::DecisionLog& decisions,
                  const cost::TimesByKey& all) {
  std::vector<cost::LearnedCall> calls;
  for (const cost::DecisionRecord& record : decisions.records()) {
    if (record.decision.explored.empty()) continue;
    cost::LearnedCall call;
    call.shape = record.shape;
    call.choice = record.decision.algorithm->name;
    call.reason = record.decision.reason;
    call.written = std::time(nullptr);
    bool measured = false;
    for (const cost::Candidate& candidate : record.decision.candidates) {
      if (candidate.excluded != nullptr) continue;
      cost::AlgorithmTime time;
      time.algorithm = candidate.algorithm->name;
      time.predicted_ns = candidate.predicted_ns;
      const auto found = all.find(cost::times_key(record, candidate.algorithm));
      const cost::MeasuredTimes* own = record.explored_of(candidate.algorithm);
      if (found != all.end() && own != nullptr) {
        time.count = own->count;
        time.least_ns = found->second.least_ns;
        time.average_ns = found->second.average_ns();
        // All ranks have begun a call with a root together, and the last one to end counts.
        time.middle_ns =
            is_rooted(record.shape.collective) ? found->second.latest_ns : found->second.middle_ns;
        measured = true;
      }
      call.times.push_back(std::move(time));
    }
    if (measured) cost::merge({call}, &calls);
  }
  if (calls.empty()) return;
  cost::Learned learned{place.of, cost::load_learned(place.directory, place.of).calls};
  cost::merge(calls, &learned.calls);
  const Status kept = cost::store_learned(place.directory, std::move(learned));
  if (!kept.ok()) {
    log_warn(fmt::format("WEIR_LEARN=1: what is measured is not kept: {}", kept.text()));
  }
}

std::string append_learned(std::string told, const std::string& learned) {
  unsigned char size[4];
  net::put(size, static_cast<uint32_t>(learned.size()));
  told += learned;
  return told.append(reinterpret_cast<const char*>(size), sizeof size);
}

bool split_learned(std::string* told, std::string* learned) {
  constexpr size_t kSizeBytes = 4;
  if (told->size() < kSizeBytes) return false;
  const size_t before = told->size() - kSizeBytes;
  const size_t size =
      net::get<uint32_t>(reinterpret_cast<const unsigned char*>(told->data()) + before);
  if (size > before) return false;
  *learned = told->substr(before - size, size);
  told->resize(before - size);
  return true;
}

}  // namespace weir::comm
