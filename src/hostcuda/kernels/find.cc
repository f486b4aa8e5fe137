// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/kernels/find.h"

#include <exception>

namespace weir::hostcuda::kernels {

std::vector<std::string_view> template_arguments(std::string_view name, std::string_view its_name) {
  if (!name.starts_with(its_name) || !name.ends_with('>')) return {};
  std::string_view rest = name.substr(its_name.size(), name.size() - its_name.size() - 1);
  if (!rest.starts_with('<')) return {};
  rest.remove_prefix(1);
  std::vector<std::string_view> arguments;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i <= rest.size(); ++i) {
    if (i == rest.size() || (depth == 0 && rest[i] == ',')) {
      std::string_view one = rest.substr(start, i - start);
      while (one.starts_with(' ')) one.remove_prefix(1);
      while (one.ends_with(' ')) one.remove_suffix(1);
      arguments.push_back(one);
      start = i + 1;
      continue;
    }
    const char c = rest[i];
    if (c == '<' || c == '(' || c == '{') ++depth;
    if (c == '>' || c == ')' || c == '}') --depth;
  }
  return arguments;
}

}  // namespace weir::hostcuda::kernels

// Looked up by libweir_hostcuda.so.
extern "C" __attribute__((visibility("default"))) int weir_hostcuda_find_kernel(
    const char* name, weir_hostcuda_host_kernel* found, void*) {
  try {
    using namespace weir::hostcuda::kernels;  // NOLINT: this is their C interface
    const bool has = find_nccl_tests(name, found) || find_pytorch(name, found) ||
                     find_pytorch_compute(name, found) || find_pytorch_lists(name, found);
    return has ? 1 : 0;
  } catch (const std::exception&) {
    return 0;
  }
}
