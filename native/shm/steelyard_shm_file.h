/* Opening the files of steelyard_shm.h on Linux: creation, taking over from a predecessor, checks, locks that
 * the kernel gives back when a process dies. For C11 and C++20; C needs -D_GNU_SOURCE.
 *
 * Two bytes of the file are lock bytes (open-file-description locks): the dataplane holds the first, the
 * agent the second, as long as they live. So there is one of each, and anybody can ask whether it lives.
 */
#ifndef STEELYARD_SHM_FILE_H
#define STEELYARD_SHM_FILE_H

#ifndef _GNU_SOURCE
#error "compile with -D_GNU_SOURCE"
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "native/shm/steelyard_shm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STEELYARD_SHM_ERROR_SIZE 512

enum {
  STEELYARD_SHM_READ = 0, /* maps read-only */
  STEELYARD_SHM_AGENT = 1 /* may write actions; one at a time */
};

typedef struct {
  int fd; /* -1: not open */
  void* map;
  steelyard_shm_layout layout;
  char path[256];
  char error[STEELYARD_SHM_ERROR_SIZE]; /* of the last call that failed, one line */
} steelyard_shm_file;

typedef struct {
  uint64_t num_servers, reservoir_size, schema_hash, clock_id;
} steelyard_shm_spec;

static inline steelyard_shm_header* steelyard_shm_header_of(const steelyard_shm_file* file) {
  return (steelyard_shm_header*)file->map;
}

