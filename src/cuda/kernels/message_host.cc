// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/message_host.h"

#include <cstring>

namespace weir::kernels {

MessageMover::MessageMover(const MessageArguments& arguments) : arguments_(arguments) {
  if (stopped()) return;
  for (uint32_t i = 0; i < track_count(arguments_); ++i) {
    const MessageTrack track = begin_track(arguments_, i);
    if (track.ended == 0) tracks_.push_back(track);
  }
}

bool MessageMover::advance(bool* any_moved) {
  *any_moved = false;
  for (size_t i = 0; i < tracks_.size();) {
    CopyPiece piece;
    if (look(arguments_, tracks_[i], &piece) == MessageStep::kMove) {
      if (piece.bytes > 0) std::memcpy(piece.to, piece.from, piece.bytes);
      moved(arguments_, piece, &tracks_[i]);
      *any_moved = true;
    }
    if (tracks_[i].ended != 0) {
      tracks_[i] = tracks_.back();
      tracks_.pop_back();
    } else {
      ++i;
    }
  }
  return tracks_.empty() || stopped();
}

}  // namespace weir::kernels
