// SPDX-License-Identifier: Apache-2.0
// What the ranks of a control mesh tell each other once it has formed.
#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "net/control_mesh.h"

namespace weir::net {
namespace {

using mesh::MeshLink;

// In one look at a peer, that may go on sending.
constexpr int kReadCountMax = 8192;

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

ControlMesh::Life ControlMesh::look(uint32_t rank) {
  Peer& peer = peers_[rank];
  if (!peer.stream.is_open() || peer.life != Life::kHere) return peer.life;
  for (int i = 0; i < kReadCountMax; ++i) {
    unsigned char bytes[mesh::kNoticeFrameBytesMax];
    const size_t wanted = std::min(peer.link->wanted(), sizeof bytes);
    const ssize_t got = peer.stream.recv(bytes, wanted);
    if (got < 0 && is_temporary(errno)) return Life::kHere;
    if (got <= 0) {
      peer.life = Life::kLost;
      return peer.life;
    }
    const MeshLink::State state = peer.link->feed(bytes, static_cast<size_t>(got));
    if (state == MeshLink::State::kJoined) continue;
    peer.life = state == MeshLink::State::kLeft ? Life::kLeft : Life::kLost;
    return peer.life;
  }
  return Life::kHere;
}

bool ControlMesh::push(Peer* peer) {
  MeshLink& link = *peer->link;
  while (link.out_bytes() > 0 && !peer->deaf) {
    const ssize_t sent = peer->stream.send(link.out(), link.out_bytes());
    if (sent < 0 && is_temporary(errno)) return false;
    // Why is told by what can be read: the end, or a goodbye before it.
    peer->deaf = sent < 0;
    if (sent > 0) link.sent(static_cast<size_t>(sent));
  }
  return !peer->deaf;
}

bool ControlMesh::send_notice(Peer* peer) const {
  if (!peer->stream.is_open() || peer->life != Life::kHere || peer->deaf) return true;
  if (!push(peer)) return peer->deaf;
  if (peer->sent_version == notice_version_) return true;
  peer->link->say_notice(notice_.data(), notice_.size());
  peer->sent_version = notice_version_;
  return push(peer) || peer->deaf;
}

void ControlMesh::send_notices() {
  notice_waits_ = false;
  for (Peer& peer : peers_) notice_waits_ = !send_notice(&peer) || notice_waits_;
}

void ControlMesh::show(const unsigned char* notice, size_t bytes) {
  notice_.assign(notice, notice + std::min(bytes, mesh::kNoticeBytesMax));
  ++notice_version_;
  send_notices();
}

const mesh::Bytes& ControlMesh::read_notice(uint32_t rank, bool* arrived) {
  Peer& peer = peers_[rank];
  (void)look(rank);
  if (notice_waits_) send_notices();
  *arrived = true;
  if (peer.stream.is_open() && peer.life == Life::kHere && !peer.deaf &&
      peer.arrived_version != notice_version_) {
    int waiting = 0;
    const bool acknowledged = peer.sent_version == notice_version_ && peer.link->out_bytes() == 0 &&
                              !(ioctl(peer.stream.fd(), SIOCOUTQ, &waiting) == 0 && waiting > 0);
    if (acknowledged) peer.arrived_version = notice_version_;
    *arrived = acknowledged;
  }
  return peer.link->notice();
}

void ControlMesh::tell(uint32_t rank, const unsigned char* word, size_t bytes) {
  Peer& peer = peers_[rank];
  if (!peer.stream.is_open() || owner_ != getpid()) return;
  (void)send_notice(&peer);
  peer.link->say_word(word, bytes);
  (void)push(&peer);
}

bool ControlMesh::has_left(uint32_t rank) {
  Peer& peer = peers_[rank];
  return !peer.stream.is_open() || push(&peer) || peer.deaf;
}

bool ControlMesh::hear(uint32_t rank, mesh::Bytes* word) {
  Peer& peer = peers_[rank];
  if (!peer.stream.is_open()) return false;
  (void)look(rank);
  (void)push(&peer);
  return peer.link->hear_word(word);
}

IpAddress ControlMesh::local_address(uint32_t rank) const {
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  auto* address = reinterpret_cast<sockaddr*>(&name);
  if (getsockname(peers_[rank].stream.fd(), address, &bytes) != 0) return IpAddress();
  return from_sockaddr(address);
}

std::string ControlMesh::describe(uint32_t rank) const {
  if (rank >= peers_.size() || rank == config_.rank) return "";
  if (!peers_[rank].route.empty()) return peers_[rank].route;
  const IpAddress here = local_address(rank);
  return "rank " + std::to_string(rank) + ", which came to " +
         (here.valid() ? to_string(here) : "this rank") + " and chose the way";
}

void ControlMesh::leave(uint32_t rank, const mesh::Bytes& farewell) {
  Peer& peer = peers_[rank];
  if (!peer.stream.is_open() || owner_ != getpid()) return;
  (void)send_notice(&peer);
  peer.link->say_goodbye(farewell.data(), farewell.size());
  // It waits for nobody: a peer that has read nothing for long may miss it.
  (void)push(&peer);
}

}  // namespace weir::net
