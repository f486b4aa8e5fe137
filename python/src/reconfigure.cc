// SPDX-License-Identifier: Apache-2.0
// Groups whose members change (torch.distributed._reconfigure, from PyTorch 2.14 on).
//
// A handle is weir:<rank>:<generation>:<process>@<host>:<number>. <rank> is the one with which the
// process made the group, <generation> the uuid of the last reconfigure or "new", and <number> is
// drawn, since two groups of a process may have the same rest.
//
// In the store, below weir/reconfigure/<uuid>:
//   claimed              how many groups wanted this uuid; counted by their rank 0
//   <hash>/here/<rank>   this rank has come; <hash> is of the handles in the order of ranks
//   <hash>/id            of rank 0: Weir's unique id, or kRefused
#include "backend.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <tuple>
#include <utility>

namespace weir::pytorch {

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr char kWhat[] = "reconfigure";
constexpr size_t kHandleBytesMax = 1024;
constexpr uint8_t kRefused = 0;  // a value of one byte

struct Member {
  std::string handle;
  int64_t first_rank = 0;
  std::string process;  // "process 12 on host3"
};

Member member_of(const std::string& handle) {
  std::array<std::string_view, 5> fields;
  std::string_view rest = handle;
  for (std::string_view& field : fields) {
    field = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(field.size() + 1, rest.size()));
  }
  const std::string_view process = fields[3];
  const size_t at = process.find('@');
  Member member;
  const char* const end = fields[1].data() + fields[1].size();
  TORCH_CHECK_VALUE(
      handle.size() <= kHandleBytesMax &&
          std::count(handle.begin(), handle.end(), ':') == std::ssize(fields) - 1 &&
          fields[0] == "weir" && at != std::string_view::npos && !fields[1].empty() &&
          std::from_chars(fields[1].data(), end, member.first_rank).ptr == end,
      kWhat, ": '", handle.substr(0, 80),
      "' is no handle of Weir's: it is what get_reconfigure_handle gives for this group");
  member.handle = handle;
  member.process = c10::str("process ", process.substr(0, at), " on ", process.substr(at + 1));
  return member;
}

// In the order of the new ranks.
std::vector<Member> members_of(const c10d::ReconfigureOptions& options) {
  std::vector<Member> members;
  std::visit(
      [&](const auto& handles) {
        std::transform(handles.begin(), handles.end(), std::back_inserter(members), member_of);
      },
      options.handles);
  TORCH_CHECK_VALUE(!members.empty(), kWhat, ": there are no handles");
  const auto before = [](const Member& a, const Member& b) {
    return std::tie(a.first_rank, a.handle) < std::tie(b.first_rank, b.handle);
  };
  std::vector<Member> sorted = members;
  std::sort(sorted.begin(), sorted.end(), before);
  const auto same =
      std::adjacent_find(sorted.begin(), sorted.end(),
                         [](const auto& a, const auto& b) { return a.handle == b.handle; });
  TORCH_CHECK_VALUE(same == sorted.end(), kWhat, ": the handle ", same->handle, " is there twice");
  return std::holds_alternative<std::vector<c10d::ReconfigureHandle>>(options.handles) ? members
                                                                                       : sorted;
}

std::string hash_of(const std::vector<Member>& members) {
  std::string text;
  for (const Member& member : members) text += member.handle + "\n";
  return c10::sha1(text).str();
}

std::string here(size_t rank) { return c10::str("here/", rank); }

// Those that have not come, or no text where all have.
std::string missing(c10d::Store& store, const std::vector<Member>& members) {
  constexpr int kNamesMax = 16;
  std::string names;
  int count = 0;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (store.check({here(rank)})) continue;
    if (++count > kNamesMax) continue;
    names += c10::str(names.empty() ? "" : ", ", "rank ", rank, " (", members[rank].process, ")");
  }
  if (count > kNamesMax) names += c10::str(" and ", count - kNamesMax, " others");
  return names;
}

Milliseconds left_until(Clock::time_point end) {
  return std::max(std::chrono::ceil<Milliseconds>(end - Clock::now()), Milliseconds(1));
}

[[noreturn]] void refuse_uuid(const char* who, int64_t uuid) {
  C10_THROW_ERROR(DistBackendError,
                  c10::str(kWhat, ": ", who, "the uuid ", uuid,
                           " was already used; each reconfigure needs another one"));
}

// By rank 0, for all.
void make_id(c10d::Store& uuid_store, c10d::Store& store) {
  if (uuid_store.add("claimed", 1) != 1) {
    store.set("id", std::vector<uint8_t>{kRefused});
    return;
  }
  weir_unique_id_t id;
  check(weir_get_unique_id(&id), nullptr, kWhat);
  store.set("id", std::vector<uint8_t>(std::begin(id.bytes), std::end(id.bytes)));
}

// std::nullopt: rank 0 refuses the uuid.
std::optional<weir_unique_id_t> id_from(c10d::Store& store, Clock::time_point end) {
  store.wait({"id"}, left_until(end));
  const std::vector<uint8_t> bytes = store.get("id");
  if (bytes == std::vector<uint8_t>{kRefused}) return std::nullopt;
  weir_unique_id_t id;
  TORCH_CHECK(bytes.size() == sizeof(id.bytes), "it holds ", bytes.size(),
              " bytes where Weir's rank 0 puts ", sizeof(id.bytes));
  std::memcpy(id.bytes, bytes.data(), sizeof(id.bytes));
  return id;
}

