// Frames through an AF_XDP socket: those of virtual addresses come by a ring in memory that is shared with
// the kernel, and go out from where they lie. Everything else (ARP, neighbour discovery, frames of other
// receive queues) passes the filter to the kernel, where a packet socket sees it.
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <xdp/xsk.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "native/dataplane/transport.h"
#include "native/dataplane/xdp_filter.h"

namespace steelyard::dataplane {
namespace {

constexpr uint32_t kKernelHeadroom = 256;  // XDP_PACKET_HEADROOM
constexpr uint32_t kSendRing = 2048;
constexpr int kKicks = 64;  // of the kernel, which sends a few frames each time

std::runtime_error failed(const std::string& what, int error) {
  return std::runtime_error("af_xdp: " + what + ": " + std::strerror(error));
}

// Frames of one size in memory that the kernel knows too, with the rings that hand them to and fro.
class Umem {
 public:
  Umem(uint32_t frames, uint32_t frame_bytes) : bytes_(size_t{frames} * frame_bytes), mask_(frame_bytes - 1) {
    area_ =
        ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (area_ == MAP_FAILED) throw failed("memory for frames", errno);
    const xsk_umem_config config{.fill_size = frames / 2,
                                 .comp_size = kSendRing,
                                 .frame_size = frame_bytes,
                                 .frame_headroom = kHeadroom,
                                 .flags = 0};
    const int error = ::xsk_umem__create(&umem_, area_, bytes_, &fill_, &done_, &config);
    if (error != 0) {
      ::munmap(area_, bytes_);
      throw failed("a socket (needs root or CAP_NET_RAW)", -error);
    }
    for (uint32_t i = 0; i < frames; ++i) free_.push_back(uint64_t{i} * frame_bytes);
  }
  ~Umem() {
    ::xsk_umem__delete(umem_);
    ::munmap(area_, bytes_);
  }
  Umem(const Umem&) = delete;
  Umem& operator=(const Umem&) = delete;

  // Takes back what has been sent, and gives the kernel free frames to receive into.
  void turn() {
    uint32_t at = 0;
    const uint32_t sent = xsk_ring_cons__peek(&done_, kSendRing, &at);
    for (uint32_t i = 0; i < sent; ++i) give_back(*xsk_ring_cons__comp_addr(&done_, at + i));
    xsk_ring_cons__release(&done_, sent);
    const auto spare = static_cast<uint32_t>(free_.size());
    const uint32_t room = std::min(spare, xsk_prod_nb_free(&fill_, spare));
    if (room == 0 || xsk_ring_prod__reserve(&fill_, room, &at) != room) return;
    for (uint32_t i = 0; i < room; ++i) {
      *xsk_ring_prod__fill_addr(&fill_, at + i) = free_.back();
      free_.pop_back();
    }
    xsk_ring_prod__submit(&fill_, room);
  }
  void give_back(uint64_t address) { free_.push_back(address & ~uint64_t{mask_}); }
  // A free frame; null when there is none.
  uint8_t* take() {
    if (free_.empty()) return nullptr;
    uint8_t* frame = at(free_.back());
    free_.pop_back();
    return frame;
  }
  uint8_t* at(uint64_t address) const { return static_cast<uint8_t*>(area_) + address; }
  uint64_t address_of(const uint8_t* data) const {
    return static_cast<uint64_t>(data - static_cast<const uint8_t*>(area_));
  }
  xsk_umem* get() { return umem_; }
  const xsk_ring_prod& fill() const { return fill_; }

 private:
  size_t bytes_;
  uint32_t mask_;
  void* area_;
  xsk_umem* umem_ = nullptr;
  xsk_ring_prod fill_{};
  xsk_ring_cons done_{};
  std::vector<uint64_t> free_;
};

uint32_t frame_bytes_for(uint32_t mtu) {
  const uint32_t needed = kKernelHeadroom + kHeadroom + kEthernetSize + mtu;
  if (needed > 4096) {
    throw std::runtime_error("af_xdp: an MTU of " + std::to_string(mtu) + " is too large; use " +
                             std::to_string(4096 - needed + mtu) + " or less");
  }
  return needed <= 2048 ? 2048 : 4096;
}

unsigned index_of(const std::string& interface) {
  const unsigned index = ::if_nametoindex(interface.c_str());
  if (index == 0) throw failed("link.interface: \"" + interface + "\"", errno);
  return index;
}

class AfXdp final : public Transport {
 public:
  AfXdp(const std::string& interface, const TransportConfig& config, uint32_t mtu)
      : spin_(static_cast<int64_t>(config.spin_us * 1000)),
        filter_(index_of(interface)),
        umem_(2 * std::bit_ceil(config.ring_frames), frame_bytes_for(mtu)) {
    xsk_socket_config wanted{};
    wanted.rx_size = std::bit_ceil(config.ring_frames);
    wanted.tx_size = kSendRing;
    wanted.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
    wanted.bind_flags = XDP_USE_NEED_WAKEUP;
    const int error =
        ::xsk_socket__create(&socket_, interface.c_str(), 0, umem_.get(), &received_, &to_send_, &wanted);
    if (error != 0) throw failed("link.interface: \"" + interface + "\" takes no socket", -error);
    umem_.turn();
    const int told = ::xsk_socket__update_xskmap(socket_, filter_.sockets());
    if (told != 0) throw failed("the map of sockets", -told);
    rest_ = open_af_packet(interface, config, mtu);
  }
  ~AfXdp() override { ::xsk_socket__delete(socket_); }

