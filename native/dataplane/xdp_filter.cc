#include "native/dataplane/xdp_filter.h"

#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "native/dataplane/packet.h"

namespace steelyard::dataplane {
namespace {

constexpr uint32_t kMostAddresses = 1024;
constexpr uint32_t kMostQueues = 64;

std::runtime_error failed(const std::string& what) {
  return std::runtime_error("af_xdp: " + what + ": " + std::strerror(errno));
}

using Code = std::vector<bpf_insn>;
enum Register : uint8_t { r0, r1, r2, r3, r4, r5, r6, r10 = 10 };

bpf_insn load(uint8_t size, Register to, Register from, int offset) {
  return {static_cast<uint8_t>(BPF_LDX | BPF_MEM | size), to, from, static_cast<int16_t>(offset), 0};
}
bpf_insn store(uint8_t size, int offset, Register from) {
  return {static_cast<uint8_t>(BPF_STX | BPF_MEM | size), r10, from, static_cast<int16_t>(offset), 0};
}
bpf_insn store_number(uint8_t size, int offset, uint32_t number) {
  return {static_cast<uint8_t>(BPF_ST | BPF_MEM | size), r10, 0, static_cast<int16_t>(offset),
          static_cast<int32_t>(number)};
}
bpf_insn copy(Register to, Register from) { return {BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0}; }
bpf_insn add(Register to, int number) { return {BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, number}; }
bpf_insn set(Register to, int number) { return {BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, number}; }
bpf_insn call(int function) { return {BPF_JMP | BPF_CALL, 0, 0, 0, function}; }
bpf_insn leave() { return {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}; }
bpf_insn jump(int by) { return {BPF_JMP | BPF_JA, 0, 0, static_cast<int16_t>(by), 0}; }
bpf_insn jump_if(uint8_t how, Register a, int number, int by) {
  return {static_cast<uint8_t>(BPF_JMP | how | BPF_K), a, 0, static_cast<int16_t>(by), number};
}
void load_map(Code* code, Register to, int map) {
  code->push_back({BPF_LD | BPF_DW | BPF_IMM, to, BPF_PSEUDO_MAP_FD, 0, map});
  code->push_back({0, 0, 0, 0, 0});
}

// Passes unless `bytes` of the frame (r2 up to r3) are there.
void need(Code* code, int bytes) {
  code->push_back(copy(r4, r2));
  code->push_back(add(r4, bytes));
  const bpf_insn longer{BPF_JMP | BPF_JLE | BPF_X, r4, r3, 2, 0};
  code->insert(code->end(), {longer, set(r0, XDP_PASS), leave()});
}

constexpr uint16_t in_frame(uint16_t type) { return static_cast<uint16_t>(type >> 8 | type << 8); }

// The destination of an IP packet, as Address::write_v6 has it, is looked up in `addresses`.
Code program_of(int addresses, int sockets) {
  Code v4, v6, code;
  need(&v4, kEthernetSize + kIpv4Size);
  v4.insert(v4.end(), {store_number(BPF_DW, -16, 0), store_number(BPF_W, -8, 0xffff0000),
                       load(BPF_W, r5, r2, kEthernetSize + 16), store(BPF_W, -4, r5)});
  need(&v6, kEthernetSize + kIpv6Size);
  v6.insert(v6.end(), {load(BPF_DW, r5, r2, kEthernetSize + 24), store(BPF_DW, -16, r5),
                       load(BPF_DW, r5, r2, kEthernetSize + 32), store(BPF_DW, -8, r5)});
  v6.push_back(jump(static_cast<int>(v4.size())));
  code = {copy(r6, r1), load(BPF_W, r2, r1, offsetof(xdp_md, data)),
          load(BPF_W, r3, r1, offsetof(xdp_md, data_end))};
  need(&code, kEthernetSize);
  code.push_back(load(BPF_H, r5, r2, 12));
  code.push_back(jump_if(BPF_JEQ, r5, in_frame(kEtherIpv4), static_cast<int>(v6.size()) + 3));
  code.insert(code.end(), {jump_if(BPF_JEQ, r5, in_frame(kEtherIpv6), 2), set(r0, XDP_PASS), leave()});
  code.insert(code.end(), v6.begin(), v6.end());
  code.insert(code.end(), v4.begin(), v4.end());
  load_map(&code, r1, addresses);
  code.insert(code.end(), {copy(r2, r10), add(r2, -16), call(BPF_FUNC_map_lookup_elem),
                           jump_if(BPF_JNE, r0, 0, 2), set(r0, XDP_PASS), leave()});
  load_map(&code, r1, sockets);
  code.insert(code.end(), {load(BPF_W, r2, r6, offsetof(xdp_md, rx_queue_index)), set(r3, XDP_PASS),
                           call(BPF_FUNC_redirect_map), leave()});
  return code;
}

int attach(int program, unsigned interface, uint32_t mode) {
  bpf_link_create_opts options{};
  options.sz = sizeof options;
  options.flags = mode;
  return ::bpf_link_create(program, static_cast<int>(interface), BPF_XDP, &options);
}

}  // namespace

XdpFilter::XdpFilter(unsigned interface) {
  addresses_ = ::bpf_map_create(BPF_MAP_TYPE_HASH, "steelyard_vips", 16, 1, kMostAddresses, nullptr);
  sockets_ = ::bpf_map_create(BPF_MAP_TYPE_XSKMAP, "steelyard_socks", 4, 4, kMostQueues, nullptr);
  if (addresses_ < 0 || sockets_ < 0) throw failed("a map of BPF (needs root or CAP_BPF)");
  const Code code = program_of(addresses_, sockets_);
  program_ = ::bpf_prog_load(BPF_PROG_TYPE_XDP, "steelyard_lb", "GPL", code.data(), code.size(), nullptr);
  if (program_ < 0) throw failed("the program is refused");
  link_ = attach(program_, interface, XDP_FLAGS_DRV_MODE);
  if (link_ < 0 && errno != EBUSY) {
    in_driver_ = false;
    link_ = attach(program_, interface, XDP_FLAGS_SKB_MODE);
  }
  if (link_ < 0) throw failed("the interface takes no program");
}

XdpFilter::~XdpFilter() {
  for (const int fd : {link_, program_, sockets_, addresses_}) {
    if (fd >= 0) ::close(fd);
  }
}

void XdpFilter::set_addresses(std::span<const Address> addresses) {
  const std::vector<Address> wanted(addresses.begin(), addresses.end());
  const uint8_t one = 1;
  uint8_t key[16];
  for (const Address& address : held_) {
    if (std::find(wanted.begin(), wanted.end(), address) != wanted.end()) continue;
    address.write_v6(key);
    ::bpf_map_delete_elem(addresses_, key);
  }
  for (const Address& address : wanted) {
    address.write_v6(key);
    ::bpf_map_update_elem(addresses_, key, &one, BPF_ANY);
  }
  held_ = wanted;
}

}  // namespace steelyard::dataplane
