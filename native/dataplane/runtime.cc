#include "native/dataplane/runtime.h"

#include <time.h>

#include <stdexcept>

#include "native/core/blob_io.h"
#include "native/core/policy_artefact.h"
#include "native/dataplane/config_file.h"

namespace steelyard::dataplane {
namespace {

TimeNs monotonic_now() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * core::kNanosPerSecond + now.tv_nsec;
}

std::unique_ptr<Transport> open_transport(const Config& config, uint32_t mtu) {
  const auto open = config.transport.kind == "af_xdp" ? open_af_xdp : open_af_packet;
  return open(config.link.interface, config.transport, mtu);
}

std::vector<Address> addresses_of(const Config& config) {
  std::vector<Address> addresses;
  for (const VipConfig& vip : config.vips) addresses.push_back(vip.address);
  return addresses;
}

}  // namespace

std::vector<PolicyArtefact> read_policies(const Config& config) {
  std::vector<PolicyArtefact> policies(config.vips.size());
  for (size_t i = 0; i < config.vips.size(); ++i) {
    const VipConfig& vip = config.vips[i];
    if (vip.rule != "policy") continue;
    if (vip.policy_file.empty()) continue;
    std::vector<uint8_t> bytes;
    if (!core::read_policy_file(vip.policy_file, &bytes, &policies[i].error)) continue;
    policies[i].policy = core::load_policy_file(vip.policy_file, &policies[i].error);
    policies[i].digest = core::fnv1a(bytes.data(), bytes.size());
  }
  return policies;
}

Runtime::Runtime(const Config& config, Log* log)
    : log_(log),
      forwarder_(config, link_of(config.link), read_policies(config)),
      transport_(open_transport(config, forwarder_.link().mtu)),
      cpu_latency_(config.transport.cpu_latency_us) {
  transport_->set_addresses(addresses_of(config));
  hide_from_kernel(config);
  tapes_.start(&forwarder_, monotonic_now());
}

void Runtime::hide_from_kernel(const Config& config) {
  for (const VipConfig& vip : config.vips) {
    if (!is_local(vip.address)) continue;
    log_->write(
        "local_address",
        Json().add("vip", vip.name).add("why", "an interface has it: the kernel answers its clients too"));
  }
  const std::string why = routes_.want(addresses_of(config));
  if (!why.empty()) log_->write("kernel_not_told", Json().add("why", why));
}

void Runtime::run() {
  static_assert(Transport::kBurst == Forwarder::kBurst);
  std::array<Verdict, Forwarder::kBurst> verdicts;
  TimeNs next_tick = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    std::span<Packet> burst = transport_->receive(static_cast<int>(kTick / 1'000'000));
    const TimeNs now = monotonic_now();
    if (!burst.empty()) cpu_latency_.packets_came(now);
    forwarder_.process(burst, now, verdicts.data());
    for (size_t i = 0; i < burst.size(); ++i) {
      if (sends(verdicts[i])) transport_->queue(burst[i]);
    }
    transport_->flush();
    if (now < next_tick) continue;
    next_tick = now + kTick;
    tick(now);
  }
  report_tapes(tapes_.finish(&forwarder_));
  const std::lock_guard lock(mutex_);
  running_ = false;
  done_.notify_all();
}

void Runtime::tick(TimeNs now) {
  forwarder_.tick(now, [this](std::span<const uint8_t> frame) { transport_->send(frame); });
  cpu_latency_.tick(now);
  report_health();
  report_tapes(tapes_.ended(&forwarder_));
  if (has_job_.load(std::memory_order_acquire)) run_job();
}

void Runtime::run_job() {
  const std::lock_guard lock(mutex_);
  (*job_)(forwarder_, *transport_);
  job_ = nullptr;
  has_job_.store(false, std::memory_order_release);
  done_.notify_all();
}

void Runtime::report_health() {
  for (const std::unique_ptr<Vip>& vip : forwarder_.vips()) {
    PolicyHost& policy = vip->policy();
    if (!policy.take_change()) continue;
    Json fields;
    fields.add("vip", vip->config().name);
    if (!policy.healthy()) fields.add("rule", "lsq").add("why", policy.why());
    log_->write(policy.healthy() ? "policy_healthy" : "policy_fallback", fields);
  }
}

void Runtime::report_tapes(const std::vector<Tapes::Ended>& ended) {
  for (const Tapes::Ended& tape : ended) {
    Json fields;
    fields.add("vip", tape.vip).add("tape", tape.tape).add("decisions", tape.decisions);
    fields.add("digest", hex_of(tape.digest)).add("why", tape.why);
    log_->write("tape_ended", fields);
  }
}

bool Runtime::call(const std::function<void(Forwarder&, Transport&)>& job) {
  const std::lock_guard one_at_a_time(callers_);
  std::unique_lock lock(mutex_);
  if (!running_) return false;
  job_ = &job;
  has_job_.store(true, std::memory_order_release);
  done_.wait(lock, [this] { return job_ == nullptr || !running_; });
  const bool ran = job_ == nullptr;
  job_ = nullptr;
  return ran;
}

std::string Runtime::reload(const std::string& path) {
  std::string error;
  try {
    const Config next = read_config(path);
    const std::vector<PolicyArtefact> policies = read_policies(next);
    const bool ran = call([&](Forwarder& forwarder, Transport& transport) {
      error = check_reload(forwarder.config(), next);
      if (!error.empty()) return;
      forwarder.reconfigure(next, policies, monotonic_now());
      transport.set_addresses(addresses_of(next));
      tapes_.start(&forwarder, monotonic_now());
    });
    if (!ran) error = "the balancer is stopping";
    if (error.empty()) hide_from_kernel(next);
  } catch (const std::runtime_error& refused) {
    error = refused.what();
  }
  Json fields;
  fields.add("file", path);
  if (!error.empty()) fields.add("why", error);
  log_->write(error.empty() ? "reloaded" : "reload_refused", fields);
  return error;
}

}  // namespace steelyard::dataplane
