// SPDX-License-Identifier: Apache-2.0
// Open descriptors of another process of this machine. The kernel lets a process take them that may also
// trace the other (pidfd_getfd): of the same user, not shielded, and not forbidden by Yama or by a container.
//
// A process number is one of the caller's view of processes, and may be another process's by now. Whoever
// takes a descriptor looks whether it is the one that was meant.
//
// OwnedDescriptor and OtherProcess: not thread-safe, each for itself.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace weir::nccl {

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
  // Of the process that has the number now, for as long as this lives; `reason` says why there is none.
  OtherProcess(int32_t process, std::string* reason);
  bool ok() const { return handle_.ok(); }

  // A descriptor of its own for what is open there as `number`, closed on exec.
  OwnedDescriptor take(int32_t number, std::string* reason) const;

 private:
  int32_t process_;
  OwnedDescriptor handle_;
};

}  // namespace weir::nccl
