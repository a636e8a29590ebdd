// The observation schema: what an agent sees, in which order. Versioned; its hash travels in every policy
// file.
#pragma once

#include <cstdint>
#include <string>

namespace steelyard::core {

inline constexpr int kReducedScalars = 5;  // mean, p90, std, discounted mean, weighted discounted mean
inline constexpr int kServerFeatures = 1 + 2 * kReducedScalars;
inline constexpr int kGlobalFeatures = kReducedScalars;

// Features of one agent's observation: N * 11 + 5 + N.
constexpr int observation_size(int num_servers) {
  return num_servers * (kServerFeatures + 1) + kGlobalFeatures;
}

// The schema in words, one line; what the hash is taken over.
inline std::string observation_schema_text(int num_servers) {
  return "steelyard-obs-v1;servers=" + std::to_string(num_servers) +
         ";per_server=[n_flow_on,flow_duration(mean,p90,std,dmean,wdmean),fct(mean,p90,std,dmean,wdmean)]"
         ";global=[inter_arrival(mean,p90,std,dmean,wdmean)];previous_action[servers]"
         ";unit=s;discount=0.9/s;action=log2(weight)/2;dtype=float32";
}

// 64-bit FNV-1a of observation_schema_text.
inline uint64_t observation_schema_hash(int num_servers) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : observation_schema_text(num_servers)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace steelyard::core
