// SPDX-License-Identifier: Apache-2.0
// Modules of the driver API: kernels with host functions that are found by name and launched.
#include <cstring>
#include <string>

#include <weir/hostcuda.h>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

const char kPtx[] = "// of nvcc's\n.version 9.0\n.target sm_90\n";

// data[i] += value, once for each thread of the launch.
void add_on_host(const weir_hostcuda_launch* launch, void*) {
  int* const data = *static_cast<int**>(launch->arguments[0]);
  const int value = *static_cast<int*>(launch->arguments[1]);
  for (unsigned i = 0; i < launch->grid[0] * launch->block[0]; ++i) data[i] += value;
}

class HostCudaModules : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CUDA(cudaSetDevice(0));
    const size_t sizes[] = {sizeof(int*), sizeof(int)};
    ASSERT_EQ(weir_hostcuda_register_kernel("module_add", add_on_host, nullptr, sizes, 2), 0);
    ASSERT_CUDA(cuModuleLoadData(&module_, kPtx));
    ASSERT_CUDA(cuModuleGetFunction(&add_, module_, "module_add"));
  }
  void TearDown() override {
    if (module_ == nullptr) return;
    EXPECT_CUDA(cuModuleUnload(module_));
  }
  CUresult launch(int* data, int value, cudaStream_t stream) const {
    void* arguments[] = {&data, &value};
    return cuLaunchKernel(add_, 2, 1, 1, 4, 1, 1, 0, stream, arguments, nullptr);
  }

  CUmodule module_ = nullptr;
  CUfunction add_ = nullptr;
};

TEST_F(HostCudaModules, ALaunchRunsInStreamOrderWithTheArgumentsThatItWasGiven) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  auto* const data = static_cast<int*>(allocate(8 * sizeof(int)));
  Gate gate;
  gate.close(stream);
  ASSERT_CUDA(cudaMemsetAsync(data, 0, 8 * sizeof(int), stream));
  for (const int value : {1, 20, 300}) ASSERT_CUDA(launch(data, value, stream));
  EXPECT_CUDA_ERROR(600, cuStreamQuery(stream));
  gate.open();
  int got[8] = {};
  ASSERT_CUDA(cudaMemcpyAsync(got, data, sizeof got, cudaMemcpyDeviceToHost, stream));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  for (const int value : got) EXPECT_EQ(value, 321);
  EXPECT_CUDA(cudaFree(data));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(HostCudaModules, ACapturedLaunchRunsWheneverItsGraphDoesAlsoAfterTheModuleHasGone) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  auto* const data = static_cast<int*>(allocate(8 * sizeof(int)));
  ASSERT_CUDA(cudaMemsetAsync(data, 0, 8 * sizeof(int), stream));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_CUDA(launch(data, 7, stream));
  ASSERT_CUDA(launch(data, 10, stream));
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  EXPECT_CUDA(cuModuleUnload(module_));
  module_ = nullptr;
  for (int i = 0; i < 3; ++i) ASSERT_CUDA(cudaGraphLaunch(executable, stream));
  int got[8] = {};
  ASSERT_CUDA(cudaMemcpyAsync(got, data, sizeof got, cudaMemcpyDeviceToHost, stream));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  for (const int value : got) EXPECT_EQ(value, 51);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaFree(data));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(HostCudaModules, AKernelWithoutAHostFunctionIsNotFoundAndNamedOnce) {
  CUfunction function = add_;
  testing::internal::CaptureStderr();
  EXPECT_CUDA_ERROR(500, cuModuleGetFunction(&function, module_, "nobody_knows_it"));
  EXPECT_CUDA_ERROR(500, cuModuleGetFunction(&function, module_, "nobody_knows_it"));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(function, nullptr);
  EXPECT_NE(told.find("'nobody_knows_it'"), std::string::npos) << told;
  EXPECT_EQ(told.find("'nobody_knows_it'"), told.rfind("'nobody_knows_it'")) << told;
}

TEST_F(HostCudaModules, WhatIsNoModuleNoFunctionOrNoLaunchIsRefused) {
  CUmodule other = nullptr;
  const char none[8] = "hello";
  EXPECT_CUDA_ERROR(1, cuModuleLoadData(nullptr, kPtx));
  EXPECT_CUDA_ERROR(1, cuModuleLoadData(&other, nullptr));
  EXPECT_CUDA_ERROR(200, cuModuleLoadData(&other, none));
  EXPECT_CUDA_ERROR(1, cuModuleLoadDataEx(&other, kPtx, 1, nullptr, nullptr));
  ASSERT_CUDA(cuModuleLoadDataEx(&other, kPtx, 0, nullptr, nullptr));
  CUfunction function = nullptr;
  EXPECT_CUDA_ERROR(1, cuModuleGetFunction(&function, other, nullptr));
  ASSERT_CUDA(cuModuleGetFunction(&function, other, "module_add"));
  CUfunction again = nullptr;
  ASSERT_CUDA(cuModuleGetFunction(&again, other, "module_add"));
  EXPECT_EQ(function, again);
  EXPECT_CUDA(cuModuleUnload(other));
  EXPECT_CUDA_ERROR(400, cuModuleUnload(other));
  EXPECT_CUDA_ERROR(400, cuModuleGetFunction(&again, other, "module_add"));
  EXPECT_CUDA_ERROR(400, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_CUDA_ERROR(400, cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  // Arguments are missing; too many threads; a form that is not there.
  EXPECT_CUDA_ERROR(1, cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  int* data = nullptr;
  int value = 0;
  void* arguments[] = {&data, &value};
  EXPECT_CUDA_ERROR(1, cuLaunchKernel(add_, 1, 1, 1, 2048, 1, 1, 0, nullptr, arguments, nullptr));
  EXPECT_CUDA_ERROR(801, cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, arguments));
}

TEST_F(HostCudaModules, LoadingIsNothingForACapturingThreadThatIsNotRelaxed) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  CUmodule other = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUstreamCaptureMode mode = static_cast<CUstreamCaptureMode>(2);
  ASSERT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
  ASSERT_CUDA(cuModuleLoadData(&other, kPtx));
  EXPECT_CUDA(cuModuleUnload(other));
  ASSERT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA_ERROR(900, cuModuleLoadData(&other, kPtx));
  EXPECT_CUDA_ERROR(901, cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(HostCudaModules, TheFunctionsAreFoundByName) {
  for (const char* name : {"cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleUnload",
                           "cuModuleGetFunction", "cuLaunchKernel"}) {
    void* function = nullptr;
    CUdriverProcAddressQueryResult result{};
    ASSERT_CUDA(cuGetProcAddress_v2(name, &function, 12000, 0, &result));
    EXPECT_NE(function, nullptr) << name;
  }
}

}  // namespace
}  // namespace weir::test
