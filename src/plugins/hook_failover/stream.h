// SPDX-License-Identifier: Apache-2.0
// The messages of one (peer, lane) and direction, over whichever transport carries them at the
// time.
//
// A message is identified by its number in its stream, which both ends count alike. What a failed
// transport has not delivered is sent over the next one: the receiver reports how many messages it
// has received completely, and the sender continues from there. So a send is reported complete only
// when its data cannot be needed again: the receiver has confirmed it, or it is short and a copy is
// kept here. Receivers confirm without being asked: a long message before it is reported complete,
// short ones from time to time.
//
// The transport is given operations of this object, a window of them; the caller's operations are
// linked through their own words, so that their number is not limited. Nothing allocates. One
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weir/plugin.h"

namespace weir::plugins::hook_failover {

// The most messages that a transport holds at the same time.
inline constexpr uint32_t kWindow = 16;
// A longer message is not copied when it is sent.
inline constexpr uint64_t kCopyBytesMax = 8192;
inline constexpr uint32_t kCopyCountMax = 64;
inline constexpr uint64_t kCopyMemoryBytes = 65536;
// A receiver reports its count after so many messages or bytes at the latest. Both are far below
// what a sender can keep, so that no sender waits because its receiver is silent.
inline constexpr uint32_t kSilentCountMax = 16;
inline constexpr uint64_t kSilentBytesMax = 16384;
static_assert(kSilentBytesMax + 2 * kCopyBytesMax <= kCopyMemoryBytes);

// Meaning of weir_transport_op_t::word while an operation is in this transport.
struct Op {
  uint64_t state;   // 0: never posted; then kOpPending, kOpDone or kOpFailed + result
  uint64_t next;    // Op*, in the queue
  uint64_t stream;  // of the Instance: index
  uint64_t data;
  uint64_t bytes;
  uint64_t unused[3];
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
inline constexpr uint64_t kOpPending = 1;
inline constexpr uint64_t kOpDone = 2;
inline constexpr uint64_t kOpFailed = 16;

// Where the messages go at present.
struct Route {
  const weir_transport_functions_t* functions = nullptr;
  weir_transport_t* instance = nullptr;
  uint32_t peer = 0;
  uint32_t lane = 0;
};

// What both directions have in common: the caller's operations, and those that the transport has.
class Stream {
 public:
  void post(const void* data, uint64_t bytes, Op* op);
  // Ends every operation that was not reported complete with `result`; the caller must refuse later
  // ones. The transport must have given all of them back.
  void fail(weir_result_t result);
  weir_result_t result() const { return result_; }
  bool busy() const { return told_ < posted_; }
  // Whether the transport has not been given all messages, or sends again messages that were
  // reported complete: the stream must then be moved even though no operation waits for it.
  bool lags() const { return handed_ < posted_ || settled_ < told_; }
  uint64_t posted() const { return posted_; }
  uint64_t settled() const { return settled_; }
  // Bytes that the transport has been given and has not finished.
  uint64_t bytes_under_way() const;

 protected:
  static Op* next_of(const Op* op) { return reinterpret_cast<Op*>(op->next); }
  // Asks the transport which operations it has finished. WEIR_OK, or its error.
  weir_result_t settle(const Route& route);
  weir_result_t note_posted(weir_result_t posted, uint64_t bytes);
  weir_transport_op_t* fresh_op();
  void tell_first();  // reports the first operation complete

  struct Slot {
    weir_transport_op_t op;
    uint64_t bytes;
    bool done;
  };
  Slot& slot(uint64_t number) { return slots_[number % kWindow]; }
  const Slot& slot(uint64_t number) const { return slots_[number % kWindow]; }

  // Counts of messages, each at most the one before it:
  uint64_t posted_ = 0;   // by the caller
  uint64_t handed_ = 0;   // to the transport
  uint64_t settled_ = 0;  // finished by the transport
  uint64_t told_ = 0;     // reported complete; after a takeover a sender's may exceed the two above
  Op* head_ = nullptr;    // the operation of message told_
  Op* tail_ = nullptr;
  Op* next_ = nullptr;  // that of message handed_, if not yet reported; null: there is none
  weir_result_t result_ = WEIR_OK;
  Slot slots_[kWindow] = {};
};

class SendStream : public Stream {
 public:
  // `memory`: kCopyMemoryBytes. `needs_none`: messages that the transport has finished are not
  // needed again.
  void attach(unsigned char* memory, bool needs_none) {
    memory_ = memory;
    needs_none_ = needs_none;
  }
  // Moves what can be moved. WEIR_OK, or the error that the transport has ended in.
  weir_result_t advance(const Route& route);
  // Reports what is complete, and hands nothing over any more.
  void conclude(const Route& route) {
    (void)settle(route);
    tell();
  }
  // The receiver has received so many. False: it cannot have.
  bool acknowledge(uint64_t count);
  // Another transport: what the one before it has not finished is no longer with any transport.
  void restart() { handed_ = settled_; }
  // And goes on with message `count`. False: that message is not here any more, or was never sent.
  bool resume(uint64_t count);
  // Whether a report of the receiver would help.
  bool wants_word() const {
    return told_ < settled_ || told_ - released_ > kCopyCountMax / 2 ||
           copy_end_ - copy_begin_ > kCopyMemoryBytes / 2;
  }
  bool waits_for_word() const { return told_ < settled_; }
  // The receiver has confirmed all messages.
  bool has_word_of_all() const { return acknowledged_ >= posted_; }
  uint64_t acknowledged() const { return acknowledged_; }

 private:
  struct Copy {
    uint64_t begin;  // in memory_, modulo its size
    uint64_t end;
    uint64_t bytes;
  };
  void tell();
  bool keep(const Op& op);
  void release();

  unsigned char* memory_ = nullptr;
  bool needs_none_ = false;
  uint64_t handed_most_ = 0;   // over all transports
  uint64_t acknowledged_ = 0;  // received by the peer
  uint64_t released_ = 0;      // copies of [released_, told_) are kept
  uint64_t copy_begin_ = 0;
  uint64_t copy_end_ = 0;
  Copy copies_[kCopyCountMax] = {};
};

class RecvStream : public Stream {
 public:
  weir_result_t advance(const Route& route);
  // Takes in what has arrived, and no more.
  void drain(const Route& route) { (void)take(route); }
  uint64_t received() const { return settled_; }
  // Another transport: what has not arrived is received again.
  void restart();
  // It is time to tell the sender how many have arrived.
  bool owes_word() const {
    return silent_count_ >= kSilentCountMax || silent_bytes_ >= kSilentBytesMax;
  }
  void word_given() { silent_count_ = 0, silent_bytes_ = 0; }
  // A long message is complete, but is not reported before its confirmation has left: its sender
  // waits for that, and the caller may make no further call.
  bool holds() const { return hold_ != UINT64_MAX; }
  void release() {
    hold_ = UINT64_MAX;
    tell();
  }

 private:
  weir_result_t take(const Route& route);
  void tell();

  uint64_t counted_ = 0;
  uint64_t hold_ = UINT64_MAX;  // this message and later ones are not reported
  uint32_t silent_count_ = 0;
  uint64_t silent_bytes_ = 0;
};

}  // namespace weir::plugins::hook_failover
