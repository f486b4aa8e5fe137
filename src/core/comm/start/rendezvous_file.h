// SPDX-License-Identifier: Apache-2.0
// Rendezvous by a file that every rank can read: rank 0 writes a notice with its place and a secret
// that it has just made; the others read it and connect there; when all have joined, the notice is
// removed. At the place of a notice that a killed job left behind no rank listens, so a rank that
// reads such a notice reads again, and rank 0 of the next job replaces it. Values and functions;
// thread-safe.
//
// The file has mode 0600 and exactly these bytes, integers little-endian:
//
//   offset  bytes  field
//        0      8  "weirmeet"
//        8     32  job: SHA-256 of what names the job; zero when nothing does
//       40     32  secret
//       72     77  where rank 0 is, as a Place
//      149      8  its process number
//      157     64  its host's name, filled up with zeros
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/start/bootstrap_place.h"

namespace weir::comm {

inline constexpr size_t kNoticeBytes = 149 + 8 + 64;

struct Notice {
  Secret job;
  Secret secret;
  Place place;
  int64_t pid = 0;
  std::string host;
};

// The secret with which the ranks meet for the first time, before the notice is removed.
Secret bootstrap_secret(const Notice& notice);

// The bytes hold the secret: wipe them.
std::string pack(const Notice& notice);
bool unpack(std::string_view bytes, Notice* notice);

// Reads the file; `*found` is false when there is none yet, or it is incomplete. kRefused when it
// belongs to another user, others may read it, or it is no such file.
Status read_notice(const std::string& path, Notice* notice, bool* found);

// Rank 0's notice; removed with this object, unless another file has taken its place.
class PostedNotice {
 public:
  // Replaces a notice at whose place no rank listens. kRefused: rank 0 of another job waits at the
  // place of the existing notice, or the file is something else.
  static Result<PostedNotice> post(const std::string& path, const Notice& notice);
  PostedNotice(PostedNotice&& other) noexcept;
  PostedNotice& operator=(PostedNotice&&) = delete;
  ~PostedNotice();

  // kRefused: the file is not there any more, or is another one.
  Status check() const;

 private:
  PostedNotice(std::string path, int fd);
  bool is_in_place() const;

  std::string path_;
  int fd_ = -1;  // kept open, so that no other file gets the inode of this one
  int64_t owner_ = 0;
};

}  // namespace weir::comm
