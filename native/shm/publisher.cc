#include "native/shm/publisher.h"

#include <algorithm>
#include <cassert>

#include "native/core/schema.h"

namespace steelyard::shm {
namespace {

constexpr int kPollTries = 4;  // the host does not wait for an agent that writes without pause

static_assert(STEELYARD_SHM_MAX_SERVERS == core::kMaxServers);
static_assert(STEELYARD_SHM_MAX_RESERVOIR == core::Reservoir::kMaxSize);
static_assert(sizeof(steelyard_shm_header) == 256 && sizeof(steelyard_shm_state) == 128);
static_assert(sizeof(steelyard_shm_server) == 128 && sizeof(steelyard_shm_action) == 128);

// The place of a member of one of the layout's structs, to be stored through.
template <typename Struct>
void put(Struct* at, uint64_t Struct::* member, uint64_t value) {
  steelyard_shm_store(&(at->*member), value);
}

}  // namespace

uint64_t pool_id_of(std::span<const std::string> servers) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // 64-bit FNV-1a, names ended by zeros
  for (const std::string& server : servers) {
    for (const char* c = server.c_str(); c != server.c_str() + server.size() + 1; ++c)
      hash = (hash ^ static_cast<uint8_t>(*c)) * 0x100000001b3ULL;
  }
  return hash;
}

void ActionView::apply_to(core::LoadBalancer& balancer) const {
  assert(usable());
  if (kind == STEELYARD_SHM_KIND_WEIGHT) return balancer.set_weights(weights);
  balancer.set_action(action.data());
  balancer.apply_action();
}

std::unique_ptr<Publisher> Publisher::open(const std::string& path, const PoolSpec& spec,
                                           std::string* error) {
  if (spec.num_servers < 1 || spec.reservoir_size < 1) {
    *error = path + ": number of servers or size of reservoirs out of range";
    return nullptr;
  }
  steelyard_shm_file file;
  const steelyard_shm_spec wanted{static_cast<uint64_t>(spec.num_servers),
                                  static_cast<uint64_t>(spec.reservoir_size),
                                  core::observation_schema_hash(spec.num_servers), spec.clock_id};
  if (steelyard_shm_create(&file, path.c_str(), &wanted) == 0)
    return std::unique_ptr<Publisher>(new Publisher(file, spec));
  *error = file.error;
  return nullptr;
}

Publisher::Publisher(const steelyard_shm_file& file, const PoolSpec& spec)
    : file_(file),
      path_(file.path),
      layout_(file.layout),
      states_(steelyard_shm_states(file.map, &layout_)),
      actions_(steelyard_shm_actions(file.map, &layout_)),
      schema_hash_(core::observation_schema_hash(spec.num_servers)),
      pool_id_(spec.pool_id),
      publication_(steelyard_shm_latest(&states_)),
      generation_(steelyard_shm_header_of(&file)->writer_generation),
      active_(layout_.servers_at - layout_.bitmap_at),
      written_(STEELYARD_SHM_FRAMES * (1 + 2 * layout_.num_servers)),
      message_(layout_.action_words),
      action_(layout_.num_servers),
      weights_(layout_.num_servers) {}

Publisher::~Publisher() { steelyard_shm_close(&file_); }

void Publisher::publish(const core::LoadBalancer& balancer, std::span<const ServerCounters> counters,
                        core::TimeNs now) {
  assert(static_cast<uint64_t>(balancer.num_servers()) == layout_.num_servers);
  assert(counters.size() == layout_.num_servers);
  if (balancer_ != &balancer) std::fill(written_.begin(), written_.end(), 0);
  balancer_ = &balancer;
  std::fill(active_.begin(), active_.end(), 0);
  for (const core::ServerId j : balancer.members()) active_[j / 64] |= uint64_t{1} << (j % 64);
  uint64_t* frame = steelyard_shm_begin(&states_, ++publication_);
  write_head(frame, balancer, now);
  write_servers(frame, balancer, counters);
  write_reservoirs(frame, balancer);
  steelyard_shm_commit(&states_, publication_);
}

