#include "native/core/select.h"

#include <algorithm>

namespace steelyard::core {

ServerId better_of_two(std::span<const ServerId> members, const uint32_t* load, const WeightQ16* weight,
                       uint64_t word) {
  if (members.size() == 1) return members[0];
  const Pair pair = two_below(word, static_cast<uint32_t>(members.size()));
  const ServerId a = members[pair.first];
  const ServerId b = members[pair.second];
  return (uint64_t{load[b]} + 1) * weight[a] < (uint64_t{load[a]} + 1) * weight[b] ? b : a;
}

void AliasTable::build(std::span<const ServerId> members, const WeightQ16* weight) {
  const size_t n = members.size();
  own_.assign(members.begin(), members.end());
  alias_ = own_;
  threshold_.assign(n, uint64_t{1} << 32);
  uint64_t total = 0;
  for (const ServerId server : members) total += weight[server];
  std::vector<unsigned __int128> share(n);  // n * weight, against the mean `total`
  std::vector<uint32_t> small, large;
  for (uint32_t i = 0; i < n; ++i) {
    share[i] = static_cast<unsigned __int128>(weight[members[i]]) * n;
    (share[i] < total ? small : large).push_back(i);
  }
  while (!small.empty() && !large.empty()) {
    const uint32_t low = small.back();
    const uint32_t high = large.back();
    small.pop_back();
    threshold_[low] = static_cast<uint64_t>((share[low] << 32) / total);
    alias_[low] = own_[high];
    share[high] -= total - share[low];
    if (share[high] >= total) continue;
    large.pop_back();
    small.push_back(high);
  }
}

ServerId AliasTable::sample(uint64_t word) const {
  const uint32_t at = below(word, static_cast<uint32_t>(own_.size()));
  return (mix64(word + kGolden) >> 32) < threshold_[at] ? own_[at] : alias_[at];
}

void MaglevTable::build(std::span<const ServerId> members, std::span<const uint64_t> names) {
  auto table = std::make_shared<std::vector<int16_t>>(kSize, static_cast<int16_t>(kNoServer));
  const size_t n = members.size();
  std::vector<uint64_t> next(n), skip(n);
  for (size_t i = 0; i < n; ++i) {
    const auto index = static_cast<uint64_t>(members[i]);
    const uint64_t name = mix64((names.empty() ? index : names[index]) + kGolden);
    next[i] = name % kSize;
    skip[i] = mix64(name) % (kSize - 1) + 1;
  }
  for (uint32_t filled = 0; n > 0 && filled < kSize;) {
    for (size_t i = 0; i < n && filled < kSize; ++i, ++filled) {
      while ((*table)[next[i]] != kNoServer) next[i] = (next[i] + skip[i]) % kSize;
      (*table)[next[i]] = static_cast<int16_t>(members[i]);
    }
  }
  table_ = std::move(table);
}

}  // namespace steelyard::core
