// C3's scores: response time and a cubed estimate of the queue, from what replies carry (Suresh et al.,
// NSDI'15, Sec. 3.1; its rate control is not here, since a balancer cannot hold flows back).
#pragma once

#include <vector>

#include "native/core/types.h"

namespace steelyard::core {

class C3Scores {
 public:
  static constexpr float kNewest = 0.9F;  // weight of the newest sample, as in the authors' Cassandra

  // `clients`: how many balancers share the servers, n of the queue estimate.
  explicit C3Scores(int num_servers = 0, int clients = 1)
      : rows_(num_servers), clients_(static_cast<float>(clients)) {}

  // A reply: the response time that the balancer saw, and by the server's word its service time [s] and the
  // flows that it still had.
  void learnt(ServerId server, float response_s, float service_s, float queue) {
    Row& row = rows_[server];
    const float newest = row.measured ? kNewest : 1.0F;
    row.response_s += newest * (response_s - row.response_s);
    row.service_s += newest * (service_s - row.service_s);
    row.queue += newest * (queue - row.queue);
    row.measured = true;
  }
  // R - 1/mu + qhat^3 / mu, qhat = 1 + outstanding x clients + queue; 0 before the first reply, so that
  // servers not heard of come first.
  float score(ServerId server, uint32_t outstanding) const {
    const Row& row = rows_[server];
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
};

}  // namespace steelyard::core
