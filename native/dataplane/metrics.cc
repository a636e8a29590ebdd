#include "native/dataplane/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <stdexcept>
#include <vector>

#include "native/dataplane/report.h"

namespace steelyard::dataplane {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<prometheus::ClientMetric::Label>;

MetricFamily& family(std::vector<MetricFamily>* all, const char* name, const char* help, MetricType type) {
  all->push_back({std::string("steelyard_lb_") + name, help, type, {}});
  return all->back();
}

void add(MetricFamily* to, Labels labels, double value) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  (to->type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  to->metric.push_back(std::move(metric));
}

void add_packets(const Report& report, std::vector<MetricFamily>* all) {
  MetricFamily& verdicts = family(all, "packets_total", "Frames by what was decided", MetricType::Counter);
  for (int i = 0; i < kVerdicts; ++i) {
    const auto verdict = static_cast<Verdict>(i);
    add(&verdicts, {{"verdict", std::string(text_of(verdict))}}, static_cast<double>(report.verdicts[i]));
  }
  MetricFamily& frames = family(all, "frames_total", "Frames of the transport", MetricType::Counter);
  const TransportCounters& transport = report.transport;
  for (const auto& [way, count] : {std::pair("received", transport.received),
                                   {"sent", transport.sent},
                                   {"receive_dropped", transport.receive_dropped},
                                   {"send_dropped", transport.send_dropped}}) {
    add(&frames, {{"way", way}}, static_cast<double>(count));
  }
  add(&family(all, "neighbours_unknown", "Next hops without a link address", MetricType::Gauge), {},
      report.neighbours_unknown);
}

void add_vips(const Report& report, std::vector<MetricFamily>* all) {
  MetricFamily connections{
      "steelyard_lb_connections", "Places of the connection table", MetricType::Gauge, {}};
  MetricFamily events{
      "steelyard_lb_flow_events_total", "What befell flows beside being forwarded", MetricType::Counter, {}};
  MetricFamily healthy{
      "steelyard_lb_policy_healthy", "1 while weights come from the policy", MetricType::Gauge, {}};
  MetricFamily decisions{"steelyard_lb_policy_decisions_total", "Weights taken", MetricType::Counter, {}};
  MetricFamily fallbacks{
      "steelyard_lb_policy_fallbacks_total", "Times of falling back to lsq", MetricType::Counter, {}};
  MetricFamily taped{"steelyard_lb_tape_recording", "1 while the tape runs", MetricType::Gauge, {}};
  for (const VipReport& vip : report.vips) {
    const prometheus::ClientMetric::Label name{"vip", vip.config.name};
    if (!vip.config.tape.empty()) add(&taped, {name}, vip.taped ? 1 : 0);
    for (int i = 0; i < kFlowStates; ++i) {
      add(&connections, {name, {"state", std::string(text_of(static_cast<FlowState>(i)))}}, vip.in_state[i]);
    }
    const VipCounters& c = vip.counters;
    for (const auto& [event, count] : {std::pair("fallback_packet", c.fallback_packets),
                                       {"untracked", c.untracked_flows},
                                       {"half_open_refused", c.half_open_refused},
                                       {"reused", c.reused},
                                       {"adopted", c.adopted},
                                       {"evicted", c.evicted},
                                       {"no_server", c.no_server}}) {
      add(&events, {name, {"event", event}}, static_cast<double>(count));
    }
    if (!vip.policy_wanted) continue;
    add(&healthy, {name}, vip.policy_healthy ? 1 : 0);
    add(&decisions, {name}, static_cast<double>(vip.decisions));
    add(&fallbacks, {name}, static_cast<double>(vip.fallbacks));
  }
  for (MetricFamily* each : {&connections, &events, &healthy, &decisions, &fallbacks, &taped})
    all->push_back(*each);
}

void add_servers(const Report& report, std::vector<MetricFamily>* all) {
  const auto each = [&](const char* name, const char* help, MetricType type, auto value) {
    MetricFamily& to = family(all, name, help, type);
    for (const VipReport& vip : report.vips) {
      for (const ServerReport& server : vip.servers) {
        add(&to, {{"vip", vip.config.name}, {"server", server.endpoint.name}},
            static_cast<double>(value(server)));
      }
    }
  };
  using S = const ServerReport&;
  each("flows_on", "Flows counted on the server", MetricType::Gauge, [](S s) { return s.flows_on; });
  each("weight", "Weight in force", MetricType::Gauge, [](S s) { return s.weight; });
  each("server_packets_total", "Packets sent to the server", MetricType::Counter,
       [](S s) { return s.endpoint.packets; });
  each("server_bytes_total", "Bytes of them", MetricType::Counter, [](S s) { return s.endpoint.bytes; });
  each("flows_opened_total", "Flows given to the server", MetricType::Counter,
       [](S s) { return s.endpoint.opened; });
  each("flows_completed_total", "Flows ended by FIN", MetricType::Counter,
       [](S s) { return s.endpoint.completed; });
  each("flows_reset_total", "Flows ended by RST", MetricType::Counter, [](S s) { return s.endpoint.reset; });
  each("flows_timed_out_total", "Flows ended by silence", MetricType::Counter,
       [](S s) { return s.endpoint.timed_out; });
}

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(Runtime* runtime) : runtime_(runtime) {}
  std::vector<MetricFamily> Collect() const override {
    Report report;
    std::vector<MetricFamily> all;
    const auto take = [&](const Forwarder& forwarder, Transport& transport) {
      report = report_of(forwarder, transport);
    };
    if (!runtime_->call(take)) return all;
    add_packets(report, &all);
    add_vips(report, &all);
    add_servers(report, &all);
    return all;
  }

 private:
  Runtime* runtime_;
};

}  // namespace

struct Metrics::Server {
  Server(const std::string& listen, Runtime* runtime)
      : collector(std::make_shared<Collector>(runtime)), exposer(listen, 1) {
    exposer.RegisterCollectable(collector);
  }
  std::shared_ptr<Collector> collector;
  prometheus::Exposer exposer;
};

Metrics::Metrics(const std::string& listen, Runtime* runtime) {
  if (listen.empty()) return;
  try {
    server_ = std::make_unique<Server>(listen, runtime);
  } catch (const std::exception& error) {
    throw std::runtime_error("metrics_listen: \"" + listen + "\": " + error.what());
  }
}

Metrics::~Metrics() = default;

}  // namespace steelyard::dataplane
