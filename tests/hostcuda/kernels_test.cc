// SPDX-License-Identifier: Apache-2.0
// The host functions for kernels of nccl-tests and PyTorch, launched under the names that the
// compiler gives the kernels there, and finders of programs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include <weir/hostcuda.h>

#include "hostcuda/support.h"

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): CUDA's name
void __cudaRegisterFunction(void** handle, const char* symbol, char* device, const char* name,
                            int limit, uint3* tid, uint3* bid, dim3* block, dim3* grid, int* size);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace weir::test {
namespace {

constexpr std::array<unsigned, 3> kOne = {1, 1, 1};

// A kernel as compiled code registers it, and launches of it with any arguments.
class Kernel {
 public:
  explicit Kernel(const std::string& name) {
    __cudaRegisterFunction(nullptr, &symbol_, &symbol_, name.c_str(), -1, nullptr, nullptr, nullptr,
                           nullptr, nullptr);
  }

  // `extents`: of the grid in x, y and z.
  template <class... Arguments>
  cudaError_t launch(const std::array<unsigned, 3>& extents, Arguments... arguments) {
    void* list[] = {&arguments...};
    dim3 grid{};
    dim3 block{};
    block.x = block.y = block.z = 1;
    grid.x = extents[0];
    grid.y = extents[1];
    grid.z = extents[2];
    const cudaError_t error = cudaLaunchKernel(&symbol_, grid, block, list, 0, nullptr);
    return error != cudaSuccess ? error : cudaDeviceSynchronize();
  }

 private:
  char symbol_ = 0;  // its address stands for the kernel
};

template <class Value>
class Array {
 public:
  explicit Array(size_t count) : count_(count), memory_(allocate(count * sizeof(Value))) {}
  ~Array() { EXPECT_CUDA(cudaFree(memory_)); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  // Device memory is host memory here.
  Value* data() { return static_cast<Value*>(memory_); }
  Value& operator[](size_t i) { return data()[i]; }
  size_t size() const { return count_; }

 private:
  size_t count_;
  void* memory_;
};

// ---- nccl-tests ---------------------------------------------------------------------------------

template <class Value>
struct TypeName;
template <>
struct TypeName<float> {
  static constexpr const char* kText = "float";
};
template <>
struct TypeName<double> {
  static constexpr const char* kText = "double";
};
template <>
struct TypeName<int8_t> {
  static constexpr const char* kText = "signed char";
};
template <>
struct TypeName<uint32_t> {
  static constexpr const char* kText = "unsigned int";
};
template <>
struct TypeName<int64_t> {
  static constexpr const char* kText = "long";
};

constexpr size_t kCount = 1000;
constexpr uint64_t kSeed = 12345;
constexpr int64_t kFirst = 77;

std::string instance(const std::string& kernel, const std::string& types,
                     const std::string& operation) {
  return "(anonymous namespace)::" + kernel + "<" + types +
         ", (anonymous namespace)::" + operation + ">";
}

template <class Value>
Value combined(const std::string& operation, Value a, Value b, int rank) {
  using Word = std::conditional_t<std::is_integral_v<Value>, std::make_unsigned<Value>,
                                  std::type_identity<Value>>;
  using Wrapping = typename Word::type;
  const auto x = static_cast<Wrapping>(a);
  auto y = static_cast<Wrapping>(b);
  if (operation == "ReduceMin") return std::min(a, b);
  if (operation == "ReduceMax") return std::max(a, b);
  if (operation == "ReduceProd") return static_cast<Value>(x * y);
  if (operation == "ReducePreMulSum" && rank % 2 == 1) y = static_cast<Wrapping>(y + y);
  return static_cast<Value>(x + y);
}

// The ranks in the order r, r + 1, …: the result must be the same for each r.
template <class Value>
Value reduced(const std::string& operation,
              const std::vector<std::unique_ptr<Array<Value>>>& inputs, size_t element,
              int first_rank) {
  const int count = static_cast<int>(inputs.size());
  Value result{};
  for (int i = 0; i < count; ++i) {
    const int rank = (first_rank + i) % count;
    const Value next = (*inputs[static_cast<size_t>(rank)])[element];
    if (i > 0) {
      result = combined(operation, result, next, rank);
    } else {
      result = operation == "ReducePreMulSum" && rank % 2 == 1
                   ? combined(std::string("ReduceSum"), next, next, 0)
                   : next;
    }
  }
  return operation == "ReduceAvg" ? static_cast<Value>(result / static_cast<Value>(count)) : result;
}

template <class Value>
void expect_predicted(const std::string& operation, int ranks) {
  SCOPED_TRACE(std::string(TypeName<Value>::kText) + " " + operation + " " + std::to_string(ranks));
  const std::string type = TypeName<Value>::kText;
  Kernel fill(instance("prepareInput2", type, operation));
  Kernel expect(instance("prepareExpected2", type, operation));
  const std::string word = "unsigned " + std::string(sizeof(Value) == 1   ? "char"
                                                     : sizeof(Value) == 4 ? "int"
                                                                          : "long");
  Kernel verify_inline(instance("verifyInline2", type + ", " + word, operation));
  Kernel verify("(anonymous namespace)::verifyPrepared<" + word + ">");
  std::vector<std::unique_ptr<Array<Value>>> inputs;
  const auto count = static_cast<int64_t>(kCount);
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(std::make_unique<Array<Value>>(kCount));
    ASSERT_CUDA(fill.launch(kOne, inputs.back()->data(), count, ranks, ranks, rank, kSeed, kFirst));
  }
  Array<Value> expected(kCount);
  Array<Value> result(kCount);
  ASSERT_CUDA(expect.launch(kOne, expected.data(), count, ranks, ranks, kSeed, kFirst));
  size_t zeros = 0;
  for (size_t i = 0; i < kCount; ++i) {
    result[i] = reduced(operation, inputs, i, 0);
    zeros += result[i] == Value{} ? 1 : 0;
    if (operation == "ReduceAvg") continue;  // its rounding depends on the order
    ASSERT_EQ(result[i], reduced(operation, inputs, i, ranks - 1)) << i;
    ASSERT_EQ(result[i], expected[i]) << i;
  }
  EXPECT_LT(zeros, kCount / 2);
  const unsigned tolerance = operation == "ReduceAvg" && !std::is_integral_v<Value> ? 2 : 0;
  Words words(4);
  auto* const wrong = reinterpret_cast<int64_t*>(words.at());
  ASSERT_CUDA(verify.launch(kOne, result.data(), expected.data(), count, tolerance, wrong));
  ASSERT_CUDA(verify_inline.launch(kOne, result.data(), count, ranks, ranks, kSeed, kFirst,
                                   tolerance, wrong));
  EXPECT_EQ(*wrong, 0);
  // Each finds what is wrong: a bit of one element, and the same data one element further.
  auto* const bytes = reinterpret_cast<unsigned char*>(&result[500]);
  bytes[sizeof(Value) - 1] ^= 0x10;
  ASSERT_CUDA(verify.launch(kOne, result.data(), expected.data(), count, tolerance, wrong));
  EXPECT_EQ(*wrong, 1);
  ASSERT_CUDA(verify_inline.launch(kOne, result.data(), count, ranks, ranks, kSeed, kFirst,
                                   tolerance, wrong));
  EXPECT_EQ(*wrong, 2);
  ASSERT_CUDA(verify_inline.launch(kOne, expected.data(), count, ranks, ranks, kSeed, kFirst + 1,
                                   tolerance, wrong));
  EXPECT_GT(*wrong, static_cast<int64_t>(kCount / 4));
}

TEST(HostCudaKernels, WhatNcclTestsFillsReducesToWhatItExpectsInAnyOrder) {
  for (const char* operation :
       {"ReduceSum", "ReduceMin", "ReduceMax", "ReduceProd", "ReduceAvg", "ReducePreMulSum"}) {
    for (const int ranks : {2, 3, 7}) {
      expect_predicted<float>(operation, ranks);
      expect_predicted<double>(operation, ranks);
      expect_predicted<int8_t>(operation, ranks);
      expect_predicted<uint32_t>(operation, ranks);
      expect_predicted<int64_t>(operation, ranks);
    }
  }
}

// Copies have one rank to nccl-tests; buffers differ by their seeds.
TEST(HostCudaKernels, WhatNcclTestsCopiesIsExpectedAndDiffersBetweenSeeds) {
  for (const char* type : {"unsigned char", "__half", "__nv_bfloat16", "__nv_fp8_e4m3",
                           "__nv_fp8_e5m2", "float", "unsigned long"}) {
    SCOPED_TRACE(type);
    Kernel fill(instance("prepareInput2", type, "ReduceNil"));
    Kernel expect(instance("prepareExpected2", type, "ReduceNil"));
    const auto count = static_cast<int64_t>(kCount);
    Array<uint64_t> filled(kCount);
    Array<uint64_t> expected(kCount);
    std::memset(filled.data(), 0, kCount * 8);
    std::memset(expected.data(), 0, kCount * 8);
    ASSERT_CUDA(fill.launch(kOne, filled.data(), count, 1, 1, 0, kSeed, kFirst));
    ASSERT_CUDA(expect.launch(kOne, expected.data(), count, 1, 1, kSeed, kFirst));
    EXPECT_EQ(std::memcmp(filled.data(), expected.data(), kCount * 8), 0);
    ASSERT_CUDA(expect.launch(kOne, expected.data(), count, 1, 1, kSeed + 1, kFirst));
    EXPECT_NE(std::memcmp(filled.data(), expected.data(), kCount), 0);
  }
}

// A short type holds few whole numbers: 16 and 8 for these.
TEST(HostCudaKernels, SumsOfEightBitTypesAreExactForManyRanks) {
  for (const char* type : {"__nv_fp8_e4m3", "__nv_fp8_e5m2"}) {
    for (const int ranks : {2, 5, 40}) {
      SCOPED_TRACE(type + std::to_string(ranks));
      Kernel fill(instance("prepareInput2", type, "ReduceSum"));
      Kernel expect(instance("prepareExpected2", type, "ReduceSum"));
      const auto count = static_cast<int64_t>(kCount);
      Array<uint8_t> bits(kCount);
      std::vector<double> sums(kCount, 0);
      const int mantissa = std::string(type) == "__nv_fp8_e4m3" ? 3 : 2;
      const int bias = mantissa == 3 ? 7 : 15;
      const auto value = [&](uint8_t byte) {
        const int fraction = byte & ((1 << mantissa) - 1);
        const int exponent = (byte & 0x7f) >> mantissa;
        const double size =
            exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                          : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
        return (byte & 0x80) != 0 ? -size : size;
      };
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_CUDA(fill.launch(kOne, bits.data(), count, 1, ranks, rank, kSeed, kFirst));
        for (size_t i = 0; i < kCount; ++i) {
          sums[i] += value(bits[i]);
          ASSERT_LE(std::fabs(sums[i]), mantissa == 3 ? 16 : 8);
        }
      }
      ASSERT_CUDA(expect.launch(kOne, bits.data(), count, 1, ranks, kSeed, kFirst));
      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(value(bits[i]), sums[i]);
    }
  }
}

// ---- PyTorch ------------------------------------------------------------------------------------

struct TwoArrays {
  void* to;
  const void* from;
};

TEST(HostCudaKernels, PyTorchFills) {
  Kernel fill(
      "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_"
      "11FillFunctorIfEESt5arrayIPcLm1EELb0EEEv"
      "iT0_T1_");
  Array<float> floats(10);
  std::fill_n(floats.data(), 10, -1.0F);
  ASSERT_CUDA(fill.launch(kOne, 9, 2.5F, floats.data()));
  EXPECT_EQ(floats[0], 2.5F);
  EXPECT_EQ(floats[8], 2.5F);
  EXPECT_EQ(floats[9], -1.0F);
}

// std::array<Offsets> as PyTorch lays it out, and what its lambda captures.
template <int kArrays>
struct Strides {
  int dimensions = 2;
  struct {
    unsigned size, magic, shift;
  } sizes[25] = {};
  unsigned strides[25][kArrays] = {};
};

TEST(HostCudaKernels, PyTorchFillsAColumn) {
  Kernel fill(
      "at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
      "at::native::FillFunctor<float> >(at::TensorIteratorBase&, at::native::FillFunctor<float> "
      "const&)::{lambda(int)#1}>");
  struct {
    Strides<1> offsets;
    float* to;
    float value;
  } captured;
  Array<float> matrix(12);  // 3 rows of 4
  std::fill_n(matrix.data(), 12, 0.0F);
  captured.offsets.dimensions = 1;
  captured.offsets.sizes[0].size = 3;
  captured.offsets.strides[0][0] = 16;
  captured.to = matrix.data() + 1;
  captured.value = 7;
  ASSERT_CUDA(fill.launch(kOne, 3, captured));
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(matrix[i], i % 4 == 1 ? 7.0F : 0.0F) << i;
}

TEST(HostCudaKernels, PyTorchTransposesAndChangesTheType) {
  const std::string function =
      "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() "
      "const::{lambda()#4}::operator()() const::{lambda(long)#1}";
  Kernel copy("at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<" + function +
              ">(at::TensorIteratorBase&, " + function + " const&)::{lambda(int)#1}>");
  struct {
    Strides<2> offsets;
    int64_t* to;
    const float* from;
    char function = 0;
    int8_t to_type = 4;    // c10::ScalarType: Long
    int8_t from_type = 6;  // Float
  } captured;
  Array<float> from(12);  // 3 rows of 4
  Array<int64_t> to(12);  // 4 rows of 3
  for (size_t i = 0; i < 12; ++i) from[i] = static_cast<float>(i) - 5.5F;
  captured.offsets.sizes[0].size = 3;
  captured.offsets.sizes[1].size = 4;
  captured.offsets.strides[0][0] = 8;
  captured.offsets.strides[0][1] = 16;
  captured.offsets.strides[1][0] = 24;
  captured.offsets.strides[1][1] = 4;
  captured.to = to.data();
  captured.from = from.data();
  ASSERT_CUDA(copy.launch(kOne, 12, captured));
  for (size_t row = 0; row < 4; ++row) {
    for (size_t column = 0; column < 3; ++column) {
      EXPECT_EQ(to[row * 3 + column], static_cast<int64_t>(from[column * 4 + row]));
    }
  }
}

TEST(HostCudaKernels, PyTorchChangesTheTypeOfContiguousTensors) {
  Kernel copy(
      "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_"
      "18TensorIteratorBaseEENKUlvE1_clEvENKUlvE2_clEvEUllE_"
      "St5arrayIPcLm2EELi4E23TrivialOffsetCalcul"
      "atorILi1EjESB_NS0_6memory12LoadWithCastILi1EEENSC_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_"
      "T5_");
  struct Cast {
    int8_t type;
    uint32_t bytes;
  };
  const float values[] = {1.75F, -3.99F, 1e9F, 0};
  Array<float> from(4);
  Array<int64_t> to(4);
  std::copy_n(values, 4, from.data());
  const TwoArrays arrays{to.data(), from.data()};
  ASSERT_CUDA(copy.launch(kOne, 4, char{}, arrays, char{}, char{}, Cast{6, 4}, Cast{4, 8}));
  EXPECT_EQ(to[0], 1);
  EXPECT_EQ(to[1], -3);
  EXPECT_EQ(to[2], 1000000000);
  EXPECT_EQ(to[3], 0);
}

TEST(HostCudaKernels, PyTorchRoundsToHalfAndBfloat16) {
  struct Case {
    float from;
    uint16_t half, bfloat16;
  };
  // By the IEEE's rules: ties to even, subnormal halves, and what is too large for a half.
  const Case cases[] = {{1.0F, 0x3c00, 0x3f80},
                        {-2.5F, 0xc100, 0xc020},
                        {65504.0F, 0x7bff, 0x4780},
                        {65520.0F, 0x7c00, 0x4780},
                        {0x1p-24F, 0x0001, 0x3380},
                        {0x1.8p-24F, 0x0002, 0x33c0},
                        {0x1p-25F, 0x0000, 0x3300},
                        {1.0F + 0x1p-11F, 0x3c00, 0x3f80},
                        {1.0F + 0x3p-11F, 0x3c02, 0x3f80},
                        {1.0F + 0x1.8p-7F, 0x3c0c, 0x3f82},
                        {-0.0F, 0x8000, 0x8000}};
  for (const bool is_half : {true, false}) {
    const std::string name = is_half ? "float16" : "bfloat16";
    Kernel copy("at::native::vectorized_elementwise_kernel<8, at::native::" + name +
                "_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, "
                "2ul>, false>");
    Array<float> from(1);
    Array<uint16_t> to(1);
    for (const Case& one : cases) {
      from[0] = one.from;
      ASSERT_CUDA(copy.launch(kOne, 1, char{}, TwoArrays{to.data(), from.data()}));
      EXPECT_EQ(to[0], is_half ? one.half : one.bfloat16) << name << " " << one.from;
    }
  }
}

TEST(HostCudaKernels, PyTorchComparesAddsMultipliesAndConcatenates) {
  struct ThreeArrays {
    void* to;
    const void* left;
    const void* right;
  };
  Kernel compare(
      "at::native::unrolled_elementwise_kernel<at::native::(anonymous namespace)::CompareFunctor"
      "<long>, std::array<char*, 3ul>, 4, TrivialOffsetCalculator<2, unsigned int>, "
      "TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithoutCast, "
      "at::native::memory::StoreWithoutCast>");
  Array<int64_t> left(3);
  Array<int64_t> right(3);
  Array<bool> holds(3);
  for (size_t i = 0; i < 3; ++i) {
    left[i] = static_cast<int64_t>(i);
    right[i] = 1;
  }
  constexpr int kGreater = 1;
  ASSERT_CUDA(
      compare.launch(kOne, 3, kGreater, ThreeArrays{holds.data(), left.data(), right.data()}));
  EXPECT_FALSE(holds[0]);
  EXPECT_FALSE(holds[1]);
  EXPECT_TRUE(holds[2]);
  Kernel add(
      "at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctorOnSelf_add<long>, "
      "std::array<char*, 2ul>, false>");
  struct {
    int64_t other = 10, alpha = -2;
  } numbers;
  ASSERT_CUDA(add.launch(kOne, 3, numbers, TwoArrays{right.data(), left.data()}));
  EXPECT_EQ(right[2], 2 - 20);
  Kernel multiply(
      "at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
      "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>, false>");
  struct {
    char operation = 0;
    float number = 0.5F;
  } factor;
  Array<float> floats(1);
  floats[0] = 3;
  ASSERT_CUDA(multiply.launch(kOne, 1, factor, TwoArrays{floats.data(), floats.data()}));
  EXPECT_EQ(floats[0], 1.5F);
  Kernel concatenate(
      "at::native::(anonymous namespace)::CatArrayBatchedCopy_alignedK_contig<at::native::("
      "anonymous namespace)::OpaqueType<4u>, unsigned int, 1, 128, 1, 16>");
  struct Parts {
    const void* from[128] = {};
    unsigned first[128] = {};
    unsigned size[128] = {};
    unsigned count[128] = {};
  } parts;
  Array<int> one(2);
  Array<int> two(1);
  Array<int> all(3);
  one[0] = 1;
  one[1] = 2;
  two[0] = 3;
  parts.from[0] = one.data();
  parts.from[1] = two.data();
  parts.first[1] = 2;
  parts.count[0] = 2;
  parts.count[1] = 1;
  ASSERT_CUDA(concatenate.launch({1, 2, 1}, all.data(), parts));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i + 1);
}

