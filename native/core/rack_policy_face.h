// The body of the C face (rack_policy_c.h) over a constexpr RackPolicyView named kPolicy. A generated source
// defines kPolicy in steelyard::exported and then includes this header: data there, logic here.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "native/core/rack_policy.h"
#include "native/core/rack_policy_c.h"

struct steelyard_rack_server {
  steelyard::core::MalcolmServer self;
};

extern "C" {

uint32_t steelyard_rack_policy_abi(void) { return STEELYARD_RACK_POLICY_ABI; }

uint64_t steelyard_rack_policy_schema_hash(void) { return steelyard::exported::kPolicy.schema_hash; }

uint32_t steelyard_rack_policy_num_servers(void) { return steelyard::exported::kPolicy.num_servers; }

uint32_t steelyard_rack_policy_num_inputs(void) { return steelyard::exported::kNumInputs; }

steelyard_rack_server* steelyard_rack_server_new(uint32_t index, uint32_t workers, uint32_t types) {
  try {
    std::string error;
    const auto made =
        steelyard::core::make_rack_server(steelyard::exported::kPolicy, index, workers, types, &error);
    return made ? new steelyard_rack_server{*made} : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

steelyard_rack_server* steelyard_rack_server_copy(const steelyard_rack_server* server) {
  try {
    return new steelyard_rack_server{*server};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void steelyard_rack_server_free(steelyard_rack_server* server) { delete server; }

void steelyard_rack_server_restart(steelyard_rack_server* server) { server->self.restart(); }

void steelyard_rack_on_accept(steelyard_rack_server* server, uint32_t type) { server->self.on_accept(type); }

void steelyard_rack_on_completion(steelyard_rack_server* server, uint32_t type, float service_s) {
  server->self.on_completion(type, service_s);
}

void steelyard_rack_on_stolen(steelyard_rack_server* server, uint32_t type) { server->self.on_stolen(type); }

void steelyard_rack_set_workers(steelyard_rack_server* server, uint32_t workers) {
  server->self.set_workers(workers);
}

void steelyard_rack_set_member(steelyard_rack_server* server, uint32_t other, int member) {
  server->self.set_member(other, member != 0);
}

void steelyard_rack_broadcast(steelyard_rack_server* server, steelyard_rack_load* told) {
  const steelyard::core::LoadMessage message = server->self.broadcast();
  *told = {message.load_s, message.migrations, message.steals, message.task_s, message.workers};
}

void steelyard_rack_on_load(steelyard_rack_server* server, uint32_t from, const steelyard_rack_load* told) {
  server->self.on_load_message(static_cast<steelyard::core::ServerId>(from),
                               {told->load_s, told->migrations, told->steals, told->task_s, told->workers});
}

void steelyard_rack_on_window(steelyard_rack_server* server) { server->self.on_window(); }

uint32_t steelyard_rack_migrate(steelyard_rack_server* server, uint64_t word) {
  return static_cast<uint32_t>(server->self.migrate(word));
}

int32_t steelyard_rack_steal(steelyard_rack_server* server, uint64_t word) {
  return server->self.steal(word);
}

}  // extern "C"
