/* A stand-in for the CANN runtime that torch_npu links against: device memory is host memory, nothing computes.
 *
 * Copies between host and device are really asynchronous (one worker, first in first out, with a delay that
 * STUB_CANN_COPY_DELAY_US sets): whoever reads before synchronising reads old bytes. Operators and collectives are in
 * operators.c, calls that need no answer in accepted.c. Signatures follow the interface that torch_npu ships in
 * include/third_party/{acl,hccl}; no header is needed.
 *
 * Environment: STUB_CANN_SOC (default Ascend910B1), STUB_CANN_VERSION (8.5.0), STUB_CANN_DEVICES (1),
 * STUB_CANN_COPY_DELAY_US (0).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, NO_MEMORY = 207001, UNSUPPORTED = 500002 };
typedef void *Handle;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

/* ---- the device ------------------------------------------------------------------------------------------------ */

/* A context is the device's number plus one page, so that it is never null. */
static const uintptr_t FIRST_CONTEXT = 4096;
static __thread int32_t current_device = 0;

API int aclInit(const char *path) { return OK; }
API const char *aclGetRecentErrMsg(void) { return "stub CANN: this call is not implemented"; }
API void aclAppLog(int level, const char *function, const char *file, uint32_t line, const char *format, ...) {}
API const char *aclrtGetSocName(void) { return setting("STUB_CANN_SOC", "Ascend910B1"); }
API int aclrtGetDeviceCount(uint32_t *count) { *count = atoi(setting("STUB_CANN_DEVICES", "1")); return OK; }
API int aclrtGetDevice(int32_t *device) { *device = current_device; return OK; }
API int aclrtSetDevice(int32_t device) { current_device = device; return OK; }
API int aclrtGetCurrentContext(Handle *context) { *context = (Handle)(FIRST_CONTEXT + current_device); return OK; }
API int aclrtSetCurrentContext(Handle context) {
    current_device = (int32_t)((uintptr_t)context - FIRST_CONTEXT);
    return OK;
}
API int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    if (flags) *flags = 0;
    *active = 1;
    return OK;
}
API int aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) { *can = 1; return OK; }
API int aclrtDeviceGetBareTgid(int32_t *process) { *process = getpid(); return OK; }
/* Core counts and cache as a 910B1 has them: 0 AI cores, 1 vector cores, 2 level-two cache. */
API int aclGetDeviceCapability(uint32_t device, int info, int64_t *value) {
    *value = info == 0 ? 24 : info == 1 ? 48 : (int64_t)192 << 20;
    return OK;
}
API int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) { *value = 24; return OK; }
API int aclsysGetVersionStr(char *package, char *version) {
    strcpy(version, setting("STUB_CANN_VERSION", "8.5.0"));
    return OK;
}
typedef struct {
    char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
} PackageVersion;
API int aclsysGetCANNVersion(int package, PackageVersion *version) {
    memset(version, 0, sizeof *version);
    strcpy(version->version, setting("STUB_CANN_VERSION", "8.5.0"));
    return OK;
}
API int aclGetCannAttributeList(const int **list, size_t *count) {
    static const int attributes[] = {0, 1, 2};
    *list = attributes;
    *count = 3;
    return OK;
}
API int aclGetCannAttribute(int attribute, int32_t *value) { *value = 1; return OK; }
API int aclrtGetSysParamOpt(int option, int64_t *value) { *value = 0; return OK; }
API int aclrtGetStreamOverflowSwitch(Handle stream, uint32_t *flag) { *flag = 0; return OK; }
API size_t aclGetCompileoptSize(int option) { return 16; }
API int aclGetCompileopt(int option, char *value, size_t length) { memset(value, 0, length); return OK; }
API uint64_t MsprofGetHashId(const char *text, size_t length) { return 0; }
API uint64_t MsprofSysCycleTime(void) { return 0; }

/* ---- the queue of copies ---------------------------------------------------------------------------------------- */

