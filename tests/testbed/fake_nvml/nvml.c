/*
 * A libnvidia-ml.so.1 that reads its GPUs from a text file, for machines without any.
 *
 * The environment variable FAKE_NVML_STATE names the file. It is read again whenever its inode, size or modification
 * time changed, so a test that writes it (atomically, by rename) changes the hardware under a running program.
 *
 * One line per record, fields separated by TAB, each `key=value`:
 *
 *   driver_version=550.54.15
 *   gpu=0 <TAB> result=0 <TAB> uuid=GPU-... <TAB> bus_id=0000:1b:00.0 <TAB> sm_clock_mhz=1980 ...
 *   event=1 <TAB> gpu=0 <TAB> kind=0x8 <TAB> data=79
 *
 * `gpu` is the index; lines come in the order of the index, without gaps. `result` is what every call about this GPU
 * returns: 0 success, 15 GPU is lost, 16 reset required, 999 unknown error. With `hang=1` no call about this GPU, and
 * no waiting for events, ever returns. `event` is a number that counts up; an event is delivered once to every event set that
 * was there before it and has registered its kind (nvmlEventType*) for that GPU. All other keys are optional: a value that
 * is not given is one that the GPU does not support (NVML_ERROR_NOT_SUPPORTED, 3). The keys are those of `NUMBERS`
 * and `TEXTS` below. `#` starts a comment line. A file that breaks these rules makes every call return 999 and says
 * why on stderr, once per version of the file.
 *
 * Error codes, struct layouts and versioned names are those of the NVML API reference. Thread safe. Not for use
 * across fork without exec.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    UNKNOWN = 999,
};

enum { GPUS_MAX = 64, TEXT_MAX = 96, ERRORS_MAX = 2048, FILE_MAX = 1 << 20, EVENTS_MAX = 256, EVENT_SETS_MAX = 64 };

enum {
    FIELD_NVLINK_CRC_FLIT = 38,
    FIELD_NVLINK_REPLAY = 52,
    FIELD_NVLINK_RCV_ERRORS = 208,
    FIELD_NVLINK_SYMBOL_BER = 222,
    FIELD_RECOVERY_ACTION = 230
};

enum { VALUE_TYPE_UNSIGNED_INT = 1, VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };

enum number {
    RESULT,
    TEMPERATURE_CELSIUS,
    POWER_MILLIWATTS,
    SM_CLOCK_MHZ,
    SM_CLOCK_MAX_MHZ,
    MEMORY_CLOCK_MHZ,
    MEMORY_CLOCK_MAX_MHZ,
    CLOCK_EVENT_REASONS,
    UTILIZATION_PERCENT,
    MEMORY_USED_BYTES,
    MEMORY_TOTAL_BYTES,
    ECC_UNCORRECTED,
    ECC_CORRECTED,
    REMAPPED_CORRECTABLE,
    REMAPPED_UNCORRECTABLE,
    REMAPPED_PENDING,
    REMAPPED_FAILED,
    BANKS_LOW,
    BANKS_SPENT,
    RECOVERY_ACTION,
    PCIE_GENERATION,
    PCIE_GENERATION_MAX,
    PCIE_WIDTH,
    PCIE_WIDTH_MAX,
    PCIE_REPLAYS,
    PCI_DEVICE_ID,
    POWER_LIMIT_MILLIWATTS,
    POWER_VIOLATION_NANOSECONDS,
    THERMAL_VIOLATION_NANOSECONDS,
    SRAM_THRESHOLD_EXCEEDED,
    NVLINKS,
    NVLINKS_UP,
    NVLINK_CRC_ERRORS,
    NVLINK_REPLAYS,
    NVLINK_RCV_ERRORS,
    ARCHITECTURE,
    FABRIC_STATE,
    FABRIC_STATUS,
    FABRIC_HEALTH,
    EVENT_KINDS,
    HANG,
    RETIRED_PAGES,
    RETIRED_PAGES_PENDING,
    MIG_MODE,
    NUMBER_COUNT
};

static const char *const NUMBERS[NUMBER_COUNT] = {
    "result", "temperature_celsius", "power_milliwatts", "sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz",
    "memory_clock_max_mhz", "clock_event_reasons", "utilization_percent", "memory_used_bytes", "memory_total_bytes",
    "ecc_uncorrected", "ecc_corrected", "remapped_correctable", "remapped_uncorrectable", "remapped_pending",
    "remapped_failed", "banks_low", "banks_spent", "recovery_action", "pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max",
    "pcie_replays", "pci_device_id", "power_limit_milliwatts", "power_violation_nanoseconds",
    "thermal_violation_nanoseconds", "sram_threshold_exceeded", "nvlinks", "nvlinks_up", "nvlink_crc_errors",
    "nvlink_replays", "nvlink_rcv_errors", "architecture", "fabric_state", "fabric_status", "fabric_health", "event_kinds", "hang",
    "retired_pages", "retired_pages_pending", "mig_mode",
};

enum text { UUID, BUS_ID, SERIAL, NAME, BOARD_PART_NUMBER, VBIOS, TEXT_COUNT };

static const char *const TEXTS[TEXT_COUNT] = {"uuid", "bus_id", "serial", "name", "board_part_number", "vbios"};

struct gpu {
    unsigned char given[NUMBER_COUNT];
    unsigned long long number[NUMBER_COUNT];
    char text[TEXT_COUNT][TEXT_MAX]; /* empty: not given */
    char errors[ERRORS_MAX];
};

