// SPDX-License-Identifier: Apache-2.0
// OwnedDescriptor: a file descriptor that is closed with its owner. Not thread-safe; several
// threads may use different objects.
#pragma once

#include <unistd.h>

#include <utility>

namespace weir {

class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int number) : number_(number) {}
  ~OwnedDescriptor() {
    if (ok()) (void)close(number_);
  }
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

}  // namespace weir
