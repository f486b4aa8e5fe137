// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/user_object.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "hostcuda/core/graph.h"

namespace weir::hostcuda {
namespace {

// The references that the program itself holds, for every object that exists.
struct Held {
  std::weak_ptr<UserObject> object;
  UserObjectRef own;
  size_t count = 0;
};

struct HeldTable {
  std::mutex mutex;
  std::unordered_map<const void*, Held> by_handle;
};

HeldTable& held() {
  static auto* const table = new HeldTable;
  return *table;
}

// The object behind a handle, after dropping `drop` of the program's references; nullptr when there
// is no object or it has fewer. The returned reference may be the last one.
UserObjectRef find_object(const void* handle, size_t drop) {
  HeldTable& table = held();
  const std::lock_guard lock(table.mutex);
  const auto at = table.by_handle.find(handle);
  if (at == table.by_handle.end() || at->second.count < drop) return nullptr;
  UserObjectRef object = at->second.object.lock();
  if (object == nullptr) return nullptr;  // it is being destroyed
  at->second.count -= drop;
  if (at->second.count == 0) at->second.own.reset();
  return object;
}

}  // namespace

UserObject::~UserObject() {
  {
    HeldTable& table = held();
    const std::lock_guard lock(table.mutex);
    table.by_handle.erase(this);
  }
  destroy_(object_);
}

Error create_user_object(void** handle, void* data, void (*destroy)(void*), unsigned count,
                         unsigned flags) {
  if (handle == nullptr || destroy == nullptr || count == 0 || flags != 1) {
    return Error::kInvalidValue;
  }
  const auto made = std::make_shared<UserObject>(data, destroy);
  HeldTable& table = held();
  const std::lock_guard lock(table.mutex);
  table.by_handle[made.get()] = {made, made, count};
  *handle = made.get();
  return Error::kSuccess;
}

Error retain_user_object(const void* handle, unsigned count) {
  const UserObjectRef found = find_object(handle, 0);
  if (found == nullptr || count == 0) return Error::kInvalidValue;
  HeldTable& table = held();
  const std::lock_guard lock(table.mutex);
  Held& entry = table.by_handle[handle];
  entry.own = found;
  entry.count += count;
  return Error::kSuccess;
}

Error release_user_object(const void* handle, unsigned count) {
  if (count == 0) return Error::kInvalidValue;
  return find_object(handle, count) != nullptr ? Error::kSuccess : Error::kInvalidValue;
}

Error give_user_object(const void* graph, const void* handle, unsigned count, unsigned flags) {
  if (count == 0 || flags > 1) return Error::kInvalidValue;
  const GraphRef found = find_graph(graph);
  if (found == nullptr) return Error::kInvalidValue;
  const UserObjectRef object = find_object(handle, flags == 1 ? count : 0);
  if (object == nullptr) return Error::kInvalidValue;
  const std::lock_guard lock(graph_lock());
  found->objects[object] += count;
  return Error::kSuccess;
}

Error take_user_object(const void* graph, const void* handle, unsigned count) {
  const GraphRef found = find_graph(graph);
  const UserObjectRef object = find_object(handle, 0);  // destroyed after the lock is released
  if (found == nullptr || object == nullptr || count == 0) return Error::kInvalidValue;
  const std::lock_guard lock(graph_lock());
  const auto at = found->objects.find(object);
  if (at == found->objects.end() || at->second < count) return Error::kInvalidValue;
  at->second -= count;
  if (at->second == 0) found->objects.erase(at);
  return Error::kSuccess;
}

}  // namespace weir::hostcuda