struct event {
    unsigned long long number, gpu, kind, data;
};

struct state {
    int result; /* SUCCESS, DRIVER_NOT_LOADED or UNKNOWN */
    unsigned int count;
    char driver_version[TEXT_MAX];
    char errors[ERRORS_MAX]; /* of calls that are about no GPU */
    struct gpu gpus[GPUS_MAX];
    unsigned int event_count;
    struct event events[EVENTS_MAX];
};

struct version {
    int exists;
    ino_t inode;
    off_t size;
    struct timespec modified;
};

/* What a program holds as a device handle; only its address matters. */
struct device {
    unsigned int index;
};

struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

struct utilization {
    unsigned int gpu, memory;
};

struct field_value {
    unsigned int field_id, scope_id;
    long long timestamp, latency_microseconds;
    unsigned int value_type;
    int result;
    union {
        double d;
        unsigned int ui;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int si;
        unsigned short us;
    } value;
};

struct violation_time {
    unsigned long long reference, violation;
};

struct sram_errors {
    unsigned int version;
    unsigned long long counts[11];
    unsigned int threshold_exceeded;
};

struct fabric_info_v2 {
    unsigned int version;
    unsigned char cluster_uuid[16];
    int status;
    unsigned int clique_id;
    unsigned char state;
    unsigned int health_mask;
};

