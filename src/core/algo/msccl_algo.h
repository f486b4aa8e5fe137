// SPDX-License-Identifier: Apache-2.0
// MscclAlgo: the document of MSCCL's XML, read and checked for ranges, but not yet converted.
// Values. Internal to core/algo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/algo/program_text.h"
#include "core/base/types.h"

namespace weir::algo {

enum class MscclType : uint8_t { kSend, kRecv, kCopy, kReduce, kRrc, kRcs, kRrs, kRrcs, kNop };

struct MscclPlace {
  char buffer = 'i';  // i, o, s
  uint32_t offset = 0;
};

struct MscclStep {
  MscclType type = MscclType::kNop;
  MscclPlace src, dst;
  uint32_t count = 0;
  int32_t depends_block = -1;  // index into MscclGpu::blocks; -1: none
  uint32_t depends_step = 0;
  size_t line = 0;
};

struct MscclBlock {
  uint32_t id = 0;
  int32_t send = -1, recv = -1;
  int32_t channel = -1;
  std::vector<MscclStep> steps;
  size_t line = 0;
};

struct MscclCopy {
  uint32_t input = 0, output = 0;
  size_t line = 0;
};

struct MscclGpu {
  uint32_t input_chunks = 0, output_chunks = 0, scratch_chunks = 0;
  std::vector<MscclCopy> copies;
  std::vector<MscclBlock> blocks;
};

struct MscclAlgo {
  std::string name;  // of the text, for errors
  Collective collective = Collective::kAllReduce;
  bool in_place = false;
  std::vector<MscclGpu> gpus;
};

inline bool msccl_receives(MscclType type) {
  return type == MscclType::kRecv || (type >= MscclType::kRrc && type <= MscclType::kRrcs);
}
inline bool msccl_sends(MscclType type) {
  return type == MscclType::kSend || (type >= MscclType::kRcs && type <= MscclType::kRrcs);
}
// Whether the step reads src, and writes dst, in this gpu's own memory.
inline bool msccl_reads_src(MscclType type) {
  return type != MscclType::kRecv && type != MscclType::kRcs && type != MscclType::kNop;
}
inline bool msccl_writes_dst(MscclType type) {
  return type != MscclType::kSend && type != MscclType::kRrs && type != MscclType::kNop;
}

// Errors name gpu, block, step and line.
Result<ProgramText> convert_msccl(const MscclAlgo& algo);

}  // namespace weir::algo