// TensorListMetadata<2> as PyTorch for CUDA 13 lays it out.
struct Lists {
  void* addresses[2][448];
  int64_t count[448];
  uint16_t tensor_of_block[2240];
  int32_t chunk_of_block[2240];
  int32_t first_tensor;
};

TEST(HostCudaKernels, PyTorchCopiesListsOfTensors) {
  Kernel copy(
      "at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
      "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::UnaryOpFunctor<float, "
      "2, 1, 1>, at::native::Copy<float, float> >");
  constexpr size_t kLong = 70000;  // more than the 65536 elements of a chunk
  Array<float> from(kLong);
  Array<float> to(kLong + 1);
  Array<float> small(1);
  Array<float> copied(1);
  for (size_t i = 0; i < kLong; ++i) from[i] = static_cast<float>(i);
  small[0] = 5;
  to[kLong] = -1;
  auto lists = std::make_unique<Lists>();
  lists->addresses[0][0] = small.data();
  lists->addresses[1][0] = copied.data();
  lists->addresses[0][1] = from.data();
  lists->addresses[1][1] = to.data();
  lists->count[0] = 1;
  lists->count[1] = kLong;
  lists->tensor_of_block[1] = lists->tensor_of_block[2] = 1;
  lists->chunk_of_block[2] = 1;
  ASSERT_CUDA(copy.launch({3, 1, 1}, *lists, char{}, char{}));
  EXPECT_EQ(copied[0], 5);
  EXPECT_TRUE(std::equal(from.data(), from.data() + kLong, to.data()));
  EXPECT_EQ(to[kLong], -1);
}

