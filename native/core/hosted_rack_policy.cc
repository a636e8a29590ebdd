#include "native/core/hosted_rack_policy.h"

#include <new>
#include <stdexcept>
#include <utility>

#include "native/core/policy_artefact.h"
#include "native/core/rack_policy.h"
#include "native/core/rack_policy_blob.h"
#include "native/core/rack_policy_c.h"

namespace steelyard::core {
namespace {

class NativePlayer final : public RackPlayer {
 public:
  explicit NativePlayer(MalcolmServer server) : server_(std::move(server)) {}

  std::unique_ptr<RackPlayer> clone() const override { return std::make_unique<NativePlayer>(server_); }
  void on_accept(uint32_t type) override { server_.on_accept(type); }
  void on_completion(uint32_t type, float service_s) override { server_.on_completion(type, service_s); }
  void on_stolen(uint32_t type) override { server_.on_stolen(type); }
  void set_workers(uint32_t workers) override { server_.set_workers(workers); }
  LoadMessage broadcast() override { return server_.broadcast(); }
  void on_load_message(ServerId from, const LoadMessage& message) override {
    server_.on_load_message(from, message);
  }
  void on_window() override { server_.on_window(); }
  ServerId migrate(uint64_t word) override { return server_.migrate(word); }
  ServerId steal(uint64_t word) override { return server_.steal(word); }

 private:
  MalcolmServer server_;
};

class BlobRackPolicy final : public LoadedRackPolicy {
 public:
  explicit BlobRackPolicy(RackPolicySpec spec)
      : LoadedRackPolicy(hash_of(spec), spec.num_servers, rack_actor_inputs(spec.config, spec.num_servers),
                         false),
        spec_(std::move(spec)),
        fields_(rack_fields(spec_.config)) {}

  std::unique_ptr<RackPlayer> player(uint32_t server, uint32_t workers, uint32_t num_types) const override {
    const RackPolicyView view{schema_hash(), num_servers(), static_cast<uint32_t>(fields_.size()),
                              fields_.data(), spec_.actors.data()};
    std::string error;
    const auto made = make_rack_server(view, server, workers, num_types, &error);
    if (!made) throw std::invalid_argument(error);
    return std::make_unique<NativePlayer>(*made);
  }

 private:
  static uint64_t hash_of(const RackPolicySpec& spec) {
    return rack_schema_hash(spec.num_servers, rack_actor_inputs(spec.config, spec.num_servers));
  }

  RackPolicySpec spec_;
  std::vector<RackField> fields_;
};

// The functions of rack_policy_c.h, found in a shared object.
struct CFace {
  decltype(&steelyard_rack_policy_abi) abi;
  decltype(&steelyard_rack_policy_schema_hash) schema_hash;
  decltype(&steelyard_rack_policy_num_servers) num_servers;
  decltype(&steelyard_rack_policy_num_inputs) num_inputs;
  decltype(&steelyard_rack_server_new) make;
  decltype(&steelyard_rack_server_copy) copy;
  decltype(&steelyard_rack_server_free) free;
  decltype(&steelyard_rack_on_accept) on_accept;
  decltype(&steelyard_rack_on_completion) on_completion;
  decltype(&steelyard_rack_on_stolen) on_stolen;
  decltype(&steelyard_rack_set_workers) set_workers;
  decltype(&steelyard_rack_broadcast) broadcast;
  decltype(&steelyard_rack_on_load) on_load;
  decltype(&steelyard_rack_on_window) on_window;
  decltype(&steelyard_rack_migrate) migrate;
  decltype(&steelyard_rack_steal) steal;
};

// A field that LoadMessage gains must pass the C face as well (here and in rack_policy_face.h).
static_assert(sizeof(LoadMessage) == sizeof(steelyard_rack_load));
LoadMessage message_of(const steelyard_rack_load& told) {
  return {told.load_s, told.migrations, told.steals, told.task_s, told.workers};
}
steelyard_rack_load load_of(const LoadMessage& message) {
  return {message.load_s, message.migrations, message.steals, message.task_s, message.workers};
}

struct OpenPolicy {
  Library library;
  CFace face;
};

class CompiledPlayer final : public RackPlayer {
 public:
  CompiledPlayer(std::shared_ptr<const OpenPolicy> policy, steelyard_rack_server* server)
      : policy_(std::move(policy)), server_(server) {
    if (server_ == nullptr) throw std::bad_alloc();
  }
  CompiledPlayer(const CompiledPlayer&) = delete;
  CompiledPlayer& operator=(const CompiledPlayer&) = delete;
  ~CompiledPlayer() override { policy_->face.free(server_); }

  std::unique_ptr<RackPlayer> clone() const override {
    return std::make_unique<CompiledPlayer>(policy_, policy_->face.copy(server_));
  }
  void on_accept(uint32_t type) override { policy_->face.on_accept(server_, type); }
  void on_completion(uint32_t type, float service_s) override {
    policy_->face.on_completion(server_, type, service_s);
  }
  void on_stolen(uint32_t type) override { policy_->face.on_stolen(server_, type); }
  void set_workers(uint32_t workers) override { policy_->face.set_workers(server_, workers); }
  LoadMessage broadcast() override {
    steelyard_rack_load told;
    policy_->face.broadcast(server_, &told);
    return message_of(told);
  }
  void on_load_message(ServerId from, const LoadMessage& message) override {
    const steelyard_rack_load told = load_of(message);
    policy_->face.on_load(server_, static_cast<uint32_t>(from), &told);
  }
  void on_window() override { policy_->face.on_window(server_); }
  ServerId migrate(uint64_t word) override {
    return static_cast<ServerId>(policy_->face.migrate(server_, word));
  }
  ServerId steal(uint64_t word) override { return policy_->face.steal(server_, word); }

