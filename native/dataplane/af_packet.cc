// Frames through a packet socket: received in a TPACKET_V2 ring that is shared with the kernel (version 3
// hands frames over block by block, which costs milliseconds where traffic is light), sent by sendmmsg from
// the same ring.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "native/dataplane/rewrite.h"
#include "native/dataplane/transport.h"

namespace steelyard::dataplane {
namespace {

constexpr uint32_t kFrameHead = 128;  // of the ring: its header, the sender's address, alignment
constexpr uint32_t kBlockBytes = 1u << 18;

std::runtime_error failed(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int protocol) : fd_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, protocol)) {
    if (fd_ < 0) throw failed("packet socket (needs root or CAP_NET_RAW)");
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }
  template <class T>
  void set(int option, const T& value, const char* name) {
    if (::setsockopt(fd_, SOL_PACKET, option, &value, sizeof value) != 0) throw failed(name);
  }
  void bind(unsigned index, int protocol) {
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(static_cast<uint16_t>(protocol));
    address.sll_ifindex = static_cast<int>(index);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) throw failed("bind");
  }
  static uint16_t htons(uint16_t x) { return __builtin_bswap16(x); }

 private:
  int fd_;
};

class AfPacket final : public Transport {
 public:
  AfPacket(const std::string& interface, const TransportConfig& config, uint32_t mtu)
      : receiver_(0), sender_(0), spin_(static_cast<int64_t>(config.spin_us * 1000)) {
    const unsigned index = ::if_nametoindex(interface.c_str());
    if (index == 0) throw failed("link.interface: \"" + interface + "\"");
    make_ring(config.ring_frames, mtu);
    receiver_.set(PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING");
    packet_mreq all{};
    all.mr_ifindex = static_cast<int>(index);
    all.mr_type = PACKET_MR_ALLMULTI;  // neighbour solicitations for virtual addresses
    receiver_.set(PACKET_ADD_MEMBERSHIP, all, "PACKET_ADD_MEMBERSHIP");
    sender_.set(PACKET_QDISC_BYPASS, 1, "PACKET_QDISC_BYPASS");
    sender_.bind(index, 0);
    receiver_.bind(index, ETH_P_ALL);
    for (int i = 0; i < kBurst; ++i) {
      messages_[i].msg_hdr.msg_iov = &parts_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }
  ~AfPacket() override { ::munmap(ring_, ring_bytes_); }

  std::span<Packet> receive(int timeout_ms) override {
    if (!ready(next_) && !wait(timeout_ms)) return {};
    taken_ = 0;
    int count = 0;
    while (taken_ < kBurst && ready((next_ + taken_) % frames_)) {
      if (read_frame((next_ + taken_++) % frames_, &burst_[count])) ++count;
    }
    return {burst_.data(), static_cast<size_t>(count)};
  }

  void queue(const Packet& packet) override { parts_[queued_++] = {packet.data, packet.size}; }

  void flush() override {
    for (int done = 0; done < queued_;) {
      const int sent =
          ::sendmmsg(sender_.fd(), &messages_[done], static_cast<unsigned>(queued_ - done), MSG_DONTWAIT);
      for (int i = done; i < done + sent; ++i) counters_.sent_bytes += parts_[i].iov_len;
      if (sent > 0) {
        counters_.sent += static_cast<uint64_t>(sent);
        done += sent;
      } else if (errno != EINTR) {
        ++counters_.send_dropped;
        ++done;
      }
    }
    queued_ = 0;
    for (; taken_ > 0; --taken_) {
      status(next_).store(TP_STATUS_KERNEL, std::memory_order_release);
      next_ = (next_ + 1) % frames_;
    }
  }

  void send(std::span<const uint8_t> frame) override {
    if (::send(sender_.fd(), frame.data(), frame.size(), MSG_DONTWAIT) < 0) {
      ++counters_.send_dropped;
      return;
    }
    ++counters_.sent;
    counters_.sent_bytes += frame.size();
  }

  int poll_fd() const override { return receiver_.fd(); }

  TransportCounters counters() override {
    tpacket_stats kernel{};
    socklen_t size = sizeof kernel;
    if (::getsockopt(receiver_.fd(), SOL_PACKET, PACKET_STATISTICS, &kernel, &size) == 0) {
      counters_.receive_dropped += kernel.tp_drops;  // since the last call
    }
    return counters_;
  }

 private:
  void make_ring(uint32_t frames, uint32_t mtu) {
    receiver_.set(PACKET_VERSION, static_cast<int>(TPACKET_V2), "PACKET_VERSION");
    receiver_.set(PACKET_RESERVE, kHeadroom, "PACKET_RESERVE");
    frame_bytes_ = std::bit_ceil(kFrameHead + kHeadroom + kEthernetSize + mtu);
    tpacket_req ring{};
    ring.tp_frame_size = frame_bytes_;
    ring.tp_block_size = std::max(kBlockBytes, frame_bytes_);
    const uint32_t per_block = ring.tp_block_size / frame_bytes_;
    ring.tp_block_nr = (frames + per_block - 1) / per_block;
    ring.tp_frame_nr = frames_ = ring.tp_block_nr * per_block;
    receiver_.set(PACKET_RX_RING, ring, "PACKET_RX_RING");
    ring_bytes_ = size_t{ring.tp_block_nr} * ring.tp_block_size;
    void* map =
        ::mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, receiver_.fd(), 0);
    if (map == MAP_FAILED) throw failed("mmap of the ring");
    ring_ = static_cast<uint8_t*>(map);
  }

  tpacket2_hdr* header(uint32_t frame) const {
    return reinterpret_cast<tpacket2_hdr*>(ring_ + size_t{frame} * frame_bytes_);
  }
  std::atomic_ref<uint32_t> status(uint32_t frame) const {
    return std::atomic_ref<uint32_t>(header(frame)->tp_status);
  }
  bool ready(uint32_t frame) const {
    return (status(frame).load(std::memory_order_acquire) & TP_STATUS_USER) != 0;
  }

  bool wait(int timeout_ms) {
    if (spin_ > 0) {
      timespec start, now;
      ::clock_gettime(CLOCK_MONOTONIC, &start);
      do {
        if (ready(next_)) return true;
        ::clock_gettime(CLOCK_MONOTONIC, &now);
      } while ((now.tv_sec - start.tv_sec) * 1'000'000'000 + now.tv_nsec - start.tv_nsec < spin_);
    }
    if (timeout_ms == 0) return false;
    pollfd poller{receiver_.fd(), POLLIN, 0};
    return wait_for({&poller, 1}, timeout_ms) && ready(next_);
  }

  // False: not a frame for us.
  bool read_frame(uint32_t frame, Packet* out) {
    const tpacket2_hdr* head = header(frame);
    const auto* from = reinterpret_cast<const sockaddr_ll*>(reinterpret_cast<const uint8_t*>(head) +
                                                            TPACKET_ALIGN(sizeof *head));
    const bool tagged = (head->tp_status & TP_STATUS_VLAN_VALID) != 0;
    if (tagged || from->sll_pkttype == PACKET_OTHERHOST || from->sll_pkttype == PACKET_OUTGOING) return false;
    *out = {ring_ + size_t{frame} * frame_bytes_ + head->tp_mac, head->tp_snaplen, kHeadroom};
    ++counters_.received;
    counters_.received_bytes += head->tp_len;
    if ((head->tp_status & TP_STATUS_CSUMNOTREADY) != 0 && head->tp_len == head->tp_snaplen) {
      Headers headers;
      const Parse parsed = parse(out->data, out->size, &headers);
      if (parsed == Parse::kOk || parsed == Parse::kIcmp) complete_checksum(*out, headers);
    }
    return true;
  }

  Socket receiver_, sender_;
  int64_t spin_;  // ns
  uint8_t* ring_ = nullptr;
  size_t ring_bytes_ = 0;
  uint32_t frame_bytes_ = 0, frames_ = 0, next_ = 0;
  int taken_ = 0, queued_ = 0;
  std::array<Packet, kBurst> burst_;
  std::array<iovec, kBurst> parts_{};
  std::array<mmsghdr, kBurst> messages_{};
  TransportCounters counters_;
};

}  // namespace

bool wait_for(std::span<pollfd> pollers, int timeout_ms) {
  if (::poll(pollers.data(), pollers.size(), timeout_ms) <= 0) return false;
  bool came = false;
  for (const pollfd& poller : pollers) {
    came = came || (poller.revents & POLLIN) != 0;
    int error = 0;
    socklen_t size = sizeof error;
    if ((poller.revents & POLLERR) != 0) ::getsockopt(poller.fd, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  return came;
}

std::unique_ptr<Transport> open_af_packet(const std::string& interface, const TransportConfig& config,
                                          uint32_t mtu) {
  return std::make_unique<AfPacket>(interface, config, mtu);
}

}  // namespace steelyard::dataplane
