// SPDX-License-Identifier: Apache-2.0
// hook_seal: encrypts and authenticates the messages of a transport that cannot do so itself, as
// WEIR_TLS=all requires. The core wraps such transports in it automatically (registry.h). cipher.h
// describes the pieces that go over the transport, keys.h the keys; the address begins with the 32
// bytes of this rank's public key, which the transport's own address follows. With WEIR_TLS=all the
// transport beneath is given WEIR_TLS=control: it protects its connections that carry no messages
// itself.
//
// A message is sealed into, and opened from, memory of this hook, a window of pieces at a time in
// each direction of each lane, so that what is encrypted and what is under way overlap. All of it
// moves in test and progress. A piece that cannot be opened ends its direction of its lane
// permanently, with an error that names both ranks; none of its data stays in the receiver's
// buffer.
//
// There are no one-sided operations: their bytes lie in the target's memory just as they arrive.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "plugins/common/look.h"
#include "plugins/hook/hook.h"
#include "plugins/hook_seal/cipher.h"
#include "plugins/hook_seal/keys.h"
#include "plugins/hook_seal/pieces.h"

namespace weir::plugins::hook_seal {
namespace {

constexpr uint32_t kMessageCount = 4096;  // under way
constexpr uint32_t kNone = UINT32_MAX;
constexpr uint32_t kWindow = 8;  // pieces under way in one direction of one lane
constexpr uint64_t kDone = UINT64_MAX;
constexpr char kNoRemote[] =
    "messages are sealed, and one-sided operations cannot be (WEIR_TLS=all)";

// The host as the transport beneath sees it; keeps the texts of that transport.
struct HostView {
  const weir_host_t* outer;
  std::string last_error;
  weir_host_t host{};

  explicit HostView(const weir_host_t* of) : outer(of) {
    host.struct_bytes = sizeof host;
    host.context = this;
    host.error = [](void* self, const char* text) {
      auto* view = static_cast<HostView*>(self);
      view->last_error = text;
      if (view->outer->error != nullptr) view->outer->error(view->outer->context, text);
    };
    host.log = [](void* self, int level, const char* text) {
      const weir_host_t* to = static_cast<HostView*>(self)->outer;
      if (to->log != nullptr) to->log(to->context, level, text);
    };
    host.setting = [](void* self, const char* name) -> const char* {
      const weir_host_t* from = static_cast<HostView*>(self)->outer;
      const char* value = from->setting == nullptr ? nullptr : from->setting(from->context, name);
      const bool is_all = value != nullptr && strcmp(value, "all") == 0;
      return is_all && strcmp(name, "WEIR_TLS") == 0 ? "control" : value;
    };
    host.look = [](void* self) { return common::look(static_cast<HostView*>(self)->outer); };
    host.control = common::control_of(of);
  }
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
};

struct Message {
  weir_transport_op_t* op;
  unsigned char* data;
  uint64_t bytes;
  uint64_t posted_bytes;  // in pieces that are under way or done
  uint64_t done_bytes;
  uint64_t number;  // in its direction and lane
  uint32_t channel;
  uint32_t next;  // of its channel, or free
  bool head_posted;
  weir_result_t result;
};

// One direction of one lane.
struct Channel {
  std::unique_ptr<Cipher> cipher;
  Piece* first_piece = nullptr;  // under way, in order
  Piece* last_piece = nullptr;
  uint32_t piece_count = 0;
  uint32_t first = kNone;    // message, of those that are not complete
  uint32_t last = kNone;     // message
  uint32_t posting = kNone;  // the first message of which not all is posted
  uint64_t message_count = 0;
  bool is_active = false;
  weir_result_t failure = WEIR_OK;
  std::string reason;  // of the failure, or of a piece that could not be posted
};

class Seal final : public hook::Hook {
 public:
  static constexpr char kName[] = "seal";

  static void limit(const weir_transport_part_t*, weir_transport_caps_t* caps) {
    caps->bits &= WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_QUIESCE |
                  hook::kRemoteCaps;
    caps->bits |= WEIR_CAP_SEALED;
    caps->memory_kinds &= WEIR_MEMORY_HOST;
    // A short message takes two.
    caps->credit = caps->credit > 2 ? caps->credit / 2 : 1;
  }