std::string words_of(const std::exception& error) {
  const auto* const with_backtrace = dynamic_cast<const c10::Error*>(&error);
  return with_backtrace == nullptr ? error.what() : with_backtrace->what_without_backtrace();
}

// A better reason than `error`, which may follow from it, such as that there is no unique id.
void throw_if_missing(c10d::Store& store, const std::vector<Member>& members, int64_t uuid,
                      Clock::time_point begin, Milliseconds timeout, const std::exception& error) {
  const auto elapsed = std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
  std::string names;
  try {
    names = missing(store, members);
  } catch (const std::exception&) {
    return;  // The store fails, which the caller says.
  }
  if (names.empty()) return;
  const std::string words = words_of(error);
  const bool is_over = elapsed >= timeout || words.find(kTimedOut) != std::string::npos;
  const std::string how =
      is_over ? c10::str(kTimedOut, "after ", timeout.count(), " ms ")
              : c10::str("failed after ", elapsed.count(), " ms (", words, "), when ");
  C10_THROW_ERROR(
      DistBackendError,
      c10::str(kWhat, ": ", how, names, " of ", members.size(), " had not called it with the uuid ",
               uuid,
               " and the same handles. The group is as before: reconfigure it with another uuid, "
               "of those that are there, or with a longer timeout"));
}

c10::intrusive_ptr<c10d::Work> complete_work() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<at::Device>{});
  future->markCompleted(c10::IValue(std::vector<at::Tensor>()));
  return c10d::Work::create_from_future(future);
}

}  // namespace

std::string Backend::name_in_handles(int rank) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "unknown");
  std::replace(host.begin(), host.end(), ':', '_');
  std::random_device random;
  const uint64_t drawn = (uint64_t{random()} << 32) | random();
  return c10::str(rank, ":%:", getpid(), "@", host.data(), ":", drawn);
}

c10d::ReconfigureHandle Backend::get_reconfigure_handle() const {
  std::string name = own_name_;
  name.replace(name.find('%'), 1, generation_ ? std::to_string(*generation_) : "new");
  return "weir:" + name;
}

c10::intrusive_ptr<c10d::Work> Backend::reconfigure(const c10d::ReconfigureOptions& options) {
  const std::vector<Member> members = members_of(options);
  const std::string own_handle = get_reconfigure_handle();
  const auto own = std::find_if(members.begin(), members.end(),
                                [&](const Member& member) { return member.handle == own_handle; });
  TORCH_CHECK_VALUE(own != members.end(), kWhat, ": this process's handle, ", own_handle,
                    ", is not among those given. A handle changes with each reconfigure; a "
                    "process that is to leave does not call it");
  TORCH_CHECK_VALUE(!is_coalescing_, kWhat, ": between startCoalescing and endCoalescing");
  const auto rank = static_cast<size_t>(own - members.begin());
  const Milliseconds timeout = timeout_of(options.timeout.value_or(c10d::kUnsetTimeout));
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + timeout;
  const WithoutPython without;

  const auto uuid_store =
      c10::make_intrusive<c10d::PrefixStore>(c10::str("weir/reconfigure/", options.uuid), store_);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(hash_of(members), uuid_store);
  std::shared_ptr<SharedCommunicator> joined;
  if (std::exchange(tried_uuid_, options.uuid) == options.uuid) refuse_uuid("", options.uuid);
  try {
    store->set(here(rank), std::vector<uint8_t>{1});
    if (rank == 0) make_id(*uuid_store, *store);
    if (const auto id = id_from(*store, end)) {
      joined = connect(*id, static_cast<int>(rank), static_cast<int>(members.size()), *options_,
                       left_until(end), kWhat);
    }
  } catch (const c10::DistBackendError& error) {
    throw_if_missing(*store, members, options.uuid, begin, timeout, error);
    throw;
  } catch (const std::exception& error) {  // of the store
    throw_if_missing(*store, members, options.uuid, begin, timeout, error);
    C10_THROW_ERROR(DistBackendError,
                    c10::str(kWhat, ": the store of the group fails: ", words_of(error)));
  }

  if (joined == nullptr) refuse_uuid("rank 0 says that ", options.uuid);
  joined->take_abort_hooks(*comm_);
  const std::shared_ptr<SharedCommunicator> previous = comm_;
  {
    const std::lock_guard lock(members_mutex_);
    comm_ = std::move(joined);
  }
  if (previous->handle() != nullptr) weir_comm_abort(previous->handle());
  {
    const std::lock_guard lock(arena_mutex_);
    arena_ = nullptr;
  }
  rank_ = static_cast<int>(rank);
  size_ = static_cast<int>(members.size());
  members_store_ = store;
  generation_ = options.uuid;
  sequence_ = 0;
  barrier_number_ = 0;
  return complete_work();
}

}  // namespace weir::pytorch

#endif
