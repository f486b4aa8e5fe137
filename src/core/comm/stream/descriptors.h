// SPDX-License-Identifier: Apache-2.0
// Open descriptors of another process of this machine. The kernel allows a process to take them if
// it may also trace the other (pidfd_getfd): if both belong to the same user, and neither Yama nor
// a container forbids it.
//
// A process number is valid in the caller's PID namespace and may have been given to another
// process since. The caller that takes a descriptor must check that it is the expected one.
//
// OwnedDescriptor and OtherProcess: not thread-safe; several threads may use different objects.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace weir::comm {

// Closes what it holds.
class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int number) : number_(number) {}
  ~OwnedDescriptor();
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : number_(other.release()) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  bool ok() const { return number_ >= 0; }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

class OtherProcess {
 public:
  // The process that has the number now, for as long as this object lives; `reason` says why there
  // is none.
  OtherProcess(int32_t process, std::string* reason);
  bool ok() const { return handle_.ok(); }

  // A duplicate of the descriptor that is `number` there, closed on exec.
  OwnedDescriptor take(int32_t number, std::string* reason) const;

 private:
  int32_t process_;
  OwnedDescriptor handle_;
};

}  // namespace weir::comm
