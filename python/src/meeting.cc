// SPDX-License-Identifier: Apache-2.0
// In the store:
//   weir/unique_id                  of rank 0's latest start: the id
//   weir/meeting/<hash>/here/<rank>   a number that the rank has drawn for this start, and how many
//                                     ranks it was told that there are
//   weir/meeting/<hash>/all           of rank 0, once all are here: their numbers, by rank; or, of
//                                     a rank 0 that has started again: kAgain; or of one that
//                                     refuses them: the reason and the numbers
//   weir/meeting/<hash>/members/…     of the group itself
// <hash> is of the id.
// A rank that finds another number than its own under `all` looks for another id.
#include "meeting.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "communicator.h"
#include "texts.h"

namespace weir::pytorch {

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

constexpr char kIdKey[] = "weir/unique_id";
constexpr size_t kDrawnBytes = 16;
constexpr size_t kNumberBytes = kDrawnBytes + sizeof(int32_t);
constexpr uint8_t kAgain = 0;
constexpr char kRefused[] = "refused: ";
constexpr Milliseconds kPause{10};
// After which a rank looks for the first time whether one that it waits for has died.
constexpr Milliseconds kFirstLook{2000};

std::string key_of(const Bytes& id, const std::string& rest) {
  return "weir/meeting/" + c10::sha1(std::string(id.begin(), id.end())).str() + "/" + rest;
}

std::string here(int rank) { return "here/" + std::to_string(rank); }

Milliseconds left_until(Clock::time_point end) {
  return std::max(std::chrono::duration_cast<Milliseconds>(end - Clock::now()), Milliseconds(1));
}

// False: it has not come until then. What else the store throws is an error of the store.
template <typename Ask>
bool comes(Clock::time_point end, Ask ask) {
  try {
    ask();
    return true;
  } catch (const std::exception&) {
    if (Clock::now() + kPause < end) throw;
    return false;
  }
}

std::string names_of(const std::vector<int>& ranks) {
  std::string names;
  for (const int rank : ranks) names += c10::str(names.empty() ? "rank " : ", rank ", rank);
  return names;
}

// A start of a group, as one of its ranks sees it.
struct Start {
  c10d::Store& store;
  int size;
  Milliseconds timeout;
  Clock::time_point end;
  const char* what;
  const DeadRanks& dead;
  const std::vector<int>& members;

