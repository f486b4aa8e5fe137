// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/rendezvous_pmix.h"

#ifdef WEIR_HAVE_PMIX
#include <dlfcn.h>
#include <fmt/format.h>
#include <pmix.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/base/bounded_call.h"
#include "core/base/clock.h"
#include "net/auth.h"

namespace weir::comm {
namespace {

constexpr const char* kLibrary = "libpmix.so.2";
constexpr const char* kKey = "weir.rendezvous";

// The functions of PMIx 4 that are used; all are in every version since 2.
struct Pmix {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Initialized) initialized = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Fence) fence = nullptr;
  decltype(&PMIx_Get) get = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  std::string error;  // why the library cannot be used
};

template <typename Function>
void find(void* library, const char* name, Function* function, Pmix* pmix) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) pmix->error = fmt::format("{} has no {}", kLibrary, name);
}

Pmix load() {
  Pmix pmix;
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    pmix.error = error != nullptr ? error : "it cannot be loaded";
    return pmix;
  }
  find(library, "PMIx_Init", &pmix.init, &pmix);
  find(library, "PMIx_Initialized", &pmix.initialized, &pmix);
  find(library, "PMIx_Finalize", &pmix.finalize, &pmix);
  find(library, "PMIx_Put", &pmix.put, &pmix);
  find(library, "PMIx_Commit", &pmix.commit, &pmix);
  find(library, "PMIx_Fence", &pmix.fence, &pmix);
  find(library, "PMIx_Get", &pmix.get, &pmix);
  find(library, "PMIx_Error_string", &pmix.error_string, &pmix);
  return pmix;
}

// Never unloaded: PMIx keeps threads.
const Pmix& library() {
  static const Pmix* pmix = new Pmix(load());
  return *pmix;
}

void copy_key(const char* text, char* key) {
  std::strncpy(key, text, PMIX_MAX_KEYLEN);
  key[PMIX_MAX_KEYLEN] = '\0';
}

constexpr uint64_t kLeaveNsMax = 5'000'000'000;
std::atomic<pid_t> member_pid{0};  // the process that is to leave PMIx when it ends

// Without this, the launcher takes the end of the process for a crash.
void leave() {
  if (member_pid.exchange(0) != getpid()) return;  // or a forked child
  (void)run_bounded([] { (void)library().finalize(nullptr, 0); }, now_ns() + kLeaveNsMax);
}

void leave_at_exit() {
  member_pid = getpid();
  static const int registered = std::atexit(leave);
  (void)registered;
}

// The data of the thread that calls PMIx.
struct Talk {
  Rank rank = 0;
  std::string bytes;
  Status status;
  ~Talk() { net::wipe(bytes.data(), bytes.size()); }

  Status failed(const char* what, pmix_status_t code) const {
    return Status(Code::kSystem,
                  fmt::format("PMIx, {}: {} ({})", what, library().error_string(code), code));
  }

  Status put() {
    pmix_value_t value{};
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = bytes.data();
    value.data.bo.size = bytes.size();
    pmix_status_t code = library().put(PMIX_GLOBAL, kKey, &value);
    if (code != PMIX_SUCCESS) return failed("put", code);
    code = library().commit();
    return code == PMIX_SUCCESS ? Status() : failed("commit", code);
  }

  Status fence(const pmix_proc_t& self) const {
    pmix_proc_t all{};
    std::memcpy(all.nspace, self.nspace, sizeof all.nspace);
    all.rank = PMIX_RANK_WILDCARD;
    pmix_info_t collect{};
    copy_key(PMIX_COLLECT_DATA, collect.key);
    collect.value.type = PMIX_BOOL;
    collect.value.data.flag = true;
    const pmix_status_t code = library().fence(&all, 1, &collect, 1);
    return code == PMIX_SUCCESS ? Status() : failed("fence", code);
  }

  Status get(const pmix_proc_t& self) {
    pmix_proc_t zero{};
    std::memcpy(zero.nspace, self.nspace, sizeof zero.nspace);
    zero.rank = 0;
    pmix_value_t* value = nullptr;
    const pmix_status_t code = library().get(&zero, kKey, nullptr, 0, &value);
    if (code != PMIX_SUCCESS || value == nullptr) return failed("get", code);
    const bool fits = value->type == PMIX_BYTE_OBJECT && value->data.bo.bytes != nullptr &&
                      value->data.bo.size <= kPmixBytesMax;
    if (value->type == PMIX_BYTE_OBJECT && value->data.bo.bytes != nullptr) {
      if (fits) bytes.assign(value->data.bo.bytes, value->data.bo.size);
      net::wipe(value->data.bo.bytes, value->data.bo.size);
      std::free(value->data.bo.bytes);
      std::free(value);
    }
    return fits ? Status()
                : Status(Code::kRefused,
                         "PMIx, get: the data that rank 0 published cannot be read; do all ranks "
                         "run the same version of Weir?");
  }

  Status run() {
    pmix_proc_t self{};
    const bool is_first = library().initialized() == 0;
    pmix_status_t code = library().init(&self, nullptr, 0);
    if (code != PMIX_SUCCESS) return failed("init", code);
    Status result;
    if (self.rank != rank) {
      result = Status(Code::kInvalidUsage,
                      fmt::format("this process is rank {} by the launcher's variables and rank {} "
                                  "by PMIx: another launcher was started inside a PMIx job",
                                  rank, self.rank));
    }
    if (result.ok() && rank == 0) result = put();
    if (result.ok()) result = fence(self);
    if (result.ok() && rank != 0) result = get(self);
    // PMIx cannot be entered a second time once it was left by all, and MPI_Init may come later.
    if (is_first) {
      leave_at_exit();
    } else {
      (void)library().finalize(nullptr, 0);
    }
    return result;
  }
};

}  // namespace

std::string why_no_pmix() {
  for (const char* name : {"PMIX_NAMESPACE", "PMIX_RANK"}) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') {
      return fmt::format("the launcher offers no PMIx ({} is not set)", name);
    }
  }
  return library().error;
}

Result<std::string> exchange_through_pmix(Rank rank, const std::string& bytes_of_rank_0,
                                          uint64_t deadline_ns) {
  const std::string reason = why_no_pmix();
  if (!reason.empty()) return Status(Code::kUnsupported, "PMIx cannot be used: " + reason);
  auto talk = std::make_shared<Talk>();
  talk->rank = rank;
  talk->bytes = bytes_of_rank_0;
  if (!run_bounded([talk] { talk->status = talk->run(); }, deadline_ns)) {
    return Status(Code::kTimeout,
                  "timed out: the exchange between the ranks through PMIx did not complete; either "
                  "the PMIx server does not answer, or a rank creates no communicator");
  }
  if (!talk->status.ok()) return talk->status;
  return talk->bytes;
}

}  // namespace weir::comm

#else

namespace weir::comm {

std::string why_no_pmix() {
  return "this build of Weir does not support PMIx (libpmix-dev was not found)";
}

Result<std::string> exchange_through_pmix(Rank, const std::string&, uint64_t) {
  return Status(Code::kUnsupported, "PMIx cannot be used: " + why_no_pmix());
}

}  // namespace weir::comm

#endif
