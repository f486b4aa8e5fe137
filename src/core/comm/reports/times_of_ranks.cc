// SPDX-License-Identifier: Apache-2.0
#include "core/comm/reports/times_of_ranks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/control/link.h"
#include "net/little_endian.h"

namespace weir::comm {

namespace {

constexpr char kMagic[4] = {'W', 'T', 'I', 'M'};
constexpr uint16_t kVersion = 1;
constexpr size_t kHeaderBytes = 8;
constexpr size_t kEntryBytes = 40;
constexpr size_t kEntriesMax = (control::kMessageBytesMax - kHeaderBytes) / kEntryBytes;
// Of one rank: more decisions than these are not told apart.
constexpr size_t kKeysMax = 4096;
constexpr double kNsMax = 1e18;

void put_time(unsigned char* at, double ns) { net::put(at, std::bit_cast<uint64_t>(ns)); }
bool get_time(const unsigned char* at, double* ns) {
  *ns = std::bit_cast<double>(net::get<uint64_t>(at));
  return *ns >= 0 && *ns <= kNsMax;
}

}  // namespace

void TimesOfRanks::open(control::Network* network, Rank rank, Rank rank_count) {
  network_ = network;
  rank_ = rank;
  rank_count_ = rank_count;
  if (rank == 0) heard_.resize(std::min(rank_count, kTellingRanksMax));
}

std::string TimesOfRanks::pack(const std::vector<std::pair<uint64_t, Sums>>& entries) {
  std::string message(kHeaderBytes + entries.size() * kEntryBytes, '\0');
  auto* at = reinterpret_cast<unsigned char*>(message.data());
  std::memcpy(at, kMagic, sizeof kMagic);
  net::put(at + 4, kVersion);
  net::put(at + 6, static_cast<uint16_t>(entries.size()));
  at += kHeaderBytes;
  for (const auto& [key, sums] : entries) {
    net::put(at, key);
    net::put(at + 8, sums.count);
    put_time(at + 16, sums.sum_ns);
    put_time(at + 24, sums.least_ns);
    put_time(at + 32, sums.middle_ns);
    at += kEntryBytes;
  }
  return message;
}

bool TimesOfRanks::unpack(const std::string& message, std::map<uint64_t, Sums>* into) {
  const auto* at = reinterpret_cast<const unsigned char*>(message.data());
  if (message.size() < kHeaderBytes || std::memcmp(at, kMagic, sizeof kMagic) != 0 ||
      net::get<uint16_t>(at + 4) != kVersion ||
      message.size() != kHeaderBytes + net::get<uint16_t>(at + 6) * kEntryBytes) {
    return false;
  }
  for (size_t offset = kHeaderBytes; offset < message.size(); offset += kEntryBytes) {
    const unsigned char* entry = at + offset;
    Sums sums;
    sums.count = net::get<uint64_t>(entry + 8);
    if (!get_time(entry + 16, &sums.sum_ns) || !get_time(entry + 24, &sums.least_ns) ||
        !get_time(entry + 32, &sums.middle_ns)) {
      return false;
    }
    const auto key = net::get<uint64_t>(entry);
    if (into->size() < kKeysMax || into->contains(key)) (*into)[key] = sums;
  }
  return true;
}

TimesOfRanks::Sums TimesOfRanks::sums_of(const cost::MeasuredTimes& times) {
  return {times.count, times.sum_ns, times.least_ns, times.middle_ns()};
}

void TimesOfRanks::measured(const cost::DecisionRecord& record,
                            const cost::ExploredTimes* explored) {
  if (network_ == nullptr || rank_ >= kTellingRanksMax) return;
  const cost::MeasuredTimes& times = explored != nullptr ? explored->times : record.measured;
  if (!std::has_single_bit(times.count)) return;
  if (rank_ == 0) return hear();  // so that messages do not pile up
  const uint64_t key = cost::times_key(record, explored != nullptr ? explored->algorithm : nullptr);
  uint64_t& told = told_[key];
  if (told == times.count) return;
  told = times.count;
  // A rank 0 that has left or died needs no times.
  (void)network_->send(0, kChannel, pack({{key, sums_of(times)}}));
}

void TimesOfRanks::hear() {
  std::string message;
  for (Rank p = 1; p < heard_.size(); ++p) {
    while (network_->receive(p, kChannel, &message)) (void)unpack(message, &heard_[p]);
  }
}

void TimesOfRanks::conclude(const cost::DecisionLog& decisions) {
  std::vector<std::pair<uint64_t, Sums>> untold;
  const auto add = [&](uint64_t key, const cost::MeasuredTimes& times) {
    if (times.count == 0) return;
    if (rank_ == 0) {
      all_[key].add(times.count, times.least_ns, times.sum_ns, times.middle_ns());
    } else if (told_[key] != times.count && untold.size() < kEntriesMax) {
      untold.emplace_back(key, sums_of(times));
    }
  };
  for (const cost::DecisionRecord& record : decisions.records()) {
    add(cost::times_key(record, nullptr), record.measured);
    for (const cost::ExploredTimes& one : record.explored) {
      add(cost::times_key(record, one.algorithm), one.times);
    }
  }
  if (network_ == nullptr || rank_ >= kTellingRanksMax) return;
  if (rank_ != 0) {
    if (!untold.empty()) (void)network_->send(0, kChannel, pack(untold));
    return;
  }
  hear();
  for (const auto& of_rank : heard_) {
    for (const auto& [key, sums] : of_rank) {
      // A key that is unknown here is of a decision that this rank has dropped.
      const auto known = all_.find(key);
      if (known != all_.end()) {
        known->second.add(sums.count, sums.least_ns, sums.sum_ns, sums.middle_ns);
      }
    }
  }
}

}  // namespace weir::comm
