/* SPDX-License-Identifier: Apache-2.0 */
/* Has the name of a library that Weir needs, and lies in the current folder: whoever loads it says
 * so. */
#include <unistd.h>

__attribute__((constructor)) static void tell(void) {
  static const char text[] = "a planted library was loaded\n";
  if (write(1, text, sizeof text - 1) < 0) _exit(71);
  _exit(70);
}
