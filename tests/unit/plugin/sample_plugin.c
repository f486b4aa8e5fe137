/* SPDX-License-Identifier: Apache-2.0 */
/* A transport in C11, as somebody outside would write it: it declares no capability but to exist.
 * Built several times, each time with one thing wrong (see CMakeLists.txt). */
#include <stdio.h>
#include <string.h>
#ifdef SAMPLE_THREAD
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#endif

#include "weir/plugin.h"

#ifndef SAMPLE_ABI_VERSION
#define SAMPLE_ABI_VERSION WEIR_PLUGIN_ABI_VERSION
#endif
#ifndef SAMPLE_STRUCT_BYTES
#define SAMPLE_STRUCT_BYTES sizeof(weir_transport_functions_t)
#endif
#ifndef SAMPLE_NAME
#define SAMPLE_NAME "sample"
#endif
#ifndef SAMPLE_BITS
#define SAMPLE_BITS 0
#endif
#ifndef SAMPLE_MEMORY /* kinds; with any of them it has functions of messages, too */
#define SAMPLE_MEMORY 0
#endif
/* SAMPLE_THREAD: its constructor starts a thread, which counts until sample_stop(). */
#ifndef SAMPLE_SYMBOL
#define SAMPLE_SYMBOL weir_transport_plugin
#endif

static weir_result_t viable(void* context, const weir_host_t* host, char* reason,
                            size_t reason_bytes) {
  (void)context;
  (void)host;
  snprintf(reason, reason_bytes, "a sample moves nothing");
  return WEIR_ERROR_UNSUPPORTED;
}

static weir_result_t open_instance(void* context, const weir_host_t* host,
                                   const weir_transport_config_t* config,
                                   weir_transport_t** instance) {
  (void)context;
  (void)instance;
  char text[256];
  snprintf(text, sizeof text,
           "sample: a sample moves nothing; device %d, node %d, interface %s, card %s",
           (int)config->device, (int)config->numa_node,
           config->interface != NULL ? config->interface : "-",
           config->domain != NULL ? config->domain : "-");
  host->error(host->context, text);
  return WEIR_ERROR_UNSUPPORTED;
}

static weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  (void)instance;
  memcpy(out, "sample", 6);
  *bytes = 6;
  return WEIR_OK;
}

static weir_result_t connect_peers(weir_transport_t* instance,
                                   const unsigned char* const* addresses,
                                   const size_t* address_bytes, uint64_t deadline_ns) {
  (void)instance;
  (void)addresses;
  (void)address_bytes;
  (void)deadline_ns;
  return WEIR_ERROR_UNSUPPORTED;
}

static void close_instance(weir_transport_t* instance) { (void)instance; }

static weir_result_t progress(weir_transport_t* instance) {
  (void)instance;
  return WEIR_OK;
}

#if SAMPLE_MEMORY
static weir_result_t send_data(weir_transport_t* instance, uint32_t peer, uint32_t lane,
                               const void* data, uint64_t bytes, weir_transport_op_t* op) {
  (void)instance;
  (void)peer;
  (void)lane;
  (void)data;
  (void)bytes;
  (void)op;
  return WEIR_ERROR_UNSUPPORTED;
}

static weir_result_t recv_data(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                               uint64_t bytes, weir_transport_op_t* op) {
  return send_data(instance, peer, lane, data, bytes, op);
}

static weir_result_t test_op(weir_transport_t* instance, weir_transport_op_t* op) {
  (void)instance;
  (void)op;
  return WEIR_ERROR_UNSUPPORTED;
}
#endif

#ifdef SAMPLE_PARTS
static const weir_transport_part_t parts[] = {{NULL, NULL}};
#endif

static const weir_transport_functions_t functions = {
    .abi_version = SAMPLE_ABI_VERSION,
    .struct_bytes = SAMPLE_STRUCT_BYTES,
    .name = SAMPLE_NAME,
    .summary = "a sample",
    .caps = {.bits = SAMPLE_BITS,
             .memory_kinds = SAMPLE_MEMORY,
             .lane_count = 1,
             .message_bytes_max = 1,
             .rank_count_max = 1,
             .credit = 1},
#ifdef SAMPLE_PARTS
    .parts = parts,
#endif
    .viable = viable,
    .open = open_instance,
    .address = address,
    .connect = connect_peers,
    .close = close_instance,
    .progress = progress,
#if SAMPLE_MEMORY
    .send = send_data,
    .recv = recv_data,
    .test = test_op,
#endif
};

__attribute__((visibility("default"))) const weir_transport_functions_t* SAMPLE_SYMBOL(void);
const weir_transport_functions_t* SAMPLE_SYMBOL(void) { return &functions; }

#ifdef SAMPLE_THREAD
static pthread_t thread;
static atomic_int ticks;
static atomic_bool stopping;

static void* count(void* nothing) {
  while (!atomic_load(&stopping)) {
    const struct timespec nap = {.tv_sec = 0, .tv_nsec = 1000 * 1000};
    nanosleep(&nap, NULL);
    atomic_fetch_add(&ticks, 1);
  }
  return nothing;
}

__attribute__((constructor)) static void start(void) { pthread_create(&thread, NULL, count, NULL); }

__attribute__((visibility("default"))) int sample_ticks(void);
int sample_ticks(void) { return atomic_load(&ticks); }

__attribute__((visibility("default"))) void sample_stop(void);
void sample_stop(void) {
  atomic_store(&stopping, true);
  pthread_join(thread, NULL);
}
#endif
