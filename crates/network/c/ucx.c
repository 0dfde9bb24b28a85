/* The rail's way to UCX: a narrow interface without UCX's types.
 *
 * Why C: UCX's structures and inline functions are defined by its headers, which differ
 * between versions; here the compiler reads them. Why dlopen: an MPI library may bring its
 * own libucp.so.0; linked here, the system's would take its place (one soname, one
 * library). Opened after MPI_Init it is the MPI library's own if there is one, and a
 * program without UCX still starts.
 *
 * The library is a guest (P6): what UCX would print is kept as the reason of an error,
 * signal handlers that loading it installs are taken back, and the program's memory functions
 * stay as they are, unless UCX's variables ask for any of that. Callers hold one lock a worker; nothing here unwinds. src/ucx/ffi.rs declares
 * these functions and says what they mean. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

/* Peer failure of shared memory came with 1.11, whole active messages before. */
#define LEAST_MAJOR 1
#define LEAST_MINOR 11
#define SIGNALS 65
#define FRAME_ID 0

#define FUNCTIONS(X)                                                                            \
    X(ucp_get_version) X(ucp_config_read) X(ucp_config_release) X(ucp_init_version)             \
    X(ucp_cleanup) X(ucp_worker_create) X(ucp_worker_destroy) X(ucp_worker_query)               \
    X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_get_efd)               \
    X(ucp_worker_arm) X(ucp_worker_progress) X(ucp_worker_flush_nbx)                            \
    X(ucp_worker_set_am_recv_handler) X(ucp_ep_create) X(ucp_ep_close_nbx) X(ucp_am_send_nbx)   \
    X(ucp_am_recv_data_nbx) X(ucp_request_free) X(ucs_status_string) X(ucs_log_push_handler)

#define MEMBER(name) __typeof__(&name) name;
static struct {
    FUNCTIONS(MEMBER)
} api;

enum found { FOUND = 0, NO_LIBRARY = -1, NO_SYMBOL = -2, TOO_OLD = -3 };

/* What a status means to the rail; src/ucx/ffi.rs has the same numbers. */
enum meaning { FINE, NETWORK, MEMORY, ARGUMENT, TRANSPORTS, VERSION, TIMEOUT, OURS };

typedef struct outlive_ucx outlive_ucx;

/* What the rail is told, always from within a call to this file. */
struct outlive_ucx_calls {
    /* A message: its header, then its data, or (data is null) a descriptor to fetch them
     * with. 0: done with it; 1: the descriptor is kept; negative: refused. */
    int (*arrived)(void *owner, const uint8_t *header, size_t header_bytes, const uint8_t *data,
                   size_t length, void *descriptor);
    void (*sent)(void *owner, void *token, int status);
    void (*fetched)(void *owner, void *token, int status, size_t length);
    void (*broken)(void *owner, uint64_t token, int status);
};

/* A link; it lives until its endpoint is closed. */
struct outlive_ucx_link {
    outlive_ucx *world;
    uint64_t token;
    ucp_ep_h ep;
    int ended; /* 1: closing, 2: closed */
    struct outlive_ucx_link *next;
};

struct outlive_ucx {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    size_t header_bytes_max;
    int fd;
    uintptr_t flush;    /* the number of the last flush */
    int flushing;       /* it is not over */
    void *owner;
    struct outlive_ucx_calls calls;
    struct outlive_ucx_link *links;
};

/* What UCX said last in this thread, while it was called from here. */
static _Thread_local int inside;
static _Thread_local char said[256];
/* Nobody else in this process uses this UCX: its own threads are silent too. */
static int alone;

static ucs_log_func_rc_t hush(const char *file, unsigned line, const char *function,
                              ucs_log_level_t level, const ucs_log_component_config_t *conf,
                              const char *message, va_list list) {
    (void)file, (void)line, (void)function, (void)conf;
    if (!inside && !alone) {
        return UCS_LOG_FUNC_RC_CONTINUE;
    }
    if (inside && level <= UCS_LOG_LEVEL_WARN) {
        vsnprintf(said, sizeof said, message, list);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

static void tell(char *reason, size_t room, const char *first, const char *second) {
    snprintf(reason, room, "%s%s%s", first, *second ? ": " : "", second);
}

static void explain(char *reason, size_t room, const char *doing, ucs_status_t status) {
    char words[384];
    snprintf(words, sizeof words, "%s: %s", doing, api.ucs_status_string(status));
    tell(reason, room, words, said);
}

/* `place` is a pointer to a function, which ISO C does not let one assign from dlsym. */
static void find(void *library, const char *name, void *place, const char **missing) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL && *missing == NULL) {
        *missing = name;
    }
    memcpy(place, &symbol, sizeof symbol);
}

