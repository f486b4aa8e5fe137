// SPDX-License-Identifier: Apache-2.0
// Properties of whole collectives (WEIR_CAP_COLLECTIVES), on memory of the kind that the transport
// takes. Each rank has the device of its number.
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conformance/cuda.h"
#include "conformance/harness.h"

namespace weir::conformance {
namespace {

constexpr uint64_t kBlock = 1000;

weir_collective_call_t make_call(uint32_t kind, const DeviceBuffer& send,
                                 const DeviceBuffer& recv) {
  weir_collective_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = kind;
  call.type = WEIR_INT32;
  call.op = WEIR_SUM;
  call.send = send.data();
  call.recv = recv.data();
  call.count = kBlock;
  return call;
}

void perform(Rank& r, const weir_collective_call_t& call) {
  const weir_collective_functions_t& f = *r.f().collectives;
  weir_transport_op_t op{};
  weir_result_t result = f.start(r.instance(), &call, &op);
  r.require(result == WEIR_IN_PROGRESS,
            "start gave " + std::to_string(result) + " (" + r.error_text() + ")");
  const auto wait = [&](auto ask, const char* what) {
    const uint64_t end = monotonic_ns() + 60'000'000'000;
    while ((result = ask(r.instance(), &op)) == WEIR_IN_PROGRESS) {
      r.require(monotonic_ns() < end, std::string(what) + ": it does not end");
      r.check_others();
      usleep(20);
    }
    r.require_ok(result, what);
  };
  wait(f.enqueued, "enqueued");
  wait(f.test, "test");
}

int32_t input(uint32_t rank, uint64_t i) {
  return static_cast<int32_t>((i * 7 + rank * 5) % 11) + 1;
}

// What rank `me` of n has in recv after the collective; -1: untouched.
std::vector<int32_t> expected(uint32_t kind, uint32_t n, uint32_t me, uint32_t root,
                              const std::vector<uint64_t>& counts) {
  std::vector<int32_t> out(n * kBlock, -1);
  const auto sum = [&](uint64_t i) {
    int32_t total = 0;
    for (uint32_t p = 0; p < n; ++p) total += input(p, i);
    return total;
  };
  uint64_t at = 0;
  for (uint32_t p = 0; p < n; ++p) {
    for (uint64_t i = 0; i < kBlock; ++i) {
      const uint64_t in_block = p * kBlock + i;
      switch (kind) {
        case WEIR_COLLECTIVE_ALL_REDUCE:
          out[i] = sum(i);
          break;
        case WEIR_COLLECTIVE_REDUCE:
          if (me == root) out[i] = sum(i);
          break;
        case WEIR_COLLECTIVE_BROADCAST:
          out[i] = input(root, i);
          break;
        case WEIR_COLLECTIVE_REDUCE_SCATTER:
          if (p == me) out[i] = sum(in_block);
          break;
        case WEIR_COLLECTIVE_ALL_GATHER:
          out[in_block] = input(p, i);
          break;
        case WEIR_COLLECTIVE_ALL_TO_ALL:
          out[in_block] = input(p, me * kBlock + i);
          break;
        case WEIR_COLLECTIVE_GATHER:
          if (me == root) out[in_block] = input(p, i);
          break;
        case WEIR_COLLECTIVE_SCATTER:
          if (p == me) out[i] = input(root, in_block);
          break;
        case WEIR_COLLECTIVE_REDUCE_SCATTER_V:
          if (p == me && i < counts[p]) out[i] = sum(at + i);
          break;
        case WEIR_COLLECTIVE_ALL_GATHER_V:
          if (i < counts[p]) out[at + i] = input(p, i);
          break;
        case WEIR_COLLECTIVE_ALL_TO_ALL_V:
          // Rank p sends counts[q] to q, so that all blocks of this rank have the same size.
          if (i < counts[me]) {
            uint64_t mine = 0;
            for (uint32_t q = 0; q < me; ++q) mine += counts[q];
            out[p * counts[me] + i] = input(p, mine + i);
          }
          break;
        default:
          break;
      }
    }
    at += counts[p];
  }
  return out;
}

void every_collective(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    const Cuda cuda(r);
    r.join_collectives();
    const uint32_t n = r.count();
    const uint64_t words = n * kBlock;
    DeviceBuffer send(r, cuda, words);
    DeviceBuffer recv(r, cuda, words);
    std::vector<int32_t> inputs(words);
    for (uint64_t i = 0; i < words; ++i) inputs[i] = input(r.rank(), i);
    const std::vector<uint64_t> counts = {7, 0, 900};
    const std::vector<uint64_t> mine(n, counts[r.rank()]);
    for (uint32_t kind = 0; kind < 32; ++kind) {
      if ((r.f().collectives->kinds >> kind & 1) == 0) continue;
      const uint32_t root = kind % n;
      send.write(inputs);
      recv.write(std::vector<int32_t>(words, -1));
      weir_collective_call_t call = make_call(kind, send, recv);
      call.root = root;
      const bool exchanges = kind == WEIR_COLLECTIVE_ALL_TO_ALL_V;
      if (exchanges) call.send_counts = counts.data();
      if (kind >= WEIR_COLLECTIVE_REDUCE_SCATTER_V) {
        call.recv_counts = exchanges ? mine.data() : counts.data();
      }
      perform(r, call);
      r.require(recv.read<int32_t>(words) == expected(kind, n, r.rank(), root, counts),
                "the result of collective " + std::to_string(kind) + " is wrong");
    }
  });
}

