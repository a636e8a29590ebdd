#include "native/shm/reader.h"

#include <cassert>

#include "native/core/observation.h"
#include "native/core/schema.h"

namespace steelyard::shm {

Observer::Observer(const steelyard_shm_layout& layout)
    : flows_on_(layout.num_servers),
      action_(layout.num_servers),
      duration_(layout.num_servers),
      completion_(layout.num_servers) {}

void Observer::take(const Snapshot& snapshot, uint64_t reservoir, core::Reservoir* to) {
  core::TimeNs times[core::Reservoir::kMaxSize];
  float values[core::Reservoir::kMaxSize];
  const auto samples = snapshot.samples(reservoir);
  for (size_t i = 0; i < samples.size(); ++i) {
    times[i] = static_cast<core::TimeNs>(samples[i].t_ns);
    values[i] = static_cast<float>(steelyard_shm_double(samples[i].value));
  }
  to->assign({times, samples.size()}, {values, samples.size()});
}

void Observer::observe(const Snapshot& snapshot, float* out) {
  assert(snapshot.layout().num_servers == flows_on_.size());
  const auto servers = snapshot.servers();
  const bool features = snapshot.head().features != 0;
  for (size_t j = 0; j < servers.size(); ++j) {
    flows_on_[j] = static_cast<uint32_t>(servers[j].n_flow_on);
    action_[j] = static_cast<float>(steelyard_shm_double(servers[j].action));
    if (!features) continue;
    take(snapshot, steelyard_shm_flow_duration(j), &duration_[j]);
    take(snapshot, steelyard_shm_fct(j), &completion_[j]);
  }
  take(snapshot, STEELYARD_SHM_INTER_ARRIVAL, &inter_arrival_);
  core::Measured measured{flows_on_, {}, {}, &inter_arrival_, action_};
  if (features) {
    measured.duration = duration_;
    measured.completion = completion_;
  }
  core::write_observation(measured, static_cast<core::TimeNs>(snapshot.head().t_ns), out);
}

std::unique_ptr<Reader> Reader::open(const std::string& path, As as, std::string* error) {
  steelyard_shm_file file;
  const int mode = as == As::kAgent ? STEELYARD_SHM_AGENT : STEELYARD_SHM_READ;
  if (steelyard_shm_open(&file, path.c_str(), mode, 0) != 0) {
    *error = file.error;
    return nullptr;
  }
  auto reader = std::unique_ptr<Reader>(new Reader(file, as));
  if (reader->header().schema_hash == reader->schema_hash_) return reader;
  *error = path + ": holds another observation schema than this build computes";
  return nullptr;
}

Reader::Reader(const steelyard_shm_file& file, As as)
    : file_(file),
      path_(file.path),
      as_(as),
      layout_(file.layout),
      states_(steelyard_shm_states(file.map, &layout_)),
      actions_(steelyard_shm_actions(file.map, &layout_)),
      clock_id_(steelyard_shm_header_of(&file)->clock_id),
      schema_hash_(core::observation_schema_hash(static_cast<int>(layout_.num_servers))),
      agent_generation_(steelyard_shm_header_of(&file)->agent_generation),
      generation_(steelyard_shm_latest(&actions_)) {}

Reader::~Reader() { steelyard_shm_close(&file_); }

uint64_t Reader::read(Snapshot* snapshot, int tries) {
  uint64_t status;
  steelyard_shm_read(&states_, snapshot->words().data(), layout_.state_words, tries, &status);
  return status;
}

uint64_t Reader::write(uint64_t kind, std::span<const double> values, const steelyard_shm_state& answered,
                       core::TimeNs now) {
  assert(is_agent() && values.size() <= layout_.num_servers);
  uint64_t* frame = steelyard_shm_begin(&actions_, ++generation_);
  auto* head = reinterpret_cast<steelyard_shm_action*>(frame);
  steelyard_shm_store(&head->generation, generation_);
  steelyard_shm_store(&head->t_ns, static_cast<uint64_t>(now));
  steelyard_shm_store(&head->kind, kind);
  steelyard_shm_store(&head->num_servers, layout_.num_servers);
  steelyard_shm_store(&head->schema_hash, schema_hash_);
  steelyard_shm_store(&head->pool_id, answered.pool_id);
  steelyard_shm_store(&head->publication, answered.publication);
  steelyard_shm_store(&head->agent_pid, static_cast<uint64_t>(getpid()));
  steelyard_shm_store(&head->agent_generation, agent_generation_);
  for (size_t j = 0; j < values.size(); ++j)
    steelyard_shm_store(frame + layout_.values_at + j, steelyard_shm_bits(values[j]));
  steelyard_shm_commit(&actions_, generation_);
  return generation_;
}

uint64_t Reader::withdraw(core::TimeNs now) {
  return write(STEELYARD_SHM_KIND_WITHDRAWN, {}, steelyard_shm_state{}, now);
}

core::TimeNs Reader::now() const {
  if (clock_id_ == STEELYARD_SHM_VIRTUAL_CLOCK) return 0;
  return static_cast<core::TimeNs>(steelyard_shm_now_ns(clock_id_));
}

}  // namespace steelyard::shm