TEST(HostCudaKernels, PyTorchSplitsRowsAndConcatenatesChunks) {
  Kernel split("at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel");
  // Two rows of 5 bytes into parts of 2 and 3 bytes; the second part has two blocks.
  Array<char> rows(10);
  Array<char> first(4);
  Array<char> second(6);
  std::memcpy(rows.data(), "abcdeABCDE", 10);
  Array<char*> to(2);
  Array<char*> from(2);
  Array<int64_t> numbers(8);
  to[0] = first.data();
  to[1] = second.data();
  from[0] = rows.data();
  from[1] = rows.data() + 2;
  const int64_t given[] = {2, 3, /* part of block */ 0, 1, 1, /* first block */ 0, 1, 3};
  std::copy_n(given, 8, numbers.data());
  ASSERT_CUDA(split.launch({3, 2, 1}, to.data(), from.data(), numbers.data(), numbers.data() + 2,
                           numbers.data() + 5, int64_t{5}, int64_t{2}));
  EXPECT_EQ(std::string(first.data(), 4), "abAB");
  EXPECT_EQ(std::string(second.data(), 6), "cdeCDE");

  Kernel concatenate("at::native::detail::chunk_cat_cuda_kernel<char, char>");
  // Tensors of 3 and 2 bytes in two chunks of 2 + 1 bytes: "ab" "A" and "c\0" "B".
  Array<char> result(6);
  std::memset(result.data(), 'x', 6);
  from[0] = rows.data();
  from[1] = rows.data() + 5;
  Array<int64_t> tables(12);
  const int64_t tensors[] = {
      /* tensor of block */ 0, 1, /* start */ 0,  2, /* first block */ 0, 1,
      /* bytes */ 3,           2, /* padded */ 2, 1, /* blocks */ 1,      1};
  std::copy_n(tensors, 12, tables.data());
  const auto table = [&](size_t i) { return tables.data() + 2 * i; };
  ASSERT_CUDA(concatenate.launch({2, 2, 1}, from.data(), result.data(), table(0), table(1),
                                 table(2), table(3), table(4), table(5), int64_t{6}, int64_t{3},
                                 int64_t{1}));
  EXPECT_EQ(std::string(result.data(), 6), std::string("abAc\0B", 6));
}