  std::span<Packet> receive(int timeout_ms) override {
    umem_.turn();
    by_rest_ = false;
    uint32_t at = 0;
    taken_ = xsk_ring_cons__peek(&received_, kBurst, &at);
    if (taken_ == 0) {
      by_rest_ = true;
      const std::span<Packet> others = rest_->receive(0);
      if (others.empty() && wait(timeout_ms)) return receive(0);
      return others;
    }
    for (uint32_t i = 0; i < taken_; ++i) {
      const xdp_desc* frame = xsk_ring_cons__rx_desc(&received_, at + i);
      burst_[i] = {umem_.at(frame->addr), frame->len, kHeadroom};
      taken_at_[i] = frame->addr;
      counters_.received_bytes += frame->len;
    }
    counters_.received += taken_;
    xsk_ring_cons__release(&received_, taken_);
    return {burst_.data(), taken_};
  }

  void queue(const Packet& packet) override {
    if (by_rest_) return rest_->queue(packet);
    const uint64_t address = umem_.address_of(packet.data);
    if (!send_from(address, packet.size)) return;
    for (uint32_t i = 0; i < taken_; ++i) {
      if ((taken_at_[i] ^ address) < kSameFrame)
        taken_at_[i] = kNone;  // it is given back when it has been sent
    }
  }

  void flush() override {
    if (by_rest_) return rest_->flush();
    for (uint32_t i = 0; i < taken_; ++i) {
      if (taken_at_[i] != kNone) umem_.give_back(taken_at_[i]);
    }
    taken_ = 0;
    kick();
  }

  void send(std::span<const uint8_t> frame) override { rest_->send(frame); }
  void set_addresses(std::span<const Address> addresses) override { filter_.set_addresses(addresses); }
  int poll_fd() const override { return ::xsk_socket__fd(socket_); }

  TransportCounters counters() override {
    TransportCounters all = rest_->counters();
    xdp_statistics kernel{};
    socklen_t size = sizeof kernel;
    if (::getsockopt(poll_fd(), SOL_XDP, XDP_STATISTICS, &kernel, &size) == 0) {
      all.receive_dropped += kernel.rx_dropped + kernel.rx_ring_full + kernel.rx_fill_ring_empty_descs;
    }
    all.received += counters_.received;
    all.received_bytes += counters_.received_bytes;
    all.sent += counters_.sent;
    all.sent_bytes += counters_.sent_bytes;
    all.send_dropped += counters_.send_dropped;
    return all;
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  static constexpr uint64_t kSameFrame = 2048;

  bool send_from(uint64_t address, uint32_t bytes) {
    uint32_t at = 0;
    if (xsk_ring_prod__reserve(&to_send_, 1, &at) != 1) {
      kick();
      umem_.turn();
      if (xsk_ring_prod__reserve(&to_send_, 1, &at) != 1) {
        ++counters_.send_dropped;
        return false;
      }
    }
    *xsk_ring_prod__tx_desc(&to_send_, at) = {address, bytes, 0};
    xsk_ring_prod__submit(&to_send_, 1);
    ++counters_.sent;
    counters_.sent_bytes += bytes;
    waiting_ = true;
    return true;
  }

  // Has the kernel send what is in the ring.
  void kick() {
    if (!waiting_) return;
    for (int i = 0; i < kKicks && xsk_prod_nb_free(&to_send_, kSendRing) < kSendRing; ++i) {
      if (::sendto(poll_fd(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) < 0 && errno != EAGAIN) break;
    }
    waiting_ = false;
  }

  bool ready() { return xsk_cons_nb_avail(&received_, 1) > 0; }
  bool wait(int timeout_ms) {
    timespec start, now;
    if (spin_ > 0) {
      ::clock_gettime(CLOCK_MONOTONIC, &start);
      do {
        if (ready()) return true;
        ::clock_gettime(CLOCK_MONOTONIC, &now);
      } while ((now.tv_sec - start.tv_sec) * 1'000'000'000 + now.tv_nsec - start.tv_nsec < spin_);
    }
    pollfd pollers[] = {{poll_fd(), POLLIN, 0}, {rest_->poll_fd(), POLLIN, 0}};
    return timeout_ms > 0 && wait_for(pollers, timeout_ms);
  }

  int64_t spin_;  // ns
  XdpFilter filter_;
  Umem umem_;
  std::unique_ptr<Transport> rest_;
  xsk_socket* socket_ = nullptr;
  xsk_ring_cons received_{};
  xsk_ring_prod to_send_{};
  bool by_rest_ = false;  // who gave the last burst
  bool waiting_ = false;  // something is in the ring
  uint32_t taken_ = 0;
  std::array<Packet, kBurst> burst_;
  std::array<uint64_t, kBurst> taken_at_{};
  TransportCounters counters_;
};

}  // namespace

std::unique_ptr<Transport> open_af_xdp(const std::string& interface, const TransportConfig& config,
                                       uint32_t mtu) {
  return std::make_unique<AfXdp>(interface, config, mtu);
}

}  // namespace steelyard::dataplane