struct event_data {
    struct device *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

struct event_set {
    int used;
    unsigned long long delivered; /* number of the latest event that it delivered, or that was there before it */
    unsigned long long kinds[GPUS_MAX];
};

_Static_assert(sizeof(struct violation_time) == 16, "nvmlViolationTime_t");
_Static_assert(sizeof(struct sram_errors) == 104, "nvmlEccSramErrorStatus_v1_t");
_Static_assert(sizeof(struct fabric_info_v2) == 36, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(struct event_data) == 32, "nvmlEventData_t");
_Static_assert(sizeof(struct pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;
static struct state state;
static struct version seen;
static struct device devices[GPUS_MAX];
static struct event_set event_sets[EVENT_SETS_MAX];

/* ---- reading the file ---------------------------------------------------------------------------------------- */

static void complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fake nvml: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

static int set_field(struct gpu *gpu, const char *key, const char *value) {
    if (strcmp(key, "errors") == 0) {
        if (strlen(value) >= ERRORS_MAX) return 0;
        strcpy(gpu->errors, value);
        return 1;
    }
    for (int i = 0; i < TEXT_COUNT; i++)
        if (strcmp(key, TEXTS[i]) == 0) {
            if (strlen(value) >= TEXT_MAX) return 0;
            strcpy(gpu->text[i], value);
            return 1;
        }
    for (int i = 0; i < NUMBER_COUNT; i++)
        if (strcmp(key, NUMBERS[i]) == 0) {
            char *end;
            errno = 0;
            gpu->number[i] = strtoull(value, &end, 0);
            gpu->given[i] = 1;
            return *value != '\0' && *end == '\0' && errno == 0;
        }
    return 0;
}

static int parse_event(struct state *target, char *line) {
    if (target->event_count == EVENTS_MAX) return 0;
    struct event *event = &target->events[target->event_count++];
    char *rest = NULL;
    for (char *field = strtok_r(line, "\t", &rest); field; field = strtok_r(NULL, "\t", &rest)) {
        char *end, *value = strchr(field, '=');
        if (!value) return 0;
        *value++ = '\0';
        unsigned long long number = strtoull(value, &end, 0);
        if (*value == '\0' || *end != '\0') return 0;
        if (strcmp(field, "event") == 0) event->number = number;
        else if (strcmp(field, "gpu") == 0) event->gpu = number;
        else if (strcmp(field, "kind") == 0) event->kind = number;
        else if (strcmp(field, "data") == 0) event->data = number;
        else return 0;
    }
    return event->number > 0 && event->gpu < GPUS_MAX;
}

/* `line` is cut up in place. Returns 1 when it was understood. */
static int parse_line(struct state *target, char *line) {
    char *rest = NULL;
    struct gpu *gpu = NULL;
    if (strncmp(line, "event=", 6) == 0) return parse_event(target, line);
    for (char *field = strtok_r(line, "\t", &rest); field; field = strtok_r(NULL, "\t", &rest)) {
        char *value = strchr(field, '=');
        if (!value) return 0;
        *value++ = '\0';
        if (!gpu && strcmp(field, "driver_version") == 0) {
            if (strlen(value) >= TEXT_MAX) return 0;
            strcpy(target->driver_version, value);
            return 1;
        }
        if (!gpu && strcmp(field, "errors") == 0) {
            if (strlen(value) >= ERRORS_MAX) return 0;
            strcpy(target->errors, value);
            return 1;
        }
        if (!gpu) {
            if (strcmp(field, "gpu") != 0 || target->count == GPUS_MAX) return 0;
            if (strtoul(value, NULL, 10) != target->count) return 0;
            gpu = &target->gpus[target->count++];
        } else if (!set_field(gpu, field, value)) {
            return 0;
        }
    }
    return gpu != NULL;
}

static void load(const char *path) {
    static char text[FILE_MAX];
    memset(&state, 0, sizeof state);
    FILE *file = fopen(path, "r");
    if (!file) {
        state.result = DRIVER_NOT_LOADED;
        return;
    }
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    char *rest = NULL;
    unsigned int number = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        number++;
        if (line[0] == '#') continue;
        if (!parse_line(&state, line)) {
            complain("%s: record %u is not understood; every call fails until it is corrected", path, number);
            state.result = UNKNOWN;
            return;
        }
    }
}

/* Call with the lock held. Returns the state's result. */
static int refresh(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat status;
    struct version now;
    memset(&now, 0, sizeof now);
    if (path && stat(path, &status) == 0) {
        now.exists = 1;
        now.inode = status.st_ino;
        now.size = status.st_size;
        now.modified = status.st_mtim;
    }
    if (!now.exists) {
        seen = now;
        state.result = DRIVER_NOT_LOADED;
    } else if (memcmp(&now, &seen, sizeof now) != 0) {
        seen = now;
        load(path);
    }
    return state.result;
}

/* ---- answering ----------------------------------------------------------------------------------------------- */

/* The nvmlReturn that `errors` gives for a call or field; SUCCESS: it is not named there. */
static int error_of(const char *errors, const char *call) {
    size_t length = strlen(call);
    for (const char *at = errors; *at; at++) {
        if ((at == errors || at[-1] == ',') && strncmp(at, call, length) == 0 && at[length] == ':')
            return atoi(at + length + 1);
    }
    return SUCCESS;
}

/* Takes the lock; the caller always calls leave(). */
static int enter_call(const char *call) {
    pthread_mutex_lock(&lock);
    int result = refresh();
    if (users == 0) return UNINITIALIZED;
    return result != SUCCESS ? result : error_of(state.errors, call);
}
#define enter() enter_call(__func__)

static int leave(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

/* Call with the lock held. Others go on, as a driver may answer for other GPUs. */
static void hang(void) {
    pthread_mutex_unlock(&lock);
    for (;;) pause();
}

/* Takes the lock; the caller always calls leave(). */
static int enter_gpu_call(const char *call, const struct device *device, const struct gpu **gpu) {
    int result = enter_call(call);
    if (result != SUCCESS) return result;
    if (device < devices || device >= devices + GPUS_MAX) return INVALID_ARGUMENT;
    if ((size_t)(device - devices) >= state.count) return INVALID_ARGUMENT;
    *gpu = &state.gpus[device - devices];
    if ((*gpu)->number[HANG]) hang();
    result = (int)(*gpu)->number[RESULT];
    return result != SUCCESS ? result : error_of((*gpu)->errors, call);
}
#define enter_gpu(device, gpu) enter_gpu_call(__func__, device, gpu)

static int read_number_call(const char *call, const struct device *device, enum number which, unsigned int *value) {
    const struct gpu *gpu;
    int result = enter_gpu_call(call, device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!value) return leave(INVALID_ARGUMENT);
    if (!gpu->given[which]) return leave(NOT_SUPPORTED);
    *value = (unsigned int)gpu->number[which];
    return leave(SUCCESS);
}

#define read_number(device, which, value) read_number_call(__func__, device, which, value)

static int read_long_call(const char *call, const struct device *device, enum number which,
                          unsigned long long *value) {
    const struct gpu *gpu;
    int result = enter_gpu_call(call, device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!value) return leave(INVALID_ARGUMENT);
    if (!gpu->given[which]) return leave(NOT_SUPPORTED);
    *value = gpu->number[which];
    return leave(SUCCESS);
}

#define read_long(device, which, value) read_long_call(__func__, device, which, value)

static int copy_text(const char *text, char *buffer, unsigned int length) {
    if (!buffer) return INVALID_ARGUMENT;
    if (!text[0]) return NOT_SUPPORTED;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

static int read_text_call(const char *call, const struct device *device, enum text which, char *buffer,
                          unsigned int length) {
    const struct gpu *gpu;
    int result = enter_gpu_call(call, device, &gpu);
    return leave(result != SUCCESS ? result : copy_text(gpu->text[which], buffer, length));
}
#define read_text(device, which, buffer, length) read_text_call(__func__, device, which, buffer, length)

/* ---- library and system -------------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int result = refresh();
    if (result == SUCCESS) result = error_of(state.errors, __func__);
    if (result == SUCCESS) users++;
    return leave(result);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int result = users ? SUCCESS : UNINITIALIZED;
    if (users) users--;
    return leave(result);
}

const char *nvmlErrorString(int result) { return result == UNKNOWN ? "Unknown Error" : "Error of the fake NVML"; }

int nvmlSystemGetDriverVersion(char *buffer, unsigned int length) {
    int result = enter();
    return leave(result != SUCCESS ? result : copy_text(state.driver_version, buffer, length));
}

/* ---- devices ------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned int *count) {
    int result = enter();
    if (result == SUCCESS && !count) result = INVALID_ARGUMENT;
    if (result == SUCCESS) *count = state.count;
    return leave(result);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **device) {
    if (index >= GPUS_MAX || !device) return INVALID_ARGUMENT;
    const struct gpu *gpu;
    int result = enter_gpu(&devices[index], &gpu);
    if (result == SUCCESS) *device = &devices[index];
    return leave(result);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
    int result = enter();
    if (result != SUCCESS) return leave(result);
    if (!uuid || !device) return leave(INVALID_ARGUMENT);
    for (unsigned int i = 0; i < state.count; i++)
        if (strcmp(state.gpus[i].text[UUID], uuid) == 0) {
            *device = &devices[i];
            return leave((int)state.gpus[i].number[RESULT]);
        }
    return leave(NOT_FOUND);
}

int nvmlDeviceGetIndex(struct device *device, unsigned int *index) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result == SUCCESS) *index = (unsigned int)(device - devices);
    return leave(result);
}

int nvmlDeviceGetUUID(struct device *device, char *buffer, unsigned int length) {
    return read_text(device, UUID, buffer, length);
}

int nvmlDeviceGetName(struct device *device, char *buffer, unsigned int length) {
    return read_text(device, NAME, buffer, length);
}

int nvmlDeviceGetSerial(struct device *device, char *buffer, unsigned int length) {
    return read_text(device, SERIAL, buffer, length);
}

int nvmlDeviceGetBoardPartNumber(struct device *device, char *buffer, unsigned int length) {
    return read_text(device, BOARD_PART_NUMBER, buffer, length);
}

int nvmlDeviceGetVbiosVersion(struct device *device, char *buffer, unsigned int length) {
    return read_text(device, VBIOS, buffer, length);
}

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info) {
    const struct gpu *gpu;
    unsigned int domain, bus, slot, function;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->text[BUS_ID][0]) return leave(NOT_SUPPORTED);
    if (sscanf(gpu->text[BUS_ID], "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return leave(UNKNOWN);
    memset(info, 0, sizeof *info);
    info->domain = domain;
    info->bus = bus;
    info->device = slot;
    info->pci_device_id = (unsigned int)gpu->number[PCI_DEVICE_ID];
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.%X", domain & 0xffff, bus & 0xff,
             slot & 0xff, function & 0xf);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.%X", domain, bus & 0xff, slot & 0xff, function & 0xf);
    return leave(SUCCESS);
}

int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned int *celsius) {
    return sensor == 0 ? read_number(device, TEMPERATURE_CELSIUS, celsius) : INVALID_ARGUMENT;
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned int *milliwatts) {
    return read_number(device, POWER_MILLIWATTS, milliwatts);
}

/* Clock types: 0 graphics, 1 SM, 2 memory, 3 video. The graphics clock of these GPUs is their SM clock. */
int nvmlDeviceGetClockInfo(struct device *device, int type, unsigned int *mhz) {
    if (type < 0 || type > 3) return INVALID_ARGUMENT;
    return read_number(device, type == 2 ? MEMORY_CLOCK_MHZ : SM_CLOCK_MHZ, mhz);
}

int nvmlDeviceGetMaxClockInfo(struct device *device, int type, unsigned int *mhz) {
    if (type < 0 || type > 3) return INVALID_ARGUMENT;
    return read_number(device, type == 2 ? MEMORY_CLOCK_MAX_MHZ : SM_CLOCK_MAX_MHZ, mhz);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons) {
    return read_long(device, CLOCK_EVENT_REASONS, reasons);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *reasons) {
    return read_long(device, CLOCK_EVENT_REASONS, reasons);
}

int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates) {
    unsigned int percent;
    int result = read_number(device, UTILIZATION_PERCENT, &percent);
    if (result == SUCCESS) *rates = (struct utilization){percent, percent / 2};
    return result;
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[MEMORY_TOTAL_BYTES] || !gpu->given[MEMORY_USED_BYTES]) return leave(NOT_SUPPORTED);
    memory->total = gpu->number[MEMORY_TOTAL_BYTES];
    memory->used = gpu->number[MEMORY_USED_BYTES];
    memory->free = memory->total - memory->used;
    return leave(SUCCESS);
}

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
    struct memory plain;
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != SUCCESS) return result;
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return SUCCESS;
}

