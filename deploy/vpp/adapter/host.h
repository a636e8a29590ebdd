// The balancer inside VPP: one Forwarder per thread, one Pool per VIP, and what an operator changes while it
// runs.
//
// Functions that return a string return why nothing was changed, in one line; empty: done.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "deploy/vpp/adapter/pool.h"
#include "native/dataplane/forwarder.h"
#include "native/tape/recorder.h"

namespace steelyard::vpp {

using dataplane::Address;
using dataplane::ServerConfig;
using dataplane::VipConfig;

class Host {
 public:
  Host(int threads, int workers);

  // [thread]
  void process(int thread, std::span<dataplane::Packet> burst, TimeNs now, dataplane::Verdict* verdicts) {
    forwarders_[thread]->process(burst, now, verdicts);
  }
  void tick_thread(int thread, TimeNs now);
  // [main]
  void tick(TimeNs now);
  std::vector<std::string> take_events();

  // [control] A VIP is served from its first server on.
  std::string add_vip(const VipConfig& vip, TimeNs now);
  // Its policy file is read anew.
  std::string change_vip(const VipConfig& vip, TimeNs now);
  std::string remove_vip(const std::string& name, TimeNs now);
  std::string set_server(const std::string& vip, const ServerConfig& server, TimeNs now);
  std::string remove_server(const std::string& vip, const Address& server, TimeNs now);
  // Only while there are no VIPs.
  std::string set_source(const Address& source);
  std::string set_mtu(uint32_t mtu);
  std::string set_seed(uint64_t seed);
  std::string set_place(int balancer, int num_balancers);
  // Records decisions of a VIP without connections: a file for each thread, PATH.0, PATH.1, ..., or PATH of
  // one.
  std::string start_tape(const std::string& vip, const std::string& path, TimeNs now);
  std::string stop_tape(const std::string& vip, std::string* summary);

  const VipConfig* find(const std::string& name) const;
  const std::vector<VipConfig>& vips() const { return config_.vips; }
  // Null until the VIP has a server.
  const Pool* pool_of(const std::string& name) const;
  const dataplane::Config& config() const { return config_; }
  const dataplane::Forwarder& forwarder(int thread) const { return *forwarders_[thread]; }
  int threads() const { return static_cast<int>(forwarders_.size()); }
  int workers() const { return workers_; }

 private:
  using Tape = std::vector<std::unique_ptr<tape::Recorder>>;

  enum class Policy { kKeep, kRead };
  std::string apply(dataplane::Config next, const std::string& changed, Policy policy, TimeNs now);
  std::string check(const dataplane::Config& next) const;
  std::string set_link(const dataplane::LinkConfig& link, const char* key);
  std::string read_policy(const VipConfig& vip, dataplane::PolicyArtefact* out) const;
  void rebuild();
  void end_lost_tapes();
  dataplane::Vip* vip_of(int thread, const std::string& name);

  int workers_;
  dataplane::Config config_;  // with VIPs that have no server yet
  dataplane::Config served_;
  std::vector<std::unique_ptr<dataplane::Forwarder>> forwarders_;
  std::vector<std::unique_ptr<Pool>> pools_;                   // as served_.vips
  std::map<std::string, dataplane::PolicyArtefact> policies_;  // by VIP, as read last
  std::map<std::string, Tape> tapes_;
  std::vector<std::string> events_;
};

}  // namespace steelyard::vpp
