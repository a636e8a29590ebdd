#include "deploy/vpp/adapter/command.h"

#include <charconv>
#include <functional>
#include <map>
#include <sstream>

namespace steelyard::vpp {
namespace {

using dataplane::Forwarding;

struct Wrong {
  std::string why;
};

class Words {
 public:
  explicit Words(const std::string& line) {
    std::istringstream in(line);
    for (std::string word; in >> word;) words_.push_back(word);
  }
  bool empty() const { return at_ == words_.size(); }
  std::string next(const char* what) {
    if (empty()) throw Wrong{std::string(what) + " is missing"};
    return words_[at_++];
  }
  void end() const {
    if (!empty()) throw Wrong{words_[at_] + ": nothing was expected here"};
  }

 private:
  std::vector<std::string> words_;
  size_t at_ = 0;
};

template <class Number>
Number number(const std::string& key, const std::string& text, Number least, Number most) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most)) {
    std::ostringstream allowed;
    allowed << key << ": " << text << " is not allowed; use " << +least << " to " << +most;
    throw Wrong{allowed.str()};
  }
  return value;
}

Address address(const std::string& key, const std::string& text) {
  const std::optional<Address> parsed = dataplane::parse_address(text);
  if (!parsed) throw Wrong{key + ": " + text + " is not allowed; use an IPv4 or IPv6 address"};
  return *parsed;
}

template <class T>
T choice(const std::string& key, const std::string& text, const std::map<std::string, T>& known) {
  const auto found = known.find(text);
  if (found != known.end()) return found->second;
  std::string names;
  for (const auto& [name, value] : known) names += (names.empty() ? "" : ", ") + name;
  throw Wrong{key + ": " + text + " is not allowed; use " + names};
}

constexpr double kLongest = 86400;

using Setter = std::function<void(VipConfig*, const std::string& key, const std::string& text)>;

template <class Number>
Setter whole(Number VipConfig::* field, Number least, Number most) {
  return [=](VipConfig* vip, const std::string& key, const std::string& text) {
    vip->*field = number<Number>(key, text, least, most);
  };
}

Setter timeout(double dataplane::Timeouts::* field) {
  return [=](VipConfig* vip, const std::string& key, const std::string& text) {
    vip->timeouts.*field = number<double>(key, text, 0.1, kLongest);
  };
}

Setter word(std::string VipConfig::* field) {
  return [=](VipConfig* vip, const std::string&, const std::string& text) {
    vip->*field = text == "none" ? "" : text;
  };
}

// What can change while a VIP is served.
const std::map<std::string, Setter>& settings() {
  static const std::map<std::string, Setter> kSettings = {
      {"rule", word(&VipConfig::rule)},
      {"policy",
       [](VipConfig* vip, const std::string&, const std::string& text) {
         vip->rule = "policy";
         vip->policy_file = text == "agent" ? "" : text;
       }},
      {"shared-memory", word(&VipConfig::shared_memory)},
      {"interval", whole<double>(&VipConfig::interval_s, 0.001, 3600)},
      {"max-age", whole<double>(&VipConfig::max_age_s, 0.001, 3600)},
      {"decay", whole<double>(&VipConfig::decay_s, 1e-6, 1e6)},
      {"half-open", whole<uint32_t>(&VipConfig::half_open, 1, INT32_MAX)},
      {"reservoir-size", whole<int>(&VipConfig::reservoir_size, 1, core::Reservoir::kMaxSize)},
      {"dscp", whole<uint8_t>(&VipConfig::dscp, 0, 63)},
      {"opening", timeout(&dataplane::Timeouts::opening_s)},
      {"established", timeout(&dataplane::Timeouts::established_s)},
      {"closing", timeout(&dataplane::Timeouts::closing_s)},
      {"udp", timeout(&dataplane::Timeouts::udp_s)},
  };
  return kSettings;
}

// What is said once, when it is added.
const std::map<std::string, Setter>& identity() {
  static const std::map<std::string, Setter> kIdentity = {
      {"address", [](VipConfig* vip, const std::string& key,
                     const std::string& text) { vip->address = address(key, text); }},
      {"port", whole<uint16_t>(&VipConfig::port, 1, 65535)},
      {"target-port", whole<uint16_t>(&VipConfig::target_port, 1, 65535)},
      {"protocol",
       [](VipConfig* vip, const std::string& key, const std::string& text) {
         vip->protocol = choice<uint8_t>(key, text, {{"tcp", dataplane::kTcp}, {"udp", dataplane::kUdp}});
       }},
      {"forwarding",
       [](VipConfig* vip, const std::string& key, const std::string& text) {
         vip->forwarding = choice<Forwarding>(
             key, text,
             {{"gre", Forwarding::kGre}, {"l3-dsr", Forwarding::kL3Dsr}, {"nat", Forwarding::kNat}});
       }},
      {"connections", whole<uint32_t>(&VipConfig::connections, 64, 1 << 24)},
  };
  return kIdentity;
}