void every_type_and_reduction(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    const Cuda cuda(r);
    r.join_collectives();
    const weir_collective_functions_t& f = *r.f().collectives;
    DeviceBuffer send(r, cuda, kBlock + 1);
    DeviceBuffer recv(r, cuda, kBlock + 1);
    static constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    for (uint32_t type = 0; type < 32; ++type) {
      if ((f.types >> type & 1) == 0 || (f.kinds >> WEIR_COLLECTIVE_BROADCAST & 1) == 0) continue;
      r.require(type <= WEIR_FLOAT8_E5M2, "it declares a type that there is not");
      std::vector<unsigned char> bytes(kBlock * kBytes[type]);
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<unsigned char>(i * 3 + type + (r.rank() == 1 ? 1 : 0));
      }
      send.write(bytes);
      recv.write(std::vector<unsigned char>(bytes.size() + 8));
      weir_collective_call_t call = make_call(WEIR_COLLECTIVE_BROADCAST, send, recv);
      call.type = static_cast<int32_t>(type);
      call.root = 1;
      perform(r, call);
      for (unsigned char& byte : bytes)
        byte = static_cast<unsigned char>(byte + (r.rank() == 1 ? 0 : 1));
      bytes.resize(bytes.size() + 8);  // and nothing behind it
      r.require(recv.read<unsigned char>(bytes.size()) == bytes,
                "type " + std::to_string(type) + " is not moved as it is");
    }
    // 6 and 4; with their factors 2 and 3.
    const std::vector<int32_t> inputs(kBlock, r.rank() == 0 ? 6 : 4);
    const int32_t factor = r.rank() == 0 ? 2 : 3;
    for (uint32_t op = 0; op < 32; ++op) {
      if ((f.ops >> op & 1) == 0) continue;
      send.write(inputs);
      weir_collective_call_t call = make_call(WEIR_COLLECTIVE_ALL_REDUCE, send, recv);
      call.op = static_cast<int32_t>(op);
      call.scale = op == WEIR_COLLECTIVE_SCALED_SUM ? &factor : nullptr;
      perform(r, call);
      const int32_t result = op == WEIR_SUM    ? 10
                             : op == WEIR_PROD ? 24
                             : op == WEIR_MAX  ? 6
                             : op == WEIR_MIN  ? 4
                             : op == WEIR_AVG  ? 5
                                               : 24;
      r.require(recv.read<int32_t>(kBlock) == std::vector<int32_t>(kBlock, result),
                "reduction " + std::to_string(op) + " is wrong");
    }
  });
}

