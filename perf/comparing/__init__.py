# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs perf/compare, perf/tcp_compare and perf/shaped_compare."""
