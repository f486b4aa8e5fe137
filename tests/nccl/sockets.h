// SPDX-License-Identifier: Apache-2.0
// Which sockets a process has, so that a test sees how its bytes go.
#pragma once

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace weir::nccl::test {

// TCP sockets of this process.
inline size_t tcp_sockets() {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line, word;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      for (int i = 0; i < 10 && words >> word; ++i) {
      }
      inodes.insert("socket:[" + word + "]");
    }
  }
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char name[64] = {};
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    if (readlink(path.c_str(), name, sizeof name - 1) > 0) count += inodes.count(name);
  }
  closedir(folder);
  return count;
}

// Bytes that the TCP sockets of this process have sent.
inline uint64_t tcp_bytes_sent() {
  uint64_t bytes = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    tcp_info info{};
    socklen_t size = sizeof info;
    const int file = std::atoi(entry->d_name);
    if (getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (size >= offsetof(tcp_info, tcpi_bytes_sent) + sizeof info.tcpi_bytes_sent) {
      bytes += info.tcpi_bytes_sent;
    }
  }
  closedir(folder);
  return bytes;
}

}  // namespace weir::nccl::test