/* Error types: 0 corrected, 1 uncorrected. Counters: 0 volatile, 1 aggregate; both are the same here. */
int nvmlDeviceGetTotalEccErrors(struct device *device, int type, int counter, unsigned long long *count) {
    if (type < 0 || type > 1 || counter < 0 || counter > 1) return INVALID_ARGUMENT;
    return read_long(device, type == 1 ? ECC_UNCORRECTED : ECC_CORRECTED, count);
}

int nvmlDeviceGetRemappedRows(struct device *device, unsigned int *correctable, unsigned int *uncorrectable,
                              unsigned int *pending, unsigned int *failed) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[REMAPPED_PENDING] || !gpu->given[REMAPPED_FAILED]) return leave(NOT_SUPPORTED);
    *correctable = (unsigned int)gpu->number[REMAPPED_CORRECTABLE];
    *uncorrectable = (unsigned int)gpu->number[REMAPPED_UNCORRECTABLE];
    *pending = gpu->number[REMAPPED_PENDING] != 0;
    *failed = gpu->number[REMAPPED_FAILED] != 0;
    return leave(SUCCESS);
}

/* Banks by what they have left: all, most, some, few, nothing. */
int nvmlDeviceGetRowRemapperHistogram(struct device *device, unsigned int *banks) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[BANKS_LOW] || !gpu->given[BANKS_SPENT]) return leave(NOT_SUPPORTED);
    banks[0] = 640;
    banks[1] = banks[2] = 0;
    banks[3] = (unsigned int)gpu->number[BANKS_LOW];
    banks[4] = (unsigned int)gpu->number[BANKS_SPENT];
    return leave(SUCCESS);
}