  template <typename... Words>
  [[noreturn]] void fail(const Words&... words) const {
    C10_THROW_ERROR(DistBackendError, with_default_ranks(c10::str(what, ": ", words...), members));
  }
  [[noreturn]] void fail_without(const std::string& ranks, const std::string& more = "") const {
    fail(ranks, " of ", size, " has not joined within ", timeout.count(), " ms", more);
  }
  // False: they have not come until the end.
  bool await(const Keys& keys) const;
  bool get(const std::string& key, Bytes* value) const;
};

bool Start::await(const Keys& keys) const {
  if (!dead) return comes(end, [&] { store.wait(keys, left_until(end)); });
  // Few parts, since PyTorch warns at the end of each.
  for (Milliseconds part = kFirstLook;; part *= 2) {
    const auto look = std::min(end, Clock::now() + part);
    if (comes(look, [&] { store.wait(keys, left_until(look)); })) return true;
    if (const std::vector<int> ranks = dead(); !ranks.empty()) {
      const bool is_one = ranks.size() == 1;
      fail(names_of(ranks),
           " of the new group cannot join: ", is_one ? "its process has" : "their processes have",
           " ended, as the default group knows. Leave ", is_one ? "it" : "them",
           " out, or call weir.shrink() first");
    }
    if (Clock::now() >= end) return false;
  }
}

// A store's own `get` waits, too, but as long as the store's timeout says. Where that is what is
// left, one question is enough.
bool Start::get(const std::string& key, Bytes* value) const {
  if (dead) {
    if (!await({key})) return false;
    *value = store.get(key);
    return true;
  }
  return comes(end, [&] {
    const Milliseconds left = left_until(end);
    const Milliseconds own = store.getTimeout();
    if (own > left + kPause || own + kPause < left) store.wait({key}, left);
    *value = store.get(key);
  });
}

// With one question where the store can, instead of one for each key.
std::vector<Bytes> get_all(c10d::Store& store, const Keys& keys) {
  if (keys.size() > 1 && store.hasExtendedApi()) return store.multiGet(keys);
  std::vector<Bytes> values;
  for (const std::string& key : keys) values.push_back(store.get(key));
  return values;
}

void forget(c10d::Store& store, const Keys& keys) {
  try {
    for (const std::string& key : keys) store.deleteKey(key);
  } catch (const std::exception&) {
    // Not all stores can; they stay then.
  }
}

weir_unique_id_t id_from(const Bytes& bytes, const char* what) {
  weir_unique_id_t id;
  TORCH_CHECK(bytes.size() == sizeof(id.bytes), what, ": the store holds ", bytes.size(),
              " bytes under ", kIdKey, " where Weir's rank 0 puts ", sizeof(id.bytes),
              ": do all ranks use this backend?");
  std::memcpy(id.bytes, bytes.data(), sizeof(id.bytes));
  return id;
}

Bytes draw_number(int32_t size) {
  Bytes number(kNumberBytes);
  std::random_device random;
  for (size_t i = 0; i < kDrawnBytes; ++i) number[i] = static_cast<uint8_t>(random());
  std::memcpy(number.data() + kDrawnBytes, &size, sizeof size);
  return number;
}

int32_t size_in(const Bytes& number) {
  int32_t size = 0;
  if (number.size() == kNumberBytes) {
    std::memcpy(&size, number.data() + kDrawnBytes, sizeof size);
  }
  return size;
}

// "": it was told the same as rank 0.
std::string other_size(int rank, const Bytes& number, int size) {
  if (size_in(number) == size) return "";
  return c10::str("rank ", rank, " was given a world size of ", size_in(number), ", and rank 0 ",
                  size);
}

// For the ranks that are waiting: the reason, a line, and their numbers.
Bytes refusal(const std::string& reason, const std::vector<Bytes>& numbers) {
  std::string text = kRefused + reason + "\n";
  for (const Bytes& number : numbers) text.append(number.begin(), number.end());
  return Bytes(text.begin(), text.end());
}

// The reason, if it was said to the rank of this number; else "".
std::string reason_in(const Bytes& bytes, const Bytes& number) {
  const std::string text(bytes.begin(), bytes.end());
  const size_t prefix = std::strlen(kRefused);
  const size_t end = text.find('\n');
  if (text.compare(0, prefix, kRefused) != 0 || end == text.npos) return "";
  if (text.find(std::string(number.begin(), number.end()), end) == text.npos) return "";
  return text.substr(prefix, end - prefix);
}

weir_unique_id_t invite(const Start& start) {
  const auto& [store, size, timeout, end, what, dead, members] = start;
  weir_unique_id_t id;
  check(weir_get_unique_id(&id), nullptr, what);
  const Bytes bytes(std::begin(id.bytes), std::end(id.bytes));
  // Ranks that have read the id of an earlier start wait for that one.
  const Bytes earlier = store.check({kIdKey}) ? store.get(kIdKey) : Bytes();
  store.set(kIdKey, bytes);
  if (!earlier.empty()) store.set(key_of(earlier, "all"), Bytes{kAgain});
  Keys keys;
  for (int rank = 1; rank < size; ++rank) keys.push_back(key_of(bytes, here(rank)));
  Bytes numbers;
  if (!keys.empty() && !start.await(keys)) {
    std::vector<int> missing;
    std::string more =
        "; every rank needs the same store, the same world size and a rank of its own";
    for (int rank = 1; rank < size; ++rank) {
      const std::string& key = keys[static_cast<size_t>(rank) - 1];
      if (store.check({key})) {
        const std::string other = other_size(rank, store.get(key), size);
        if (!other.empty()) more += "; " + other;
      } else {
        missing.push_back(rank);
      }
    }
    if (!missing.empty()) start.fail_without(names_of(missing), more);
  }
  const std::vector<Bytes> found = get_all(store, keys);
  for (size_t i = 0; i < found.size(); ++i) {
    TORCH_CHECK(found[i].size() == kNumberBytes, what, ": the store holds ", found[i].size(),
                " bytes under ", keys[i], " where rank ", i + 1, " puts ", kNumberBytes);
    const std::string other = other_size(static_cast<int>(i) + 1, found[i], size);
    if (!other.empty()) {
      store.set(key_of(bytes, "all"), refusal(other, found));
      C10_THROW_ERROR(ValueError, c10::str(what, ": ", other));
    }
    numbers.insert(numbers.end(), found[i].begin(), found[i].end());
  }
  store.set(key_of(bytes, "all"), numbers);
  forget(store, keys);  // while the others read it
  return id;
}

weir_unique_id_t join(const Start& start, int rank) {
  const auto& [store, size, timeout, end, what, dead, members] = start;
  const Bytes number = draw_number(size);
  const auto offset = static_cast<std::ptrdiff_t>(rank - 1) * kNumberBytes;
  Bytes told;
  while (Clock::now() < end) {
    Bytes id;
    if (!start.get(kIdKey, &id)) break;
    if (id != told) store.set(key_of(id, here(rank)), number);
    told = id;
    Bytes numbers;
    if (!start.get(key_of(id, "all"), &numbers)) break;
    const auto expected = static_cast<size_t>(size - 1) * kNumberBytes;
    if (numbers.size() == expected &&
        std::equal(number.begin(), number.end(), numbers.begin() + offset)) {
      return id_from(id, what);
    }
    const std::string reason = reason_in(numbers, number);
    TORCH_CHECK_VALUE(reason.empty(), what, ": ", reason);
    std::this_thread::sleep_for(kPause);  // of an earlier start
  }
  if (told.empty()) start.fail_without("rank 0");
  start.fail("rank 0 has not said within ", timeout.count(), " ms that all ", size,
             " ranks are there. Either ranks are missing, or were given another world size, which "
             "the error of rank 0 says; or another process has this rank, too; or rank 0 is "
             "missing, and what is in the store is of an earlier start");
}

}  // namespace

weir_unique_id_t meet(c10d::Store& store, int rank, int size, Milliseconds timeout,
                      const char* what, const DeadRanks& dead, const std::vector<int>& members) {
  const Start start{store, size, timeout, Clock::now() + timeout, what, dead, members};
  return rank == 0 ? invite(start) : join(start, rank);
}

void forget_meeting(c10d::Store& store, const weir_unique_id_t& id) {
  forget(store, {key_of(Bytes(std::begin(id.bytes), std::end(id.bytes)), "all")});
}

c10::intrusive_ptr<c10d::Store> part_of_meeting(const c10::intrusive_ptr<c10d::Store>& store,
                                                const weir_unique_id_t& id) {
  return c10::make_intrusive<c10d::PrefixStore>(
      key_of(Bytes(std::begin(id.bytes), std::end(id.bytes)), "members"), store);
}

}  // namespace weir::pytorch
