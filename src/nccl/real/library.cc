// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "nccl/base/outcome.h"
#include "nccl_search/open.h"

// Marks a library of Weir's, whatever its file is called.
extern "C" WEIR_NCCL_API const char weir_nccl_marker[] = "weir";

namespace weir::nccl {

namespace {

// The open library, whose version an error for a missing function names.
std::atomic<const RealLibrary*> the_open_one{nullptr};

std::atomic<const std::string*> why_absent{nullptr};

ncclResult_t refuse_missing(FunctionIndex function) noexcept {
  if (const std::string* reason = why_absent.load(std::memory_order_acquire); reason != nullptr) {
    return report({ncclSystemError, fmt::format("{}: WEIR_DISABLE is set, but {}",
                                                info_of(function).name, *reason)});
  }
  return guarded(info_of(function).name, [&]() -> Outcome {
    const RealLibrary* real = the_open_one.load(std::memory_order_acquire);
    return invalid_usage(fmt::format(
        "{} came with NCCL {}; the NCCL behind this library is {} ({}): install a newer one, or "
        "name it in WEIR_NCCL_LIBRARY",
        info_of(function).name, info_of(function).since,
        real != nullptr ? real->version_text() : "older", real != nullptr ? real->path() : ""));
  });
}

template <FunctionIndex function, typename Pointer>
struct Missing;

template <FunctionIndex function, typename Result, typename... Arguments>
struct Missing<function, Result (*)(Arguments...)> {
  static Result call(Arguments...) {
    if constexpr (std::is_same_v<Result, const char*>) {
      return "";  // it returns the texts of errors itself
    } else {
      const ncclResult_t result = refuse_missing(function);
      if constexpr (std::is_same_v<Result, ncclResult_t>) {
        return result;
      } else if constexpr (std::is_same_v<Result, int>) {
        return -1;
      } else if constexpr (!std::is_void_v<Result>) {
        return Result{};
      }
    }
  }
};

struct Range {
  const char* base;
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

int find_code(dl_phdr_info* info, size_t, void* wanted) {
  auto& range = *static_cast<Range*>(wanted);
  if (info->dlpi_addr != reinterpret_cast<uintptr_t>(range.base)) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
    range.begin = range.end == 0 ? begin : std::min(range.begin, begin);
    range.end = std::max(range.end, begin + segment.p_memsz);
  }
  return 1;
}

}  // namespace

const Table& absent_table(const std::string* reason) {
  static constexpr Table kAbsent = {
#define WEIR_NCCL_ABSENT(name, ...) Missing<FunctionIndex::k##name, decltype(Table::name)>::call,
      WEIR_NCCL_FUNCTIONS(WEIR_NCCL_ABSENT)
#undef WEIR_NCCL_ABSENT
  };
  why_absent.store(reason, std::memory_order_release);
  return kAbsent;
}

std::string RealLibrary::version_text() const { return weir::nccl::version_text(version_); }

std::unique_ptr<RealLibrary> RealLibrary::of(void* library, const std::string& path,
                                             std::string* reason) {
  std::unique_ptr<RealLibrary> real(new RealLibrary());
  RealFunctions functions;
  if (!find_functions(library, &functions, reason)) return nullptr;
  real->version_ = functions.version;
  // A missing function is replaced by one that reports it.
#define WEIR_NCCL_RESOLVE(name, ...)                                                  \
  if (void* found = functions.of(FunctionIndex::k##name); found != nullptr) {         \
    real->table_.name = reinterpret_cast<decltype(Table::name)>(found);               \
    real->has_[static_cast<unsigned>(FunctionIndex::k##name)] = true;                 \
  } else {                                                                            \
    real->table_.name = Missing<FunctionIndex::k##name, decltype(Table::name)>::call; \
  }
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_RESOLVE)
#undef WEIR_NCCL_RESOLVE
  real->path_ = path;
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) {
    *reason = "the loader does not know it";
    return nullptr;
  }
  Range range{reinterpret_cast<const char*>(map->l_addr)};
  dl_iterate_phdr(find_code, &range);
  real->begin_ = range.begin;
  real->end_ = range.end;
  return real;
}

std::unique_ptr<RealLibrary> RealLibrary::open(const std::string& explicit_path,
                                               std::string* reason) {
  std::unique_ptr<RealLibrary> real;
  const auto accept = [&](void* library, const std::string& path, std::string* why) {
    real = of(library, path, why);
    return real != nullptr;
  };
  const OpenedNccl opened = open_real_nccl(explicit_path, accept, reason);
  if (opened.library == nullptr) return nullptr;
  real->found_by_ = opened.found_by;
  the_open_one.store(real.get(), std::memory_order_release);
  return real;
}

}  // namespace weir::nccl
