// SPDX-License-Identifier: Apache-2.0
#include "core/cost/learned.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/cost/text.h"

namespace weir::cost {

namespace {

using nlohmann::json;

// A limit for what another process sends.
constexpr size_t kCallsMax = 4096;
constexpr size_t kTimesMax = 64;
constexpr size_t kNameBytesMax = 64;
constexpr double kNsMax = 1e15;

bool take_number(const json& from, uint64_t max, uint64_t* to) {
  if (!from.is_number_unsigned() || from.get<uint64_t>() > max) return false;
  *to = from.get<uint64_t>();
  return true;
}

bool take_time(const json& from, AlgorithmTime* to) {
  if (!from.is_array() || from.size() != 3 || !from[0].is_string() || !from[2].is_number()) {
    return false;
  }
  to->algorithm = from[0].get<std::string>();
  to->middle_ns = from[2].get<double>();
  return to->algorithm.size() <= kNameBytesMax && take_number(from[1], UINT64_MAX, &to->count) &&
         to->middle_ns > 0 && to->middle_ns <= kNsMax;
}

bool take_call(const json& from, CallShape* shape, std::vector<AlgorithmTime>* times) {
  uint64_t n[6];
  if (!from.is_array() || from.size() != std::size(n) + 1) return false;
  const uint64_t max[] = {kCollectiveCount - 1,
                          uint64_t(algo::BlockLengths::kKnownToEnds),
                          kDataTypeCount - 1,
                          1,
                          1,
                          UINT64_MAX};
  for (size_t i = 0; i < std::size(n); ++i) {
    if (!take_number(from[i], max[i], &n[i])) return false;
  }
  *shape = {.collective = static_cast<Collective>(n[0]),
            .lengths = static_cast<algo::BlockLengths>(n[1]),
            .type = static_cast<DataType>(n[2]),
            .in_place = n[3] != 0,
            .in_windows = n[4] != 0,
            .bytes = n[5]};
  const json& list = from[std::size(n)];
  if (!list.is_array() || list.size() > kTimesMax) return false;
  return std::all_of(list.begin(), list.end(),
                     [times](const json& one) { return take_time(one, &times->emplace_back()); });
}

}  // namespace

std::string describe(const CallShape& shape, Rank rank_count) {
  if (shape.collective == Collective::kBarrier) {
    return fmt::format("barrier of {} ranks", rank_count);
  }
  return fmt::format("{} of {}{} {} on {} ranks{}", algo::name_of(shape.collective, shape.lengths),
                     shape.lengths == algo::BlockLengths::kEqual ? "" : "up to ",
                     text_of_bytes(shape.bytes), name_of(shape.type), rank_count,
                     shape.in_place ? ", in place" : "");
}

const AlgorithmTime* LearnedCall::find(std::string_view algorithm) const {
  const auto found = std::find_if(times.begin(), times.end(), [&](const AlgorithmTime& one) {
    return one.algorithm == algorithm;
  });
  return found == times.end() ? nullptr : &*found;
}

LearnedTimes::LearnedTimes(const std::vector<LearnedCall>& calls) {
  for (const LearnedCall& call : calls) {
    std::vector<AlgorithmTime> known;
    for (const AlgorithmTime& time : call.times) {
      if (time.count >= kLearnedCountMin) known.push_back(time);
    }
    if (known.size() >= 2) by_shape_[call.shape] = std::move(known);
  }
}

const std::vector<AlgorithmTime>* LearnedTimes::find(const CallShape& shape) const {
  const auto found = by_shape_.find(shape);
  return found == by_shape_.end() ? nullptr : &found->second;
}

std::string LearnedTimes::pack() const {
  json all = json::array();
  for (const auto& [shape, times] : by_shape_) {
    json list = json::array();
    for (const AlgorithmTime& time : times) {
      list.push_back(json::array({time.algorithm, time.count, time.middle_ns}));
    }
    all.push_back(json::array({uint64_t(shape.collective), uint64_t(shape.lengths),
                               uint64_t(shape.type), uint64_t(shape.in_place),
                               uint64_t(shape.in_windows), shape.bytes, std::move(list)}));
  }
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<LearnedTimes> LearnedTimes::unpack(std::string_view bytes) {
  const auto refused = [] {
    return Status(Code::kRefused,
                  "the measured times that rank 0 sent cannot be read; do all ranks run the same "
                  "version of Weir?");
  };
  const json all = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array() || all.size() > kCallsMax) return refused();
  LearnedTimes learned;
  for (const json& one : all) {
    CallShape shape;
    std::vector<AlgorithmTime> times;
    if (!take_call(one, &shape, &times)) return refused();
    learned.by_shape_[shape] = std::move(times);
  }
  return learned;
}

}  // namespace weir::cost
