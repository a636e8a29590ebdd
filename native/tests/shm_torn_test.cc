// Readers beside writers that never pause: every copy is of one moment. Without the second look at the guard
// in steelyard_shm_read these tests fail.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "native/tests/shm_samples.h"

namespace steelyard::shm {
namespace {

constexpr int kReads = 2000;
constexpr int kTries = 1'000'000;

// Runs `write(n)` for n = first, first + 1, ... beside `read` until that returns.
template <typename Write, typename Read>
void beside(Write write, Read read) {
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> written = 0;
  std::thread writer([&] {
    for (uint64_t n = 1; !stop.load(std::memory_order_relaxed); ++n) {
      write(n);
      written.store(n, std::memory_order_relaxed);
    }
  });
  while (written.load(std::memory_order_relaxed) < 10) std::this_thread::yield();
  read();
  EXPECT_GT(written.load(), 10u);
  stop = true;
  writer.join();
}

// A writer, a word at a time.
class SlowWriter {
 public:
  explicit SlowWriter(const steelyard_shm_channel& channel) : channel_(channel) {}
  static uint64_t word(uint64_t number, uint64_t i) { return number * 1000003 + i; }
  uint64_t steps_of_a_message() const { return channel_.words + 1; }
  void step() {
    if (at_ == 0) {
      frame_ = steelyard_shm_begin(&channel_, ++number_);
      at_ = 1;
    } else if (at_ < channel_.words) {
      steelyard_shm_store(frame_ + at_, word(number_, at_));
      ++at_;
    } else {
      steelyard_shm_commit(&channel_, number_);
      at_ = 0;
    }
  }

