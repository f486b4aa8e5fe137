// SPDX-License-Identifier: Apache-2.0
// DeviceBlock: memory that plays a device's. At its own addresses nobody can read or write it, and
// who tries is ended by SIGSEGV; the library that plays the one below a transport, and the test,
// reach the same bytes at an alias. One thread at a time.
#pragma once

#include <gtest/gtest.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace weir::plugins {

class DeviceBlock {
 public:
  explicit DeviceBlock(size_t bytes) : bytes_(bytes) {
    const int fd = memfd_create("device", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    device_ = map(fd, PROT_NONE);
    alias_ = map(fd, PROT_READ | PROT_WRITE);
    ::close(fd);
    blocks().push_back(this);
  }
  ~DeviceBlock() {
    std::erase(blocks(), this);
    munmap(device_, bytes_);
    munmap(alias_, bytes_);
  }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  unsigned char* device() const { return device_; }
  unsigned char* alias() const { return alias_; }

  // The alias of memory of any block that lives; null: it is no device's.
  static void* alias_of(const void* data) {
    const auto* at = static_cast<const unsigned char*>(data);
    for (const DeviceBlock* block : blocks()) {
      if (at >= block->device_ && at < block->device_ + block->bytes_) {
        return block->alias_ + (at - block->device_);
      }
    }
    return nullptr;
  }

 private:
  static std::vector<DeviceBlock*>& blocks() {
    static std::vector<DeviceBlock*> all;
    return all;
  }
  unsigned char* map(int fd, int protection) const {
    void* memory = mmap(nullptr, bytes_, protection, MAP_SHARED, fd, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<unsigned char*>(memory);
  }

  size_t bytes_;
  unsigned char* device_;
  unsigned char* alias_;
};

}  // namespace weir::plugins
