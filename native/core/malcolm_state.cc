// What a server of the rack game has learned, as bytes.
#include <cstring>

#include "native/core/malcolm.h"

namespace steelyard::core {

template <class F>
void MalcolmServer::visit_learning(F&& f) {
  f(actors_.parameters(), actors_.num_parameters() * sizeof(float));
  critic_.visit_state(f);
  actor_optimizer_.visit_state(f);
  critic_optimizer_.visit_state(f);
  f(actor_gradient_.data(), actor_gradient_.size() * sizeof(float));
  f(&cached_, sizeof cached_);
  f(&updates_, sizeof updates_);
}

// The visits only read unless the visitor writes.
size_t MalcolmServer::learning_bytes() const {
  size_t total = 0;
  const_cast<MalcolmServer*>(this)->visit_learning([&](const void*, size_t bytes) { total += bytes; });
  return total;
}

void MalcolmServer::export_learning(unsigned char* out) const {
  const_cast<MalcolmServer*>(this)->visit_learning([&](const void* from, size_t bytes) {
    std::memcpy(out, from, bytes);
    out += bytes;
  });
}

bool MalcolmServer::import_learning(const unsigned char* in, size_t bytes) {
  if (bytes != learning_bytes()) return false;
  visit_learning([&](void* to, size_t size) {
    std::memcpy(to, in, size);
    in += size;
  });
  critic_.revalue();
  actors_.recompute(inputs_.data());
  actors_.refresh();
  return true;
}

}  // namespace steelyard::core
