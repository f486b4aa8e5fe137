// SPDX-License-Identifier: Apache-2.0
#include "core/cost/learned_file.h"

#include <dirent.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/base/log.h"
#include "core/base/private_files.h"
#include "core/cost/table.h"

namespace weir::cost {

namespace {

using nlohmann::json;

constexpr uint32_t kVersion = 1;
constexpr size_t kFileBytesMax = 1 << 20;
constexpr std::string_view kPrefix = "decisions-v1-";
constexpr std::string_view kSuffix = ".json";
constexpr size_t kTimesMax = 16;
constexpr size_t kTextBytesMax = 1024;
constexpr uint64_t kRanksMax = 65536;
constexpr double kNsMax = 1e15;
constexpr uint64_t kCountMax = uint64_t{1} << 53;

Status bad(const std::string& reason) { return invalid_argument("measured calls: " + reason); }

// Reads the members of an object, and remembers the first that is not as it should be.
class Members {
 public:
  Members(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("is no object");
  }

  std::string text(const char* name) {
    const json* member = find(name);
    if (member == nullptr) return "";
    if (!member->is_string() || member->get_ref<const std::string&>().size() > kTextBytesMax) {
      fail(fmt::format("'{}' is no text of at most {} bytes", name, kTextBytesMax));
      return "";
    }
    return member->get<std::string>();
  }
  uint64_t number(const char* name, uint64_t max) {
    const json* member = find(name);
    if (member == nullptr) return 0;
    if (!member->is_number_unsigned() || member->get<uint64_t>() > max) {
      fail(fmt::format("'{}' is no number from 0 to {}", name, max));
      return 0;
    }
    return member->get<uint64_t>();
  }
  double time_ns(const char* name) {
    const json* member = find(name);
    if (member == nullptr) return 0;
    const double value = member->is_number() ? member->get<double>() : -1;
    if (!(value >= 0 && value <= kNsMax)) {
      fail(fmt::format("'{}' is no time", name));
      return 0;
    }
    return value;
  }
  bool flag(const char* name) {
    const json* member = find(name);
    if (member == nullptr) return false;
    if (!member->is_boolean()) fail(fmt::format("'{}' is neither true nor false", name));
    return member->is_boolean() && member->get<bool>();
  }
  const json& list(const char* name, size_t max) {
    static const json kEmpty = json::array();
    const json* member = find(name);
    if (member == nullptr) return kEmpty;
    if (!member->is_array() || member->size() > max) {
      fail(fmt::format("'{}' is no list of at most {}", name, max));
      return kEmpty;
    }
    return *member;
  }
  void fail(const std::string& reason) {
    if (status_.ok()) status_ = bad(where_ + reason);
  }
  const Status& status() const { return status_; }

 private:
  const json* find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto member = object_.find(name);
    if (member == object_.end()) {
      fail(fmt::format("'{}' is missing", name));
      return nullptr;
    }
    return &*member;
  }

