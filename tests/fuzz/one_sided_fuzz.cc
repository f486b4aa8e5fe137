// SPDX-License-Identifier: Apache-2.0
// What a peer sends as one-sided operations. Cells and payloads come from the input; the service
// does what is within the window or refuses it, and nothing beside the window is ever touched. The
// magic of every cell is set right in inputs whose first byte is odd, so that more of them get
// further.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/comm/messages/one_sided_service.h"

namespace comm = weir::comm;

namespace {

constexpr size_t kWindowBytes = 512;
constexpr size_t kGuardBytes = 4096;

struct Input {
  const uint8_t* data = nullptr;
  size_t bytes = 0;
  bool mends_magic = false;
};
Input input;

void require(bool condition) {
  if (!condition) std::abort();
}

weir_result_t recv(weir_transport_t*, uint32_t, uint32_t, void* data, uint64_t bytes,
                   weir_transport_op_t*) {
  if (input.bytes == 0) return WEIR_IN_PROGRESS;
  const size_t some = std::min<size_t>(input.bytes, bytes);
  std::memset(data, 0, bytes);
  std::memcpy(data, input.data, some);
  if (input.mends_magic && bytes == sizeof(comm::Cell)) std::memcpy(data, "WONE", 4);
  input.data += some;
  input.bytes -= some;
  return WEIR_OK;
}
weir_result_t send(weir_transport_t*, uint32_t, uint32_t, const void* data, uint64_t bytes,
                   weir_transport_op_t*) {
  unsigned sum = 0;  // all of it can be read
  for (uint64_t i = 0; i < bytes; ++i) sum += static_cast<const unsigned char*>(data)[i];
  require(bytes > 0 || sum == 0);
  return WEIR_OK;
}

weir_transport_functions_t make_functions() {
  weir_transport_functions_t f{};
  f.recv = recv;
  f.send = send;
  f.test = [](weir_transport_t*, weir_transport_op_t*) { return WEIR_IN_PROGRESS; };
  f.progress = [](weir_transport_t*) { return WEIR_OK; };
  return f;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  input = {data + 1, bytes - 1, data[0] % 2 == 1};
  const weir_transport_functions_t functions = make_functions();
  weir::engine::Context context;
  context.rank = 0;
  context.rank_count = 2;
  context.transport = &functions;
  auto memory = std::make_unique<uint64_t[]>((kWindowBytes + 2 * kGuardBytes) / 8);
  auto* const begin = reinterpret_cast<unsigned char*>(memory.get());
  std::memset(begin, 0xa5, kWindowBytes + 2 * kGuardBytes);

  comm::OneSidedWindow window;
  window.number = 1;
  window.own = begin + kGuardBytes;
  window.own_bytes = kWindowBytes;
  window.parts = std::vector<comm::OneSidedWindow::Part>(2);
  window.parts[1].bytes = kWindowBytes;
  unsigned completed = 0;
  comm::OneSidedService service(context, [&](comm::Request&, const weir::Status&) { ++completed; });
  service.add_window(&window);
  service.serve(window);

  // Two operations whose replies the input may tell of.
  unsigned char got[300 + 16];
  std::memset(got, 0x5a, sizeof got);
  comm::Request get, flush;
  get.peer = flush.peer = 1;
  get.one_sided = std::make_unique<comm::OneSidedCall>();
  get.one_sided->kind = comm::OneSidedKind::kGet;
  get.one_sided->window = &window;
  get.one_sided->bytes = 300;
  get.one_sided->destination = got;
  flush.one_sided = std::make_unique<comm::OneSidedCall>();
  flush.one_sided->kind = comm::OneSidedKind::kFlush;
  comm::OneSidedService::Failure failure;
  require(service.start(get, &failure) && service.start(flush, &failure));

  for (int polls = 0; polls < 1000 && input.bytes > 0; ++polls) {
    service.poll(&failure);
    if (failure.result == WEIR_OK) continue;
    require(failure.result == WEIR_ERROR_REFUSED && failure.peer == 1);
    require(!failure.text.empty());
    break;
  }
  service.fail_all(weir::Status(weir::Code::kAborted, "the end"));
  require(completed == 2);
  for (size_t i = 0; i < kGuardBytes; ++i) {
    require(begin[i] == 0xa5 && begin[kGuardBytes + kWindowBytes + i] == 0xa5);
  }
  for (size_t i = 300; i < sizeof got; ++i) require(got[i] == 0x5a);
  return 0;
}