/* Causes: 0 several corrected errors, 1 an uncorrected one; here all pages are of the second. Without room for all of
 * them only the number is returned. */
int nvmlDeviceGetRetiredPages(struct device *device, int cause, unsigned int *count, unsigned long long *addresses) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!count || cause < 0 || cause > 1) return leave(INVALID_ARGUMENT);
    if (!gpu->given[RETIRED_PAGES]) return leave(NOT_SUPPORTED);
    unsigned int room = *count;
    *count = cause == 1 ? (unsigned int)gpu->number[RETIRED_PAGES] : 0;
    if (*count > 0 && (!addresses || room < *count)) return leave(INSUFFICIENT_SIZE);
    for (unsigned int i = 0; i < *count; i++) addresses[i] = 0x1000ull * (i + 1);
    return leave(SUCCESS);
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct device *device, unsigned int *pending) {
    return read_number(device, RETIRED_PAGES_PENDING, pending);
}

int nvmlDeviceGetMigMode(struct device *device, unsigned int *current, unsigned int *pending) {
    int result = read_number(device, MIG_MODE, current);
    if (result == SUCCESS) *pending = *current;
    return result;
}

enum { HOPPER = 9, BLACKWELL = 10 };

int nvmlDeviceGetArchitecture(struct device *device, unsigned int *architecture) {
    return read_number(device, ARCHITECTURE, architecture);
}

