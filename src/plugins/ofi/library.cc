// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include <mutex>
#include <new>

namespace weir::plugins::ofi {
namespace {

constexpr char kFile[] = "libfabric.so.1";

// Another thread may hold one at a fork: a child has its own.
struct Locks {
  std::mutex signals;
  std::mutex library;
};
Locks& locks() {
  static Locks* const made = [] {
    auto* locks = new Locks;
    static Locks* kept = nullptr;
    kept = locks;
    (void)pthread_atfork(nullptr, nullptr, [] { new (kept) Locks; });
    return locks;
  }();
  return *made;
}

struct Loaded {
  Library library;
  bool tried = false;
  std::string failure;
};

// The version that a link would bind: the layout of structures belongs to it.
template <typename Function>
bool find(void* object, const char* name, const char* version, Function* function,
          std::string* failure) {
  void* symbol = dlvsym(object, name, version);
  if (symbol == nullptr) {
    *failure = std::string(kFile) + " has no " + name + " of version " + version +
               "; libfabric 1.9 or newer is needed (Debian: libfabric1)";
    return false;
  }
  memcpy(function, &symbol, sizeof symbol);
  return true;
}

void load(Loaded* loaded) {
  void* object = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* text = dlerror();
    loaded->failure = std::string(text != nullptr ? text : "dlopen failed") +
                      "; install libfabric (Debian: libfabric1)";
    return;
  }
  Library* library = &loaded->library;
  std::string* failure = &loaded->failure;
  (void)(find(object, "fi_getinfo", "FABRIC_1.3", &library->getinfo, failure) &&
         find(object, "fi_freeinfo", "FABRIC_1.3", &library->freeinfo, failure) &&
         find(object, "fi_dupinfo", "FABRIC_1.3", &library->dupinfo, failure) &&
         find(object, "fi_fabric", "FABRIC_1.1", &library->fabric, failure) &&
         find(object, "fi_strerror", "FABRIC_1.0", &library->strerror, failure) &&
         find(object, "fi_version", "FABRIC_1.0", &library->version, failure));
}

}  // namespace

struct SignalHandlersKept::Saved {
  std::lock_guard<std::mutex> alone;
  struct sigaction actions[NSIG];
  bool known[NSIG];
};

SignalHandlersKept::SignalHandlersKept() {
  // Otherwise one thread would save handlers that another is about to replace.
  saved_ = new Saved{std::lock_guard(locks().signals), {}, {}};
  for (int signal = 1; signal < NSIG; ++signal) {
    saved_->known[signal] = sigaction(signal, nullptr, &saved_->actions[signal]) == 0;
  }
}

SignalHandlersKept::~SignalHandlersKept() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction now;
    const struct sigaction& before = saved_->actions[signal];
    if (!saved_->known[signal] || sigaction(signal, nullptr, &now) != 0) continue;
    if (now.sa_handler != before.sa_handler || now.sa_flags != before.sa_flags) {
      (void)sigaction(signal, &before, nullptr);
    }
  }
  delete saved_;
}

const Library* load_library(std::string* reason) {
  static Loaded* const loaded = new Loaded;
  const std::lock_guard lock(locks().library);
  if (!loaded->tried) {
    const SignalHandlersKept kept;
    load(loaded);
    loaded->tried = true;
  }
  if (loaded->failure.empty()) return &loaded->library;
  *reason = loaded->failure;
  return nullptr;
}

}  // namespace weir::plugins::ofi
