// SPDX-License-Identifier: Apache-2.0
#include "nccl/forward/forwarding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "nccl/base/encryption.h"
#include "nccl/forward/abortable_collectives.h"
#include "nccl/forward/choice.h"
#include "nccl/forward/derived_ids.h"
#include "nccl/forward/real_start.h"
#include "nccl/real/backend.h"
#include "nccl/real/reentry.h"

namespace weir::nccl {

namespace {

// A configuration of a later version may be longer than the one that this header knows.
constexpr size_t kConfigBytesMax = 4096;

// The versions that introduced these strings.
constexpr unsigned kNetNameSince = 21700;
constexpr unsigned kCommNameSince = 22700;

// What a rank that makes an id of the real library tells the others.
struct RootId {
  int32_t code = ncclSuccess;
  char text[252] = {};
  ncclUniqueId id{};
};

template <typename Ask>
void ask_for_id(Ask ask, RootId* id) {
  const InsideReal inside;
  const Table& real = *backend().real;
  id->code = ask(real, &id->id);
  if (id->code == ncclSuccess) return;
  const std::string text = text_of(real, static_cast<ncclResult_t>(id->code));
  std::memcpy(id->text, text.data(), std::min(text.size(), sizeof id->text - 1));
}

// Rank 0's id of the real library; `ask` obtains it on rank 0.
template <typename Ask>
Outcome share_id(AbortableCollectives& collectives, Ask ask, RootId* root) {
  if (collectives.rank() == 0) ask_for_id(ask, root);
  return collectives.broadcast(root);
}

Outcome no_id(const RealStart& start, int rank, const RootId& root) {
  return fall_back_or_fail(
      start, static_cast<ncclResult_t>(root.code),
      fmt::format("the real NCCL {} gives no unique id on rank {}: {}",
                  backend().library->version_text(), rank,
                  std::string(root.text, strnlen(root.text, sizeof root.text))));
}

// The ranks tell each other what they can do and choose. Where the choice is Weir, it has been
// explained.
Outcome choose_together(const char* function, const Comm& comm, AbortableCollectives& collectives,
                        const Candidate& mine, Choice* choice, bool* forced) {
  std::vector<Candidate> candidates;
  Outcome outcome = collectives.all_gather(mine, &candidates);
  if (!outcome.ok()) return outcome;
  *choice = choose(candidates);
  if (choice->impossible) {
    return {ncclInvalidUsage, fmt::format("{}: {}", function, choice->reason)};
  }
  if (!choice->real) explain_backend(comm, collectives, "Weir's transports: " + choice->reason);
  *forced = std::any_of(candidates.begin(), candidates.end(), [](const Candidate& it) {
    return it.requested == static_cast<uint32_t>(RequestedBackend::kNccl);
  });
  return {};
}

RealStart start_of(const char* function, Comm& comm, AbortableCollectives& collectives, int device,
                   const weir_unique_id_t& id) {
  RealStart start;
  start.function = function;
  start.comm = &comm;
  start.all = start.members = &collectives;
  start.device = device;
  start.secret = secret_of(id);
  start.earlier = comm::ClockReading::now();
  return start;
}

// What this process says of itself. A real library that cannot encrypt serves nobody with a key.
Candidate candidate_for(int device) {
  const Backend& it = backend();
  Candidate mine = candidate_of(it, device);
  if (mine.able == 1 && has_key() && !it.library->has(FunctionIndex::kSetEncryption)) {
    mine.able = 0;
    mine.say(fmt::format("NCCL {} has no ncclSetEncryption, and a key is set",
                         it.library->version_text()));
  }
  return mine;
}

}  // namespace

Forwarding::Forwarding(const ncclConfig_t* given, int device) : device_(device) {
  if (given == nullptr || given->size > kConfigBytesMax) return;
  const auto* first = reinterpret_cast<const unsigned char*>(given);
  config_.assign(first, first + given->size);
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

ncclConfig_t* Forwarding::config(std::vector<unsigned char>* bytes) const {
  if (config_.empty()) return nullptr;
  *bytes = config_;
  const auto put = [&](size_t offset, const std::string& text) {
    const char* value = text.c_str();
    std::memcpy(bytes->data() + offset, &value, sizeof value);
  };
  if (has_net_name_) put(offsetof(ncclConfig_t, netName), net_name_);
  if (has_comm_name_) put(offsetof(ncclConfig_t, commName), comm_name_);
  return reinterpret_cast<ncclConfig_t*>(bytes->data());
}

Outcome Forwarding::agree(const char* function, Comm& comm, weir_comm_t weir,
                          const weir_unique_id_t& id, size_t id_count) const {
  AbortableCollectives collectives(function, comm, nullptr, weir);
  RealStart start = start_of(function, comm, collectives, device_, id);
  Candidate mine = candidate_for(device_);
  Choice choice;
  Outcome outcome = choose_together(function, comm, collectives, mine, &choice, &start.forced);
  if (!outcome.ok() || !choice.real) return outcome;
  start.reason = choice.reason;
  if (id_count > 1 && backend().library->has(FunctionIndex::kCommInitRankScalable)) {
    return start_scalable(collectives, std::move(start), id_count);
  }
  RootId root;
  outcome = share_id(
      collectives, [](const Table& real, ncclUniqueId* out) { return real.GetUniqueId(out); },
      &root);
  if (!outcome.ok()) return outcome;
  if (root.code != ncclSuccess) return no_id(start, 0, root);
  start.make = [self = *this, id = root.id, n = collectives.rank_count(),
                rank = collectives.rank()](const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> bytes;
    ncclConfig_t* config = self.config(&bytes);
    return config != nullptr ? real.CommInitRankConfig(out, n, id, rank, config)
                             : real.CommInitRank(out, n, id, rank);
  };
  return start_real(start);
}

// The real library connects a block of ranks at each id. The first rank of the block makes the id,
// since the process that makes one listens for the others.
Outcome Forwarding::start_scalable(AbortableCollectives& collectives, RealStart start,
                                   size_t id_count) const {
  const auto rank_count = static_cast<size_t>(collectives.rank_count());
  const size_t share = rank_count / id_count;
  const size_t larger = rank_count % id_count;  // the first of them have one rank more
  const auto host_of = [&](size_t i) { return i * share + std::min(i, larger); };
  RootId mine;
  for (size_t i = 0; i < id_count; ++i) {
    if (host_of(i) == static_cast<size_t>(collectives.rank())) {
      ask_for_id([](const Table& real, ncclUniqueId* out) { return real.GetUniqueId(out); }, &mine);
    }
  }
  std::vector<RootId> all;
  Outcome outcome = collectives.all_gather(mine, &all);
  if (!outcome.ok()) return outcome;
  std::vector<ncclUniqueId> ids;
  for (size_t i = 0; i < id_count; ++i) {
    const RootId& host = all[host_of(i)];
    if (host.code != ncclSuccess) return no_id(start, static_cast<int>(host_of(i)), host);
    ids.push_back(host.id);
  }
  start.make = [self = *this, ids, n = collectives.rank_count(), rank = collectives.rank()](
                   const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> bytes;
    std::vector<ncclUniqueId> own = ids;
    return real.CommInitRankScalable(out, n, rank, static_cast<int>(own.size()), own.data(),
                                     self.config(&bytes));
  };
  return start_real(start);
}

Outcome Forwarding::grow(const char* function, const Parent& parent, Comm& comm, weir_comm_t weir,
                         const weir_unique_id_t& id) const {
  AbortableCollectives collectives(function, comm, parent.comm.get(), weir);
  RealStart start = start_of(function, comm, collectives, device_, id);
  Candidate mine = candidate_for(device_);
  if (parent.comm != nullptr && parent.real == nullptr) {
    mine.able = 0;
    mine.say("the communicator to grow uses Weir's transports");
  } else if (mine.able != 0 && !backend().library->has(FunctionIndex::kCommGrow)) {
    mine.able = 0;
    mine.say("the real NCCL is too old to grow a communicator");
  }
  Choice choice;
  Outcome outcome = choose_together(function, comm, collectives, mine, &choice, &start.forced);
  if (!outcome.ok() || !choice.real) return outcome;
  start.reason = choice.reason;
  start.from_another = true;
  start.parent = parent.real;
  RootId root;
  outcome = share_id(
      collectives,
      [&](const Table& real, ncclUniqueId* out) {
        return parent.real != nullptr ? real.CommGetUniqueId(parent.real, out)
                                      : ncclInvalidUsage;  // rank 0 is an old rank
      },
      &root);
  if (!outcome.ok()) return outcome;
  if (root.code != ncclSuccess) return no_id(start, 0, root);
  start.make = [self = *this, id = root.id, n = collectives.rank_count(), rank = collectives.rank(),
                from = parent.real](const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> bytes;
    // One of the old ranks passes the id; none passes a rank number.
    const bool tells = from == nullptr || rank == 0;
    return real.CommGrow(from, n, tells ? &id : nullptr, from == nullptr ? rank : -1, out,
                         self.config(&bytes));
  };
  return start_real(start);
}

Outcome Forwarding::shrink(const char* function, const Parent& parent, std::vector<int> excluded,
                           int flags, Comm& comm, weir_comm_t weir,
                           const weir_unique_id_t& id) const {
  AbortableCollectives collectives(function, comm, parent.comm.get(), weir);
  RealStart start = start_of(function, comm, collectives, device_, id);
  start.forced = parent.comm->derived_ids()->forced();
  start.from_another = true;
  start.parent = parent.real;
  start.reason = "the communicator was shrunk from one of the real NCCL";
  start.make = [self = *this, excluded = std::move(excluded), flags, from = parent.real](
                   const Table& real, ncclComm_t* out) mutable {
    std::vector<unsigned char> bytes;
    return real.CommShrink(from, excluded.data(), static_cast<int>(excluded.size()), out,
                           self.config(&bytes), flags);
  };
  return start_real(start);
}

Outcome Forwarding::split(const char* function, const Parent& parent, int color, int key,
                          weir_comm_t all, Comm* comm, weir_comm_t weir,
                          const weir_unique_id_t& id) const {
  Comm& made = comm != nullptr ? *comm : *parent.comm;
  AbortableCollectives everybody(function, made, parent.comm.get(), all);
  AbortableCollectives members(function, made, parent.comm.get(), weir != nullptr ? weir : all);
  RealStart start = start_of(function, made, everybody, device_, id);
  start.comm = comm;
  start.members = comm != nullptr ? &members : nullptr;
  start.secret = start.secret.derive(fmt::format("color {}", color));
  start.forced = parent.comm->derived_ids()->forced();
  start.from_another = true;
  start.parent = parent.real;
  start.reason = "the communicator was split from one of the real NCCL";
  start.make = [self = *this, color, key, from = parent.real](const Table& real, ncclComm_t* out) {
    std::vector<unsigned char> bytes;
    return real.CommSplit(from, color, key, out, self.config(&bytes));
  };
  return start_real(start);
}

}  // namespace weir::nccl