/* When UCX is loaded it writes jumps into mmap, brk and others of libc, to hear what becomes of memory that
 * it has registered, and moves the program's break forth and back to see whether it hears it. Beside a
 * thread that allocates neither is safe: what malloc had just been given was taken away again (a crash in
 * calloc, once in some forty runs of a test). Without that, UCX keeps no registrations. Its variable is
 * the only way to say so, and setenv could free what another thread's getenv reads: here that has the old
 * environment or the new one. Who has loaded UCX before has decided that already. */
static void *load_as_guest(const char *path) {
    static char quiet[] = "UCX_MEM_EVENTS=n";
    char **before = environ, **with = NULL;
    size_t count = 0;
    void *library;
    if (getenv("UCX_MEM_EVENTS") == NULL) {
        while (before != NULL && before[count] != NULL) {
            count++;
        }
        with = calloc(count + 2, sizeof *with);
    }
    if (with != NULL) {
        memcpy(with, before, count * sizeof *with);
        with[count] = quiet;
        environ = with;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (with != NULL && environ == with) {
        environ = before;
    } else if (with != NULL) {
        unsetenv("UCX_MEM_EVENTS"); /* another thread has made one of its own of it */
    }
    return library; /* `with` stays: somebody may read it still */
}

/* Called once. `version` gets major, minor and release. */
int outlive_ucx_load(const char *path, unsigned version[3], char *reason, size_t room) {
    static const char soname[] = "libucp.so.0";
    const char *missing = NULL;
    struct sigaction before[SIGNALS];
    void *library;
    int signals = getenv("UCX_HANDLE_ERRORS") == NULL && getenv("UCX_ERROR_SIGNALS") == NULL;

    library = path == NULL ? dlopen(soname, RTLD_NOW | RTLD_NOLOAD) : NULL;
    alone = library == NULL;
    if (alone) {
        for (int signal = 1; signal < SIGNALS; signal++) {
            sigaction(signal, NULL, &before[signal]);
        }
        library = load_as_guest(path == NULL ? soname : path);
        if (library == NULL) {
            tell(reason, room, dlerror(), "");
            return NO_LIBRARY;
        }
        for (int signal = 1; signals && signal < SIGNALS; signal++) {
            struct sigaction now;
            if (sigaction(signal, NULL, &now) == 0 &&
                now.sa_sigaction != before[signal].sa_sigaction) {
                sigaction(signal, &before[signal], NULL);
            }
        }
    }
    find(library, "ucp_get_version", &api.ucp_get_version, &missing);
    if (api.ucp_get_version != NULL) {
        api.ucp_get_version(&version[0], &version[1], &version[2]);
        if (version[0] != LEAST_MAJOR || version[1] < LEAST_MINOR) {
            snprintf(reason, room, "it is version %u.%u.%u, 1.%d or later of 1 is needed",
                     version[0], version[1], version[2], LEAST_MINOR);
            return TOO_OLD;
        }
    }
#define FIND(name) find(library, #name, &api.name, &missing);
    FUNCTIONS(FIND)
    if (missing != NULL) {
        tell(reason, room, "it lacks", missing);
        return NO_SYMBOL;
    }
    if (getenv("UCX_LOG_LEVEL") == NULL) {
        api.ucs_log_push_handler(hush);
    }
    return FOUND;
}

/* Every status has a meaning: the compiler names one that is missing. */
int outlive_ucx_meaning(int status) {
    switch ((ucs_status_t)status) {
    case UCS_OK:
    case UCS_INPROGRESS:
        return FINE;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_SHMEM_SEGMENT:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
        return MEMORY;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_UNSUPPORTED:
        return TRANSPORTS;
    case UCS_ERR_NOT_IMPLEMENTED:
        return VERSION;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
        return TIMEOUT;
    case UCS_ERR_INVALID_ADDR:
        return ARGUMENT;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_BUFFER_TOO_SMALL:
    case UCS_ERR_NO_ELEM:
    case UCS_ERR_OUT_OF_RANGE:
    case UCS_ERR_ALREADY_EXISTS:
    case UCS_ERR_NO_MESSAGE:
    case UCS_ERR_NO_PROGRESS:
    case UCS_ERR_BUSY:
        return OURS;
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_MESSAGE_TRUNCATED:
    case UCS_ERR_SOME_CONNECTS_FAILED:
    case UCS_ERR_CANCELED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_FIRST_LINK_FAILURE:
    case UCS_ERR_LAST_LINK_FAILURE:
    case UCS_ERR_FIRST_ENDPOINT_FAILURE:
    case UCS_ERR_LAST_ENDPOINT_FAILURE:
    case UCS_ERR_LAST:
        return NETWORK;
    }
    return NETWORK; /* of a later version */
}

const char *outlive_ucx_words(int status) { return api.ucs_status_string((ucs_status_t)status); }

static ucs_status_t arrived(void *arg, const void *header, size_t header_bytes, void *data,
                            size_t length, const ucp_am_recv_param_t *param) {
    outlive_ucx *world = arg;
    int later = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    int kept = world->calls.arrived(world->owner, header, header_bytes, later ? NULL : data,
                                    length, later ? data : NULL);
    if (!later) {
        return UCS_OK;
    }
    return kept == 1 ? UCS_INPROGRESS : kept == 0 ? UCS_OK : UCS_ERR_REJECTED;
}

static ucs_status_t start(outlive_ucx *world, const char **doing) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_worker_params_t with = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_worker_attr_t attributes = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = FRAME_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = arrived,
        .arg = world};
    ucp_config_t *config;
    ucs_status_t status;

    *doing = "its variables (UCX_*)";
    status = api.ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return status;
    }
    *doing = "its transports (UCX_TLS, UCX_NET_DEVICES)";
    status = api.ucp_init_version(LEAST_MAJOR, LEAST_MINOR, &params, config, &world->context);
    api.ucp_config_release(config);
    if (status != UCS_OK) {
        world->context = NULL;
        return status;
    }
    status = api.ucp_worker_create(world->context, &with, &world->worker);
    if (status != UCS_OK) {
        world->worker = NULL;
        return status;
    }
    *doing = "a worker";
    status = api.ucp_worker_query(world->worker, &attributes);
    world->header_bytes_max = status == UCS_OK ? attributes.max_am_header : 0;
    if (status == UCS_OK) {
        status = api.ucp_worker_set_am_recv_handler(world->worker, &handler);
    }
    if (status == UCS_OK) {
        *doing = "an event descriptor";
        status = api.ucp_worker_get_efd(world->worker, &world->fd);
    }
    if (status == UCS_OK) {
        *doing = "an address";
        status =
            api.ucp_worker_get_address(world->worker, &world->address, &world->address_bytes);
    }
    return status;
}

