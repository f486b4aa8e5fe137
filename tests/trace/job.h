// SPDX-License-Identifier: Apache-2.0
// Job: ranks as processes that go on running while the test looks at them, with a folder for their
// recorders. All of it ends with the object.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "trace/temporary_folder.h"

namespace weir::test {

class Job {
 public:
  // `environment` is that of the ranks, besides WEIR_RECORDER_DIR.
  Job(int n, const Body& body, const Environment& environment = {});
  ~Job();  // kills what still runs
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t process(int rank) const { return processes_[static_cast<size_t>(rank)]; }
  void signal(int rank, int number) const;
  // Waits until the ranks have ended by themselves.
  void join();
  const TemporaryFolder& folder() const { return folder_; }

 private:
  TemporaryFolder folder_;
  std::vector<pid_t> processes_;
};

// For bodies: an all-reduce of `count` floats, and its result.
weir_result_t all_reduce(weir_comm_t comm, size_t count);
// For calls that may succeed or fail.
inline void whatever(weir_result_t) {}
// Never returns.
[[noreturn]] void hang();

}  // namespace weir::test
