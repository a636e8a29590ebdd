#include "native/dataplane/tapes.h"

#include <algorithm>

namespace steelyard::dataplane {
namespace {

tape::TapeHeader header_of(const Vip& vip, int balancer) {
  tape::TapeHeader header =
      tape::header_of(vip.balancer_config(), vip.rule_config(), static_cast<uint32_t>(balancer));
  header.hosted = vip.policy().hosts();
  header.policy_digest = vip.policy().digest();
  return header;
}

bool is_log(const Forwarder& forwarder, const tape::Recorder& recorder) {
  const auto logs = [&](const std::unique_ptr<Vip>& vip) { return vip->log() == &recorder; };
  return std::any_of(forwarder.vips().begin(), forwarder.vips().end(), logs);
}

bool has_vip(const Forwarder& forwarder, const std::string& name) {
  const auto named = [&](const std::unique_ptr<Vip>& vip) { return vip->config().name == name; };
  return std::any_of(forwarder.vips().begin(), forwarder.vips().end(), named);
}

}  // namespace

void Tapes::start(Forwarder* forwarder, TimeNs now) {
  // A VIP of the name of one that has gone is another one.
  kept_.remove_if([](const Kept& kept) { return kept.told && kept.gone; });
  for (const std::unique_ptr<Vip>& vip : forwarder->vips()) {
    const VipConfig& config = vip->config();
    const auto same = [&](const Kept& kept) { return kept.vip == config.name && kept.path == config.tape; };
    if (config.tape.empty() || std::any_of(kept_.begin(), kept_.end(), same)) continue;
    Kept& kept = kept_.emplace_back();
    kept.vip = config.name;
    kept.path = config.tape;
    const tape::TapeHeader header = header_of(*vip, forwarder->config().balancer);
    if (kept.recorder.open(kept.path, header, &kept.refused)) vip->set_log(&kept.recorder, now);
  }
}

std::vector<Tapes::Ended> Tapes::ended(Forwarder* forwarder) {
  std::vector<Ended> all;
  for (Kept& kept : kept_) {
    kept.gone = kept.gone || !has_vip(*forwarder, kept.vip);
    if (kept.told) continue;
    const bool fails = !kept.recorder.recording();
    if (fails) {
      for (const std::unique_ptr<Vip>& vip : forwarder->vips()) {
        if (vip->log() == &kept.recorder) vip->set_log(nullptr, 0);
      }
    }
    if (fails || !is_log(*forwarder, kept.recorder)) {
      all.push_back(close(&kept, "its rule, policy or servers have changed"));
    }
  }
  return all;
}

std::vector<Tapes::Ended> Tapes::finish(Forwarder* forwarder) {
  std::vector<Ended> all = ended(forwarder);
  for (const std::unique_ptr<Vip>& vip : forwarder->vips()) vip->set_log(nullptr, 0);
  for (Kept& kept : kept_) {
    if (!kept.told) all.push_back(close(&kept, ""));
  }
  return all;
}

// why: if no write has failed.
Tapes::Ended Tapes::close(Kept* kept, const char* why) {
  kept->told = true;
  const bool whole = kept->refused.empty() && kept->recorder.close();
  const std::string failure = kept->refused.empty() ? kept->recorder.failure() : kept->refused;
  return {kept->vip, kept->path, whole ? why : failure, kept->recorder.decisions(), kept->recorder.digest()};
}

}  // namespace steelyard::dataplane