// ---- Finders ------------------------------------------------------------------------------------

TEST(HostCudaKernels, OthersOfTheSameProgramsAreRefused) {
  const std::string vectorized = "at::native::vectorized_elementwise_kernel<4, at::native::";
  for (const std::string& name : {
           instance("prepareInput2", "float", "ReduceOther"),
           instance("prepareInput2", "other", "ReduceSum"),
           vectorized + "AbsFunctor<float>, std::array<char*, 2ul>, false>",
           vectorized + "FillFunctor<float",
           std::string("at::native::elementwise_kernel<128, 2, x>"),
       }) {
    EXPECT_CUDA_ERROR(98, Kernel(name).launch(kOne, 0, 0, 0)) << name;
  }
}

struct Asked {
  int count = 0;
  std::string prefix;
};

void note_launch(const weir_hostcuda_launch* launch, void* context) {
  **static_cast<int**>(launch->arguments[0]) = *static_cast<int*>(context);
}

int find_mine(const char* name, weir_hostcuda_host_kernel* found, void* context) {
  static constexpr size_t kBytes[] = {sizeof(int*)};
  static int value = 42;
  auto& asked = *static_cast<Asked*>(context);
  if (std::string_view(name).substr(0, asked.prefix.size()) != asked.prefix) return 0;
  ++asked.count;
  *found = {note_launch, &value, kBytes, 1};
  return 1;
}