/* Counters of a link: 0 replays, 2 CRC errors of flits; all are of the first link. Blackwell has none of these. */
int nvmlDeviceGetNvLinkErrorCounter(struct device *device, unsigned int link, int counter, unsigned long long *count) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[NVLINKS] || gpu->number[ARCHITECTURE] >= BLACKWELL) return leave(NOT_SUPPORTED);
    if (link >= gpu->number[NVLINKS] || counter < 0 || counter > 4) return leave(INVALID_ARGUMENT);
    if (counter != 0 && counter != 2) return leave(NOT_SUPPORTED);
    *count = link == 0 ? gpu->number[counter == 0 ? NVLINK_REPLAYS : NVLINK_CRC_ERRORS] : 0;
    return leave(SUCCESS);
}

/* The totals of all links answer "success, zero" on Hopper. From Blackwell on fields 206 to 222 are those of a port. */
static int nvlink_field(const struct gpu *gpu, struct field_value *value) {
    unsigned long long architecture = gpu->number[ARCHITECTURE], port = value->scope_id;
    value->value_type = VALUE_TYPE_UNSIGNED_LONG_LONG;
    if (!gpu->given[NVLINKS]) return NOT_SUPPORTED;
    if (value->field_id == FIELD_NVLINK_CRC_FLIT || value->field_id == FIELD_NVLINK_REPLAY) {
        int crc = value->field_id == FIELD_NVLINK_CRC_FLIT;
        if (architecture >= BLACKWELL) return NOT_SUPPORTED;
        value->value.ull = architecture == HOPPER ? 0 : gpu->number[crc ? NVLINK_CRC_ERRORS : NVLINK_REPLAYS];
        return SUCCESS;
    }
    if (architecture < BLACKWELL || value->field_id < 206 || value->field_id > FIELD_NVLINK_SYMBOL_BER)
        return NOT_SUPPORTED;
    if (port >= gpu->number[NVLINKS]) return INVALID_ARGUMENT;
    value->value.ull = value->field_id == FIELD_NVLINK_RCV_ERRORS && port == 0 ? gpu->number[NVLINK_RCV_ERRORS] : 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *values) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (count < 1 || !values) return leave(INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) {
        char name[TEXT_MAX];
        snprintf(name, sizeof name, "field.%u", values[i].field_id);
        values[i].timestamp = 0;
        values[i].latency_microseconds = 0;
        values[i].value_type = VALUE_TYPE_UNSIGNED_INT;
        values[i].value.ull = 0;
        values[i].result = error_of(gpu->errors, name);
        if (values[i].result != SUCCESS) continue;
        if (values[i].field_id != FIELD_RECOVERY_ACTION) {
            values[i].result = nvlink_field(gpu, &values[i]);
        } else if (gpu->given[RECOVERY_ACTION]) {
            values[i].value.ui = (unsigned int)gpu->number[RECOVERY_ACTION];
        } else {
            values[i].result = NOT_SUPPORTED;
        }
    }
    return leave(SUCCESS);
}

int nvmlDeviceGetCurrPcieLinkGeneration(struct device *device, unsigned int *generation) {
    return read_number(device, PCIE_GENERATION, generation);
}

int nvmlDeviceGetMaxPcieLinkGeneration(struct device *device, unsigned int *generation) {
    return read_number(device, PCIE_GENERATION_MAX, generation);
}

