// SPDX-License-Identifier: Apache-2.0
// MSCCL's XML: what the exporters of msccl-tools and of TE-CCL write, converted into our programs.
// Nothing is trusted here and nothing proved: verify.h does that. Internal to core/algo;
// thread-safe.
//
//   <algo ngpus coll inplace …>         name, proto, sizes and the like are passed over
//     <gpu id i_chunks o_chunks s_chunks>
//       <copy i_off o_off/>                              Input to Output, before everything
//       <tb id send recv chan>                           a thread block; -1: no such peer
//         <step s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep/>
//
// Meaning, as MSCCL's interpreter has it. A block runs its steps in order; a step first waits until
// step `deps` of block `depid` of its gpu is done. The blocks that send and receive on a channel
// between two gpus exchange messages in order.
//
//   type   meaning                                      becomes
//   s      src to the peer                              send
//   r      message to dst                               recv
//   cpy    dst = src                                    copy
//   re     dst = dst + src                              reduce
//   rrc    dst = src + message                          recv into a slot, reduce
//   rcs    message to dst and on to the peer            recv, send
//   rrs    src + message, to the peer                   recv into a slot, reduce into a slot, send
//   rrcs   dst = src + message, and to the peer         recv into a slot, reduce, send
//   nop    only waits
//
// Lanes. A message of ours belongs to a lane, with the same number at both ends; so blocks that
// exchange messages share a lane, and the blocks of a gpu in one lane run in one order. It is the
// order of an execution of all gpus in which every lane holds one message at most: an order that
// can be executed once can be executed always. Dependences between lanes become signals of the rank
// to itself. Programs get the fewest lanes (of 4, 7 and 15) with which such an execution is found.
// Where there is none, since blocks send more before they receive: MSCCL's connections hold eight
// messages, and a message that blocks wait behind is received into slots before its step.
//
// Folds are symmetric: operands are put in the order of their lowest contributor, so that ranks
// that fold the same data in mirrored order have the same bits.
//
// In place (inplace="1"), buffers that MSCCL lets share memory share one here: Output of an
// all-reduce and of an all-gather, otherwise slots; Input is copied there first.
#pragma once

#include <string_view>

#include "core/algo/program_text.h"

namespace weir::algo {

// Errors begin with `name`, and the line where there is one.
Result<ProgramText> read_msccl(std::string_view text, std::string_view name);

}  // namespace weir::algo