TEST(HostCudaKernels, AFinderIsAskedOnceForEachKernelAndBeforeTheLibrary) {
  EXPECT_EQ(weir_hostcuda_register_finder(nullptr, nullptr), 1);
  static Asked asked;
  asked.prefix = "mine::";
  Kernel early("mine::scale<float>");
  EXPECT_CUDA_ERROR(98, early.launch(kOne, nullptr));
  ASSERT_EQ(weir_hostcuda_register_finder(find_mine, &asked), 0);
  Array<int> out(1);
  for (int i = 0; i < 3; ++i) {
    out[0] = 0;
    ASSERT_CUDA(early.launch(kOne, out.data()));
    EXPECT_EQ(out[0], 42);
  }
  EXPECT_EQ(asked.count, 1);
  Kernel compiled("_ZN4mine5scaleIdEEvPi");  // void mine::scale<double>(int*)
  ASSERT_CUDA(compiled.launch(kOne, out.data()));
  EXPECT_EQ(asked.count, 2);
  static Asked other;
  other.prefix = "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>";
  ASSERT_EQ(weir_hostcuda_register_finder(find_mine, &other), 0);
  Kernel fill(other.prefix + ", std::array<char*, 1ul>, false>");
  ASSERT_CUDA(fill.launch(kOne, out.data()));
  EXPECT_EQ(other.count, 1);
}

}  // namespace
}  // namespace weir::test