int nvmlDeviceGetCurrPcieLinkWidth(struct device *device, unsigned int *width) {
    return read_number(device, PCIE_WIDTH, width);
}

int nvmlDeviceGetMaxPcieLinkWidth(struct device *device, unsigned int *width) {
    return read_number(device, PCIE_WIDTH_MAX, width);
}

int nvmlDeviceGetPcieReplayCounter(struct device *device, unsigned int *replays) {
    return read_number(device, PCIE_REPLAYS, replays);
}

int nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned int *milliwatts) {
    return read_number(device, POWER_LIMIT_MILLIWATTS, milliwatts);
}

/* Policies: 0 power, 1 thermal. */
int nvmlDeviceGetViolationStatus(struct device *device, int policy, struct violation_time *time_spent) {
    if (policy < 0 || policy > 1) return NOT_SUPPORTED;
    time_spent->reference = 0;
    return read_long(device, policy == 0 ? POWER_VIOLATION_NANOSECONDS : THERMAL_VIOLATION_NANOSECONDS,
                     &time_spent->violation);
}

int nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram_errors *status) {
    return read_number(device, SRAM_THRESHOLD_EXCEEDED, &status->threshold_exceeded);
}

int nvmlDeviceGetNvLinkState(struct device *device, unsigned int link, unsigned int *active) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[NVLINKS]) return leave(NOT_SUPPORTED);
    if (link >= gpu->number[NVLINKS]) return leave(INVALID_ARGUMENT);
    *active = link < gpu->number[NVLINKS_UP];
    return leave(SUCCESS);
}

int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric_info_v2 *info) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[FABRIC_STATE]) return leave(NOT_SUPPORTED);
    info->state = (unsigned char)gpu->number[FABRIC_STATE];
    info->status = (int)gpu->number[FABRIC_STATUS];
    info->health_mask = (unsigned int)gpu->number[FABRIC_HEALTH];
    return leave(SUCCESS);
}

/* ---- events -------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *kinds) {
    return read_long(device, EVENT_KINDS, kinds);
}

int nvmlEventSetCreate(struct event_set **set) {
    int result = enter();
    if (result != SUCCESS) return leave(result);
    for (int i = 0; i < EVENT_SETS_MAX; i++)
        if (!event_sets[i].used) {
            memset(&event_sets[i], 0, sizeof event_sets[i]);
            event_sets[i].used = 1;
            for (unsigned int e = 0; e < state.event_count; e++)
                if (state.events[e].number > event_sets[i].delivered) event_sets[i].delivered = state.events[e].number;
            *set = &event_sets[i];
            return leave(SUCCESS);
        }
    return leave(UNKNOWN);
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long kinds, struct event_set *set) {
    const struct gpu *gpu;
    int result = enter_gpu(device, &gpu);
    if (result != SUCCESS) return leave(result);
    if (!gpu->given[EVENT_KINDS] || kinds & ~gpu->number[EVENT_KINDS]) return leave(NOT_SUPPORTED);
    set->kinds[device - devices] |= kinds;
    return leave(SUCCESS);
}

int nvmlEventSetFree(struct event_set *set) {
    pthread_mutex_lock(&lock);
    set->used = 0;
    return leave(SUCCESS);
}

/* Call with the lock held. Returns 1 when there was an event to report. */
static int next_event(struct event_set *set, struct event_data *data) {
    for (unsigned int i = 0; i < state.event_count; i++) {
        const struct event *event = &state.events[i];
        if (event->number <= set->delivered) continue;
        set->delivered = event->number;
        if (!(set->kinds[event->gpu] & event->kind)) continue;
        *data = (struct event_data){&devices[event->gpu], event->kind, event->data, 0xffffffff, 0xffffffff};
        return 1;
    }
    return 0;
}

int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned int timeout_milliseconds) {
    enum { LOOK_MILLISECONDS = 20 };
    for (unsigned int waited = 0;; waited += LOOK_MILLISECONDS) {
        int result = enter();
        if (result != SUCCESS) return leave(result);
        for (unsigned int i = 0; i < state.count; i++)
            if (state.gpus[i].number[HANG]) hang();
        if (next_event(set, data)) return leave(SUCCESS);
        leave(SUCCESS);
        if (waited >= timeout_milliseconds) return TIMEOUT;
        nanosleep(&(struct timespec){0, LOOK_MILLISECONDS * 1000000L}, NULL);
    }
}