/* Nanoseconds on a clock that clock_gettime knows. */
static inline uint64_t steelyard_shm_now_ns(uint64_t clock_id) {
  struct timespec now;
  if (clock_gettime((clockid_t)clock_id, &now) != 0) return 0;
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* When a process started, after boot: with its pid, its identity. 0: there is none. */
static inline uint64_t steelyard_shm_process_start_ns(uint64_t pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = strrchr(text, ')'); /* the name may hold anything; field 2 ends here, field 22 is wanted */
  for (int field = 2; at != NULL && field < 22; ++field) at = strchr(at + 1, ' ');
  if (at == NULL) return 0;
  return strtoull(at, NULL, 10) * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

static inline int steelyard_shm_lock(int fd, int byte, int command) {
  struct flock lock;
  memset(&lock, 0, sizeof lock);
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  if (fcntl(fd, command, &lock) != 0) return -1;
  return lock.l_type != F_UNLCK; /* of F_OFD_GETLK: whether another holds it */
}
/* 1 while a dataplane (an agent) has the file open as such; not of one's own handle. */
static inline int steelyard_shm_writer_lives(const steelyard_shm_file* file) {
  return steelyard_shm_lock(file->fd, 0, F_OFD_GETLK) == 1;
}
static inline int steelyard_shm_agent_lives(const steelyard_shm_file* file) {
  return steelyard_shm_lock(file->fd, 1, F_OFD_GETLK) == 1;
}

static inline void steelyard_shm_close(steelyard_shm_file* file) {
  if (file->map != NULL) munmap(file->map, file->layout.file_size);
  if (file->fd >= 0) close(file->fd);
  file->map = NULL;
  file->fd = -1;
}

/* -1, after it has closed the file and noted "PATH: what, its reason". */
static inline int steelyard_shm_fail(steelyard_shm_file* file, const char* what, const char* reason) {
  snprintf(file->error, sizeof file->error, "%s: %s%s", file->path, what, reason);
  steelyard_shm_close(file);
  errno = 0;
  return -1;
}
static inline int steelyard_shm_fail_number(steelyard_shm_file* file, const char* what, uint64_t found,
                                            const char* but, uint64_t wanted) {
  char text[200];
  snprintf(text, sizeof text, "%s %llu%s %llu", what, (unsigned long long)found, but,
           (unsigned long long)wanted);
  return steelyard_shm_fail(file, text, "");
}

/* Opens the path and checks that nobody else can write there. 0 or -1 (errno ENOENT: there is none). */
static inline int steelyard_shm_open_private(steelyard_shm_file* file, int flags, struct stat* found) {
  file->fd = open(file->path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file->fd < 0 || fstat(file->fd, found) != 0) {
    const int why = errno;
    steelyard_shm_fail(file, "cannot open: ", strerror(why));
    errno = why;
    return -1;
  }
  if (!S_ISREG(found->st_mode)) return steelyard_shm_fail(file, "not a regular file", "");
  if (found->st_uid != geteuid()) return steelyard_shm_fail(file, "belongs to another user", "");
  if ((found->st_mode & 077) != 0)
    return steelyard_shm_fail(file, "others may read or write it; its mode must be 0600", "");
  return 0;
}

/* Whether the header is one of ours and agrees with itself and with the size of the file. A mapping starts on
 * a page, so offsets that equal the computed ones are aligned. */
static inline int steelyard_shm_check_header(steelyard_shm_file* file, const steelyard_shm_header* header,
                                             uint64_t size) {
  if (size < sizeof *header || header->magic != STEELYARD_SHM_MAGIC)
    return steelyard_shm_fail(file, "not a shared-memory file of steelyard", "");
  if (header->abi != STEELYARD_SHM_ABI)
    return steelyard_shm_fail_number(file, "has ABI", header->abi, "; this build has", STEELYARD_SHM_ABI);
  if (header->frames != STEELYARD_SHM_FRAMES ||
      steelyard_shm_lay_out(header->num_servers, header->reservoir_size, &file->layout) != 0)
    return steelyard_shm_fail(file, "corrupt header: sizes out of range", "");
  const steelyard_shm_layout* layout = &file->layout;
  if (header->file_size != layout->file_size || header->state_offset != layout->state_offset ||
      header->state_stride != 8 * layout->state_words || header->action_offset != layout->action_offset ||
      header->action_stride != 8 * layout->action_words)
    return steelyard_shm_fail(file, "corrupt header: offsets that do not follow from its sizes", "");
  if (size != layout->file_size)
    return steelyard_shm_fail_number(file, "has", size, " bytes; by its header it has", layout->file_size);
  return 0;
}

static inline int steelyard_shm_map(steelyard_shm_file* file, uint64_t size, int protection) {
  steelyard_shm_header header;
  memset(&header, 0, sizeof header);
  if (pread(file->fd, &header, sizeof header, 0) < 0)
    return steelyard_shm_fail(file, "cannot read: ", strerror(errno));
  if (steelyard_shm_check_header(file, &header, size) != 0) return -1;
  file->map = mmap(NULL, size, protection, MAP_SHARED, file->fd, 0);
  if (file->map != MAP_FAILED) return 0;
  file->map = NULL;
  return steelyard_shm_fail(file, "cannot map: ", strerror(errno));
}

static inline int steelyard_shm_name(steelyard_shm_file* file, const char* path) {
  memset(file, 0, sizeof *file);
  file->fd = -1;
  if ((size_t)snprintf(file->path, sizeof file->path, "%s", path) < sizeof file->path) return 0;
  return steelyard_shm_fail(file, "too long a path", "");
}

/* Whether the path still names this file, and it is in use. */
static inline int steelyard_shm_is_current(const steelyard_shm_file* file) {
  struct stat named, mine;
  return stat(file->path, &named) == 0 && fstat(file->fd, &mine) == 0 && named.st_ino == mine.st_ino &&
         named.st_dev == mine.st_dev && steelyard_shm_load(&steelyard_shm_header_of(file)->retired) == 0;
}

/* Opens a file that a dataplane has made. schema_hash: the observation that the caller computes; 0: any. 0,
 * or -1 with file->error. A file whose dataplane does not live is refused: the next one may want another
 * layout. */
static inline int steelyard_shm_open(steelyard_shm_file* file, const char* path, int as,
                                     uint64_t schema_hash) {
  struct stat found;
  if (steelyard_shm_name(file, path) != 0) return -1;
  const int agent = as == STEELYARD_SHM_AGENT;
  if (steelyard_shm_open_private(file, agent ? O_RDWR : O_RDONLY, &found) != 0) return -1;
  if (steelyard_shm_map(file, (uint64_t)found.st_size, PROT_READ | (agent ? PROT_WRITE : 0)) != 0) return -1;
  steelyard_shm_header* header = steelyard_shm_header_of(file);
  if (schema_hash != 0 && header->schema_hash != schema_hash)
    return steelyard_shm_fail(file, "holds another observation schema than this build computes", "");
  if (!steelyard_shm_writer_lives(file) || !steelyard_shm_is_current(file)) {
    char text[64];
    snprintf(text, sizeof text, "stale: its dataplane (process %llu) is gone",
             (unsigned long long)steelyard_shm_load(&header->writer_pid));
    return steelyard_shm_fail(file, text, "");
  }
  if (!agent) return 0;
  if (steelyard_shm_lock(file->fd, 1, F_OFD_SETLK) < 0)
    return steelyard_shm_fail_number(file, "has an agent already: process", header->agent_pid, ", not",
                                     (uint64_t)getpid());
  steelyard_shm_store(&header->agent_pid, (uint64_t)getpid());
  steelyard_shm_store(&header->agent_start_ns, steelyard_shm_process_start_ns((uint64_t)getpid()));
  steelyard_shm_store(&header->agent_generation, header->agent_generation + 1);
  return 0;
}

/* ---- the dataplane's side ---- */
/* An anonymous file gets its name when it is complete, so nobody ever sees a part of one. */
static inline int steelyard_shm_make(steelyard_shm_file* file, const steelyard_shm_spec* spec) {
  char folder[sizeof file->path], name[64];
  snprintf(folder, sizeof folder, "%s", file->path);
  char* slash = strrchr(folder, '/');
  snprintf(slash == NULL ? folder : slash + 1, 2, "%s", slash == NULL ? "." : "");
  file->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file->fd < 0) return steelyard_shm_fail(file, "cannot create: ", strerror(errno));
  const int full = posix_fallocate(file->fd, 0, (off_t)file->layout.file_size); /* not SIGBUS later on */
  if (full != 0) return steelyard_shm_fail(file, "cannot create: ", strerror(full));
  steelyard_shm_header header;
  memset(&header, 0, sizeof header);
  header.magic = STEELYARD_SHM_MAGIC;
  header.abi = STEELYARD_SHM_ABI;
  header.schema_hash = spec->schema_hash;
  header.file_size = file->layout.file_size;
  header.num_servers = spec->num_servers;
  header.reservoir_size = spec->reservoir_size;
  header.clock_id = spec->clock_id;
  header.frames = STEELYARD_SHM_FRAMES;
  header.state_offset = file->layout.state_offset;
  header.state_stride = 8 * file->layout.state_words;
  header.action_offset = file->layout.action_offset;
  header.action_stride = 8 * file->layout.action_words;
  if (fchmod(file->fd, 0600) != 0 || pwrite(file->fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
      steelyard_shm_lock(file->fd, 0, F_OFD_SETLK) < 0)
    return steelyard_shm_fail(file, "cannot create: ", strerror(errno));
  snprintf(name, sizeof name, "/proc/self/fd/%d", file->fd);
  if (linkat(AT_FDCWD, name, AT_FDCWD, file->path, AT_SYMLINK_FOLLOW) != 0) {
    const int why = errno;
    steelyard_shm_fail(file, "cannot create: ", strerror(why));
    errno = why; /* EEXIST: another dataplane was faster */
    return -1;
  }
  return 0;
}

/* One try to take over what lies at the path: 0 taken over, 1 nothing is there any more, -1 refused. */
static inline int steelyard_shm_take_over(steelyard_shm_file* file, const steelyard_shm_spec* spec) {
  const steelyard_shm_layout wanted = file->layout;
  struct stat found;
  if (steelyard_shm_open_private(file, O_RDWR, &found) != 0) return errno == ENOENT ? 1 : -1;
  steelyard_shm_header header;
  memset(&header, 0, sizeof header);
  if (pread(file->fd, &header, sizeof header, 0) < 0 || header.magic != STEELYARD_SHM_MAGIC)
    return steelyard_shm_fail(file, "not a shared-memory file of steelyard; it is left as it is", "");
  if (steelyard_shm_lock(file->fd, 0, F_OFD_SETLK) < 0)
    return steelyard_shm_fail_number(file, "has a dataplane already: process", header.writer_pid, ", not",
                                     (uint64_t)getpid());
  struct stat named;
  const int moved = stat(file->path, &named) != 0 || named.st_ino != found.st_ino;
  const int same = (uint64_t)found.st_size == wanted.file_size && header.abi == STEELYARD_SHM_ABI &&
                   header.num_servers == spec->num_servers && header.reservoir_size == spec->reservoir_size &&
                   header.schema_hash == spec->schema_hash && header.clock_id == spec->clock_id &&
                   header.retired == 0;
  if (!moved && same) return steelyard_shm_map(file, wanted.file_size, PROT_READ | PROT_WRITE);
  if (!moved) {
    header.retired =
        header.abi == STEELYARD_SHM_ABI; /* tells those who have it mapped to open the path again */
    const off_t at = (off_t)offsetof(steelyard_shm_header, retired);
    if (pwrite(file->fd, &header.retired, sizeof header.retired, at) < 0 || unlink(file->path) != 0)
      return steelyard_shm_fail(file, "cannot replace: ", strerror(errno));
  }
  steelyard_shm_close(file);
  file->layout = wanted;
  return 1;
}

/* The dataplane's start: goes on with the file of its predecessor if it has the same layout, with the
 * messages of both directions; replaces one of another layout; makes one where there is none. Never touches a
 * file that is not of steelyard, nor one whose dataplane lives. 0, or -1 with file->error. */
static inline int steelyard_shm_create(steelyard_shm_file* file, const char* path,
                                       const steelyard_shm_spec* spec) {
  if (steelyard_shm_name(file, path) != 0) return -1;
  if (steelyard_shm_lay_out(spec->num_servers, spec->reservoir_size, &file->layout) != 0)
    return steelyard_shm_fail(file, "number of servers or size of reservoirs out of range", "");
  for (int tries = 0; tries < 100; ++tries) {
    int done = steelyard_shm_take_over(file, spec);
    if (done < 0) return -1;
    if (done > 0) {
      steelyard_shm_lay_out(spec->num_servers, spec->reservoir_size, &file->layout);
      if (steelyard_shm_make(file, spec) != 0) {
        if (errno == EEXIST) continue;
        return -1;
      }
      if (steelyard_shm_map(file, file->layout.file_size, PROT_READ | PROT_WRITE) != 0) return -1;
    }
    steelyard_shm_header* header = steelyard_shm_header_of(file);
    steelyard_shm_store(&header->writer_pid, (uint64_t)getpid());
    steelyard_shm_store(&header->writer_start_ns, steelyard_shm_process_start_ns((uint64_t)getpid()));
    steelyard_shm_store(&header->writer_generation, header->writer_generation + 1);
    return 0;
  }
  return steelyard_shm_fail(file, "other processes keep creating it", "");
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
