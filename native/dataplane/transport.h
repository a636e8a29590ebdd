// How frames come and go. One thread uses a transport.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "native/dataplane/config.h"
#include "native/dataplane/neighbour.h"
#include "native/dataplane/packet.h"

namespace steelyard::dataplane {

struct TransportCounters {
  uint64_t received = 0, received_bytes = 0;
  uint64_t sent = 0, sent_bytes = 0;
  uint64_t receive_dropped = 0;  // by the kernel, for want of room
  uint64_t send_dropped = 0;     // not taken by the kernel
};

class Transport {
 public:
  static constexpr int kBurst = 64;

  virtual ~Transport() = default;
  // Waits up to `timeout_ms` for frames, and returns up to kBurst of them; they may be written and have
  // kHeadroom. They are the caller's until flush().
  virtual std::span<Packet> receive(int timeout_ms) = 0;
  // A frame of the last receive() is to go out.
  virtual void queue(const Packet& packet) = 0;
  // Sends what is queued and gives all frames of the last receive() back.
  virtual void flush() = 0;
  // Sends a frame of the caller's own.
  virtual void send(std::span<const uint8_t> frame) = 0;
  virtual TransportCounters counters() = 0;
  // The virtual addresses, for a transport that takes only their frames.
  virtual void set_addresses(std::span<const Address>) {}
  virtual int poll_fd() const = 0;  // readable when frames have come
};

// Waits for frames; whether there may be some. A link that went down leaves an error on its socket, with
// which poll would never sleep again: it is taken away.
bool wait_for(std::span<pollfd> pollers, int timeout_ms);

// Both throw std::runtime_error: one line.
std::unique_ptr<Transport> open_af_packet(const std::string& interface, const TransportConfig& config,
                                          uint32_t mtu);
std::unique_ptr<Transport> open_af_xdp(const std::string& interface, const TransportConfig& config,
                                       uint32_t mtu);

// What the configuration leaves to the interface. Throws std::runtime_error: one line.
Link link_of(const LinkConfig& config);

}  // namespace steelyard::dataplane
