// Charon's score table (seed 004 Sec. 4.2): the load that a server reported, drained at its speed since then.
#pragma once

#include <vector>

#include "native/core/types.h"

namespace steelyard::core {

class CharonScores {
 public:
  explicit CharonScores(int num_servers = 0) : rows_(num_servers) {}

  // g' = max(0, g - v (now - t)).
  float predicted(ServerId server, TimeNs now) const {
    const Row& row = rows_[server];
    const float left =
        row.load - row.speed * static_cast<float>(static_cast<double>(now - row.updated) * 1e-9);
    return left > 0 ? left : 0;
  }
  // The winner of a choice gets +1.
  void chosen(ServerId server, TimeNs now) {
    rows_[server].load = predicted(server, now) + 1;
    rows_[server].updated = now;
  }
  // A reply carried `load` flows; v = 1 / mean flow completion time [1/s] (0: not measured yet, no drain).
  void learnt(ServerId server, float load, float mean_fct_s, TimeNs now) {
    rows_[server] = {load, mean_fct_s > 0 ? 1.0f / mean_fct_s : 0.0f, now};
  }

 private:
  struct Row {
    float load = 0;
    float speed = 0;
    TimeNs updated = 0;
  };
  std::vector<Row> rows_;
};

}  // namespace steelyard::core
