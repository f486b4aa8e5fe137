// SPDX-License-Identifier: Apache-2.0
// How an instance shows its notice and reads those of others, over the control connections.
#include <string.h>

#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {

static_assert(kNoticeBytesMax == WEIR_TRANSPORT_NOTICE_BYTES_MAX);

void Instance::send_notice() {
  notice_waits_ = false;
  for (uint32_t peer = 0; peer < identity_.rank_count; ++peer) {
    if (peer == identity_.rank) continue;
    const bool left = controls_[peer].send_notice(notice_, notice_bytes_, notice_version_);
    notice_waits_ = notice_waits_ || !left;
  }
}

weir_result_t Instance::notice_show(const void* notice, size_t bytes) {
  if (!joined_) return report_.fail(WEIR_ERROR_INVALID_USAGE, "notice_show before connect");
  if (bytes > kNoticeBytesMax) {
    return report_.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "a notice of " + text_of(bytes) + " bytes; there may be " + text_of(kNoticeBytesMax));
  }
  if (bytes != 0) memcpy(notice_, notice, bytes);
  notice_bytes_ = bytes;
  ++notice_version_;
  send_notice();
  return WEIR_OK;
}

weir_result_t Instance::notice_read(uint32_t peer, void* notice, size_t* bytes) {
  if (!joined_ || peer >= identity_.rank_count) {
    return report_.fail(
        joined_ ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "notice_read of rank " + text_of(peer) + " of " + text_of(identity_.rank_count));
  }
  if (peer == identity_.rank) {
    memcpy(notice, notice_, notice_bytes_);
    *bytes = notice_bytes_;
    return WEIR_OK;
  }
  Control& control = controls_[peer];
  control.drive();
  if (notice_waits_) send_notice();
  memcpy(notice, control.notice(), control.notice_bytes());
  *bytes = control.notice_bytes();
  return control.arrived() ? WEIR_OK : WEIR_IN_PROGRESS;
}

}  // namespace weir::plugins::ofi
