// SPDX-License-Identifier: Apache-2.0
// NVML and CUDA name the same devices, also where CUDA_VISIBLE_DEVICES hides some from CUDA. The
// program runs with WEIR_HOSTCUDA_DEVICES=3, WEIR_HOSTCUDA_MEMORY=64M and CUDA_VISIBLE_DEVICES=2,0.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "hostcuda/core/settings.h"
#include "hostcuda/nvml/functions.h"
#include "hostcuda/support.h"

namespace weir::test {
namespace {

#define ASSERT_NVML(call) ASSERT_EQ(call, NVML_SUCCESS)

constexpr size_t kMiB = size_t{1} << 20;

class Nvml : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NVML(nvmlInit_v2()); }
  void TearDown() override { ASSERT_NVML(nvmlShutdown()); }

  static nvmlDevice_t device(unsigned index) {
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &found), NVML_SUCCESS);
    return found;
  }
  static std::string uuid(nvmlDevice_t device) {
    char text[96] = {};
    EXPECT_EQ(nvmlDeviceGetUUID(device, text, sizeof text), NVML_SUCCESS);
    return text;
  }
};

std::string uuid_of_cuda(int index) {
  cudaDeviceProp properties{};
  EXPECT_CUDA(cudaGetDeviceProperties(&properties, index));
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned char>(properties.uuid.bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// 0: all was right. PyTorch counts with NVML so that its forked workers can use CUDA.
int fork_after_asking() {
  unsigned count = 0;
  nvmlDevice_t first = nullptr;
  nvmlMemory_t memory{};
  if (nvmlInit_v2() != NVML_SUCCESS) return 1;
  if (nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS || count != 3) return 2;
  if (nvmlDeviceGetHandleByIndex_v2(0, &first) != NVML_SUCCESS) return 3;
  if (nvmlDeviceGetMemoryInfo(first, &memory) != NVML_SUCCESS) return 4;
  const pid_t child = fork();
  if (child == 0) {
    void* mine = nullptr;
    _exit(cudaMalloc(&mine, 16) == cudaSuccess ? 0 : 5);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 6;
  return WEXITSTATUS(status);
}

// The first test: no other may have used CUDA before it.
TEST(NvmlBeforeCuda, AForkedChildOfAProcessThatAskedUsesCuda) {
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  const pid_t child = fork();
  if (child == 0) _exit(fork_after_asking());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Nvml, HasTheDevicesOfTheMachineAndCudaThoseThatAreVisible) {
  unsigned count = 0;
  ASSERT_NVML(nvmlDeviceGetCount_v2(&count));
  EXPECT_EQ(count, 3U);
  int visible = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&visible));
  EXPECT_EQ(visible, 2);
  EXPECT_EQ(uuid(device(2)), uuid_of_cuda(0));
  EXPECT_EQ(uuid(device(0)), uuid_of_cuda(1));
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(3, &found), NVML_ERROR_INVALID_ARGUMENT);
  for (unsigned i = 0; i < count; ++i) {
    ASSERT_NVML(nvmlDeviceGetHandleByUUID(uuid(device(i)).c_str(), &found));
    EXPECT_EQ(found, device(i));
    unsigned index = 99;
    ASSERT_NVML(nvmlDeviceGetIndex(found, &index));
    EXPECT_EQ(index, i);
  }
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-0", &found), NVML_ERROR_NOT_FOUND);
}

