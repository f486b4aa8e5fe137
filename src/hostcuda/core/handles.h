// SPDX-License-Identifier: Apache-2.0
// Handles that a program holds: the object's address, looked up before use, so that an invalid or
// destroyed handle causes an error and not a crash. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weir::hostcuda {

template <class T>
class HandleTable {
 public:
  T* add(std::shared_ptr<T> object) {
    T* const handle = object.get();
    const std::lock_guard lock(mutex_);
    objects_.emplace(handle, std::move(object));
    return handle;
  }

  // nullptr when there is no such handle.
  std::shared_ptr<T> find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(handle);
    return at == objects_.end() ? nullptr : at->second;
  }

  std::vector<std::shared_ptr<T>> all() const {
    std::vector<std::shared_ptr<T>> found;
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, object] : objects_) found.push_back(object);
    return found;
  }

  std::shared_ptr<T> take(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto at = objects_.find(handle);
    if (at == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(at->second);
    objects_.erase(at);
    return object;
  }

  // The handles are invalid from now on. The objects stay in memory, so that no later object has
  // the handle of one that the program was not told of.
  template <class Predicate>
  void invalidate_if(Predicate predicate) {
    const std::lock_guard lock(mutex_);
    for (auto at = objects_.begin(); at != objects_.end();) {
      if (predicate(*at->second)) {
        invalidated_.push_back(std::move(at->second));
        at = objects_.erase(at);
      } else {
        ++at;
      }
    }
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
  std::vector<std::shared_ptr<T>> invalidated_;
};

}  // namespace weir::hostcuda
