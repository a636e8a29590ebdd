#include "native/dataplane/config_file.h"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>

#include "native/dataplane/forwarder.h"

namespace steelyard::dataplane {
namespace {

std::string at(const std::string& file, const toml::source_region& place) {
  return file + ":" + std::to_string(place.begin.line) + ": ";
}

// One table of the file. Each key that may stand in it is asked for once; done() then refuses the others.
class Table {
 public:
  Table(const toml::table& table, std::string file, std::string name)
      : table_(table), file_(std::move(file)), name_(std::move(name)) {}

  void text(const char* key, std::string* out) {
    read<std::string>(key, "a text", [&](const std::string& value) { return *out = value, true; });
  }
  void flag(const char* key, bool* out) {
    read<bool>(key, "true or false", [&](bool value) { return *out = value, true; });
  }
  template <class T>
  void whole(const char* key, int64_t low, int64_t high, T* out) {
    const std::string allowed =
        "a whole number in [" + std::to_string(low) + ", " + std::to_string(high) + "]";
    read<int64_t>(key, allowed, [&](int64_t value) {
      if (value < low || value > high) return false;
      *out = static_cast<T>(value);
      return true;
    });
  }
  void number(const char* key, double low, double high, double* out) {
    char allowed[80];
    std::snprintf(allowed, sizeof allowed, "a number in [%g, %g]", low, high);
    read<double>(key, allowed, [&](double value) {
      if (!(value >= low && value <= high)) return false;
      *out = value;
      return true;
    });
  }
  template <class T>
  void choice(const char* key, std::initializer_list<std::pair<const char*, T>> words, T* out) {
    std::string allowed;
    for (const auto& [word, value] : words)
      allowed += (allowed.empty() ? "\"" : ", \"") + std::string(word) + '"';
    read<std::string>(key, allowed, [&](const std::string& given) {
      for (const auto& [word, value] : words) {
        if (given == word) return *out = value, true;
      }
      return false;
    });
  }
  void mac(const char* key, std::optional<Mac>* out) {
    read<std::string>(key, "an address of Ethernet, as \"02:00:00:00:00:01\"", [&](const std::string& given) {
      const std::optional<Mac> mac = parse_mac(given);
      if (mac && ((*mac)[0] & 1) == 0) *out = mac;
      return mac && ((*mac)[0] & 1) == 0;
    });
  }
  void address(const char* key, std::optional<Address>* out) {
    read<std::string>(key, "an IPv4 or IPv6 address", [&](const std::string& given) {
      *out = parse_address(given);
      return out->has_value();
    });
  }
  void address_of(const char* key, bool v4, std::optional<Address>* out) {
    read<std::string>(key, v4 ? "an IPv4 address" : "an IPv6 address", [&](const std::string& given) {
      *out = parse_address(given);
      return *out && (*out)->is_v4() == v4;
    });
  }
  void need(const char* key) {
    if (!table_.contains(key)) {
      throw std::runtime_error(at(file_, table_.source()) + path_of(key) + " is missing");
    }
  }
  void table(const char* key, const std::function<void(Table&)>& body) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return;
    if (!node->is_table()) refuse(*node, key, "a table");
    Table inner(*node->as_table(), file_, path_of(key));
    body(inner);
    inner.done();
  }
  void tables(const char* key, const std::function<void(Table&)>& body) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr || !array->is_homogeneous(toml::node_type::table)) {
      refuse(*node, key, "tables, each headed [[" + path_of(key) + "]]");
    }
    for (const toml::node& each : *array) {
      Table inner(*each.as_table(), file_, path_of(key));
      body(inner);
      inner.done();
    }
  }
  void done() const {
    for (const auto& [key, node] : table_) {
      if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
      std::string names;
      for (const std::string& name : known_) names += (names.empty() ? "" : ", ") + name;
      throw std::runtime_error(at(file_, key.source()) + path_of(std::string(key.str())) +
                               " is not known; here may stand: " + names);
    }
  }
  // "vip" and the line of this table, for what is found wrong later.
  std::string place() const { return at(file_, table_.source()); }

 private:
  std::string path_of(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  [[noreturn]] void refuse(const toml::node& node, const std::string& key, const std::string& allowed) const {
    std::ostringstream shown;
    node.visit([&](const auto& value) {
      if constexpr (toml::is_value<decltype(value)>) shown << value << " ";
    });
    throw std::runtime_error(at(file_, node.source()) + path_of(key) + ": " + shown.str() +
                             "is not allowed; use " + allowed);
  }
  template <class T, class Take>
  void read(const char* key, const std::string& allowed, const Take& take) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return;
    const std::optional<T> value =
        std::is_same_v<T, double> || node->type() == kind<T>() ? node->value<T>() : std::nullopt;
    if (!value || !take(*value)) refuse(*node, key, allowed);
  }
  template <class T>
  static toml::node_type kind() {
    if constexpr (std::is_same_v<T, std::string>) return toml::node_type::string;
    if constexpr (std::is_same_v<T, bool>) return toml::node_type::boolean;
    return toml::node_type::integer;
  }

  const toml::table& table_;
  std::string file_, name_;
  std::vector<std::string> known_;
};

constexpr double kLongest = 86400;  // seconds
constexpr int64_t kMost32 = std::numeric_limits<int32_t>::max();