  static weir_result_t viable(const weir_transport_part_t* parts, const weir_host_t* host,
                              char* reason, size_t reason_bytes) {
    HostView view(host);
    const weir_transport_functions_t* const inner = parts[0].transport;
    const weir_result_t result = inner->viable(inner->context, &view.host, reason, reason_bytes);
    if (result != WEIR_OK || reason_bytes == 0) return result;
    const size_t length = strnlen(reason, reason_bytes - 1);
    snprintf(reason + length, reason_bytes - length, "%smessages sealed with AES-256-GCM",
             length == 0 ? "" : "; ");
    return result;
  }

  Seal(const weir_host_t* host, const weir_transport_part_t* parts,
       const weir_transport_config_t& config)
      : Hook(host, parts, config),
        view_(host),
        lane_count_(inner_->caps.lane_count),
        body_bytes_(static_cast<size_t>(
            std::min<uint64_t>(kBodyBytesMax, inner_->caps.message_bytes_max - kTagBytes))),
        window_(std::clamp(inner_->caps.credit, 1u, kWindow)),
        channels_(size_t{2} * lane_count_ * config.rank_count),
        messages_(kMessageCount) {
    host_ = &view_.host;
    active_.reserve(channels_.size());
    for (uint32_t i = kMessageCount; i-- > 0;) free_message(i);
  }

  weir_result_t start(const weir_transport_config_t& config) override {
    if (inner_->caps.message_bytes_max < kHeadBytes) {
      return fail(WEIR_ERROR_UNSUPPORTED, "seal(%s): its messages are too short to be sealed",
                  inner_->name);
    }
    if (keys_.open(config.secret, config.secret_bytes, config.comm_id, config.rank, inner_->name)) {
      return WEIR_OK;
    }
    return fail(WEIR_ERROR_UNSUPPORTED,
                "seal(%s): OpenSSL cannot make an X25519 key, so messages cannot be sealed",
                inner_->name);
  }

  weir_result_t address(unsigned char* address, size_t* bytes) override {
    unsigned char inner[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t inner_bytes = sizeof inner;
    const weir_result_t result = Hook::address(inner, &inner_bytes);
    if (result != WEIR_OK) return result;
    if (inner_bytes + kPublicKeyBytes > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
      return fail(WEIR_ERROR_UNSUPPORTED,
                  "seal(%s): its address of %zu bytes leaves no room for a key of %zu",
                  inner_->name, inner_bytes, kPublicKeyBytes);
    }
    memcpy(address, keys_.own().data(), kPublicKeyBytes);
    memcpy(address + kPublicKeyBytes, inner, inner_bytes);
    *bytes = kPublicKeyBytes + inner_bytes;
    return WEIR_OK;
  }

  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns) override {
    std::vector<const unsigned char*> inner(rank_count_);
    std::vector<size_t> inner_bytes(rank_count_);
    std::vector<PublicKey> keys(rank_count_);
    for (uint32_t peer = 0; peer < rank_count_; ++peer) {
      if (addresses[peer] == nullptr || address_bytes[peer] < kPublicKeyBytes) {
        return fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "seal(%s): the address of rank %u has %zu bytes, too few for a key",
                    inner_->name, peer,
                    addresses[peer] == nullptr ? size_t{0} : address_bytes[peer]);
      }
      memcpy(keys[peer].data(), addresses[peer], kPublicKeyBytes);
      inner[peer] = addresses[peer] + kPublicKeyBytes;
      inner_bytes[peer] = address_bytes[peer] - kPublicKeyBytes;
    }
    keys_.set_peers(std::move(keys));
    is_joined_ = true;
    return Hook::connect(inner.data(), inner_bytes.data(), deadline_ns);
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    // The inner transport itself reports what it refuses.
    if (!may_post(peer, lane, bytes)) return Hook::send(peer, lane, data, bytes, op);
    return post(true, peer, lane, const_cast<void*>(data), bytes, op);
  }

  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    if (!may_post(peer, lane, bytes)) return Hook::recv(peer, lane, data, bytes, op);
    return post(false, peer, lane, data, bytes, op);
  }

  weir_result_t test(weir_transport_op_t* op) override {
    if (op->word[0] == kDone) return WEIR_OK;
    const uint64_t index = op->word[0] - 1;
    if (index >= kMessageCount || messages_[index].op != op) {
      return fail(WEIR_ERROR_INVALID_USAGE, "seal(%s): test of an operation that was never posted",
                  inner_->name);
    }
    const uint32_t channel = messages_[index].channel;
    pump(channel);
    if (messages_[index].result == WEIR_IN_PROGRESS) {
      // A caller that tests only this operation must still move the others.
      for (size_t i = 0; i < active_.size(); ++i) {
        if (active_[i] != channel) pump(active_[i]);
      }
      tidy();
    }
    return end_of(static_cast<uint32_t>(index));
  }