void read_settings(Words* words, bool with_identity, VipConfig* vip) {
  while (!words->empty()) {
    const std::string key = words->next("a setting");
    auto found = settings().find(key);
    if (found == settings().end() && with_identity && (found = identity().find(key)) == identity().end()) {
      throw Wrong{key + ": is not known"};
    }
    if (!with_identity && found == settings().end()) {
      const bool fixed = identity().contains(key);
      throw Wrong{key + (fixed ? ": cannot change; delete the VIP and add it anew" : ": is not known")};
    }
    found->second(vip, key, words->next(key.c_str()));
  }
}

std::string vip_command(Host* host, Words* words, TimeNs now) {
  const std::string verb = words->next("add, set or del");
  VipConfig vip;
  vip.forwarding = Forwarding::kGre;
  vip.name = words->next("the VIP's name");
  if (verb == "del") {
    words->end();
    return host->remove_vip(vip.name, now);
  }
  if (verb != "add" && verb != "set") return verb + ": is not known; use add, set or del";
  const VipConfig* running = host->find(vip.name);
  if (verb == "set" && running == nullptr) return "vip: \"" + vip.name + "\" is not there";
  if (verb == "set") vip = *running;
  read_settings(words, verb == "add", &vip);
  if (verb == "set") return host->change_vip(vip, now);
  if (vip.address.none()) return "address is missing";
  if (vip.port == 0) return "port is missing";
  return host->add_vip(vip, now);
}

std::string server_command(Host* host, Words* words, TimeNs now) {
  const std::string verb = words->next("add, set or del");
  const std::string name = words->next("the VIP's name");
  const VipConfig* vip = host->find(name);
  if (vip == nullptr) return "vip: \"" + name + "\" is not there";
  const std::string text = words->next("the server's address");
  ServerConfig server;
  server.address = address("server", text);
  server.name = text_of(server.address);
  const ServerConfig* running = nullptr;
  for (const ServerConfig& known : vip->servers) running = known.address == server.address ? &known : running;
  if (verb == "del") {
    words->end();
    return host->remove_server(name, server.address, now);
  }
  if (verb == "add" && running != nullptr) return "server: " + text + " is there already";
  if (verb == "set" && running == nullptr) return "server: " + text + " is not there";
  if (verb != "add" && verb != "set") return verb + ": is not known; use add, set or del";
  if (running != nullptr) server = *running;
  while (!words->empty()) {
    const std::string key = words->next("a setting");
    if (key == "weight") {
      server.weight = number<double>(key, words->next("weight"), 1e-4, 65535);
    } else if (key == "drain") {
      server.drain = choice<bool>(key, words->next("on or off"), {{"on", true}, {"off", false}});
    } else {
      return key + ": is not known; use weight, drain";
    }
  }
  return host->set_server(name, server, now);
}

std::string tape_command(Host* host, Words* words, TimeNs now, std::string* summary) {
  const std::string name = words->next("the VIP's name");
  const std::string path = words->next("a file, or off");
  words->end();
  return path == "off" ? host->stop_tape(name, summary) : host->start_tape(name, path, now);
}

std::string balancer_command(Host* host, Words* words) {
  const int balancer = number<int>("balancer", words->next("which balancer"), 0, core::kMaxLoadBalancers - 1);
  if (words->next("of") != "of") return "balancer: write balancer I of N";
  const int all = number<int>("balancer", words->next("how many"), 1, core::kMaxLoadBalancers);
  words->end();
  if (balancer >= all) return "balancer: " + std::to_string(balancer) + " is not allowed; use 0 to N - 1";
  return host->set_place(balancer, all);
}

std::string run(Host* host, Words* words, TimeNs now, std::string* answer) {
  const std::string what = words->next("a command");
  if (what == "vip") return vip_command(host, words, now);
  if (what == "server") return server_command(host, words, now);
  if (what == "tape") return tape_command(host, words, now, answer);
  if (what == "balancer") return balancer_command(host, words);
  if (what != "source" && what != "mtu" && what != "seed") {
    return what + ": is not known; use vip, server, tape, source, mtu, seed, balancer, interface";
  }
  const std::string text = words->next(what.c_str());
  words->end();
  if (what == "source") return host->set_source(address(what, text));
  if (what == "mtu") return host->set_mtu(number<uint32_t>(what, text, 576, 65535));
  return host->set_seed(number<uint64_t>(what, text, 0, INT64_MAX));
}

}  // namespace

bool run_command(Host* host, const std::string& line, TimeNs now, std::string* answer) {
  std::string why;
  answer->clear();
  try {
    Words words(line);
    why = run(host, &words, now, answer);
  } catch (const Wrong& wrong) {
    why = wrong.why;
  } catch (const std::exception& error) {
    why = error.what();
  }
  if (!why.empty()) *answer = why;
  return why.empty();
}

}  // namespace steelyard::vpp
