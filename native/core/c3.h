// C3's scores: response time and a cubed estimate of the queue, from what replies carry (Suresh et al.,
// NSDI'15, Sec. 3.1; its rate control is not here, since a balancer cannot hold flows back).
#pragma once

#include <vector>

#include "native/core/types.h"

namespace steelyard::core {

class C3Scores {
 public:
  static constexpr float kPenalty = 1e6F;

  // `clients`: how many balancers share the servers, n of the queue estimate. `newest`: weight of the newest
  // sample in the averages, 0.9 in the authors' simulator.
  explicit C3Scores(int num_servers = 0, int clients = 1, double newest = 0.9)
      : rows_(num_servers), clients_(static_cast<float>(clients)), newest_(static_cast<float>(newest)) {}

  // A reply: the response time that the balancer saw, and by the server's word its service time [s] and the
  // flows that it still had.
  void learnt(ServerId server, float response_s, float service_s, float queue) {
    Row& row = rows_[server];
    const float newest = row.measured ? newest_ : 1.0F;
    row.response_s += newest * (response_s - row.response_s);
    row.service_s += newest * (service_s - row.service_s);
    row.queue += newest * (queue - row.queue);
    row.measured = true;
  }
  // R - 1/mu + qhat^3 / mu, qhat = 1 + outstanding x clients + queue. A server not heard of comes first, but
  // with a flow under way it comes last: the rate control that is left out is what would keep further flows
  // from it until it has answered.
  float score(ServerId server, uint32_t outstanding) const {
    const Row& row = rows_[server];
    if (!row.measured) return outstanding == 0 ? 0.0F : kPenalty + static_cast<float>(outstanding);
    const float queue = 1.0F + static_cast<float>(outstanding) * clients_ + row.queue;
    return row.response_s - row.service_s + queue * queue * queue * row.service_s;
  }

 private:
  struct Row {
    float response_s = 0;
    float service_s = 0;  // 1 / mu
    float queue = 0;
    bool measured = false;
  };
  std::vector<Row> rows_;
  float clients_;
  float newest_;
};

}  // namespace steelyard::core
