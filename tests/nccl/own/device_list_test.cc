// SPDX-License-Identifier: Apache-2.0
// Which devices ncclCommInitAll takes where there are devices. On the stand-in for CUDA, with two.
#include <gtest/gtest.h>

#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

ncclResult_t init_all(const std::vector<int>& devices) {
  std::vector<ncclComm_t> comms(devices.size());
  const ncclResult_t result =
      ncclCommInitAll(comms.data(), static_cast<int>(comms.size()), devices.data());
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm)) << "NULL where none was made";
  return result;
}

// The first test: the process has made no call to CUDA yet, though it is linked with the driver.
TEST(NcclDeviceList, IsCheckedBeforeTheProgramsFirstCallToCuda) {
  int count = 0;
  ASSERT_NE(cuDeviceGetCount(&count), cuda::kSuccess) << "initialized already";
  EXPECT_EQ(init_all({0, 9}), ncclInvalidArgument);
  expect_error_with({"ncclCommInitAll", "devlist[1] is 9", "2 devices"});
}

TEST(NcclDeviceList, ADeviceThatDoesNotExistIsRefused) {
  use_device(0);
  EXPECT_EQ(init_all({0, 1, 9}), ncclInvalidArgument);
  expect_error_with({"ncclCommInitAll", "devlist[2] is 9", "2 devices"});
  EXPECT_EQ(init_all({2}), ncclInvalidArgument);
  expect_error_with({"devlist[0] is 2"});
}

TEST(NcclDeviceList, SeveralRanksMayHaveOneDevice) {
  use_device(0);
  EXPECT_NCCL(init_all({1, 0, 1, 1}));
  ncclComm_t comms[4] = {};
  EXPECT_NCCL(ncclCommInitAll(comms, 4, nullptr)) << "more ranks than devices";
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace weir::nccl::test
