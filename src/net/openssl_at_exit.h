// SPDX-License-Identifier: Apache-2.0
// OpenSSL frees its tables in an exit handler, unless it is told otherwise before its first use.
// Communicators may work longer: threads, and exit handlers of the program that are called later.
#pragma once

#include <openssl/crypto.h>

namespace weir::net {

// Before a function of OpenSSL that may be the first one. Has no effect where the program itself
// has used the same OpenSSL before. Thread-safe.
inline void keep_openssl_at_exit() { (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

}  // namespace weir::net