  weir_result_t progress() override {
    const weir_result_t result = Hook::progress();
    if (result != WEIR_OK) return result;
    for (size_t i = 0; i < active_.size(); ++i) pump(active_[i]);
    tidy();
    return WEIR_OK;
  }

  // The pieces belong to this hook; only the hook accesses buffers of the caller.
  void quiesce() override {
    for (Channel& channel : channels_) {
      if (channel.failure != WEIR_OK || channel.first == kNone) continue;
      channel.failure = WEIR_ERROR_INVALID_USAGE;
      channel.reason = "it was quiesced";
    }
    Hook::quiesce();
  }

  // The inner transport holds only pieces, whose memory lives as long as the instance.
  weir_result_t peer_leave(uint32_t peer) override {
    if (!is_joined_ || peer >= rank_count_ || peer == rank_) {
      return fail(WEIR_ERROR_INVALID_ARGUMENT, "seal(%s): peer_leave of rank %u of %u by rank %u",
                  inner_->name, peer, rank_count_, rank_);
    }
    for (uint32_t which = peer; which < channels_.size(); which += rank_count_) {
      Channel& channel = channels_[which];
      while (channel.first != kNone) {
        const uint32_t index = channel.first;
        channel.first = messages_[index].next;
        free_message(index);
      }
      channel.last = channel.posting = kNone;
      break_off(which, WEIR_ERROR_PEER_LOST, "this rank has left the other one");
    }
    tidy();
    (void)leave_inner(peer);
    return WEIR_OK;
  }

  uint64_t remote_caps(char* reason, size_t reason_bytes) override {
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", kNoRemote);
    return 0;
  }
  weir_result_t memory_register(void*, uint64_t, weir_transport_memory_t**) override {
    return no_remote();
  }
  weir_result_t memory_key(const weir_transport_memory_t*, unsigned char*, size_t*) override {
    return no_remote();
  }
  weir_result_t remote_open(uint32_t, const unsigned char*, size_t,
                            weir_transport_remote_t**) override {
    return no_remote();
  }
  weir_result_t access(const hook::RemoteRequest&, weir_transport_op_t*) override {
    return no_remote();
  }
  weir_result_t signal_read(const weir_transport_memory_t*, uint64_t, uint64_t*) override {
    return no_remote();
  }
  void memory_deregister(weir_transport_memory_t*) override {}
  void remote_close(weir_transport_remote_t*) override {}

  void describe_peer(uint32_t peer, char* text, size_t text_bytes) override {
    Hook::describe_peer(peer, text, text_bytes);
    const size_t length = text_bytes == 0 ? 0 : strnlen(text, text_bytes - 1);
    if (length == 0) return;
    snprintf(text + length, text_bytes - length, "; sealed with AES-256-GCM");
  }

 private:
  bool may_post(uint32_t peer, uint32_t lane, uint64_t bytes) const {
    return is_joined_ && peer < rank_count_ && lane < lane_count_ &&
           bytes <= inner_->caps.message_bytes_max;
  }
  uint32_t channel_of(bool sending, uint32_t peer, uint32_t lane) const {
    return static_cast<uint32_t>(((sending ? 0 : lane_count_) + lane) * size_t{rank_count_} + peer);
  }
  bool is_sending(uint32_t channel) const { return channel < lane_count_ * rank_count_; }
  uint32_t peer_of(uint32_t channel) const { return channel % rank_count_; }
  uint32_t lane_of(uint32_t channel) const { return channel / rank_count_ % lane_count_; }
  uint32_t sender_of(uint32_t channel) const {
    return is_sending(channel) ? rank_ : peer_of(channel);
  }
  uint32_t receiver_of(uint32_t channel) const {
    return is_sending(channel) ? peer_of(channel) : rank_;
  }
  weir_result_t no_remote() const {
    return fail(WEIR_ERROR_UNSUPPORTED, "seal(%s): %s", inner_->name, kNoRemote);
  }

  void free_message(uint32_t index) {
    messages_[index] = {};
    messages_[index].next = first_free_;
    first_free_ = index;
  }