typedef struct Copy {
    void *target;
    const void *source;
    size_t size;
    struct Copy *next;
} Copy;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Copy *first, *last;
static uint64_t num_queued, num_done;
static int has_worker, is_held;

static void *work(void *unused) {
    useconds_t delay = atoi(setting("STUB_CANN_COPY_DELAY_US", "0"));
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first || is_held) pthread_cond_wait(&changed, &lock);
        Copy *copy = first;
        pthread_mutex_unlock(&lock);
        if (delay) usleep(delay);
        memmove(copy->target, copy->source, copy->size);
        pthread_mutex_lock(&lock);
        first = copy->next;
        if (!first) last = NULL;
        free(copy);
        num_done++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static void wait_for(uint64_t number) {
    pthread_mutex_lock(&lock);
    while (num_done < number) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static uint64_t count_queued(void) {
    pthread_mutex_lock(&lock);
    uint64_t number = num_queued;
    pthread_mutex_unlock(&lock);
    return number;
}

static int is_done(uint64_t number) {
    pthread_mutex_lock(&lock);
    int done = num_done >= number;
    pthread_mutex_unlock(&lock);
    return done;
}

static int drain(void) { wait_for(count_queued()); return OK; }

/* Let no copy happen (1) until it may again (0): a test then sees what a late copy leaves behind. */
API void stub_hold_copies(int held) {
    pthread_mutex_lock(&lock);
    is_held = held;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

API int aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t size, int kind, Handle stream) {
    Copy *copy = malloc(sizeof *copy);
    if (!copy) return NO_MEMORY;
    *copy = (Copy){target, source, size, NULL};
    pthread_mutex_lock(&lock);
    if (!has_worker) {
        pthread_t worker;
        if (pthread_create(&worker, NULL, work, NULL)) {
            pthread_mutex_unlock(&lock);
            free(copy);
            return NO_MEMORY;
        }
        pthread_detach(worker);
        has_worker = 1;
    }
    if (last) last->next = copy; else first = copy;
    last = copy;
    num_queued++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return OK;
}
API int aclrtMemcpy(void *target, size_t room, const void *source, size_t size, int kind) {
    drain();
    memmove(target, source, size);
    return OK;
}
API int aclrtMemset(void *target, size_t room, int32_t value, size_t size) {
    drain();
    memset(target, value, size);
    return OK;
}
API int aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t size, Handle stream) {
    return aclrtMemset(target, room, value, size);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static const size_t TOTAL = (size_t)8 << 30;
static size_t num_used;
/* A block's size stands in front of it; the distance keeps CANN's alignment of 512 bytes. */
enum { HEADER = 512 };

static int allocate(void **address, size_t size) {
    void *block;
    if (posix_memalign(&block, HEADER, size + HEADER)) return NO_MEMORY;
    *(size_t *)block = size;
    __atomic_add_fetch(&num_used, size, __ATOMIC_RELAXED);
    *address = (char *)block + HEADER;
    return OK;
}
static int release(void *address) {
    if (!address) return OK;
    drain();
    void *block = (char *)address - HEADER;
    __atomic_sub_fetch(&num_used, *(size_t *)block, __ATOMIC_RELAXED);
    free(block);
    return OK;
}
API int aclrtMalloc(void **address, size_t size, int policy) { return allocate(address, size); }
API int aclrtMallocAlign32(void **address, size_t size, int policy) { return allocate(address, size); }
API int aclrtMallocHost(void **address, size_t size) { return allocate(address, size); }
API int aclrtMallocHostWithCfg(void **address, uint64_t size, void *options) { return allocate(address, size); }
API int aclrtFree(void *address) { return release(address); }
API int aclrtFreeHost(void *address) { return release(address); }
API int aclrtGetMemInfo(int attribute, size_t *unused, size_t *total) {
    *total = TOTAL;
    *unused = TOTAL - __atomic_load_n(&num_used, __ATOMIC_RELAXED);
    return OK;
}
API int aclrtGetMemUsageInfo(int32_t device, void *info, size_t room, size_t *count) { *count = 0; return OK; }
API int aclrtPointerGetAttributes(const void *address, void *attributes) { return UNSUPPORTED; }
/* Virtual addresses are reserved without memory; the system backs a page at its first use. */
API int aclrtReserveMemAddress(void **address, size_t size, size_t alignment, void *wanted, uint64_t flags) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return NO_MEMORY;
    *address = found;
    return OK;
}
API int aclrtMallocPhysical(Handle *handle, size_t size, const void *properties, uint64_t flags) {
    return allocate(handle, 1);
}
API int aclrtFreePhysical(Handle handle) { return release(handle); }