static void stop(outlive_ucx *world) {
    inside++;
    if (world->address != NULL) {
        api.ucp_worker_release_address(world->worker, world->address);
    }
    if (world->worker != NULL) {
        api.ucp_worker_destroy(world->worker);
    }
    if (world->context != NULL) {
        api.ucp_cleanup(world->context);
    }
    inside--;
    while (world->links != NULL) {
        struct outlive_ucx_link *next = world->links->next;
        free(world->links);
        world->links = next;
    }
    free(world);
}

int outlive_ucx_open(const struct outlive_ucx_calls *calls, void *owner, outlive_ucx **out,
                     char *reason, size_t room) {
    const char *doing = "";
    sigset_t all, before;
    ucs_status_t status;
    outlive_ucx *world = calloc(1, sizeof *world);
    if (world == NULL) {
        tell(reason, room, "no memory", "");
        return UCS_ERR_NO_MEMORY;
    }
    world->calls = *calls;
    world->owner = owner;
    /* UCX's own thread, which is started here, takes none of the program's signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    inside++;
    said[0] = 0;
    status = start(world, &doing);
    inside--;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != UCS_OK) {
        explain(reason, room, doing, status);
        stop(world);
        return status;
    }
    /* A warning, for example of a transport that does not exist. */
    tell(reason, room, said, "");
    *out = world;
    return UCS_OK;
}

void outlive_ucx_close(outlive_ucx *world) { stop(world); }

const uint8_t *outlive_ucx_address(const outlive_ucx *world, size_t *length) {
    *length = world->address_bytes;
    return (const uint8_t *)world->address;
}

size_t outlive_ucx_header_bytes_max(const outlive_ucx *world) { return world->header_bytes_max; }

int outlive_ucx_fd(const outlive_ucx *world) { return world->fd; }

/* 1: its descriptor tells of news from now on; 0: there are some. */
int outlive_ucx_arm(outlive_ucx *world) {
    ucs_status_t status;
    inside++;
    status = api.ucp_worker_arm(world->worker);
    inside--;
    return status == UCS_OK;
}

unsigned outlive_ucx_progress(outlive_ucx *world) {
    unsigned moved;
    inside++;
    moved = api.ucp_worker_progress(world->worker);
    inside--;
    return moved;
}

static void broken(void *arg, ucp_ep_h ep, ucs_status_t status) {
    struct outlive_ucx_link *link = arg;
    (void)ep;
    if (!link->ended) {
        link->world->calls.broken(link->world->owner, link->token, status);
    }
}

static void sweep(outlive_ucx *world) {
    struct outlive_ucx_link **place = &world->links;
    while (*place != NULL) {
        struct outlive_ucx_link *link = *place;
        if (link->ended == 2) {
            *place = link->next;
            free(link);
        } else {
            place = &link->next;
        }
    }
}

