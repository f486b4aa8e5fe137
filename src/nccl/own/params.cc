// SPDX-License-Identifier: Apache-2.0
// nccl.h: reading parameters: those that have an effect in this library, and no others.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/per_thread.h"
#include "nccl/api/own.h"
#include "nccl/base/environment.h"
#include "nccl/base/outcome.h"

using weir::nccl::guarded;
using weir::nccl::invalid_argument;
using weir::nccl::Outcome;

// The handle of a parameter is its index in the table of variables.
struct ncclParamHandle : weir::nccl::Variable {};

namespace {

using weir::nccl::Variable;

// The value that a thread was given last.
struct Held {
  std::string text;
};

const std::vector<ncclParamHandle>& params() {
  static const auto* all = [] {
    auto* made = new std::vector<ncclParamHandle>();
    for (const Variable& one : weir::nccl::honoured_variables()) made->push_back({one});
    return made;
  }();
  return *all;
}

const char* value_of(const ncclParamHandle& param) {
  const char* value = std::getenv(param.name);
  return value != nullptr ? value : param.default_value;
}

const ncclParamHandle* find_param(const char* key) {
  for (const ncclParamHandle& param : params()) {
    if (std::strcmp(param.name, key) == 0) return &param;
  }
  return nullptr;
}

Outcome check_handle(const char* function, ncclParamHandle_t handle, const void* out) {
  if (out == nullptr) return invalid_argument(fmt::format("{}: out is NULL", function));
  const bool known = std::any_of(params().begin(), params().end(),
                                 [&](const auto& param) { return &param == handle; });
  if (!known) {
    return invalid_argument(fmt::format("{}: the handle was not made by ncclParamBind", function));
  }
  return {};
}

Outcome check_key(const char* function, const char* key) {
  if (key == nullptr) return invalid_argument(fmt::format("{}: key is NULL", function));
  if (find_param(key) == nullptr) {
    return invalid_argument(
        fmt::format("{}: '{}' is not a parameter of this library", function, key));
  }
  return {};
}

template <typename Integer>
ncclResult_t get_integer(const char* function, ncclParamHandle_t handle, Integer* out) noexcept {
  return guarded(function, [&]() -> Outcome {
    Outcome outcome = check_handle(function, handle, out);
    if (!outcome.ok()) return outcome;
    const char* text = value_of(*handle);
    const char* end = text + std::strlen(text);
    Integer value{};
    const auto parsed = std::from_chars(text, end, value);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
      return invalid_argument(fmt::format("{}: {} is '{}', which is not an integer of {} bits",
                                          function, handle->name, text, 8 * sizeof value));
    }
    *out = value;
    return {};
  });
}

}  // namespace

ncclResult_t weir::nccl::own::ParamBind(ncclParamHandle_t* out, const char* key) {
  return guarded("ncclParamBind", [&]() -> Outcome {
    if (out == nullptr) return invalid_argument("ncclParamBind: out is NULL");
    Outcome outcome = check_key("ncclParamBind", key);
    if (outcome.ok()) *out = const_cast<ncclParamHandle_t>(find_param(key));
    return outcome;
  });
}

#define WEIR_NCCL_PARAM_GET(suffix, Integer)                                               \
  ncclResult_t weir::nccl::own::ParamGet##suffix(ncclParamHandle_t handle, Integer* out) { \
    return get_integer("ncclParamGet" #suffix, handle, out);                               \
  }
WEIR_NCCL_PARAM_GET(I8, int8_t)
WEIR_NCCL_PARAM_GET(I16, int16_t)
WEIR_NCCL_PARAM_GET(I32, int32_t)
WEIR_NCCL_PARAM_GET(I64, int64_t)
WEIR_NCCL_PARAM_GET(U8, uint8_t)
WEIR_NCCL_PARAM_GET(U16, uint16_t)
WEIR_NCCL_PARAM_GET(U32, uint32_t)
WEIR_NCCL_PARAM_GET(U64, uint64_t)
#undef WEIR_NCCL_PARAM_GET

ncclResult_t weir::nccl::own::ParamGetStr(ncclParamHandle_t handle, const char** out) {
  return guarded("ncclParamGetStr", [&]() -> Outcome {
    Outcome outcome = check_handle("ncclParamGetStr", handle, out);
    if (!outcome.ok()) return outcome;
    std::string& held = weir::PerThread<Held>::get().text;
    held = value_of(*handle);
    *out = held.c_str();
    return {};
  });
}

// The bytes of the value's text, without a final zero.
ncclResult_t weir::nccl::own::ParamGet(ncclParamHandle_t handle, void* out, int bytes_max,
                                       int* bytes) {
  return guarded("ncclParamGet", [&]() -> Outcome {
    Outcome outcome = check_handle("ncclParamGet", handle, out);
    if (!outcome.ok()) return outcome;
    if (bytes == nullptr) return invalid_argument("ncclParamGet: len is NULL");
    const std::string value = value_of(*handle);
    *bytes = static_cast<int>(value.size());  // also when it does not fit
    if (bytes_max < 0 || value.size() > static_cast<size_t>(bytes_max)) {
      return invalid_argument(fmt::format("ncclParamGet: {} needs {} bytes, maxLen is {}",
                                          handle->name, value.size(), bytes_max));
    }
    std::memcpy(out, value.data(), value.size());
    return {};
  });
}

ncclResult_t weir::nccl::own::ParamGetParameter(const char* key, const char** value, int* length) {
  return guarded("ncclParamGetParameter", [&]() -> Outcome {
    if (value == nullptr) return invalid_argument("ncclParamGetParameter: value is NULL");
    Outcome outcome = check_key("ncclParamGetParameter", key);
    if (!outcome.ok()) return outcome;
    std::string& held = weir::PerThread<Held>::get().text;
    held = value_of(*find_param(key));
    *value = held.c_str();
    if (length != nullptr) *length = static_cast<int>(held.size());
    return {};
  });
}

ncclResult_t weir::nccl::own::ParamGetAllParameterKeys(const char*** table, int* length) {
  return guarded("ncclParamGetAllParameterKeys", [&]() -> Outcome {
    if (table == nullptr || length == nullptr) {
      return invalid_argument("ncclParamGetAllParameterKeys: table or tableLen is NULL");
    }
    static const auto* keys = [] {
      auto* made = new std::vector<const char*>();
      for (const ncclParamHandle& param : params()) made->push_back(param.name);
      return made;
    }();
    *table = const_cast<const char**>(keys->data());
    *length = static_cast<int>(keys->size());
    return {};
  });
}

void weir::nccl::own::ParamDumpAll(void) {
  for (const ncclParamHandle& param : params()) {
    std::fprintf(stderr, "%s=%s\n", param.name, value_of(param));
  }
}