void Publisher::write_head(uint64_t* frame, const core::LoadBalancer& balancer, core::TimeNs now) {
  using State = steelyard_shm_state;
  auto* head = reinterpret_cast<State*>(frame);
  put(head, &State::publication, publication_);
  put(head, &State::t_ns, static_cast<uint64_t>(now));
  put(head, &State::writer_generation, generation_);
  put(head, &State::pool_id, pool_id_);
  put(head, &State::num_active, balancer.members().size());
  put(head, &State::untracked, balancer.untracked());
  put(head, &State::action_generation, taken_);
  put(head, &State::action_status, view_.status);
  put(head, &State::features, balancer.durations().empty() ? 0 : 1);
  for (size_t i = 0; i < active_.size(); ++i) steelyard_shm_store(frame + layout_.bitmap_at + i, active_[i]);
}

void Publisher::write_servers(uint64_t* frame, const core::LoadBalancer& balancer,
                              std::span<const ServerCounters> counters) {
  using Server = steelyard_shm_server;
  auto* server = reinterpret_cast<Server*>(frame + layout_.servers_at);
  for (size_t j = 0; j < layout_.num_servers; ++j, ++server) {
    put(server, &Server::n_flow_on, balancer.flows_on()[j]);
    put(server, &Server::flows_opened, counters[j].flows_opened);
    put(server, &Server::flows_completed, counters[j].flows_completed);
    put(server, &Server::packets, counters[j].packets);
    put(server, &Server::bytes, counters[j].bytes);
    put(server, &Server::resets, counters[j].resets);
    put(server, &Server::collisions, counters[j].collisions);
    put(server, &Server::weight_q16, balancer.weights()[j]);
    put(server, &Server::action, steelyard_shm_bits(balancer.action()[j]));
  }
}

void Publisher::write_reservoirs(uint64_t* frame, const core::LoadBalancer& balancer) {
  write_reservoir(frame, STEELYARD_SHM_INTER_ARRIVAL, balancer.inter_arrival());
  for (size_t j = 0; j < balancer.durations().size(); ++j) {
    write_reservoir(frame, steelyard_shm_flow_duration(j), balancer.durations()[j]);
    write_reservoir(frame, steelyard_shm_fct(j), balancer.completions()[j]);
  }
}

// Only if this frame holds another version of it.
void Publisher::write_reservoir(uint64_t* frame, uint64_t reservoir, const core::Reservoir& from) {
  const uint64_t place = publication_ % STEELYARD_SHM_FRAMES;
  uint64_t& written = written_[place * (1 + 2 * layout_.num_servers) + reservoir];
  if (written == from.version() + 1) return;
  written = from.version() + 1;
  using Head = steelyard_shm_reservoir;
  auto* head = reinterpret_cast<Head*>(frame + steelyard_shm_reservoir_at(&layout_, reservoir));
  const int count = std::min(from.filled(), static_cast<int>(layout_.reservoir_size));
  put(head, &Head::count, static_cast<uint64_t>(count));
  put(head, &Head::added, from.added());
  auto* sample = reinterpret_cast<steelyard_shm_sample*>(head + 1);
  for (int i = 0; i < count; ++i, ++sample) {
    put(sample, &steelyard_shm_sample::t_ns, static_cast<uint64_t>(from.time_at(i)));
    put(sample, &steelyard_shm_sample::value, steelyard_shm_bits(from.value_at(i)));
  }
}

const ActionView& Publisher::poll(core::TimeNs now, core::TimeNs max_age) {
  view_ = ActionView{};
  const uint64_t number =
      steelyard_shm_read(&actions_, message_.data(), layout_.action_words, kPollTries, &view_.status);
  if (number == 0) return view_;
  const auto* head = reinterpret_cast<const steelyard_shm_action*>(message_.data());
  const steelyard_shm_expected expected{schema_hash_, pool_id_, static_cast<uint64_t>(now),
                                        static_cast<uint64_t>(max_age), active_.data()};
  view_.status = steelyard_shm_check_action(&layout_, message_.data(), &expected);
  view_.generation = number;
  view_.kind = head->kind;
  view_.publication = head->publication;
  view_.age = now - static_cast<core::TimeNs>(head->t_ns);
  if (!view_.usable()) return view_;
  taken_ = number;
  for (size_t j = 0; j < layout_.num_servers; ++j) {
    weights_[j] = steelyard_shm_double(message_[layout_.values_at + j]);
    action_[j] = static_cast<float>(weights_[j]);
  }
  if (view_.kind == STEELYARD_SHM_KIND_ACTION) view_.action = action_;
  if (view_.kind == STEELYARD_SHM_KIND_WEIGHT) view_.weights = weights_;
  return view_;
}

}  // namespace steelyard::shm
