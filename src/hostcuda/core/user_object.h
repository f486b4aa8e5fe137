// SPDX-License-Identifier: Apache-2.0
// User objects: objects that a program gives to graphs and that are destroyed with the last graph
// that refers to them (CUDA, "CUDA User Objects"). The program's own references are counted here,
// the graphs hold theirs. Thread-safe; a program's destructor runs outside of all locks.
#pragma once

#include "hostcuda/core/error.h"

namespace weir::hostcuda {

// `flags` must be 1: the destructor need not have run when a call returns.
Error create_user_object(void** handle, void* data, void (*destroy)(void*), unsigned count,
                         unsigned flags);
Error retain_user_object(const void* handle, unsigned count);
Error release_user_object(const void* handle, unsigned count);

// `flags` 1: the graph takes over references that the program had.
Error give_user_object(const void* graph, const void* handle, unsigned count, unsigned flags);
Error take_user_object(const void* graph, const void* handle, unsigned count);

}  // namespace weir::hostcuda