 private:
  steelyard_shm_channel channel_;
  uint64_t* frame_ = nullptr;
  uint64_t number_ = 0, at_ = 0;
};

// A reader that is interrupted after any word, for any number of the writer's steps, until the writer comes
// round to the same frame and beyond: it takes no mixture for whole, and no whole copy for a mixture.
TEST(ShmTorn, EveryInterruption) {
  steelyard_shm_layout layout;
  ASSERT_EQ(steelyard_shm_lay_out(1, 1, &layout), 0);
  const uint64_t words = layout.state_words;
  std::vector<uint64_t> copy(words);
  int mixtures = 0;
  for (uint64_t pause = 0; pause <= words; ++pause) {
    for (uint64_t steps = 0; steps <= 4 * (words + 1); ++steps) {
      std::vector<uint64_t> map(layout.file_size / 8);
      const steelyard_shm_channel channel = steelyard_shm_states(map.data(), &layout);
      SlowWriter writer(channel);
      for (uint64_t i = 0; i < 4 * writer.steps_of_a_message(); ++i) writer.step();
      const uint64_t number = steelyard_shm_latest(&channel);
      ASSERT_EQ(number, 4u);
      ASSERT_TRUE(steelyard_shm_is_whole(&channel, number));
      const uint64_t* frame = steelyard_shm_frame(&channel, number);
      for (uint64_t i = 0; i < words; ++i) {
        if (i == pause) {
          for (uint64_t k = 0; k < steps; ++k) writer.step();
        }
        copy[i] = steelyard_shm_load(frame + i);
      }
      if (pause == words) {
        for (uint64_t k = 0; k < steps; ++k) writer.step();
      }
      bool right = true;
      for (uint64_t i = 1; i < words; ++i) right &= copy[i] == SlowWriter::word(number, i);
      const bool untouched = steps <= 2 * writer.steps_of_a_message();
      ASSERT_EQ(steelyard_shm_was_whole(&channel, number) != 0, untouched) << pause << " " << steps;
      ASSERT_TRUE(right || !untouched);
      mixtures += !right;
    }
  }
  EXPECT_GT(mixtures, 1000);
}

// Every word of a message follows from its number.
TEST(ShmTorn, WordsOfOneMessage) {
  steelyard_shm_layout layout;
  ASSERT_EQ(steelyard_shm_lay_out(16, 128, &layout), 0);
  std::vector<uint64_t> map(layout.file_size / 8);
  const steelyard_shm_channel channel = steelyard_shm_states(map.data(), &layout);
  const auto write = [&](uint64_t n) {
    uint64_t* frame = steelyard_shm_begin(&channel, n);
    for (uint64_t i = 1; i < channel.words; ++i) steelyard_shm_store(frame + i, n * 1000003 + i);
    steelyard_shm_commit(&channel, n);
  };
  const auto read = [&] {
    std::vector<uint64_t> copy(channel.words);
    uint64_t status, last = 0;
    for (int k = 0; k < kReads; ++k) {
      const uint64_t n = steelyard_shm_read(&channel, copy.data(), channel.words, kTries, &status);
      ASSERT_EQ(status, STEELYARD_SHM_USABLE);
      ASSERT_GE(n, last) << "messages do not go back";
      last = n;
      uint64_t wrong = 0;
      for (uint64_t i = 1; i < channel.words; ++i) wrong += copy[i] != n * 1000003 + i;
      ASSERT_EQ(wrong, 0u) << "message " << n;
    }
  };
  beside(write, read);
}

// Counters, bitmap and reservoirs of one publication: every flow that a server ever had is one that it has or
// one that it completed, and completed flows have left samples.
TEST(ShmTorn, CountersAgreeWithReservoirs) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(8);
  auto publisher = publisher_at(path, {.num_servers = 8});
  auto reader = reader_at(path);
  std::vector<ServerCounters> counters(8);
  const auto write = [&](uint64_t n) {
    const auto now = static_cast<core::TimeNs>(n) * 1000;
    const core::ServerId server = balancer.choose(core::mix64(n), now, nullptr);
    balancer.open(core::mix64(n), server, now);
    ++counters[server].flows_opened;
    if (n % 3 != 0) {
      balancer.close(core::mix64(n), true, now);
      ++counters[server].flows_completed;
    }
    publisher->publish(balancer, counters, now);
  };
  const auto read = [&] {
    Snapshot snapshot(reader->layout());
    for (int k = 0; k < kReads; ++k) {
      ASSERT_EQ(reader->read(&snapshot, kTries), STEELYARD_SHM_USABLE);
      ASSERT_EQ(snapshot.head().t_ns, snapshot.head().publication * 1000);
      uint64_t opened = 0;
      for (size_t j = 0; j < 8; ++j) {
        const steelyard_shm_server& server = snapshot.servers()[j];
        ASSERT_EQ(server.flows_opened, server.n_flow_on + server.flows_completed);
        ASSERT_EQ(snapshot.words()[steelyard_shm_reservoir_at(&snapshot.layout(), steelyard_shm_fct(j)) + 1],
                  server.flows_completed);
        opened += server.flows_opened;
      }
      ASSERT_EQ(opened + snapshot.head().untracked, snapshot.head().publication);
      for (const steelyard_shm_sample& sample : snapshot.samples(STEELYARD_SHM_INTER_ARRIVAL))
        ASSERT_LE(sample.t_ns, snapshot.head().t_ns);
    }
  };
  beside(write, read);
}

// An agent that writes without pause costs the dataplane a bounded number of tries, never a mixture.
TEST(ShmTorn, ActionsOfOneMessage) {
  const TestPath path;
  core::LoadBalancer balancer = balancer_of(64);
  auto publisher = publisher_at(path, {.num_servers = 64});
  publisher->publish(balancer, std::vector<ServerCounters>(64), 1);
  auto agent = reader_at(path, Reader::As::kAgent);
  const Snapshot snapshot = snapshot_of(*agent);
  std::vector<double> values(64);
  const auto write = [&](uint64_t n) {
    std::fill(values.begin(), values.end(), static_cast<double>(n % 1024) / 1024);
    agent->write(STEELYARD_SHM_KIND_ACTION, values, snapshot.head(), 1);
  };
  const auto read = [&] {
    int usable = 0;
    for (int k = 0; k < kReads || usable == 0; ++k) {
      const ActionView& view = publisher->poll(1, kSecond);
      if (view.status == STEELYARD_SHM_TORN) continue;
      ASSERT_TRUE(view.usable()) << view.why();
      ++usable;
      for (const float value : view.action)
        ASSERT_EQ(value, static_cast<float>(view.generation % 1024) / 1024);
    }
  };
  beside(write, read);
}

}  // namespace
}  // namespace steelyard::shm
