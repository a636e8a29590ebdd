// Driver for the fuzz targets where libFuzzer is missing: every input of the corpus as it stands, then a
// bounded number of mutated inputs. Mutations depend on the run's index alone, so that a failure repeats.
//   fuzz_x COUNT [FILE|FOLDER]...       fuzz_x -1 FILE   runs one file as it stands
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kMaxBytes = 1 << 16;

// splitmix64 (Steele, Lea, Flood 2014): a counter and a mixer are all the chance a mutator needs.
struct Chance {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t bound) { return bound == 0 ? 0 : static_cast<size_t>(next() % bound); }
};

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

void add_inputs(const std::filesystem::path& path, std::vector<std::filesystem::path>* found) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) found->push_back(entry.path());
    }
  } else if (std::filesystem::is_regular_file(path)) {
    found->push_back(path);
  }
}

// Words that break parsers: extreme integers, NaN and infinity, text numbers and separators.
const std::vector<std::string>& dictionary() {
  static const std::vector<std::string> words = {std::string(4, '\xff'),
                                                 std::string(8, '\0'),
                                                 std::string("\0\0\xc0\x7f", 4),
                                                 std::string("\0\0\x80\x7f", 4),
                                                 std::string("\0\0\0\x80", 4),
                                                 "nan",
                                                 "-inf",
                                                 "1e999",
                                                 "-1",
                                                 "0",
                                                 "99999999999999999999",
                                                 ",",
                                                 "\n",
                                                 "\r\n",
                                                 "\"",
                                                 "=",
                                                 "[",
                                                 "]",
                                                 "#",
                                                 ".",
                                                 "\xef\xbb\xbf",
                                                 "\xc3\x28"};
  return words;
}

void insert(Bytes* bytes, size_t at, const Bytes& piece) {
  bytes->insert(bytes->begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
}

void mutate_once(Bytes* bytes, const Bytes& other, Chance* chance) {
  const size_t at = chance->below(bytes->size() + 1);
  const auto from = bytes->begin() + static_cast<std::ptrdiff_t>(at);
  const size_t room = bytes->size() - at;
  switch (chance->below(8)) {
    case 0:  // one bit
      if (room > 0) (*bytes)[at] ^= static_cast<uint8_t>(1u << chance->below(8));
      break;
    case 1:  // one byte
      if (room > 0) (*bytes)[at] = static_cast<uint8_t>(chance->next());
      break;
    case 2:  // cut a piece out
      bytes->erase(from, from + static_cast<std::ptrdiff_t>(chance->below(room + 1)));
      break;
    case 3:  // cut the end off
      bytes->erase(from, bytes->end());
      break;
    case 4: {  // repeat a piece
      const Bytes piece(from, from + static_cast<std::ptrdiff_t>(chance->below(room + 1)));
      insert(bytes, at, piece);
      break;
    }
    case 5: {  // a word from the dictionary
      const std::string& word = dictionary()[chance->below(dictionary().size())];
      insert(bytes, at, Bytes(word.begin(), word.end()));
      break;
    }
    case 6: {  // a piece of another input
      const size_t start = chance->below(other.size() + 1);
      const size_t count = chance->below(other.size() - start + 1);
      const auto first = other.begin() + static_cast<std::ptrdiff_t>(start);
      insert(bytes, at, Bytes(first, first + static_cast<std::ptrdiff_t>(count)));
      break;
    }
    default:  // overwrite a 32-bit field with a small or extreme value
      for (size_t i = 0; i < 4 && at + i < bytes->size(); ++i) {
        (*bytes)[at + i] =
            i == 0 ? static_cast<uint8_t>(chance->next()) : static_cast<uint8_t>(-(chance->next() & 1));
      }
  }
  if (bytes->size() > kMaxBytes) bytes->resize(kMaxBytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s COUNT [FILE|FOLDER]...\n", argv[0]);
    return 2;
  }
  const long count = std::strtol(argv[1], nullptr, 10);
  std::vector<std::filesystem::path> paths;
  for (int i = 2; i < argc; ++i) add_inputs(argv[i], &paths);
  std::vector<Bytes> corpus;
  for (const auto& path : paths) corpus.push_back(read_file(path));
  if (corpus.empty()) corpus.emplace_back();
  for (const Bytes& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  for (long run = 0; run < count; ++run) {
    Chance chance{static_cast<uint64_t>(run)};
    Bytes input = corpus[chance.below(corpus.size())];
    const Bytes& other = corpus[chance.below(corpus.size())];
    for (size_t i = chance.below(6) + 1; i > 0; --i) mutate_once(&input, other, &chance);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu corpus inputs, %ld mutated inputs\n", corpus.size(), count > 0 ? count : 0);
  return 0;
}
