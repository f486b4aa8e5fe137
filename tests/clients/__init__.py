# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/clients; the programs of the clients are in `programs`."""
