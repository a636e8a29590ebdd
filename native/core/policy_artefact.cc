#include "native/core/policy_artefact.h"

#include <elf.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace steelyard::core {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

bool within(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

// The dynamic loader maps what the headers name; a part beyond the end of a truncated file would end the
// process with SIGBUS. So all that is to be mapped, and the section table at the end, must lie within the
// file.
std::string check_elf(const std::vector<uint8_t>& bytes) {
  const std::string truncated = "truncated shared object";
  Elf64_Ehdr header;
  if (bytes.size() < sizeof header) return truncated;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_type != ET_DYN) {
    return "not a 64-bit little-endian shared object";
  }
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return "corrupt shared object: program headers";
  if (!within(header.e_shoff, uint64_t{header.e_shnum} * header.e_shentsize, bytes.size())) return truncated;
  if (!within(header.e_phoff, uint64_t{header.e_phnum} * sizeof(Elf64_Phdr), bytes.size())) return truncated;
  for (uint16_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    std::memcpy(&part, bytes.data() + header.e_phoff + i * sizeof part, sizeof part);
    if (!within(part.p_offset, part.p_filesz, bytes.size())) return truncated;
  }
  return "";
}

}  // namespace

bool read_policy_file(const std::string& path, std::vector<uint8_t>* bytes, std::string* error) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    *error = std::string("cannot open: ") + std::strerror(errno);
    return false;
  }
  uint8_t chunk[1 << 16];
  size_t got;
  while ((got = std::fread(chunk, 1, sizeof chunk, file.get())) > 0) {
    if (bytes->size() + got > kMaxFileBytes) {
      *error = "not a policy file: larger than 1 GiB";
      return false;
    }
    bytes->insert(bytes->end(), chunk, chunk + got);
  }
  if (std::ferror(file.get()) != 0) {
    *error = std::string("cannot read: ") + std::strerror(errno);
    return false;
  }
  return true;
}

bool is_shared_object(const std::vector<uint8_t>& bytes) {
  return bytes.size() >= SELFMAG && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0;
}

Library open_library(const std::string& path, const std::vector<uint8_t>& bytes, std::string* error) {
  *error = check_elf(bytes);
  if (!error->empty()) return nullptr;
  char absolute[PATH_MAX];  // a name without a slash would be searched for elsewhere
  if (realpath(path.c_str(), absolute) == nullptr) {
    *error = std::string("cannot open: ") + std::strerror(errno);
    return nullptr;
  }
  Library library(dlopen(absolute, RTLD_NOW | RTLD_LOCAL));
  if (!library) *error = std::string("cannot load: ") + dlerror();
  return library;
}

}  // namespace steelyard::core