  const json& object_;
  const std::string where_;
  Status status_;
};

std::optional<DataType> type_named(std::string_view name) {
  for (uint32_t i = 0; i < kDataTypeCount; ++i) {
    if (name == name_of(static_cast<DataType>(i))) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

Result<AlgorithmTime> time_of(const json& from, const std::string& where) {
  Members members(from, where);
  AlgorithmTime time;
  time.algorithm = members.text("algorithm");
  time.predicted_ns = members.time_ns("predicted_ns");
  time.count = members.number("count", kCountMax);
  time.least_ns = members.time_ns("least_ns");
  time.average_ns = members.time_ns("average_ns");
  time.middle_ns = members.time_ns("middle_ns");
  if (time.algorithm.empty()) members.fail("an algorithm has no name");
  const bool measured = time.count > 0;
  if (measured != (time.least_ns > 0) || measured != (time.middle_ns > 0) ||
      measured != (time.average_ns > 0)) {
    members.fail(
        fmt::format("'{}' has times without calls, or calls without times", time.algorithm));
  }
  // Averages are rounded.
  if (time.least_ns > time.average_ns * 1.001 || time.least_ns > time.middle_ns * 1.001) {
    members.fail(fmt::format("the least time of '{}' is not the least", time.algorithm));
  }
  if (!members.status().ok()) return members.status();
  return time;
}

Result<LearnedCall> call_of(const json& from, const std::string& where) {
  Members members(from, where);
  LearnedCall call;
  const std::string name = members.text("call");
  const std::string type = members.text("type");
  call.shape.bytes = members.number("bytes", UINT64_MAX);
  call.shape.in_place = members.flag("in_place");
  call.shape.in_windows = members.flag("in_windows");
  call.choice = members.text("choice");
  call.reason = members.text("reason");
  call.written = static_cast<int64_t>(members.number("written", kCountMax));
  const auto named = algo::collective_named(name);
  const auto typed = type_named(type);
  if (!named) members.fail(fmt::format("'{}' is no collective", name));
  if (!typed) members.fail(fmt::format("'{}' is no type", type));
  std::set<std::string> known;
  for (const json& one : members.list("candidates", kTimesMax)) {
    auto time = time_of(one, where);
    if (!time.ok()) return time.status();
    if (!known.insert(time.value().algorithm).second) {
      members.fail(fmt::format("'{}' is listed twice", time.value().algorithm));
    }
    call.times.push_back(time.take());
  }
  if (call.find(call.choice) == nullptr) members.fail("the choice is none of the candidates");
  if (!members.status().ok()) return members.status();
  call.shape.collective = named->collective;
  call.shape.lengths = named->lengths;
  call.shape.type = *typed;
  return call;
}

// False also where it is as much from the future: a clock that was set back makes such times.
bool is_recent(int64_t written) {
  const int64_t age = int64_t{std::time(nullptr)} - written;
  return age < kLearnedAgeMaxSeconds && age > -kLearnedAgeMaxSeconds;
}

void add(const AlgorithmTime& newer, AlgorithmTime* to) {
  to->predicted_ns = newer.predicted_ns;
  if (newer.count == 0) return;
  const uint64_t kept = std::min(to->count, kLearnedCountKept);
  const double share = static_cast<double>(newer.count) / static_cast<double>(kept + newer.count);
  const auto mix = [share](double from, double with) { return from + (with - from) * share; };
  to->least_ns = to->count == 0 ? newer.least_ns : std::min(to->least_ns, newer.least_ns);
  to->average_ns = mix(to->average_ns, newer.average_ns);
  to->middle_ns = mix(to->middle_ns, newer.middle_ns);
  to->count = kept + newer.count;
}

Result<std::optional<Learned>> load(const std::string& directory, const LearnedFor& of,
                                    std::string* outdated) {
  const std::string name = learned_file_name(of);
  const std::string path = directory + "/" + name;
  auto read = read_private_file(directory, name, kFileBytesMax);
  if (!read.ok()) return read.status();
  if (!read.value()) return std::optional<Learned>();
  uint32_t table_version = 0;
  auto learned = learned_from_json(read.value()->text, &table_version);
  if (!learned.ok()) return learned.status().with_context("'" + path + "'");
  if (learned.value().of != of) {
    return invalid_argument(
        fmt::format("'{}' is of other ranks, of another topology or transport", path));
  }
  if (table_version != Table::kVersion) {
    *outdated = fmt::format("'{}' was predicted by version {} of the table, not {}", path,
                            table_version, Table::kVersion);
  } else if (!is_recent(read.value()->written)) {
    *outdated = fmt::format("'{}' was not written within the last {} days", path,
                            kLearnedAgeMaxSeconds / 86400);
  } else if (const std::string why = why_implausible(learned.value().calls); !why.empty()) {
    *outdated = fmt::format("in '{}' {}", path, why);
  }
  if (!outdated->empty()) return std::optional<Learned>();
  return std::optional(learned.take());
}

}  // namespace

std::string learned_file_name(const LearnedFor& of) {
  const std::string text =
      fmt::format("{:016x}\n{}\n{}\n{}", of.topology_hash, of.transport, of.rank_count, of.layout);
  return fmt::format("{}{:016x}{}", kPrefix, XXH3_64bits(text.data(), text.size()), kSuffix);
}

std::vector<std::string> learned_files(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(directory.c_str()), closedir);
  if (folder == nullptr) return names;
  while (const dirent* entry = readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix)) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string to_json(const Learned& learned) {
  nlohmann::ordered_json out;
  out["version"] = kVersion;
  out["table_version"] = Table::kVersion;
  out["topology"] = fmt::format("{:016x}", learned.of.topology_hash);
  out["transport"] = learned.of.transport;
  out["layout"] = learned.of.layout;
  out["ranks"] = learned.of.rank_count;
  out["calls"] = nlohmann::ordered_json::array();
  for (const LearnedCall& call : learned.calls) {
    nlohmann::ordered_json one;
    one["call"] = algo::name_of(call.shape.collective, call.shape.lengths);
    one["type"] = name_of(call.shape.type);
    one["bytes"] = call.shape.bytes;
    one["in_place"] = call.shape.in_place;
    one["in_windows"] = call.shape.in_windows;
    one["choice"] = call.choice;
    one["reason"] = call.reason;
    one["written"] = static_cast<uint64_t>(std::max<int64_t>(call.written, 0));
    one["candidates"] = nlohmann::ordered_json::array();
    for (const AlgorithmTime& time : call.times) {
      one["candidates"].push_back({{"algorithm", time.algorithm},
                                   {"predicted_ns", time.predicted_ns},
                                   {"count", time.count},
                                   {"least_ns", time.least_ns},
                                   {"average_ns", time.average_ns},
                                   {"middle_ns", time.middle_ns}});
    }
    out["calls"].push_back(std::move(one));
  }
  // Names come from files of programs.
  return out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<Learned> learned_from_json(const std::string& text, uint32_t* table_version) {
  const json from = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (from.is_discarded() || !from.is_object()) return bad("not a JSON object");
  Members members(from, "");
  const uint64_t version = members.number("version", UINT32_MAX);
  if (members.status().ok() && version != kVersion) {
    return bad(fmt::format("version {} is not known; this Weir knows {}", version, kVersion));
  }
  const uint64_t predicted_by = members.number("table_version", UINT32_MAX);
  if (table_version != nullptr) *table_version = static_cast<uint32_t>(predicted_by);
  Learned learned;
  const std::string topology = members.text("topology");
  if (topology.size() != 16 ||
      topology.find_first_not_of("0123456789abcdef") != std::string::npos) {
    members.fail("'topology' is no number of 16 hexadecimal digits");
  } else {
    learned.of.topology_hash = std::strtoull(topology.c_str(), nullptr, 16);
  }
  learned.of.transport = members.text("transport");
  learned.of.layout = members.text("layout");
  learned.of.rank_count = static_cast<Rank>(members.number("ranks", kRanksMax));
  std::set<CallShape> known;
  size_t index = 0;
  for (const json& one : members.list("calls", kLearnedCallsMax)) {
    auto call = call_of(one, fmt::format("call {}: ", index++));
    if (!call.ok()) return call.status();
    if (!known.insert(call.value().shape).second) members.fail("a call is listed twice");
    learned.calls.push_back(call.take());
  }
  if (!members.status().ok()) return members.status();
  return learned;
}

std::string why_implausible(const std::vector<LearnedCall>& calls) {
  std::vector<double> ratios;
  for (const LearnedCall& call : calls) {
    const AlgorithmTime* time = call.find(call.choice);
    if (time == nullptr || time->count < kLearnedCountMin || !(time->predicted_ns > 0)) continue;
    ratios.push_back(time->least_ns / time->predicted_ns);
  }
  if (ratios.empty()) return "";
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  if (*middle <= kLearnedFactorMax && *middle >= 1 / kLearnedFactorMax) return "";
  return fmt::format(
      "calls took {:.3g} times as long as predicted, the median of {}; 1/{} to {} is believed",
      *middle, ratios.size(), kLearnedFactorMax, kLearnedFactorMax);
}

LearnedLookup load_learned(const std::string& directory, const LearnedFor& of) {
  LearnedLookup lookup;
  auto loaded = load(directory, of, &lookup.ignored);
  if (!loaded.ok()) {
    lookup.ignored = "measured calls are ignored: " + loaded.status().text();
    log(LogLevel::kWarn, lookup.ignored);
    return lookup;
  }
  if (!lookup.ignored.empty()) {
    lookup.ignored = "measured calls are not used: " + lookup.ignored;
    log_info(lookup.ignored);
    return lookup;
  }
  if (!loaded.value()) return lookup;
  for (LearnedCall& call : loaded.value()->calls) {
    if (is_recent(call.written)) lookup.calls.push_back(std::move(call));
  }
  return lookup;
}

Status store_learned(const std::string& directory, Learned learned) {
  std::stable_sort(
      learned.calls.begin(), learned.calls.end(),
      [](const LearnedCall& a, const LearnedCall& b) { return a.written > b.written; });
  if (learned.calls.size() > kLearnedCallsMax) learned.calls.resize(kLearnedCallsMax);
  for (LearnedCall& call : learned.calls) {
    std::stable_sort(call.times.begin(), call.times.end(),
                     [&](const AlgorithmTime& a, const AlgorithmTime& b) {
                       const auto rank = [&](const AlgorithmTime& one) {
                         return one.algorithm == call.choice ? 0 : one.count > 0 ? 1 : 2;
                       };
                       return rank(a) < rank(b);
                     });
    if (call.times.size() > kTimesMax) call.times.resize(kTimesMax);
    constexpr size_t kReasonMax = 200;
    if (call.reason.size() > kReasonMax) call.reason.resize(kReasonMax);
  }
  return store_private_file(directory, learned_file_name(learned.of), to_json(learned));
}

void merge(const std::vector<LearnedCall>& newer, std::vector<LearnedCall>* into) {
  for (const LearnedCall& call : newer) {
    const auto found = std::find_if(into->begin(), into->end(), [&](const LearnedCall& one) {
      return one.shape == call.shape;
    });
    if (found == into->end()) {
      into->push_back(call);
      continue;
    }
    found->choice = call.choice;
    found->reason = call.reason;
    found->written = std::max(found->written, call.written);
    for (const AlgorithmTime& time : call.times) {
      const auto known =
          std::find_if(found->times.begin(), found->times.end(),
                       [&](const AlgorithmTime& one) { return one.algorithm == time.algorithm; });
      if (known == found->times.end()) {
        found->times.push_back(time);
      } else {
        add(time, &*known);
      }
    }
  }
}

}  // namespace weir::cost
