#include "native/dataplane/connection_table.h"

namespace steelyard::dataplane {

static_assert(sizeof(Connection) == 32);

ConnectionTable::ConnectionTable(uint32_t buckets) : mask_(buckets - 1), buckets_(buckets) {}

uint32_t ConnectionTable::oldest_place(uint64_t hash, TimeNs now) const {
  const uint32_t index = index_of(hash);
  uint32_t oldest = kNone;
  int32_t least = INT32_MAX;
  for (uint32_t way = 0; way < kWays; ++way) {
    const uint32_t place = index * kWays + way;
    const int32_t left = static_cast<int32_t>(buckets_[index].deadline[way] - ticks(now));
    if ((buckets_[index].connection[way].counted && left >= 0) || left >= least) continue;
    least = left;
    oldest = place;
  }
  return oldest;
}

void ConnectionTable::take(uint32_t place, const Connection& connection, TimeNs deadline) {
  Bucket& bucket = buckets_[place / kWays];
  bucket.tag[place % kWays] = tag_of(connection.hash);
  bucket.deadline[place % kWays] = ticks(deadline);
  bucket.connection[place % kWays] = connection;
  ++live_;
}

void ConnectionTable::free(uint32_t place) {
  buckets_[place / kWays].tag[place % kWays] = 0;
  --live_;
}

}  // namespace steelyard::dataplane
