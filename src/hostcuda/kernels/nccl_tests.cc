// SPDX-License-Identifier: Apache-2.0
// The kernels of nccl-tests that fill buffers, compute what a collective should give, and compare.
// The data are this file's own: values of which every rank's contribution is known from its number,
// and whose reduction is exact in the type, in any order of the ranks.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "hostcuda/kernels/elements.h"
#include "hostcuda/kernels/find.h"

namespace weir::hostcuda::kernels {

namespace {

enum class Operation : uint8_t { kCopy, kSum, kMin, kMax, kProduct, kAverage, kScaledSum };

struct OperationName {
  std::string_view name;
  Operation operation;
};
constexpr OperationName kOperations[] = {
    {"ReduceNil", Operation::kCopy},
    {"ReduceSum", Operation::kSum},
    {"ReduceMin", Operation::kMin},
    {"ReduceMax", Operation::kMax},
    {"ReduceProd", Operation::kProduct},
    {"ReduceAvg", Operation::kAverage},
    {"ReducePreMulSum", Operation::kScaledSum},
};

// The data of one call of a collective.
struct Data {
  const Element* type;
  Operation operation;
  int rank_count;
  uint64_t seed;
};

// The finalizer of SplitMix64.
uint64_t mixed(uint64_t word) {
  word += 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// All positive integers up to it are numbers of the type.
double exact_limit(const Element& type) { return std::ldexp(1, type.mantissa_bits + 1); }

// nccl-tests gives PreMulSum these scalars.
int scalar_of(int rank) { return rank % 2 == 0 ? 1 : 2; }

// A whole number in [-bound, bound], bound >= 1.
double whole(uint64_t random, double bound) {
  const auto span = 2 * static_cast<uint64_t>(bound) + 1;
  return static_cast<double>(random % span) - bound;
}

// Where a rank stands in the order of this element, which is another one for each element.
int place_of(const Data& data, int rank, uint64_t index) {
  const uint64_t first = mixed(data.seed ^ mixed(index)) % static_cast<uint64_t>(data.rank_count);
  return static_cast<int>((first + static_cast<uint64_t>(rank)) %
                          static_cast<uint64_t>(data.rank_count));
}

uint64_t random_of(const Data& data, int rank, uint64_t index) {
  const auto own = data.operation == Operation::kCopy ? 0 : static_cast<uint64_t>(rank);
  return mixed(mixed(data.seed + index) ^ (own << 40));
}

double float_input(const Data& data, int rank, uint64_t index) {
  const uint64_t random = random_of(data, rank, index);
  const double limit = exact_limit(*data.type);
  switch (data.operation) {
    case Operation::kCopy:
      return std::ldexp(whole(random >> 3, limit), static_cast<int>(random & 7) - 4);
    case Operation::kMin:
    case Operation::kMax:
      return whole(random, limit);
    case Operation::kProduct: {
      // One rank has a fraction, and four are powers of two, so that no product rounds.
      const int place = place_of(data, rank, index);
      double size = 1;
      if (place == 0) size += static_cast<double>((random >> 1) % (uint64_t{1} << 52)) * 0x1p-52;
      if (place == 0) size = std::floor(size * limit / 2) / (limit / 2);
      if (place >= 1 && place <= 4) size = 2;
      return (random & 1) != 0 ? -size : size;
    }
    case Operation::kAverage:
      // Two ranks only: nccl-tests allows two units of the last place.
      return place_of(data, rank, index) < 2
                 ? 1 + static_cast<double>(random % static_cast<uint64_t>(limit))
                 : 0;
    case Operation::kSum:
    case Operation::kScaledSum: {
      const double total = data.operation == Operation::kSum ? limit : limit / 2;
      const double share = std::floor(total / data.rank_count);
      if (share >= 1) return whole(random, share);
      return place_of(data, rank, index) < total ? whole(random, 1) : 0;
    }
  }
  return 0;
}

uint64_t integer_input(const Data& data, int rank, uint64_t index) {
  const uint64_t random = random_of(data, rank, index);
  if (data.operation == Operation::kProduct) return random | 1;
  if (data.operation != Operation::kAverage) return random;
  // No overflow: the sum of the two is less than the largest number of a signed type.
  const uint64_t quarter = uint64_t{1} << (8 * data.type->bytes - 2);
  return place_of(data, rank, index) < 2 ? random % quarter : 0;
}

double float_result(const Data& data, uint64_t index) {
  double result = float_input(data, 0, index);
  for (int rank = 1; rank < data.rank_count; ++rank) {
    const double next = float_input(data, rank, index);
    switch (data.operation) {
      case Operation::kMin:
        result = std::min(result, next);
        break;
      case Operation::kMax:
        result = std::max(result, next);
        break;
      case Operation::kProduct:
        result *= next;
        break;
      case Operation::kScaledSum:
        result += scalar_of(rank) * next;
        break;
      default:
        result += next;
    }
  }
  return data.operation == Operation::kAverage ? result / data.rank_count : result;
}

// The type's number in 64 bits, with its sign.
uint64_t widened(const Element& type, uint64_t word) {
  const auto unused = 64 - 8 * static_cast<int>(type.bytes);
  word <<= unused;
  return type.kind == ElementKind::kSigned
             ? static_cast<uint64_t>(static_cast<int64_t>(word) >> unused)
             : word >> unused;
}

bool is_less(const Element& type, uint64_t a, uint64_t b) {
  return type.kind == ElementKind::kSigned ? static_cast<int64_t>(a) < static_cast<int64_t>(b)
                                           : a < b;
}

uint64_t integer_result(const Data& data, uint64_t index) {
  const Element& type = *data.type;
  uint64_t result = widened(type, integer_input(data, 0, index));
  for (int rank = 1; rank < data.rank_count; ++rank) {
    const uint64_t next = widened(type, integer_input(data, rank, index));
    switch (data.operation) {
      case Operation::kMin:
        result = is_less(type, next, result) ? next : result;
        break;
      case Operation::kMax:
        result = is_less(type, result, next) ? next : result;
        break;
      case Operation::kProduct:
        result *= next;
        break;
      case Operation::kScaledSum:
        result += static_cast<uint64_t>(scalar_of(rank)) * next;
        break;
      default:
        result += next;
    }
  }
  return data.operation == Operation::kAverage ? result / static_cast<uint64_t>(data.rank_count)
                                               : result;
}

void put(const Data& data, double value, void* to) { write_float(*data.type, value, to); }
void put(const Data& data, uint64_t value, void* to) { std::memcpy(to, &value, data.type->bytes); }

void put_input(const Data& data, int rank, uint64_t index, void* to) {
  if (data.type->kind == ElementKind::kFloat) return put(data, float_input(data, rank, index), to);
  put(data, integer_input(data, rank, index), to);
}

void put_result(const Data& data, uint64_t index, void* to) {
  if (data.type->kind == ElementKind::kFloat) return put(data, float_result(data, index), to);
  put(data, integer_result(data, index), to);
}

// Which instance of a template a name means.
struct Instance {
  const Element* type;
  Operation operation;

  bool operator==(const Instance&) const = default;
};

Data data_of(const void* context, int rank_count, uint64_t seed) {
  const auto& instance = *static_cast<const Instance*>(context);
  return {instance.type, instance.operation, std::max(rank_count, 1), seed};
}

// The difference as nccl-tests counts it: of the bits as whole numbers.
bool differs(const void* a, const void* b, size_t bytes, unsigned tolerance) {
  uint64_t left = 0;
  uint64_t right = 0;
  std::memcpy(&left, a, bytes);
  std::memcpy(&right, b, bytes);
  return (left < right ? right - left : left - right) > tolerance;
}

void add_wrong(int64_t* counter, int64_t wrong) {
  std::atomic_ref<int64_t>(*counter).fetch_add(wrong);
}

// (T* elements, intptr_t count, Op, int rank_count, int rank, uint64_t seed, intptr_t first)
void fill_input(const weir_hostcuda_launch* launch, void* context) {
  auto* to = argument<char*>(launch, 0);
  const auto count = argument<int64_t>(launch, 1);
  const int rank = argument<int>(launch, 4);
  const auto first = argument<uint64_t>(launch, 6);
  const Data data = data_of(context, argument<int>(launch, 3), argument<uint64_t>(launch, 5));
  for (int64_t i = 0; i < count; ++i, to += data.type->bytes) {
    put_input(data, rank, first + static_cast<uint64_t>(i), to);
  }
}

// (T* elements, intptr_t count, Op, int rank_count, uint64_t seed, intptr_t first)
void fill_expected(const weir_hostcuda_launch* launch, void* context) {
  auto* to = argument<char*>(launch, 0);
  const auto count = argument<int64_t>(launch, 1);
  const auto first = argument<uint64_t>(launch, 5);
  const Data data = data_of(context, argument<int>(launch, 3), argument<uint64_t>(launch, 4));
  for (int64_t i = 0; i < count; ++i, to += data.type->bytes) {
    put_result(data, first + static_cast<uint64_t>(i), to);
  }
}

// (T* results, intptr_t count, Op, int rank_count, uint64_t seed, intptr_t first, unsigned
// tolerance, int64_t* wrong)
void verify_computed(const weir_hostcuda_launch* launch, void* context) {
  const auto* from = argument<const char*>(launch, 0);
  const auto count = argument<int64_t>(launch, 1);
  const auto first = argument<uint64_t>(launch, 5);
  const auto tolerance = argument<unsigned>(launch, 6);
  const Data data = data_of(context, argument<int>(launch, 3), argument<uint64_t>(launch, 4));
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i, from += data.type->bytes) {
    char expected[8];
    put_result(data, first + static_cast<uint64_t>(i), expected);
    wrong += differs(from, expected, data.type->bytes, tolerance) ? 1 : 0;
  }
  add_wrong(argument<int64_t*>(launch, 7), wrong);
}

// (T* results, T* expected, intptr_t count, unsigned tolerance, int64_t* wrong)
void verify_prepared(const weir_hostcuda_launch* launch, void* context) {
  const size_t bytes = static_cast<const Instance*>(context)->type->bytes;
  const auto* from = argument<const char*>(launch, 0);
  const auto* expected = argument<const char*>(launch, 1);
  const auto count = argument<int64_t>(launch, 2);
  const auto tolerance = argument<unsigned>(launch, 3);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i, from += bytes, expected += bytes) {
    wrong += differs(from, expected, bytes, tolerance) ? 1 : 0;
  }
  add_wrong(argument<int64_t*>(launch, 4), wrong);
}

struct Kernel {
  std::string_view name;
  weir_hostcuda_kernel function;
  size_t argument_count;
  size_t argument_bytes[8];
};
// The operation is an empty class, or has the number of ranks, which another argument has, too.
constexpr Kernel kKernels[] = {
    {"(anonymous namespace)::prepareInput2", fill_input, 7, {8, 8, 1, 4, 4, 8, 8}},
    {"(anonymous namespace)::prepareExpected2", fill_expected, 6, {8, 8, 1, 4, 8, 8}},
    {"(anonymous namespace)::verifyInline2", verify_computed, 8, {8, 8, 1, 4, 8, 8, 4, 8}},
    {"(anonymous namespace)::verifyPrepared", verify_prepared, 5, {8, 8, 8, 4, 8}},
};

}  // namespace

bool find_nccl_tests(std::string_view name, weir_hostcuda_host_kernel* found) {
  for (const Kernel& kernel : kKernels) {
    const auto arguments = template_arguments(name, kernel.name);
    if (arguments.empty()) continue;
    const Element* const type = element_named(arguments.front());
    if (type == nullptr) return false;
    Operation operation = Operation::kCopy;
    if (arguments.size() > 1) {
      constexpr std::string_view kScope = "(anonymous namespace)::";
      std::string_view wanted = arguments.back();
      if (wanted.starts_with(kScope)) wanted.remove_prefix(kScope.size());
      const auto* const row =
          std::find_if(std::begin(kOperations), std::end(kOperations),
                       [&](const OperationName& one) { return one.name == wanted; });
      if (row == std::end(kOperations)) return false;
      operation = row->operation;
    }
    *found = {kernel.function, kept(Instance{type, operation}), kernel.argument_bytes,
              kernel.argument_count};
    return true;
  }
  return false;
}

}  // namespace weir::hostcuda::kernels
