// Which files are opened and which are refused, with what words.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <functional>

#include "native/core/schema.h"
#include "native/tests/shm_samples.h"

namespace steelyard::shm {
namespace {

std::string error_of_open(const std::string& path, Reader::As as = Reader::As::kReader) {
  std::string error;
  return Reader::open(path, as, &error) == nullptr ? error : "opened";
}

std::string error_of_publish(const std::string& path, const PoolSpec& spec) {
  std::string error;
  return Publisher::open(path, spec, &error) == nullptr ? error : "opened";
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos && text.find('\n') == std::string::npos;
}

// A file with a living dataplane.
class ShmFile : public testing::Test {
 protected:
  ShmFile() : publisher_(publisher_at(path_, {.num_servers = 4, .reservoir_size = 8})) {
    publisher_->publish(balancer_, std::vector<ServerCounters>(4), 1);
  }
  void change_word(size_t offset, uint64_t value) {
    std::fstream file(std::string(path_), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
    ASSERT_TRUE(file.good());
  }
  ino_t inode() const {
    struct stat found{};
    stat(path_.c_str(), &found);
    return found.st_ino;
  }

  const TestPath path_;
  core::LoadBalancer balancer_ = balancer_of(4, 8);
  std::unique_ptr<Publisher> publisher_;
};

// Excludes: mode 0777, whatever the umask.
TEST_F(ShmFile, IsPrivate) {
  struct stat found{};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  EXPECT_TRUE(holds(error_of_open(path_), "must be 0600"));
  publisher_.reset();
  EXPECT_TRUE(holds(error_of_publish(path_, {.num_servers = 4}), "must be 0600"));
  const TestPath open_path;
  const mode_t before = umask(0);
  publisher_at(open_path, {.num_servers = 4});
  umask(before);
  ASSERT_EQ(stat(open_path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
}

TEST_F(ShmFile, HasTheSizeThatItSays) {
  struct stat found{};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(static_cast<uint64_t>(found.st_size), reader_at(path_)->header().file_size);
  EXPECT_EQ(static_cast<uint64_t>(found.st_blocks) * 512 / 8 * 8 >= static_cast<uint64_t>(found.st_size),
            true)
      << "memory is taken at the start, not when it may have run out";
}

TEST_F(ShmFile, AnotherIsRefused) {
  EXPECT_EQ(error_of_open(path_), "opened");
  const struct {
    size_t offset;
    uint64_t value;
    const char* words;
  } cases[] = {
      {offsetof(steelyard_shm_header, magic), 7, "not a shared-memory file of steelyard"},
      {offsetof(steelyard_shm_header, abi), 2, "has ABI 2; this build has 1"},
      {offsetof(steelyard_shm_header, schema_hash), 1, "another observation schema"},
      {offsetof(steelyard_shm_header, num_servers), 0, "sizes out of range"},
      {offsetof(steelyard_shm_header, num_servers), UINT64_MAX, "sizes out of range"},
      {offsetof(steelyard_shm_header, reservoir_size), 129, "sizes out of range"},
      {offsetof(steelyard_shm_header, frames), 2, "sizes out of range"},
      {offsetof(steelyard_shm_header, num_servers), 5, "do not follow"},
      {offsetof(steelyard_shm_header, file_size), 1, "do not follow"},
      {offsetof(steelyard_shm_header, state_offset), 257, "do not follow"},  // misaligned
      {offsetof(steelyard_shm_header, state_stride), 8, "do not follow"},
      {offsetof(steelyard_shm_header, action_offset), uint64_t{1} << 62, "do not follow"},
      {offsetof(steelyard_shm_header, action_stride), 4, "do not follow"},
      {offsetof(steelyard_shm_header, retired), 1, "stale"},
  };
  const auto header = reader_at(path_)->header();
  for (const auto& [offset, value, words] : cases) {
    uint64_t before;
    std::memcpy(&before, reinterpret_cast<const char*>(&header) + offset, sizeof before);
    change_word(offset, value);
    EXPECT_TRUE(holds(error_of_open(path_), words)) << error_of_open(path_) << " / " << words;
    change_word(offset, before);
  }
  EXPECT_EQ(error_of_open(path_), "opened");
}

TEST_F(ShmFile, OfAnotherLengthIsRefused) {
  const auto full = static_cast<off_t>(reader_at(path_)->header().file_size);
  for (const off_t size : {off_t{0}, off_t{1}, off_t{255}}) {
    const TestPath part;
    std::ofstream(std::string(part)) << std::string(static_cast<size_t>(size), 'x');
    chmod(part.c_str(), 0600);
    EXPECT_TRUE(holds(error_of_open(part), "not a shared-memory file of steelyard"));
  }
  publisher_.reset();
  for (const off_t size : {off_t{256}, full - 1, full - 8, full + 8}) {
    ASSERT_EQ(truncate(path_.c_str(), size), 0);
    EXPECT_TRUE(holds(error_of_open(path_), "by its header it has")) << size;
  }
}

TEST_F(ShmFile, NoFileOrNoRegularOne) {
  EXPECT_TRUE(holds(error_of_open("/dev/shm/steelyard-test-no-such-file"), "No such file"));
  EXPECT_TRUE(holds(error_of_open("/dev/shm"), "not a regular file"));
  EXPECT_TRUE(holds(error_of_publish("/dev/shm", {.num_servers = 1}), "cannot open"));
  EXPECT_TRUE(holds(error_of_publish("/no/such/folder/x", {.num_servers = 1}), "cannot create"));
  EXPECT_TRUE(holds(error_of_open(std::string(300, 'x')), "too long"));
  const TestPath link;
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_TRUE(holds(error_of_open(link), "cannot open"))
      << "links in a folder that all can write are not followed";
  for (const int servers : {0, -1, 4097})
    EXPECT_TRUE(holds(error_of_publish("/dev/shm/steelyard-x", {.num_servers = servers}), "out of range"));
}

TEST_F(ShmFile, WithoutItsDataplaneIsStale) {
  auto reader = reader_at(path_);
  EXPECT_TRUE(reader->writer_lives());
  publisher_.reset();
  EXPECT_FALSE(reader->writer_lives());
  EXPECT_TRUE(holds(error_of_open(path_), "stale: its dataplane (process " + std::to_string(getpid())));
}

TEST_F(ShmFile, HasOneDataplaneAndOneAgent) {
  EXPECT_TRUE(
      holds(error_of_publish(path_, {.num_servers = 4, .reservoir_size = 8}), "has a dataplane already"));
  EXPECT_TRUE(holds(error_of_publish(path_, {.num_servers = 9}), "has a dataplane already"));
  EXPECT_FALSE(publisher_->agent_lives());
  auto agent = reader_at(path_, Reader::As::kAgent);
  EXPECT_TRUE(publisher_->agent_lives());
  EXPECT_TRUE(holds(error_of_open(path_, Reader::As::kAgent), "has an agent already"));
  EXPECT_EQ(error_of_open(path_), "opened");
  agent.reset();
  EXPECT_FALSE(publisher_->agent_lives());
}

TEST_F(ShmFile, OfAPredecessorIsTakenOverIfItFits) {
  auto reader = reader_at(path_);
  const ino_t before = inode();
  publisher_.reset();
  publisher_ = publisher_at(path_, {.num_servers = 4, .reservoir_size = 8});
  EXPECT_EQ(inode(), before);
  EXPECT_TRUE(reader->is_current());
  EXPECT_EQ(reader->latest(), 1u);
}

TEST_F(ShmFile, OfAPredecessorIsReplacedIfItDoesNot) {
  const std::function<void()> spoil[] = {
      [] {},
      [&] { change_word(offsetof(steelyard_shm_header, abi), 77); },
      [&] { ASSERT_EQ(truncate(path_.c_str(), 512), 0); },
  };
  for (size_t k = 0; k < 3; ++k) {
    auto reader = reader_at(path_);
    publisher_.reset();
    spoil[k]();
    const int servers = k == 0 ? 5 : 4 + static_cast<int>(k % 2);
    publisher_ = publisher_at(path_, {.num_servers = servers, .reservoir_size = 8});
    EXPECT_FALSE(reader->is_current());
    EXPECT_EQ(reader_at(path_)->layout().num_servers, static_cast<uint64_t>(servers));
    EXPECT_EQ(reader_at(path_)->latest(), 0u);
  }
}

TEST_F(ShmFile, ThatIsNotOursIsLeftAlone) {
  const TestPath foreign;
  std::ofstream(std::string(foreign)) << "somebody's letters";
  chmod(foreign.c_str(), 0600);
  EXPECT_TRUE(holds(error_of_publish(foreign, {.num_servers = 4}), "left as it is"));
  std::string text;
  std::getline(std::ifstream(std::string(foreign)), text);
  EXPECT_EQ(text, "somebody's letters");
}

// A process that is killed gives its place back, whatever it was doing.
TEST_F(ShmFile, AKilledDataplaneIsSucceeded) {
  publisher_.reset();
  auto reader = [&]() -> std::unique_ptr<Reader> { return nullptr; }();
  uint64_t last = 0;
  for (int k = 0; k < 20; ++k) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string error;
      auto publisher = Publisher::open(path_, {.num_servers = 4, .reservoir_size = 8}, &error);
      const std::vector<ServerCounters> counters(4);
      for (core::TimeNs now = 1; publisher != nullptr; ++now) {
        publisher->publish(balancer_, counters, now);
        if (now == 3 && write(ready[1], "r", 1) != 1) _exit(1);
      }
      _exit(1);
    }
    char byte;
    close(ready[1]);
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    close(ready[0]);
    if (!reader) reader = reader_at(path_);
    EXPECT_TRUE(reader->writer_lives());
    EXPECT_EQ(reader->header().writer_pid, static_cast<uint64_t>(child));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_FALSE(reader->writer_lives());
    const Snapshot snapshot = snapshot_of(*reader);
    EXPECT_GT(snapshot.head().publication, last) << "the last whole publication stays readable";
    EXPECT_EQ(snapshot.head().num_active, 4u);
    last = snapshot.head().publication;
  }
  EXPECT_EQ(reader->header().writer_generation, 21u);
}

}  // namespace
}  // namespace steelyard::shm