int outlive_ucx_connect(outlive_ucx *world, const uint8_t *address, uint64_t token,
                        struct outlive_ucx_link **out, char *reason, size_t room) {
    struct outlive_ucx_link *link = calloc(1, sizeof *link);
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = broken, .arg = link}};
    ucs_status_t status = UCS_ERR_NO_MEMORY;
    sweep(world);
    inside++;
    said[0] = 0;
    if (link != NULL) {
        link->world = world;
        link->token = token;
        status = api.ucp_ep_create(world->worker, &params, &link->ep);
    }
    inside--;
    if (status != UCS_OK) {
        explain(reason, room, "an endpoint", status);
        free(link);
        return status;
    }
    link->next = world->links;
    world->links = link;
    *out = link;
    return UCS_OK;
}

static void closed(void *request, ucs_status_t status, void *user) {
    struct outlive_ucx_link *link = user;
    (void)status;
    link->ended = 2;
    api.ucp_request_free(request);
}

/* Gives the endpoint up: what was under way on it ends with an error. */
void outlive_ucx_disconnect(struct outlive_ucx_link *link) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE,
                                 .cb.send = closed,
                                 .user_data = link};
    ucs_status_ptr_t result;
    link->ended = 1;
    /* A flush may wait for this endpoint for ever; the next one does not. */
    link->world->flushing = 0;
    inside++;
    result = api.ucp_ep_close_nbx(link->ep, &param);
    inside--;
    if (!UCS_PTR_IS_PTR(result)) {
        link->ended = 2;
    }
}

/* How many links are being closed. */
unsigned outlive_ucx_closing(const outlive_ucx *world) {
    unsigned count = 0;
    for (const struct outlive_ucx_link *link = world->links; link != NULL; link = link->next) {
        count += link->ended == 1;
    }
    return count;
}

struct token {
    outlive_ucx *world;
    void *user;
};

static void sent(void *request, ucs_status_t status, void *user) {
    struct token *token = user;
    api.ucp_request_free(request);
    token->world->calls.sent(token->world->owner, token->user, status);
    free(token);
}

static void fetched(void *request, ucs_status_t status, size_t length, void *user) {
    struct token *token = user;
    api.ucp_request_free(request);
    token->world->calls.fetched(token->world->owner, token->user, status, length);
    free(token);
}

static struct token *wrap(outlive_ucx *world, void *user) {
    struct token *token = malloc(sizeof *token);
    if (token != NULL) {
        *token = (struct token){world, user};
    }
    return token;
}

/* 0: at once; 1: it is under way; else the error. */
static int outcome(ucs_status_ptr_t result, struct token *token) {
    if (UCS_PTR_IS_PTR(result)) {
        return UCS_INPROGRESS;
    }
    free(token);
    return UCS_PTR_RAW_STATUS(result);
}

/* Header and data stay where they are until it is done. */
int outlive_ucx_send(struct outlive_ucx_link *link, const uint8_t *header, size_t header_bytes,
                     const uint8_t *data, size_t length, void *user) {
    struct token *token = wrap(link->world, user);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = sent,
                                 .user_data = token};
    ucs_status_ptr_t result;
    if (token == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    inside++;
    result = api.ucp_am_send_nbx(link->ep, FRAME_ID, header, header_bytes, data, length, &param);
    inside--;
    return outcome(result, token);
}

/* Into `buffer`, which stays where it is until it is done. */
int outlive_ucx_fetch(outlive_ucx *world, void *descriptor, uint8_t *buffer, size_t length,
                      void *user) {
    struct token *token = wrap(world, user);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.recv_am = fetched,
                                 .user_data = token};
    ucs_status_ptr_t result;
    if (token == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    inside++;
    result = api.ucp_am_recv_data_nbx(world->worker, descriptor, buffer, length, &param);
    inside--;
    return outcome(result, token);
}

static void flushed(void *request, ucs_status_t status, void *user) {
    struct token *token = user;
    (void)status;
    if ((uintptr_t)token->user == token->world->flush) {
        token->world->flushing = 0;
    }
    free(token);
    api.ucp_request_free(request);
}

/* Begins to flush what was sent. */
void outlive_ucx_flush(outlive_ucx *world) {
    struct token *token = wrap(world, (void *)++world->flush);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = flushed,
                                 .user_data = token};
    if (token == NULL) {
        return;
    }
    inside++;
    world->flushing =
        outcome(api.ucp_worker_flush_nbx(world->worker, &param), token) == UCS_INPROGRESS;
    inside--;
}

/* 1 until a flush that was begun is over. */
unsigned outlive_ucx_flushing(const outlive_ucx *world) { return (unsigned)world->flushing; }
