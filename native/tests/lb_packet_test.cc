// Frames: checksums against their definition, parsing of sound and broken ones, rewriting.
#include <gtest/gtest.h>

#include <vector>

#include "native/core/rng.h"
#include "native/tests/lb_frames.h"

namespace steelyard::testing {
namespace {

// RFC 1071 word by word, carries added as they come.
uint16_t slow_checksum(const std::vector<uint8_t>& data) {
  uint32_t sum = 0;
  for (size_t i = 0; i < data.size(); i += 2) {
    sum += static_cast<uint32_t>(data[i]) << 8 | (i + 1 < data.size() ? data[i + 1] : 0u);
    sum = (sum & 0xffff) + (sum >> 16);
  }
  return static_cast<uint16_t>(~sum);
}

std::vector<uint8_t> random_bytes(size_t size, uint64_t key) {
  std::vector<uint8_t> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(core::draw(key, i));
  return bytes;
}

Parse parsed(const Frame& frame, Headers* headers) { return parse(frame.data(), frame.size(), headers); }

bool transport_checksum_right(const Frame& frame) {
  Frame again = frame;
  Headers headers;
  if (parsed(again, &headers) != Parse::kOk) return false;
  complete_checksum(again.packet(), headers);
  return again.bytes == frame.bytes;
}

TEST(Checksum, IsTheDefinitionForEveryLength) {
  for (size_t size = 0; size < 200; ++size) {
    const std::vector<uint8_t> bytes = random_bytes(size, size);
    ASSERT_EQ(checksum_of(sum_words(bytes.data(), size)), slow_checksum(bytes)) << size;
  }
  const std::vector<uint8_t> ones(65535, 0xff);
  EXPECT_EQ(checksum_of(sum_words(ones.data(), ones.size())), slow_checksum(ones));
}

TEST(Checksum, UpdateIsTheWholeSumAgain) {
  for (uint64_t key = 0; key < 2000; ++key) {
    std::vector<uint8_t> bytes = random_bytes(20, key);
    const uint16_t before = checksum_of(sum_words(bytes.data(), 20));
    const uint64_t old_words = sum_words(bytes.data() + 12, 4);
    store32(bytes.data() + 12, static_cast<uint32_t>(core::draw(key, 99)) & (key % 3 == 0 ? 0xffffu : ~0u));
    const uint64_t new_words = sum_words(bytes.data() + 12, 4);
    ASSERT_EQ(updated_checksum(before, old_words, new_words), checksum_of(sum_words(bytes.data(), 20)))
        << key;
  }
}

TEST(Parse, ReadsEachKindOfFrame) {
  for (const bool v4 : {true, false}) {
    for (const uint8_t protocol : {kTcp, kUdp}) {
      FrameSpec spec{.protocol = protocol, .payload = 33};
      if (!v4) spec.from = "2001:db8::7", spec.to = "fd00::1";
      const Frame frame = make_frame(spec);
      Headers headers;
      ASSERT_EQ(parsed(frame, &headers), Parse::kOk);
      EXPECT_EQ(headers.source, address(spec.from));
      EXPECT_EQ(headers.destination, address(spec.to));
      EXPECT_EQ(headers.source_port, 40000);
      EXPECT_EQ(headers.destination_port, 80);
      EXPECT_EQ(headers.protocol, protocol);
      EXPECT_EQ(headers.flags, protocol == kTcp ? kSyn : 0);
      EXPECT_EQ(headers.ip_bytes + kEthernetSize, frame.size());
    }
  }
}

// No prefix of a sound frame is taken for a whole one.
TEST(Parse, EveryTruncationIsRefused) {
  for (const bool v4 : {true, false}) {
    FrameSpec spec{.payload = 10};
    if (!v4) spec.from = "2001:db8::7", spec.to = "fd00::1";
    const Frame frame = make_frame(spec);
    for (size_t size = 0; size < frame.size(); ++size) {
      Headers headers;
      const std::vector<uint8_t> exact(frame.data(), frame.data() + size);  // for the sanitizer
      ASSERT_EQ(parse(exact.data(), size, &headers), Parse::kTruncated) << size;
    }
  }
}

TEST(Parse, EveryBitOfTheIpv4HeaderIsCovered) {
  const Frame sound = make_frame({});
  for (size_t bit = 0; bit < 8 * kIpv4Size; ++bit) {
    Frame frame = sound;
    frame.packet().data[kEthernetSize + bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    Headers headers;
    ASSERT_NE(parsed(frame, &headers), Parse::kOk) << bit;
  }
}

TEST(Parse, FlagsThatNoStackSendsAreRefused) {
  for (int flags = 0; flags < 64; ++flags) {
    Headers headers;
    const bool syn = (flags & kSyn) != 0, ends = (flags & (kFin | kRst)) != 0;
    const bool sound = (flags & (kSyn | kFin | kRst | kAck)) != 0 && !(syn && ends);
    const Frame frame = make_frame({.flags = static_cast<uint8_t>(flags)});
    EXPECT_EQ(parsed(frame, &headers), sound ? Parse::kOk : Parse::kBadFlags) << flags;
  }
}

TEST(Rewrite, L3DsrKeepsBothChecksums) {
  for (const bool v4 : {true, false}) {
    for (const uint8_t protocol : {kTcp, kUdp}) {
      for (uint64_t key = 0; key < 200; ++key) {
        FrameSpec spec{.source_port = static_cast<uint16_t>(core::draw(1, key)), .protocol = protocol};
        if (!v4) spec.from = "2001:db8::7", spec.to = "fd00::1";
        Frame frame = make_frame(spec);
        Headers headers;
        ASSERT_EQ(parsed(frame, &headers), Parse::kOk);
        const Address server = v4 ? Address::v4(static_cast<uint32_t>(core::draw(2, key)) | 1)
                                  : Address{core::draw(2, key) | 1, core::draw(3, key)};
        set_destination(frame.packet(), headers, server, 2);
        ASSERT_TRUE(transport_checksum_right(frame));  // the header's is a part of parsing
        ASSERT_EQ(parsed(frame, &headers), Parse::kOk);
        EXPECT_EQ(headers.destination, server);
      }
    }
  }
}

TEST(Rewrite, UdpWithoutChecksumStaysWithoutOne) {
  Frame frame = make_frame({.protocol = kUdp});
  Headers headers;
  ASSERT_EQ(parsed(frame, &headers), Parse::kOk);
  store16(frame.packet().data + headers.l4 + 6, 0);
  set_destination(frame.packet(), headers, address("10.9.9.9"), 2);
  EXPECT_EQ(load16(frame.data() + headers.l4 + 6), 0);
}

TEST(Rewrite, GreHoldsTheFrameUntouched) {
  for (const bool inner4 : {true, false}) {
    for (const bool outer4 : {true, false}) {
      FrameSpec spec{.payload = 50};
      if (!inner4) spec.from = "2001:db8::7", spec.to = "fd00::1";
      Frame frame = make_frame(spec);
      const std::vector<uint8_t> inner(frame.data() + kEthernetSize, frame.data() + frame.size());
      Packet packet = frame.packet();
      Headers headers;
      ASSERT_EQ(parse(packet.data, packet.size, &headers), Parse::kOk);
      const Address from = address(outer4 ? "10.0.0.9" : "fd00::9"),
                    to = address(outer4 ? "10.9.9.9" : "fd09::9");
      encapsulate_gre(&packet, headers, from, to, 0x12345);
      Headers outer;
      ASSERT_EQ(parse(packet.data, packet.size, &outer), Parse::kOther);
      EXPECT_EQ(outer.protocol, kGre);
      EXPECT_EQ(outer.source, from);
      EXPECT_EQ(outer.destination, to);
      EXPECT_EQ(load32(packet.data + outer.l4), uint32_t{inner4 ? kEtherIpv4 : kEtherIpv6});
      EXPECT_EQ(std::vector<uint8_t>(packet.data + outer.l4 + kGreSize, packet.data + packet.size), inner);
    }
  }
}

TEST(Addresses, TextAndBack) {
  for (const char* text :
       {"10.0.0.1", "0.0.0.0", "255.255.255.255", "::", "::1", "fd00::1:2", "2001:db8::ff"}) {
    EXPECT_EQ(text_of(address(text)), text);
  }
  for (const char* text : {"", "10.0.0", "10.0.0.256", "::ffff:10.0.0.1", "fd00:::1", "a", "10.0.0.1/8"}) {
    EXPECT_FALSE(parse_address(text)) << text;
  }
  EXPECT_EQ(text_of(*parse_mac("02:aB:00:00:00:0f")), "02:ab:00:00:00:0f");
  EXPECT_FALSE(parse_mac("02:00:00:00:00"));
  EXPECT_FALSE(parse_mac("02:00:00:00:00:01:02"));
}

}  // namespace
}  // namespace steelyard::testing
