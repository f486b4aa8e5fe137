/* SPDX-License-Identifier: Apache-2.0 */
/* A program's own functions with names that libraries inside libnccl.so.2 have, too. Whoever calls
 * one of them by name gets these, which end the process. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#define CLASH_AS(name, symbol)                                              \
  __attribute__((visibility("default"))) void name(void) __asm__(symbol);   \
  void name(void) {                                                         \
    static const char text[] = "the program's own " symbol " was called\n"; \
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);          \
    abort();                                                                \
  }
#define CLASH(name) CLASH_AS(program_##name, #name)

/* OpenSSL */
CLASH(OPENSSL_init_crypto)
CLASH(EVP_sha256)
CLASH(EVP_MD_CTX_new)
CLASH(CRYPTO_malloc)
CLASH(CRYPTO_memcmp)
CLASH(HMAC)
CLASH(SSL_CTX_new)
CLASH(SSL_new)
CLASH(TLS_method)
CLASH(BIO_meth_new)
/* xxHash, liburing */
CLASH(XXH64)
CLASH(XXH3_64bits)
CLASH(XXH3_64bits_withSeed)
CLASH(io_uring_queue_init)
/* fmt: vformat; spdlog: logger::log_it_ */
CLASH_AS(fmt_vformat,
         "_ZN3fmt2v97vformatB5cxx11ENS0_17basic_string_viewIcEE"
         "NS0_17basic_format_argsINS0_20basic_format_contextINS0_8appenderEcEEEE")
CLASH(_ZN6spdlog6logger7log_it_ERKNS_7details7log_msgEbb)
/* pugixml: xml_document::xml_document(); Highway: SupportedTargets, GetChosenTarget */
CLASH(_ZN4pugi12xml_documentC1Ev)
CLASH(_ZN3hwy16SupportedTargetsEv)
CLASH(_ZN3hwy15GetChosenTargetEv)
/* libstdc++, libgcc: operator new and delete, exceptions, std::thread */
CLASH(_Znwm)
CLASH(_ZdlPvm)
CLASH(__cxa_throw)
CLASH(__cxa_begin_catch)
CLASH(__gxx_personality_v0)
CLASH(_Unwind_RaiseException)
CLASH(_Unwind_Resume)
CLASH(_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE)
CLASH(_dl_find_object)