 private:
  std::shared_ptr<const OpenPolicy> policy_;
  steelyard_rack_server* server_;
};

class CompiledRackPolicy final : public LoadedRackPolicy {
 public:
  explicit CompiledRackPolicy(std::shared_ptr<const OpenPolicy> policy)
      : LoadedRackPolicy(policy->face.schema_hash(), policy->face.num_servers(), policy->face.num_inputs(),
                         true),
        policy_(std::move(policy)) {}

  std::unique_ptr<RackPlayer> player(uint32_t server, uint32_t workers, uint32_t num_types) const override {
    MalcolmConfig config;  // the same refusals as a blob's
    config.num_types = num_types;
    config.check(num_servers(), server, workers);
    return std::make_unique<CompiledPlayer>(policy_, policy_->face.make(server, workers, num_types));
  }

 private:
  std::shared_ptr<const OpenPolicy> policy_;
};

bool find_face(void* library, CFace* face, std::string* error) {
  if (dlsym(library, "steelyard_policy_abi") != nullptr) {
    *error = "a policy of load balancers, not of a rack's servers";
    return false;
  }
  if (!find_function(library, "steelyard_rack_policy_abi", &face->abi, error)) return false;
  if (face->abi() != STEELYARD_RACK_POLICY_ABI) {
    *error = "compiled policy has ABI " + std::to_string(face->abi()) + "; this build has " +
             std::to_string(STEELYARD_RACK_POLICY_ABI);
    return false;
  }
  return find_function(library, "steelyard_rack_policy_schema_hash", &face->schema_hash, error) &&
         find_function(library, "steelyard_rack_policy_num_servers", &face->num_servers, error) &&
         find_function(library, "steelyard_rack_policy_num_inputs", &face->num_inputs, error) &&
         find_function(library, "steelyard_rack_server_new", &face->make, error) &&
         find_function(library, "steelyard_rack_server_copy", &face->copy, error) &&
         find_function(library, "steelyard_rack_server_free", &face->free, error) &&
         find_function(library, "steelyard_rack_on_accept", &face->on_accept, error) &&
         find_function(library, "steelyard_rack_on_completion", &face->on_completion, error) &&
         find_function(library, "steelyard_rack_on_stolen", &face->on_stolen, error) &&
         find_function(library, "steelyard_rack_set_workers", &face->set_workers, error) &&
         find_function(library, "steelyard_rack_broadcast", &face->broadcast, error) &&
         find_function(library, "steelyard_rack_on_load", &face->on_load, error) &&
         find_function(library, "steelyard_rack_on_window", &face->on_window, error) &&
         find_function(library, "steelyard_rack_migrate", &face->migrate, error) &&
         find_function(library, "steelyard_rack_steal", &face->steal, error);
}

std::string check_face(const CFace& face) {
  const uint32_t servers = face.num_servers();
  if (servers < 2 || servers > kMaxRackServers)
    return "num_servers is " + std::to_string(servers) + "; must be in 2..64";
  if (face.schema_hash() == rack_schema_hash(servers, face.num_inputs())) return "";
  return "compiled policy has another rack schema than this host";
}

std::shared_ptr<const LoadedRackPolicy> load_file(const std::string& path, std::string* error) {
  std::vector<uint8_t> bytes;
  if (!read_policy_file(path, &bytes, error)) return nullptr;
  if (!is_shared_object(bytes)) return load_rack_policy_bytes(bytes.data(), bytes.size(), error);
  auto policy = std::make_shared<OpenPolicy>(OpenPolicy{open_library(path, bytes, error), {}});
  if (!policy->library || !find_face(policy->library.get(), &policy->face, error)) return nullptr;
  *error = check_face(policy->face);
  if (!error->empty()) return nullptr;
  return std::make_shared<CompiledRackPolicy>(std::move(policy));
}

}  // namespace

std::shared_ptr<const LoadedRackPolicy> load_rack_policy_bytes(const uint8_t* data, size_t size,
                                                               std::string* error) {
  try {
    RackPolicySpec spec;
    if (!decode_rack_policy(data, size, &spec, error)) return nullptr;
    return std::make_shared<BlobRackPolicy>(std::move(spec));
  } catch (const std::bad_alloc&) {
    *error = "not enough memory for this policy";
    return nullptr;
  }
}

std::shared_ptr<const LoadedRackPolicy> load_rack_policy_file(const std::string& path, std::string* error) {
  std::shared_ptr<const LoadedRackPolicy> policy;
  try {
    policy = load_file(path, error);
  } catch (const std::bad_alloc&) {
    *error = "not enough memory for this policy";
  }
  if (!policy) error->insert(0, path + ": ");
  return policy;
}

}  // namespace steelyard::core
