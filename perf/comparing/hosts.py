# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces joined by veth, to measure between hosts.

A host is a namespace that a process of this program holds. When that process ends, however it ends,
the kernel removes namespace and interfaces: nothing has a name outside, and nothing is left behind.
"""

import ctypes
import os
import subprocess
import sys
import time

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
PR_SET_PDEATHSIG, SIGKILL = 1, 9
READY_SECONDS_MAX = 20

libc = ctypes.CDLL(None, use_errno=True)

# A holder runs this: it makes namespaces, prints a line when they exist, and waits until its input
# ends.
HOLD = (
    "import ctypes,sys\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.prctl(%d, %d)\n"
    "if libc.unshare(%d) != 0: sys.exit('unshare: error %%d' %% ctypes.get_errno())\n"
    "name = sys.argv[1].encode()\n"
    "libc.sethostname(name, len(name))\n"
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
) % (PR_SET_PDEATHSIG, SIGKILL, CLONE_NEWUTS | CLONE_NEWNET)


class NoHosts(Exception):
    """This machine or user cannot make hosts; the text says why."""


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise NoHosts(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """`count` hosts with the addresses 10.77.0.1, … at eth0. Two are joined by a veth pair, more by
    a bridge; they may have several links, the next of which is eth1 with 10.78.0.1, …, over a veth
    pair or bridge of its own."""

    title = "between network namespaces joined by veth"
    interface = "eth0"
    spans = True

    def __init__(self, count, link_count=1):
        self.holders = []
        self.link_count = link_count
        if os.geteuid() != 0:
            raise NoHosts("only root can make network namespaces")
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        try:
            for i in range(count):
                self.holders.append(self.hold(f"weir{i}"))
            if count == 2:
                self.join_two()
            else:
                self.join_by_bridge()
            for i in range(count):
                self.configure(i)
        except OSError as error:
            self.close()
            raise NoHosts(str(error)) from error
        except NoHosts:
            self.close()
            raise

    def hold(self, name):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if holder.stdout.readline().strip() != "ready":
            raise NoHosts(
                f"this machine does not let namespaces be made: {holder.stderr.read().strip()}"
            )
        return holder

    def pid(self, host):
        return self.holders[host].pid

    def inside(self, host, *command):
        return ["nsenter", "-t", str(self.pid(host)), "-n", "-u", "--", *command]

    def do(self, host, *command):
        done = subprocess.run(self.inside(host, *command), capture_output=True, text=True)
        if done.returncode != 0:
            raise NoHosts(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def join_two(self):
        for link in range(self.link_count):
            ip(
                "link",
                "add",
                f"eth{link}",
                "netns",
                str(self.pid(0)),
                "type",
                "veth",
                "peer",
                "name",
                f"eth{link}",
                "netns",
                str(self.pid(1)),
            )

    def join_by_bridge(self):
        self.holders.append(self.hold("weirswitch"))
        switch = len(self.holders) - 1
        for link in range(self.link_count):
            self.do(switch, "ip", "link", "add", f"br{link}", "type", "bridge")
            self.do(switch, "ip", "link", "set", f"br{link}", "up")
            for i in range(len(self.addresses)):
                port = self.port_of(i, link)
                self.do(
                    switch,
                    "ip",
                    "link",
                    "add",
                    port,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    f"eth{link}",
                    "netns",
                    str(self.pid(i)),
                )
                self.do(switch, "ip", "link", "set", port, "master", f"br{link}", "up")

    @staticmethod
    def port_of(host, link):
        """The switch's end of a host's link."""
        return f"v{host}" if link == 0 else f"v{host}x{link}"

    def configure(self, host):
        self.do(host, "ip", "link", "set", "lo", "up")
        for link in range(self.link_count):
            address = f"10.{77 + link}.0.{host + 1}/24"
            self.do(host, "ip", "addr", "add", address, "dev", f"eth{link}")
            self.do(host, "ip", "link", "set", f"eth{link}", "up")

    def await_carrier(self):
        """Waits until the kernel reports that the other ends are up too."""
        end = time.monotonic() + READY_SECONDS_MAX
        for host in range(len(self.addresses)):
            for link in range(self.link_count):
                while "LOWER_UP" not in self.do(host, "ip", "link", "show", "dev", f"eth{link}"):
                    if time.monotonic() > end:
                        raise NoHosts("the interfaces do not come up")
                    time.sleep(0.02)

    def use_congestion_control(self, name):
        """For connections made from now on; otherwise hosts have what this machine has."""
        for host in range(len(self.addresses)):
            self.do(host, "sysctl", "-w", f"net.ipv4.tcp_congestion_control={name}")

    def shape(self, host, mbit, burst_bytes, link=0):
        """Limits the traffic that leaves the host with a token bucket; another call replaces it."""
        self.limit(host, f"eth{link}", mbit, burst_bytes)

    def shape_incoming(self, host, mbit, burst_bytes, link=0):
        """The same for what reaches the host, where hosts are joined by a bridge."""
        self.limit(len(self.holders) - 1, self.port_of(host, link), mbit, burst_bytes)

    def limit(self, host, device, mbit, burst_bytes):
        # The bucket would have to segment larger packets, which costs more than all else; a bucket
        # of one packet would stall whenever a timer is late.
        self.do(host, "ip", "link", "set", "dev", device, "gso_max_size", str(burst_bytes // 4))
        # The queue has room for everything that several connections may have under way, so that
        # nothing is dropped.
        self.do(
            host,
            "tc",
            "qdisc",
            "replace",
            "dev",
            device,
            "root",
            "tbf",
            "rate",
            f"{mbit}mbit",
            "burst",
            str(burst_bytes),
            "limit",
            str(64 << 20),
        )

    def close(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()
            for pipe in (holder.stdin, holder.stdout, holder.stderr):
                pipe.close()
        self.holders = []
