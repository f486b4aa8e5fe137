# SPDX-License-Identifier: Apache-2.0
"""What the programs perf/compare, perf/tcp_compare and perf/shaped_compare share."""