void read_link(Table& table, LinkConfig* link) {
  table.text("interface", &link->interface);
  table.mac("mac", &link->mac);
  table.address_of("address", true, &link->address4);
  table.address_of("address6", false, &link->address6);
  table.whole("prefix", 0, 32, &link->prefix4);
  table.whole("prefix6", 0, 128, &link->prefix6);
  table.address_of("gateway", true, &link->gateway4);
  table.address_of("gateway6", false, &link->gateway6);
  table.whole("mtu", 576, 65535, &link->mtu);
}

void read_transport(Table& table, TransportConfig* transport) {
  std::string kind = transport->kind;
  table.choice<std::string>("kind", {{"af_packet", "af_packet"}, {"af_xdp", "af_xdp"}}, &transport->kind);
  table.whole("ring_frames", 64, 1 << 20, &transport->ring_frames);
  table.number("spin_us", 0, 1e6, &transport->spin_us);
  table.whole("cpu_latency_us", 0, 1'000'000, &transport->cpu_latency_us);
}

void read_server(Table& table, ServerConfig* server) {
  table.need("address");
  std::optional<Address> address;
  table.text("name", &server->name);
  table.address("address", &address);
  table.mac("mac", &server->mac);
  table.number("weight", 1e-4, 65535, &server->weight);
  table.flag("drain", &server->drain);
  server->address = *address;
  if (server->name.empty()) server->name = text_of(server->address);
}

void read_timeouts(Table& table, Timeouts* timeouts) {
  table.number("opening_s", 0.1, kLongest, &timeouts->opening_s);
  table.number("established_s", 0.1, kLongest, &timeouts->established_s);
  table.number("closing_s", 0.1, kLongest, &timeouts->closing_s);
  table.number("udp_s", 0.1, kLongest, &timeouts->udp_s);
}

void resolve(const std::string& file, std::string* path) {
  if (!path->empty()) *path = (std::filesystem::path(file).parent_path() / *path).string();
}

void read_vip(Table& table, const std::string& file, VipConfig* vip) {
  for (const char* key : {"name", "address", "port", "server"}) table.need(key);
  std::optional<Address> address;
  table.text("name", &vip->name);
  table.address("address", &address);
  table.whole("port", 1, 65535, &vip->port);
  table.choice<uint8_t>("protocol", {{"tcp", kTcp}, {"udp", kUdp}}, &vip->protocol);
  table.choice<Forwarding>(
      "forwarding",
      {{"l2-dsr", Forwarding::kL2Dsr}, {"l3-dsr", Forwarding::kL3Dsr}, {"gre", Forwarding::kGre}},
      &vip->forwarding);
  table.whole("dscp", 0, 63, &vip->dscp);
  table.text("rule", &vip->rule);
  table.number("interval_s", 0.001, 3600, &vip->interval_s);
  table.flag("answer_arp", &vip->answer_arp);
  table.whole("connections", 64, 1 << 24, &vip->connections);
  table.whole("half_open", 1, kMost32, &vip->half_open);
  table.whole("reservoir_size", 1, core::Reservoir::kMaxSize, &vip->reservoir_size);
  table.text("policy_file", &vip->policy_file);
  table.text("shared_memory", &vip->shared_memory);
  table.text("tape", &vip->tape);
  table.number("max_age_s", 0.001, 3600, &vip->max_age_s);
  table.number("decay_s", 1e-6, 1e6, &vip->decay_s);
  table.table("timeouts", [&](Table& inner) { read_timeouts(inner, &vip->timeouts); });
  table.tables("server", [&](Table& inner) { read_server(inner, &vip->servers.emplace_back()); });
  vip->address = *address;
  resolve(file, &vip->policy_file);
  resolve(file, &vip->tape);
  if (std::string why = check_vip(*vip); !why.empty()) throw std::runtime_error(table.place() + "vip." + why);
}

void read_root(Table& root, const std::string& file, Config* config) {
  root.need("link");
  root.need("vip");
  root.whole("hash_seed", 0, std::numeric_limits<int64_t>::max(), &config->hash_seed);
  root.whole("balancer", 0, core::kMaxLoadBalancers - 1, &config->balancer);
  root.whole("num_balancers", 1, core::kMaxLoadBalancers, &config->num_balancers);
  root.text("log_file", &config->log_file);
  root.text("metrics_listen", &config->metrics_listen);
  root.text("control_socket", &config->control_socket);
  root.table("link", [&](Table& table) { read_link(table, &config->link); });
  root.table("transport", [&](Table& table) { read_transport(table, &config->transport); });
  root.tables("vip", [&](Table& table) { read_vip(table, file, &config->vips.emplace_back()); });
  root.done();
  resolve(file, &config->log_file);
  resolve(file, &config->control_socket);
}

}  // namespace

Config read_config(const std::string& path) {
  Config config;
  try {
    const toml::table parsed = toml::parse_file(path);
    Table root(parsed, path, "");
    read_root(root, path, &config);
  } catch (const toml::parse_error& error) {
    throw std::runtime_error(at(path, error.source()) + std::string(error.description()));
  }
  if (std::string why = check_config(config); !why.empty()) throw std::runtime_error(path + ": " + why);
  return config;
}

}  // namespace steelyard::dataplane
