#include "native/dataplane/offline.h"

#include <fstream>
#include <stdexcept>

#include "native/dataplane/config_file.h"
#include "native/dataplane/pcap.h"
#include "native/dataplane/runtime.h"
#include "native/dataplane/tapes.h"

namespace steelyard::dataplane {
namespace {

constexpr TimeNs kTick = 10'000'000;
constexpr TimeNs kLongestCatchUp = 7200 * core::kNanosPerSecond;

// As often as a running balancer would have had its timer.
void tick_until(Forwarder* forwarder, TimeNs* next, TimeNs now, const Send& send) {
  if (*next == 0 || now - *next > kLongestCatchUp) *next = now;
  for (; *next <= now; *next += kTick) forwarder->tick(*next, send);
}

}  // namespace

int run_offline(const std::string& config_path, const std::string& pcap_in, const std::string& pcap_out,
                const std::string& verdicts) {
  const Config config = read_config(config_path);
  LinkConfig link = config.link;
  link.interface.clear();  // everything that it would say is in the file
  if (!link.mac) throw std::runtime_error(config_path + ": link.mac is missing, which pcap files need");
  Forwarder forwarder(config, link_of(link), read_policies(config));
  PcapReader reader(pcap_in);
  PcapWriter writer(pcap_out);
  std::ofstream words;
  if (!verdicts.empty()) words.open(verdicts);
  Tapes tapes;
  TimeNs next = 0, now = 0;
  Packet packet;
  const Send send = [&](std::span<const uint8_t> frame) {
    writer.write(frame.data(), static_cast<uint32_t>(frame.size()), next);
  };
  while (reader.next(&packet, &now)) {
    if (next == 0) tapes.start(&forwarder, now);
    tick_until(&forwarder, &next, now, send);
    const Verdict verdict = forwarder.process(&packet, now);
    if (sends(verdict)) writer.write(packet.data, packet.size, now);
    words << text_of(verdict) << '\n';
  }
  for (const Tapes::Ended& tape : tapes.finish(&forwarder)) {
    if (!tape.why.empty()) throw std::runtime_error(tape.tape + ": " + tape.why);
  }
  writer.close();
  words.close();
  if (!verdicts.empty() && words.fail()) throw std::runtime_error(verdicts + ": cannot write");
  return 0;
}

}  // namespace steelyard::dataplane