void refused_calls(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    const Cuda cuda(r);
    r.join_collectives();
    DeviceBuffer send(r, cuda, kBlock);
    DeviceBuffer recv(r, cuda, kBlock);
    send.write(std::vector<int32_t>(kBlock, 1));
    weir_collective_call_t call = make_call(WEIR_COLLECTIVE_ALL_REDUCE, send, recv);
    call.struct_bytes = 8;
    weir_transport_op_t op{};
    r.require_error(r.f().collectives->start(r.instance(), &call, &op),
                    {WEIR_ERROR_INVALID_ARGUMENT});
    call.struct_bytes = sizeof call;
    perform(r, call);
    r.require(recv.read<int32_t>(1)[0] == 2, "it was not as before");
  });
}

void abort_ends_all(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    const Cuda cuda(r);
    r.join_collectives();
    const weir_collective_functions_t& f = *r.f().collectives;
    DeviceBuffer send(r, cuda, kBlock);
    DeviceBuffer recv(r, cuda, kBlock);
    // The other one never calls it.
    const weir_collective_call_t call = make_call(WEIR_COLLECTIVE_ALL_REDUCE, send, recv);
    weir_transport_op_t op{};
    if (r.rank() == 0) {
      r.require(f.start(r.instance(), &call, &op) == WEIR_IN_PROGRESS, "it was not taken");
      while (f.enqueued(r.instance(), &op) == WEIR_IN_PROGRESS) usleep(20);
      r.require(f.test(r.instance(), &op) == WEIR_IN_PROGRESS, "it is done without its peer");
    }
    const uint64_t end = monotonic_ns() + 60'000'000'000;
    weir_result_t result = WEIR_IN_PROGRESS;
    while ((result = f.abort(r.instance())) == WEIR_IN_PROGRESS) {
      r.require(monotonic_ns() < end, "abort does not end");
      usleep(20);
    }
    r.require_ok(result, "abort");
    r.require_ok(f.abort(r.instance()), "abort again");
    r.close();
  });
}

void unlike_introductions(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    const Cuda cuda(r);
    r.open();
    unsigned char own[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t bytes = sizeof own;
    const weir_collective_functions_t& f = *r.f().collectives;
    r.require_ok(f.introduce(r.instance(), static_cast<int>(r.rank()), own, &bytes), "introduce");
    const unsigned char garbage[16] = {1, 2, 3};
    const unsigned char* const texts[] = {garbage, garbage};
    const size_t lengths[] = {sizeof garbage, sizeof garbage};
    r.require_error(f.join(r.instance(), texts, lengths),
                    {WEIR_ERROR_REFUSED, WEIR_ERROR_INVALID_ARGUMENT});
  });
}

bool on_devices(const Variant& variant) {
  return (variant.functions->caps.memory_kinds & WEIR_MEMORY_CUDA) != 0;
}

}  // namespace

const std::vector<Property>& whole_properties() {
  static const std::vector<Property> properties = {
      {"EveryCollectiveHoldsItsResult", WEIR_CAP_COLLECTIVES, 3, every_collective, on_devices},
      {"EveryTypeAndReductionIsTaken", WEIR_CAP_COLLECTIVES, 2, every_type_and_reduction,
       on_devices},
      {"ACollectiveThatIsRefusedChangesNothing", WEIR_CAP_COLLECTIVES, 2, refused_calls,
       on_devices},
      {"AnAbortEndsACollectiveThatWaits", WEIR_CAP_COLLECTIVES, 2, abort_ends_all, on_devices},
      {"BadIntroductionsAreRefused", WEIR_CAP_COLLECTIVES, 2, unlike_introductions, on_devices},
  };
  return properties;
}

}  // namespace weir::conformance
