// SPDX-License-Identifier: Apache-2.0
#include "nccl/forwarding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "nccl/backend.h"
#include "nccl/choice.h"
#include "nccl/kin.h"
#include "nccl/meeting.h"
#include "nccl/real_start.h"
#include "nccl/reentry.h"

namespace weir::nccl {

namespace {

// A configuration of a later version may be longer than the one that this header knows.
constexpr size_t kConfigBytesMax = 4096;

// Versions that have given the strings their place.
constexpr unsigned kNetNameSince = 21700;
constexpr unsigned kCommNameSince = 22700;

// What a rank that makes an id of the real library tells the others.
struct RootNews {
  int32_t code = ncclSuccess;
  char text[252] = {};
  ncclUniqueId id{};
};

template <typename Ask>
void ask_for_id(Ask ask, RootNews* news) {
  const InsideReal inside;
  const Table& real = *backend().real;
  news->code = ask(real, &news->id);
  if (news->code == ncclSuccess) return;
  const std::string text = text_of(real, static_cast<ncclResult_t>(news->code));
  std::memcpy(news->text, text.data(), std::min(text.size(), sizeof news->text - 1));
}

// Rank 0's id of the real library; `ask` gets it there.
template <typename Ask>
Outcome share_id(Meeting& meeting, Ask ask, RootNews* root) {
  if (meeting.rank() == 0) ask_for_id(ask, root);
  return meeting.broadcast(root);
}

Outcome no_id(const RealStart& start, int rank, const RootNews& root) {
  return fall_or_fail(start, static_cast<ncclResult_t>(root.code),
                      fmt::format("the real NCCL {} gives no unique id on rank {}: {}",
                                  backend().library->version_text(), rank,
                                  std::string(root.text, strnlen(root.text, sizeof root.text))));
}

// What the ranks can, told to each other. Not the real NCCL, without an error: it has been explained.
Outcome choose_together(const char* function, const Comm& comm, Meeting& meeting,
                        const Candidate& mine, Choice* choice, bool* forced) {
  std::vector<Candidate> candidates;
  Outcome outcome = meeting.all_gather(mine, &candidates);
  if (!outcome.ok()) return outcome;
  *choice = choose(candidates);
  if (choice->impossible) {
    return {ncclInvalidUsage, fmt::format("{}: {}", function, choice->reason)};
  }
  if (!choice->real) explain_way(comm, meeting, "Weir's transports: " + choice->reason);
  *forced = std::any_of(candidates.begin(), candidates.end(), [](const Candidate& it) {
    return it.wish == static_cast<uint32_t>(Wish::kNccl);
  });
  return {};
}

RealStart start_of(const char* function, Comm& comm, Meeting& meeting, int device,
                   const weir_unique_id_t& id) {
  RealStart start;
  start.function = function;
  start.comm = &comm;
  start.all = start.members = &meeting;
  start.device = device;
  start.secret = secret_of(id);
  start.earlier = comm::ClockReading::now();
  return start;
}

}  // namespace

Forwarding::Forwarding(const ncclConfig_t* given, int device) : device_(device) {
  if (given == nullptr || given->size > kConfigBytesMax) return;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  config_.assign(bytes, bytes + given->size);
  const auto keep = [&](size_t offset, unsigned since, std::string* text) {
    const char* value = nullptr;
    if (offset + sizeof value > config_.size() || given->version < since) return false;
    std::memcpy(&value, config_.data() + offset, sizeof value);
    if (value != nullptr) *text = value;
    return value != nullptr;
  };
  has_net_name_ = keep(offsetof(ncclConfig_t, netName), kNetNameSince, &net_name_);
  has_comm_name_ = keep(offsetof(ncclConfig_t, commName), kCommNameSince, &comm_name_);
}

ncclConfig_t* Forwarding::config(std::vector<unsigned char>* place) const {
  if (config_.empty()) return nullptr;
  *place = config_;
  const auto put = [&](size_t offset, const std::string& text) {
    const char* value = text.c_str();
    std::memcpy(place->data() + offset, &value, sizeof value);
  };
  if (has_net_name_) put(offsetof(ncclConfig_t, netName), net_name_);
  if (has_comm_name_) put(offsetof(ncclConfig_t, commName), comm_name_);
  return reinterpret_cast<ncclConfig_t*>(place->data());
}

Outcome Forwarding::agree(const char* function, Comm& comm, weir_comm_t weir,
                          const weir_unique_id_t& id, size_t id_count) const {
  Meeting meeting(function, comm, nullptr, weir);
  RealStart start = start_of(function, comm, meeting, device_, id);
  Candidate mine = candidate_of(backend(), device_);
  Choice choice;
  Outcome outcome = choose_together(function, comm, meeting, mine, &choice, &start.forced);
  if (!outcome.ok() || !choice.real) return outcome;
  start.reason = choice.reason;
  if (id_count > 1 && backend().library->has(FunctionIndex::kCommInitRankScalable)) {
    return start_scalable(meeting, std::move(start), id_count);
  }
  RootNews root;
  outcome = share_id(
      meeting, [](const Table& real, ncclUniqueId* out) { return real.GetUniqueId(out); }, &root);
  if (!outcome.ok()) return outcome;
  if (root.code != ncclSuccess) return no_id(start, 0, root);
  start.make = [self = *this, id = root.id, n = meeting.rank_count(), rank = meeting.rank()](
                   const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> place;
    ncclConfig_t* config = self.config(&place);
    return config != nullptr ? real.CommInitRankConfig(out, n, id, rank, config)
                             : real.CommInitRank(out, n, id, rank);
  };
  return start_real(start);
}

// Each id is of the first of the ranks that the real library will have meet there: where a rank makes
// one, its process listens.
Outcome Forwarding::start_scalable(Meeting& meeting, RealStart start, size_t id_count) const {
  const auto rank_count = static_cast<size_t>(meeting.rank_count());
  const size_t share = rank_count / id_count;
  const size_t larger = rank_count % id_count;  // the first of them have one rank more
  const auto host_of = [&](size_t i) { return i * share + std::min(i, larger); };
  RootNews mine;
  for (size_t i = 0; i < id_count; ++i) {
    if (host_of(i) == static_cast<size_t>(meeting.rank())) {
      ask_for_id([](const Table& real, ncclUniqueId* out) { return real.GetUniqueId(out); }, &mine);
    }
  }
  std::vector<RootNews> all;
  Outcome outcome = meeting.all_gather(mine, &all);
  if (!outcome.ok()) return outcome;
  std::vector<ncclUniqueId> ids;
  for (size_t i = 0; i < id_count; ++i) {
    const RootNews& host = all[host_of(i)];
    if (host.code != ncclSuccess) return no_id(start, static_cast<int>(host_of(i)), host);
    ids.push_back(host.id);
  }
  start.make = [self = *this, ids, n = meeting.rank_count(), rank = meeting.rank()](
                   const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> place;
    std::vector<ncclUniqueId> own = ids;
    return real.CommInitRankScalable(out, n, rank, static_cast<int>(own.size()), own.data(),
                                     self.config(&place));
  };
  return start_real(start);
}

Outcome Forwarding::grow(const char* function, const Parent& parent, Comm& comm, weir_comm_t weir,
                         const weir_unique_id_t& id) const {
  Meeting meeting(function, comm, parent.comm.get(), weir);
  RealStart start = start_of(function, comm, meeting, device_, id);
  Candidate mine = candidate_of(backend(), device_);
  if (parent.comm != nullptr && parent.real == nullptr) {
    mine.able = 0;
    mine.say("the communicator that grows is Weir's");
  } else if (mine.able != 0 && !backend().library->has(FunctionIndex::kCommGrow)) {
    mine.able = 0;
    mine.say("the real NCCL is too old to grow one");
  }
  Choice choice;
  Outcome outcome = choose_together(function, comm, meeting, mine, &choice, &start.forced);
  if (!outcome.ok() || !choice.real) return outcome;
  start.reason = choice.reason;
  start.from_another = true;
  start.parent = parent.real;
  RootNews root;
  outcome = share_id(
      meeting,
      [&](const Table& real, ncclUniqueId* out) {
        return parent.real != nullptr ? real.CommGetUniqueId(parent.real, out)
                                      : ncclInvalidUsage;  // rank 0 is one of the old ones
      },
      &root);
  if (!outcome.ok()) return outcome;
  if (root.code != ncclSuccess) return no_id(start, 0, root);
  start.make = [self = *this, id = root.id, n = meeting.rank_count(), rank = meeting.rank(),
                from = parent.real](const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> place;
    // Of the old ranks one passes the id, and none a number.
    const bool tells = from == nullptr || rank == 0;
    return real.CommGrow(from, n, tells ? &id : nullptr, from == nullptr ? rank : -1, out,
                         self.config(&place));
  };
  return start_real(start);
}

Outcome Forwarding::shrink(const char* function, const Parent& parent, std::vector<int> excluded,
                           int flags, Comm& comm, weir_comm_t weir,
                           const weir_unique_id_t& id) const {
  Meeting meeting(function, comm, parent.comm.get(), weir);
  RealStart start = start_of(function, comm, meeting, device_, id);
  start.forced = parent.comm->kin()->forced();
  start.from_another = true;
  start.parent = parent.real;
  start.reason = "it is what is left of one";
  start.make = [self = *this, excluded = std::move(excluded), flags, from = parent.real](
                   const Table& real, ncclComm_t* out) mutable {
    std::vector<unsigned char> place;
    return real.CommShrink(from, excluded.data(), static_cast<int>(excluded.size()), out,
                           self.config(&place), flags);
  };
  return start_real(start);
}

Outcome Forwarding::split(const char* function, const Parent& parent, int color, int key,
                          weir_comm_t all, Comm* comm, weir_comm_t weir,
                          const weir_unique_id_t& id) const {
  Comm& made = comm != nullptr ? *comm : *parent.comm;
  Meeting everybody(function, made, parent.comm.get(), all);
  Meeting members(function, made, parent.comm.get(), weir != nullptr ? weir : all);
  RealStart start = start_of(function, made, everybody, device_, id);
  start.comm = comm;
  start.members = comm != nullptr ? &members : nullptr;
  start.secret = start.secret.derive(fmt::format("color {}", color));
  start.forced = parent.comm->kin()->forced();
  start.from_another = true;
  start.parent = parent.real;
  start.reason = "it is split from one";
  start.make = [self = *this, color, key, from = parent.real](const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> place;
    return real.CommSplit(from, color, key, out, self.config(&place));
  };
  return start_real(start);
}

}  // namespace weir::nccl
