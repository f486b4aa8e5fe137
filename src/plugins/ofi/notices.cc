// SPDX-License-Identifier: Apache-2.0
// How an instance shows its notice and reads those of others, over the control connections.
#include <string.h>

#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {

static_assert(net::mesh::kNoticeBytesMax == WEIR_TRANSPORT_NOTICE_BYTES_MAX);

weir_result_t Instance::notice_show(const void* notice, size_t bytes) {
  if (!joined_) return report_.fail(WEIR_ERROR_INVALID_USAGE, "notice_show before connect");
  if (bytes > net::mesh::kNoticeBytesMax) {
    return report_.fail(WEIR_ERROR_INVALID_ARGUMENT, "a notice of " + text_of(bytes) +
                                                         " bytes; there may be " +
                                                         text_of(net::mesh::kNoticeBytesMax));
  }
  mesh_->show(static_cast<const unsigned char*>(notice), bytes);
  return WEIR_OK;
}

weir_result_t Instance::notice_read(uint32_t peer, void* notice, size_t* bytes) {
  if (!joined_ || peer >= identity_.rank_count) {
    return report_.fail(
        joined_ ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "notice_read of rank " + text_of(peer) + " of " + text_of(identity_.rank_count));
  }
  bool arrived = true;
  const net::mesh::Bytes& latest =
      peer == identity_.rank ? mesh_->own_notice() : mesh_->read_notice(peer, &arrived);
  if (!latest.empty()) memcpy(notice, latest.data(), latest.size());
  *bytes = latest.size();
  return arrived ? WEIR_OK : WEIR_IN_PROGRESS;
}

}  // namespace weir::plugins::ofi