  weir_result_t post(bool sending, uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) {
    const uint32_t which = channel_of(sending, peer, lane);
    Channel& channel = channels_[which];
    if (channel.failure == WEIR_OK && channel.cipher == nullptr && !make_cipher(which)) {
      break_off(which, WEIR_ERROR_SYSTEM, "OpenSSL could not make the key of the connection");
    }
    if (channel.failure != WEIR_OK) return tell(channel);
    if (first_free_ == kNone) {
      return fail(WEIR_ERROR_NO_MEMORY,
                  "seal(%s): more operations are in flight than this hook can hold", inner_->name);
    }
    const uint32_t index = first_free_;
    Message& message = messages_[index];
    first_free_ = message.next;
    message = {};
    message.op = op;
    message.data = static_cast<unsigned char*>(data);
    message.bytes = bytes;
    message.number = channel.message_count++;
    message.channel = which;
    message.next = kNone;
    message.result = WEIR_IN_PROGRESS;
    op->word[0] = index + 1;
    if (channel.first == kNone) {
      channel.first = index;
    } else {
      messages_[channel.last].next = index;
    }
    channel.last = index;
    if (channel.posting == kNone) channel.posting = index;
    pump(which);
    if (!channel.is_active && channel.first != kNone) {
      channel.is_active = true;
      active_.push_back(which);
    }
    return end_of(index);
  }

  // The result of the message's operation; a message that has ended is forgotten.
  weir_result_t end_of(uint32_t index) {
    Message& message = messages_[index];
    const Channel& channel = channels_[message.channel];
    if (message.result == WEIR_IN_PROGRESS && channel.failure == WEIR_OK) return WEIR_IN_PROGRESS;
    if (message.result == WEIR_OK) {
      message.op->word[0] = kDone;
      free_message(index);
      return WEIR_OK;
    }
    // It stays where it is, so that another test returns the same.
    return tell(channel);
  }

  weir_result_t tell(const Channel& channel) const {
    return fail(channel.failure, "%s", channel.reason.c_str());
  }

  bool make_cipher(uint32_t which) {
    TrafficSecret secret;
    if (!keys_.traffic_secret(peer_of(which), lane_of(which), is_sending(which), &secret)) {
      return false;
    }
    const Cipher::Use use = is_sending(which) ? Cipher::Use::kSeals : Cipher::Use::kOpens;
    channels_[which].cipher.reset(new (std::nothrow) Cipher(&secret, use));
    return channels_[which].cipher != nullptr && channels_[which].cipher->is_usable();
  }

  // Ends the channel: with the transport's own text if the transport failed.
  void break_off(uint32_t which, weir_result_t code, const std::string& reason) {
    Channel& channel = channels_[which];
    channel.failure = code;
    char text[256];
    snprintf(text, sizeof text,
             "seal(%s): messages from rank %u to rank %u (lane %u): ", inner_->name,
             sender_of(which), receiver_of(which), lane_of(which));
    channel.reason = text + reason;
  }

  void damaged(uint32_t which, const Message& message) {
    Channel& channel = channels_[which];
    channel.failure = WEIR_ERROR_SYSTEM;
    char text[512];
    snprintf(text, sizeof text,
             "seal(%s): a message from rank %u to rank %u (lane %u, number %" PRIu64
             ") was altered in transit, or messages were repeated, dropped or reordered; suspect "
             "an attacker on the network between the two, or faulty memory of the two hosts",
             inner_->name, sender_of(which), receiver_of(which), lane_of(which), message.number);
    channel.reason = text;
  }

  void other_length(uint32_t which, const Message& message, uint64_t sent_bytes) {
    Channel& channel = channels_[which];
    channel.failure = WEIR_ERROR_MISMATCH;
    char text[512];
    snprintf(text, sizeof text,
             "seal(%s): rank %u sent %" PRIu64 " bytes to rank %u (lane %u, number %" PRIu64
             "), which receives %" PRIu64 "; both must give the same size",
             inner_->name, sender_of(which), sent_bytes, receiver_of(which), lane_of(which),
             message.number, message.bytes);
    channel.reason = text;
  }

  // Moves what can be moved in this direction of this lane.
  void pump(uint32_t which) {
    Channel& channel = channels_[which];
    for (bool moves = true; moves && channel.failure == WEIR_OK;) {
      moves = finish_one(which);
      while (channel.failure == WEIR_OK && channel.posting != kNone &&
             channel.piece_count < window_) {
        if (!post_one(which)) break;
        moves = true;
      }
    }
  }

  void tidy() {
    std::erase_if(active_, [this](uint32_t which) {
      Channel& channel = channels_[which];
      channel.is_active = channel.first != kNone && channel.failure == WEIR_OK;
      return !channel.is_active;
    });
  }

