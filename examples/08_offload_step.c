/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 08: optimizer state on a drive. A million parameters are stepped with AdamW while most of their
 * master weights and moments are in a directory; the program "ends", and another one continues.
 *
 *   ./08_offload_step [directory]
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weir/offload.h>

enum { COUNT = 1 << 20, STEP_COUNT = 3 };

static void check(weir_result_t result) {
  if (result == WEIR_OK) return;
  /* The text names the group, the range or the file, and the remedy. */
  fprintf(stderr, "%s: %s\n", weir_result_string(result), weir_last_error(NULL));
  exit(1);
}

/* A step: gradients in, updated parameters out, in one pass over the state. */
static void step(weir_optimizer_t optimizer, float* gradients) {
  for (int i = 0; i < COUNT; ++i) gradients[i] = (float)(i % 7 - 3) * 0.001f;
  check(weir_optimizer_gradient(optimizer, 0, 0, COUNT, WEIR_FLOAT32, gradients));

  weir_step_options_t options = WEIR_STEP_OPTIONS_INIT;
  options.norm_max = 1.0; /* clip to this global norm */
  weir_step_report_t report = WEIR_STEP_REPORT_INIT;
  check(weir_optimizer_step(optimizer, &options, &report));
  printf("step %llu: norm %.4f, read %.1f MB, wrote %.1f MB, %s\n", (unsigned long long)report.step,
         report.norm, (double)report.read_bytes / 1e6, (double)report.written_bytes / 1e6,
         report.committed ? "committed" : "not yet durable");
}

static void remove_directory(const char* path) {
  DIR* directory = opendir(path);
  if (directory == NULL) return;
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;)
    (void)unlinkat(dirfd(directory), entry->d_name, 0);
  closedir(directory);
  rmdir(path);
}

int main(int argc, char** argv) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/weir_08.XXXXXX", argc > 1 ? argv[1] : ".");
  if (mkdtemp(path) == NULL) {
    perror(path);
    return 1;
  }
  float* gradients = malloc(COUNT * sizeof(float));
  float* parameters = malloc(COUNT * sizeof(float));
  float* recovered = malloc(COUNT * sizeof(float));
  if (gradients == NULL || parameters == NULL || recovered == NULL) return 1;
  for (int i = 0; i < COUNT; ++i) parameters[i] = (float)(i % 1000) * 0.0001f;

  /* One named group of parameters, with its method, format and hyperparameters. */
  weir_parameter_group_t group = WEIR_PARAMETER_GROUP_INIT;
  group.name = "weights";
  group.element_count = COUNT;
  group.method = WEIR_ADAMW;
  group.hyper.weight_decay = 0.01;

  /* Without directories all state is in memory. With them, as much as fits `memory_bytes`. */
  const char* directories[] = {path};
  weir_offload_config_t config = WEIR_OFFLOAD_CONFIG_INIT;
  config.directories = directories;
  config.directory_count = 1;

  weir_optimizer_t optimizer = NULL;
  check(weir_optimizer_create(&optimizer, &config, &group, 1));
  check(weir_optimizer_set_parameters(optimizer, 0, 0, COUNT, WEIR_FLOAT32, parameters));
  /* From now on each step writes the updated parameters here. */
  check(weir_optimizer_set_output(optimizer, 0, WEIR_FLOAT32, parameters, 0));
  for (int i = 0; i < STEP_COUNT; ++i) step(optimizer, gradients);
  check(weir_optimizer_destroy(optimizer));

  /* A crash would leave the same state: that of the last committed step. */
  check(weir_optimizer_open(&optimizer, &config, &group, 1));
  check(weir_optimizer_get_parameters(optimizer, 0, 0, COUNT, WEIR_FLOAT32, recovered));
  const int same = memcmp(parameters, recovered, COUNT * sizeof(float)) == 0;
  printf("opened again: the parameters are %s\n", same ? "the same, bit for bit" : "others");
  step(optimizer, gradients);
  check(weir_optimizer_destroy(optimizer));

  remove_directory(path);
  free(gradients);
  free(parameters);
  free(recovered);
  return same ? 0 : 1;
}
