// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/kernels/copy_host.h"
#include "cuda/kernels/message_host.h"
#include "cuda/kernels/reduce_host.h"
#include "nccl/strict_cuda/world.h"

using namespace strict_cuda;  // NOLINT: this is a part of it

namespace {

constexpr size_t kElementBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
int module_of_all = 0;
// Only their addresses count; the last ones are those of messages and copies.
int functions[weir::kernels::kReduceCount + 2];
int* const message_function = &functions[weir::kernels::kReduceCount];
int* const copy_function = &functions[weir::kernels::kReduceCount + 1];

// What a kernel of the context may touch, as this library reaches it; all else ends the process.
char* reach_from(Context context, const void* pointer, size_t bytes) {
  World& it = world();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uintptr_t base = 0;
  const Memory* memory = find_device(it, address, &base);
  const bool allowed = memory != nullptr && may_touch(it, context, *memory);
  char* reached = allowed ? reach(it, address, bytes) : nullptr;
  if (reached != nullptr) return reached;
  std::fprintf(stderr, "strict libcuda: a kernel touches %zu bytes that are not for it\n", bytes);
  std::abort();
}

// The same for what may also be memory of the host that CUDA knows.
char* reach_anywhere(Context context, const void* pointer, size_t bytes) {
  const World& it = world();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (const auto* known : {&it.pinned, &it.registered}) {
    auto at = known->upper_bound(address);
    if (at == known->begin()) continue;
    --at;
    if (address + bytes <= at->first + at->second) return reinterpret_cast<char*>(address);
  }
  return reach_from(context, pointer, bytes);
}

// The kernel that moves messages, from its first look at them on.
struct MessageLaunch {
  MessageLaunch(Context context, const weir::kernels::MessageArguments& given)
      : orders(given.orders != nullptr ? given.orders : given.orders_here,
               (given.orders != nullptr ? given.orders : given.orders_here) + given.order_count),
        messages(
            given.orders != nullptr ? given.messages : given.messages_here,
            (given.orders != nullptr ? given.messages : given.messages_here) + given.message_count),
        mover(translate(context, given)) {}

  weir::kernels::MessageArguments translate(Context context,
                                            const weir::kernels::MessageArguments& given) {
    constexpr uint64_t kSlots = weir::kernels::kMessageLanes * weir::kernels::kMessageSlots;
    for (auto& it : orders) it.fifo = reach_from(context, it.fifo, kSlots * given.slot_bytes);
    for (auto& it : messages) {
      if (it.bytes > 0) it.buffer = reach_anywhere(context, it.buffer, it.bytes);
    }
    auto translated = given;
    translated.orders = orders.data();
    translated.messages = messages.data();
    return translated;
  }

  std::vector<weir::kernels::MessageOrder> orders;
  std::vector<weir::kernels::MessageData> messages;
  weir::kernels::MessageMover mover;
};

Result launch_messages(Stream stream, const weir::kernels::MessageArguments& given) {
  const Context context = t_context;
  return issue("cuLaunchKernel", stream, [=]() -> Work {
    return [=, launch = std::shared_ptr<MessageLaunch>()]() mutable {
      if (launch == nullptr) launch = std::make_shared<MessageLaunch>(context, given);
      bool any_moved = false;
      if (!launch->mover.advance(&any_moved)) return false;
      ++world().kernels;
      return true;
    };
  });
}

// The device of memory of a device; -1: it is none.
int device_of(const void* pointer) {
  uintptr_t base = 0;
  const Memory* memory = find_device(world(), reinterpret_cast<uintptr_t>(pointer), &base);
  return memory == nullptr ? -1 : static_cast<int>(index_of(memory->context));
}

Result launch_copies(Stream stream, const weir::kernels::CopyArguments& given, unsigned blocks) {
  const Context context = t_context;
  return issue("cuLaunchKernel", stream, [=]() -> Work {
    return [=] {
      auto all = given;
      std::vector<int> from;
      for (uint32_t i = 0; i < all.count; ++i) {
        auto& it = all.copies[i];
        from.push_back(device_of(it.from));
        it.to = reach_from(context, it.to, it.bytes);
        it.from = reach_anywhere(context, it.from, it.bytes);
      }
      weir::kernels::copy_on_host(all, blocks);
      world().copied_from[context] = from;
      ++world().kernels;
      return true;
    };
  });
}

}  // namespace

STRICT_CUDA_API cuCtxEnablePeerAccess(Context peer, unsigned) {
  World& it = world();
  std::lock_guard lock(it.lock);
  if (const Result result = forbidden(it, "cuCtxEnablePeerAccess"); result != kSuccess) {
    return result;
  }
  if (t_context == nullptr || peer == t_context) return kErrorInvalidContext;
  return it.access.insert({t_context, peer}).second ? kSuccess : kErrorPeerAlreadyEnabled;
}

STRICT_CUDA_API cuModuleLoadData(Module* module, const void* image) {
  World& it = world();
  Submission submission(it);
  if (const Result result = forbidden(it, "cuModuleLoadData"); result != kSuccess) return result;
  if (t_context == nullptr) return kErrorInvalidContext;
  if (image == nullptr) return kErrorInvalidValue;
  if (is_like_a_driver(it)) submission.wait_for_device();
  *module = &module_of_all;
  return kSuccess;
}

STRICT_CUDA_API cuModuleGetFunction(Function* function, Module, const char* name) {
  for (uint32_t i = 0; i < weir::kernels::kReduceCount; ++i) {
    if (std::strcmp(name, weir::kernels::kReduceNames[i]) == 0) {
      *function = &functions[i];
      return kSuccess;
    }
  }
  if (std::strcmp(name, weir::kernels::kMessageName) == 0) {
    *function = message_function;
    return kSuccess;
  }
  if (std::strcmp(name, weir::kernels::kCopyName) == 0) {
    *function = copy_function;
    return kSuccess;
  }
  return kErrorNotFound;
}

STRICT_CUDA_API cuLaunchKernel(Function function, unsigned grid_x, unsigned, unsigned,
                               unsigned block_x, unsigned, unsigned, unsigned, Stream stream,
                               void** arguments, void**) {
  if (function == message_function) {
    return launch_messages(stream,
                           *static_cast<const weir::kernels::MessageArguments*>(arguments[0]));
  }
  if (function == copy_function) {
    return launch_copies(stream, *static_cast<const weir::kernels::CopyArguments*>(arguments[0]),
                         grid_x);
  }
  const auto type = static_cast<uint32_t>(static_cast<int*>(function) - functions);
  auto given = *static_cast<const weir::kernels::ReduceArguments*>(arguments[0]);
  const Context context = t_context;
  return issue("cuLaunchKernel", stream, [=]() -> Work {
    return [=] {
      auto all = given;
      const size_t bytes = all.count * kElementBytes[type];
      for (uint32_t i = 0; i < all.source_count; ++i) {
        all.sources[i] = reach_from(context, all.sources[i], bytes);
      }
      for (uint32_t i = 0; all.scaled == weir::kernels::kScaledByMemory && i < all.source_count;
           ++i) {
        const auto* factor = reinterpret_cast<const void*>(static_cast<uintptr_t>(all.scales[i]));
        all.scales[i] =
            reinterpret_cast<uintptr_t>(reach_from(context, factor, kElementBytes[type]));
      }
      for (uint32_t i = 0; i < all.destination_count; ++i) {
        all.destinations[i] = reach_from(context, all.destinations[i], bytes);
      }
      weir::kernels::reduce_on_host(type, all, uint64_t{grid_x} * block_x);
      ++world().kernels;
      return true;
    };
  });
}