  // Posts the next piece. False: the channel has ended.
  bool post_one(uint32_t which) {
    Channel& channel = channels_[which];
    Message& message = messages_[channel.posting];
    const bool is_head = !message.head_posted;
    const uint64_t rest = message.bytes - message.posted_bytes;
    const auto part =
        static_cast<size_t>(std::min<uint64_t>(rest, is_head ? kHeadDataBytes : body_bytes_));
    const size_t piece_bytes = is_head ? kHeadBytes : part + kTagBytes;
    Piece* piece = pieces_.take(piece_bytes);
    if (piece == nullptr) {
      break_off(which, WEIR_ERROR_NO_MEMORY, "no memory for a piece");
      return false;
    }
    piece->is_head = is_head;
    piece->data_bytes = static_cast<uint32_t>(part);
    const unsigned char* const data = message.data + message.posted_bytes;
    if (is_sending(which)) {
      const bool sealed = is_head
                              ? channel.cipher->seal_head(message.bytes, data, piece->bytes.get())
                              : channel.cipher->seal_body(data, part, piece->bytes.get());
      if (!sealed) {
        pieces_.give_back(piece);
        break_off(which, WEIR_ERROR_SYSTEM, "OpenSSL could not encrypt a message");
        return false;
      }
      piece->result =
          Hook::send(peer_of(which), lane_of(which), piece->bytes.get(), piece_bytes, &piece->op);
    } else {
      piece->result =
          Hook::recv(peer_of(which), lane_of(which), piece->bytes.get(), piece_bytes, &piece->op);
    }
    // The pieces before it are finished first.
    if (piece->result > WEIR_IN_PROGRESS) channel.reason = view_.last_error;
    message.head_posted = true;
    message.posted_bytes += part;
    if (message.posted_bytes == message.bytes) channel.posting = message.next;
    (channel.first_piece == nullptr ? channel.first_piece : channel.last_piece->next) = piece;
    channel.last_piece = piece;
    ++channel.piece_count;
    return true;
  }

  // Ends the first piece if it has arrived or has been sent. False: it has not.
  bool finish_one(uint32_t which) {
    Channel& channel = channels_[which];
    Piece* piece = channel.first_piece;
    if (piece == nullptr) return false;
    if (piece->result == WEIR_IN_PROGRESS) {
      piece->result = Hook::test(&piece->op);
      if (piece->result > WEIR_IN_PROGRESS) channel.reason = view_.last_error;
    }
    if (piece->result == WEIR_IN_PROGRESS) return false;
    // The memory of a piece that has failed stays out of use: the transport may still use it.
    if (piece->result != WEIR_OK) {
      break_off(which, piece->result, std::string(channel.reason));
      return false;
    }
    Message& message = messages_[channel.first];
    if (!is_sending(which) && !open(which, *piece, &message)) return false;
    message.done_bytes += piece->data_bytes;
    channel.first_piece = piece->next;
    --channel.piece_count;
    pieces_.give_back(piece);
    if (message.done_bytes == message.bytes) {
      message.result = WEIR_OK;
      channel.first = message.next;
      if (channel.first == kNone) channel.last = kNone;
    }
    return true;
  }

  bool open(uint32_t which, const Piece& piece, Message* message) {
    Cipher& cipher = *channels_[which].cipher;
    if (!piece.is_head) {
      if (cipher.open_body(piece.bytes.get(), piece.data_bytes,
                           message->data + message->done_bytes)) {
        return true;
      }
      damaged(which, *message);
      return false;
    }
    uint64_t sent_bytes = 0;
    if (!cipher.open_head(piece.bytes.get(), &sent_bytes, message->data, message->bytes)) {
      damaged(which, *message);
      return false;
    }
    if (sent_bytes != message->bytes) {
      other_length(which, *message, sent_bytes);
      return false;
    }
    return true;
  }

  HostView view_;
  uint32_t lane_count_;
  size_t body_bytes_;
  uint32_t window_;
  bool is_joined_ = false;
  Keys keys_;
  Pieces pieces_;
  std::vector<Channel> channels_;
  std::vector<Message> messages_;
  uint32_t first_free_ = kNone;
  std::vector<uint32_t> active_;  // channels with messages that are not complete
};

}  // namespace

const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner) {
  return hook::make_table<Seal>(inner);
}

}  // namespace weir::plugins::hook_seal