/* ---- streams and events ----------------------------------------------------------------------------------------- */

static uintptr_t next_handle = 4096;
static Handle make_handle(void) { return (Handle)__atomic_add_fetch(&next_handle, 16, __ATOMIC_RELAXED); }

API int aclrtCreateStream(Handle *stream) { *stream = make_handle(); return OK; }
API int aclrtCreateStreamWithConfig(Handle *stream, uint32_t priority, uint32_t flags) {
    *stream = make_handle();
    return OK;
}
API int aclrtStreamQuery(Handle stream, int *status) { *status = is_done(count_queued()) ? 0 : 1; return OK; }
API int aclrtStreamGetId(Handle stream, int32_t *number) { *number = (int32_t)(uintptr_t)stream; return OK; }
API int aclrtSynchronizeStream(Handle stream) { return drain(); }
API int aclrtSynchronizeStreamWithTimeout(Handle stream, int32_t timeout) { return drain(); }
API int aclrtSynchronizeDevice(void) { return drain(); }
API int aclrtSynchronizeDeviceWithTimeout(int32_t timeout) { return drain(); }

/* An event has happened when the copies queued before it are done. */
typedef struct {
    uint64_t after;
    struct timespec moment;
} Event;

static int make_event(Event **event) { return (*event = calloc(1, sizeof(Event))) ? OK : NO_MEMORY; }
API int aclrtCreateEvent(Event **event) { return make_event(event); }
API int aclrtCreateEventWithFlag(Event **event, uint32_t flags) { return make_event(event); }
API int aclrtCreateEventExWithFlag(Event **event, uint32_t flags) { return make_event(event); }
API int aclrtDestroyEvent(Event *event) { free(event); return OK; }
API int aclrtRecordEvent(Event *event, Handle stream) {
    event->after = count_queued();
    clock_gettime(CLOCK_MONOTONIC, &event->moment);
    return OK;
}
API int aclrtSynchronizeEvent(Event *event) { wait_for(event->after); return OK; }
API int aclrtQueryEventStatus(Event *event, int *status) { *status = is_done(event->after); return OK; }
API int aclrtQueryEventWaitStatus(Event *event, int *status) { *status = 0; return OK; }
API int aclrtEventGetTimestamp(Event *event, uint64_t *microseconds) {
    *microseconds = event->moment.tv_sec * 1000000ull + event->moment.tv_nsec / 1000;
    return OK;
}
API int aclrtEventElapsedTime(float *milliseconds, Event *start, Event *end) {
    *milliseconds = (end->moment.tv_sec - start->moment.tv_sec) * 1e3f +
                    (end->moment.tv_nsec - start->moment.tv_nsec) / 1e6f;
    return OK;
}
API int aclrtProcessReport(int32_t timeout) { usleep(1000); return OK; }
API int aclrtLaunchCallback(void (*call)(void *), void *data, int blocks, Handle stream) {
    drain();
    call(data);
    return OK;
}
API int aclrtLaunchHostFunc(Handle stream, void (*call)(void *), void *data) {
    drain();
    call(data);
    return OK;
}