TEST_F(Nvml, ThePciAddressIsCudas) {
  for (const int index : {0, 1}) {
    char text[32];
    ASSERT_CUDA(cudaDeviceGetPCIBusId(text, sizeof text, index));
    int back = -1;
    ASSERT_CUDA(cudaDeviceGetByPCIBusId(&back, text));
    EXPECT_EQ(back, index);
    nvmlDevice_t found = nullptr;
    ASSERT_NVML(nvmlDeviceGetHandleByPciBusId_v2(text, &found));
    EXPECT_EQ(uuid(found), uuid_of_cuda(index));
    nvmlPciInfo_t info{};
    ASSERT_NVML(nvmlDeviceGetPciInfo_v3(found, &info));
    cudaDeviceProp properties{};
    ASSERT_CUDA(cudaGetDeviceProperties(&properties, index));
    EXPECT_EQ(info.bus, static_cast<unsigned>(properties.pciBusID));
    EXPECT_EQ("0000" + std::string(text), info.busId);  // eight digits of the domain
    int attribute = -1;
    ASSERT_CUDA(cudaDeviceGetAttribute(&attribute, static_cast<cudaDeviceAttr>(33), index));
    EXPECT_EQ(attribute, properties.pciBusID);
  }
  int hidden = -1;
  EXPECT_CUDA_ERROR(101, cudaDeviceGetByPCIBusId(&hidden, "0000:02:00.0"));
  nvmlPciInfoExt_t more{};
  EXPECT_EQ(nvmlDeviceGetPciInfoExt(device(0), &more), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  more.version = sizeof more | (1u << 24);
  ASSERT_NVML(nvmlDeviceGetPciInfoExt(device(0), &more));
  EXPECT_EQ(more.baseClass, 3U);
}

TEST_F(Nvml, MemoryOfThisProcessIsCounted) {
  nvmlMemory_v2_t before{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device(2), &before), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  before.version = sizeof before | (2u << 24);
  nvmlMemory_v2_t after = before;
  ASSERT_NVML(nvmlDeviceGetMemoryInfo_v2(device(2), &before));
  EXPECT_EQ(before.total, 64 * kMiB);
  EXPECT_EQ(before.reserved, kMiB);
  EXPECT_EQ(before.free + before.used, 63 * kMiB);
  ASSERT_CUDA(cudaSetDevice(0));
  void* const memory = allocate(kMiB);
  ASSERT_NVML(nvmlDeviceGetMemoryInfo_v2(device(2), &after));
  EXPECT_EQ(after.used, before.used + kMiB);
  EXPECT_EQ(after.free, free_bytes());
  nvmlMemory_t first{};
  ASSERT_NVML(nvmlDeviceGetMemoryInfo(device(2), &first));
  EXPECT_EQ(first.used + first.free, first.total);
  nvmlMemory_t other{};
  ASSERT_NVML(nvmlDeviceGetMemoryInfo(device(1), &other));
  EXPECT_EQ(other.free, 63 * kMiB);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device(2), &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  ASSERT_EQ(count, 1U);
  nvmlProcessInfo_t process{};
  ASSERT_NVML(nvmlDeviceGetComputeRunningProcesses_v3(device(2), &count, &process));
  EXPECT_EQ(process.pid, static_cast<unsigned>(getpid()));
  EXPECT_EQ(process.usedGpuMemory, after.used);
  nvmlProcessInfo_v1_t short_form[2] = {};
  count = 2;
  ASSERT_NVML(nvmlDeviceGetComputeRunningProcesses(device(2), &count, short_form));
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(short_form[0].usedGpuMemory, after.used);
  EXPECT_EQ(short_form[1].pid, 0U);
  EXPECT_CUDA(cudaFree(memory));
}

TEST_F(Nvml, CapabilityPeersAndLinksAreTheDrivers) {
  int major = 0;
  int minor = -1;
  ASSERT_NVML(nvmlDeviceGetCudaComputeCapability(device(0), &major, &minor));
  cudaDeviceProp properties{};
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(major, properties.major);
  EXPECT_EQ(minor, properties.minor);
  char name[96];
  ASSERT_NVML(nvmlDeviceGetName(device(0), name, sizeof name));
  EXPECT_STREQ(name, properties.name);
  EXPECT_EQ(nvmlDeviceGetName(device(0), name, 3), NVML_ERROR_INSUFFICIENT_SIZE);
  int version = 0;
  int of_cuda = 1;
  ASSERT_NVML(nvmlSystemGetCudaDriverVersion_v2(&version));
  ASSERT_CUDA(cudaDriverGetVersion(&of_cuda));
  EXPECT_EQ(version, of_cuda);
  int status = -1;
  ASSERT_NVML(nvmlDeviceGetP2PStatus(device(0), device(1), 0, &status));
  EXPECT_EQ(status, 0);
  ASSERT_NVML(nvmlDeviceGetP2PStatus(device(0), device(1), 2, &status));
  EXPECT_NE(status, 0);  // no NVLink
  int active = 0;
  EXPECT_EQ(nvmlDeviceGetNvLinkState(device(0), 0, &active), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetNvLinkState(nullptr, 0, &active), NVML_ERROR_INVALID_ARGUMENT);
  nvmlFieldValue_t field{};
  ASSERT_NVML(nvmlDeviceGetFieldValues(device(0), 1, &field));
  EXPECT_EQ(field.nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
  nvmlGpuFabricInfo_v3_t fabric{};
  fabric.healthSummary = 9;
  EXPECT_EQ(nvmlDeviceGetGpuFabricInfoV(device(0), &fabric), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  fabric.state = 3;
  fabric.version = 0x02000024;  // nvmlGpuFabricInfo_v2
  ASSERT_NVML(nvmlDeviceGetGpuFabricInfoV(device(0), &fabric));
  EXPECT_EQ(fabric.state, 0);
  EXPECT_EQ(fabric.version, 0x02000024U);
  EXPECT_EQ(fabric.healthSummary, 9);  // the shorter form ends before it
  EXPECT_STREQ(nvmlErrorString(NVML_ERROR_NOT_SUPPORTED), "Not Supported");
  EXPECT_STREQ(nvmlErrorString(static_cast<nvmlReturn_t>(123456)), "Unknown Error");
}

TEST(HostCudaVisibleDevices, AreThoseUpToTheFirstThatIsNone) {
  using Devices = std::vector<int>;
  EXPECT_EQ(hostcuda::visible_devices("", 4), Devices());
  EXPECT_EQ(hostcuda::visible_devices("-1", 4), Devices());
  EXPECT_EQ(hostcuda::visible_devices("3,1", 4), (Devices{3, 1}));
  EXPECT_EQ(hostcuda::visible_devices(" 3 , 1 ", 4), (Devices{3, 1}));
  EXPECT_EQ(hostcuda::visible_devices("2,4,1", 4), (Devices{2}));
  EXPECT_EQ(hostcuda::visible_devices("2,-1,1", 4), (Devices{2}));
  EXPECT_EQ(hostcuda::visible_devices("1,1", 4), Devices());
  EXPECT_EQ(hostcuda::visible_devices("99999999999999999999", 4), Devices());
  EXPECT_EQ(hostcuda::visible_devices("GPU-77656972-686f-7374-6375-646100000003,0", 4),
            (Devices{2, 0}));
  EXPECT_EQ(hostcuda::visible_devices("GPU-7765", 4), Devices());  // all four begin so
  EXPECT_EQ(hostcuda::visible_devices("GPU-7765", 1), (Devices{0}));
}

}  // namespace
}  // namespace weir::test
