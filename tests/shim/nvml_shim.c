/* A libnvidia-ml.so.1 without a GPU: answers from the folder that SLOTPROXY_SHIM_CARD names, read at each call.
 *
 * The folder's format is that of engines/simvram.py; beside it, one line each: `uuid`, `name`, `driver`.
 * drawing/N is as foreign/N, of a desktop: it draws and computes nothing. errors/CALL and delays/CALL are honoured for
 * init, handle, memory, memory_v2 (before memory), processes, graphics, process_bytes (an error there: each process's
 * bytes are "not available"), name, uuid, driver.
 * One card, index 0. No folder named: as if the library were missing (12). Threads: as safe as its callers are.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, NO_LIBRARY = 12 };
enum { VERSION_MISMATCH = 25 };
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { u64 bytes; unsigned pid; } Use;
#define MAX_USES 256
#define MEMORY_V2 (sizeof(Memory2) | 2u << 24)

static int users;    /* nvmlInit calls without their nvmlShutdown, as the real library counts them */
static char card[1]; /* its address is the one device's handle */

/* The text of a file of the card's folder without its line end; returns its length, -1 where there is none. */
static long slurp(const char *name, char *text, size_t size) {
    char path[4096];
    const char *folder = getenv("SLOTPROXY_SHIM_CARD");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", name);
    FILE *file = folder ? fopen(path, "re") : NULL;
    if (!file) return -1;
    size_t length = fread(text, 1, size - 1, file);
    fclose(file);
    while (length && text[length - 1] == '\n') length--;
    text[length] = 0;
    return (long)length;
}

static u64 number(const char *name, u64 otherwise) {
    char text[64];
    return slurp(name, text, sizeof text) > 0 ? strtoull(text, NULL, 10) : otherwise;
}

/* What stands in the way of `call`: waits out delays/CALL, then returns errors/CALL. */
static int obstacle(const char *call) {
    char name[128], text[64];
    snprintf(name, sizeof name, "delays/%s", call);
    if (slurp(name, text, sizeof text) > 0) {
        double seconds = strtod(text, NULL);
        struct timespec wait = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&wait, NULL);
    }
    snprintf(name, sizeof name, "errors/%s", call);
    return (int)number(name, SUCCESS);
}

static int begin(const char *call) {
    if (!getenv("SLOTPROXY_SHIM_CARD")) return NO_LIBRARY;
    return users ? obstacle(call) : UNINITIALIZED;
}

/* An allocation counts while its lock is held, or while its file is younger than its LINGER (then pid 0). */
static int allocation(const char *path, Use *use) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[128] = "";
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat facts;
    struct timespec now;
    double linger = 0;
    int whole = read(fd, text, sizeof text - 1) > 0 && fcntl(fd, F_GETLK, &lock) == 0 && fstat(fd, &facts) == 0;
    close(fd);
    if (!whole || sscanf(text, "%llu %lf", &use->bytes, &linger) < 1) return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)(now.tv_sec - facts.st_mtim.tv_sec) + (double)(now.tv_nsec - facts.st_mtim.tv_nsec) / 1e9;
    use->pid = lock.l_type == F_UNLCK ? 0 : (unsigned)lock.l_pid;
    return use->pid || age < linger;
}

static int foreign(const char *path, Use *use) {
    FILE *file = fopen(path, "re");
    int found = file && fscanf(file, "%llu %u", &use->bytes, &use->pid) == 2;
    if (file) fclose(file);
    return found;
}

static int collect(const char *kind, int (*read_one)(const char *, Use *), Use *uses, int count) {
    char folder[4096], path[8192];
    snprintf(folder, sizeof folder, "%s/%s", getenv("SLOTPROXY_SHIM_CARD"), kind);
    DIR *entries = opendir(folder);
    struct dirent *entry;
    while (entries && count < MAX_USES && (entry = readdir(entries))) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.' && read_one(path, &uses[count])) count++;
    }
    if (entries) closedir(entries);
    return count;
}

static int uses_now(Use *uses) {
    int count = collect("foreign", foreign, uses, collect("allocations", allocation, uses, 0));
    return collect("drawing", foreign, uses, count);
}

static int text_answer(const char *call, const char *otherwise, char *text, unsigned size) {
    int code = begin(call);
    if (code) return code;
    if (slurp(call, text, size) <= 0) snprintf(text, size, "%s", otherwise);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = getenv("SLOTPROXY_SHIM_CARD") ? obstacle("init") : NO_LIBRARY;
    users += code == SUCCESS;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return users ? (users--, SUCCESS) : UNINITIALIZED; }

const char *nvmlErrorString(int code) { return code ? "an error of the simulated card" : "Success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { return text_answer("driver", "570.00", text, size); }

int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    (void)device;
    return text_answer("name", "Shim GPU", text, size);
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    (void)device;
    return text_answer("uuid", "GPU-00000000-0000-4000-8000-000000000000", text, size);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return begin("count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = card;
    int code = begin("handle");
    return code ? code : index ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *wanted, void **device) {
    char uuid[96];
    *device = card;
    int code = begin("handle");
    if (!code) code = nvmlDeviceGetUUID(card, uuid, sizeof uuid);
    return code ? code : strcmp(wanted, uuid) ? NOT_FOUND : SUCCESS;
}

/* v2 tells what the driver reserves apart from what is used; v1 counts it as used. */
static Memory2 memory_now(void) {
    Use uses[MAX_USES];
    Memory2 now = {MEMORY_V2, number("total", 32ull << 30), number("reserved", 0), 0, number("baseline", 0)};
    for (int i = uses_now(uses); i-- > 0;) now.used += uses[i].bytes;
    u64 taken = now.used + now.reserved;
    now.free = taken < now.total ? now.total - taken : 0;
    return now;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
    (void)device;
    int code = begin("memory_v2");
    if (!code) code = begin("memory");
    if (!code && memory->version != MEMORY_V2) code = VERSION_MISMATCH;
    if (!code) *memory = memory_now();
    return code;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    (void)device;
    int code = begin("memory");
    Memory2 now = memory_now();
    if (!code) *memory = (Memory){now.total, now.free, now.used + now.reserved};
    return code;
}

static int list(const char *call, const Use *uses, int found, unsigned *count, Process *processes) {
    int code = begin(call), unknown = obstacle("process_bytes");
    if (code) return code;
    unsigned room = processes ? *count : 0;
    *count = 0;
    for (int i = 0; i < found; i++) {
        if (!uses[i].pid) continue; /* memory that nobody holds any more has no process */
        if (*count < room) processes[*count] = (Process){uses[i].pid, unknown ? ~0ull : uses[i].bytes, ~0u, ~0u};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    (void)device;
    Use uses[MAX_USES];
    int found = collect("foreign", foreign, uses, collect("allocations", allocation, uses, 0));
    return list("processes", uses, found, count, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
    (void)device;
    Use uses[MAX_USES];
    return list("graphics", uses, collect("drawing", foreign, uses, 0), count, processes);
}
