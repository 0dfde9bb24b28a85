/* A random sequence of waits and tests on requests of every kind, and what each came to.
 *
 *   requests SEED STEPS OUTPUT     writes OUTPUT.RANK
 *
 * Two ranks draw the same plan and do the same; whatever one receives, the other sends.
 * Each line says what MPI said, in words that do not depend on time: what may complete in
 * any order is waited for until nothing is active, and sorted. So the lines are the same
 * under the native library and under a layer before it. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OPEN_MPI
enum { OPEN = 1 };
#else
enum { OPEN = 0 };
#endif
enum { MOST = 6, INTS = 4 };
enum kind { EMPTY, RECEIVE, SEND, SYNCHRONOUS, ANY_SOURCE, TRUNCATED, NOBODY, INACTIVE, RECEIVES, SENDS, GENERAL, FAILING, BARRIERS, SUMS, KINDS };
static const char *const KIND[] = {"empty", "receive", "send", "synchronous", "any source", "truncated", "nobody", "inactive", "receives", "sends", "general", "failing", "barriers", "sums"};

static uint64_t state;
static int rank, step;
static MPI_Comm comm;
static char said[1 << 15];
static int undefined[MOST];

/* SplitMix64. */
static int draw(int below) {
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int)((x ^ x >> 31) % (uint64_t)below);
}

static int query(void *extra, MPI_Status *status) {
    MPI_Status_set_elements(status, MPI_INT, *(int *)extra < 0 ? 0 : 2);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = 1;
    status->MPI_TAG = 77;
    return *(int *)extra < 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
}
static int release(void *extra) { return (void)extra, MPI_SUCCESS; }
static int cancel(void *extra, int complete) { return (void)extra, (void)complete, MPI_SUCCESS; }

static int class_of(int code) {
    int class = 0;
    MPI_Error_class(code, &class);
    return class;
}

/* The names of the classes that this program meets: their numbers differ between libraries
 * but are compared within one. */
static void tell(char *at, size_t room, const char *what, int place, int code, const MPI_Status *status, int errors) {
    int count = -1;
    /* Of sends and collectives MPI defines no more than the error. */
    MPI_Status nothing = {.MPI_SOURCE = 0};
    if (status != NULL && place < MOST && undefined[place]) {
        nothing.MPI_ERROR = status->MPI_ERROR;
        status = &nothing;
    }
    size_t used = (size_t)snprintf(at, room, " %s[%d]=%d", what, place, class_of(code));
    if (status == NULL || used >= room) return;
    MPI_Get_count(status, MPI_INT, &count);
    snprintf(at + used, room - used, "(%d,%d,%d,%d)", status->MPI_SOURCE, status->MPI_TAG, count, errors ? class_of(status->MPI_ERROR) : 0);
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", argv[3], rank);
    FILE *output = fopen(name, "w");
    if (output == NULL) return 3;
    state = strtoull(argv[1], NULL, 10);
    int steps = atoi(argv[2]), other = 1 - rank;
    for (step = 0; step < steps; step++) {
        enum kind kind[MOST];
        MPI_Request request[MOST], helper[MOST];
        MPI_Status status[MOST];
        int data[MOST][INTS], help[MOST][INTS + 1], sign[MOST], count = draw(MOST + 1), helpers = 0, failing = 0;
        int how = draw(8), ignored = draw(3) == 0, special = draw(2), collective = draw(4) == 0;
        char lines[MOST + 1][160];
        memset(status, 0, sizeof status);
        memset(lines, 0, sizeof lines);
        for (int i = 0; i < count; i++) {
            kind[i] = (enum kind)draw(collective ? KINDS : special ? BARRIERS : RECEIVES);
            if (kind[i] == FAILING && draw(2)) kind[i] = GENERAL;
            /* Of requests that fail at once Open MPI's MPI_Waitany may lose one, and its
             * MPI_Waitall may say that all went well: there they are waited for one by one. */
            int fails = kind[i] == TRUNCATED || kind[i] == FAILING;
            if (fails && how > 0 && (OPEN || (how > 3 && failing++))) kind[i] = RECEIVE;
            undefined[i] = kind[i] == SEND || kind[i] == SYNCHRONOUS || kind[i] == SENDS || kind[i] == BARRIERS || kind[i] == SUMS;
            int tag = 10 * (step % 1000) + i;
            request[i] = MPI_REQUEST_NULL;
            for (int k = 0; k < INTS; k++) data[i][k] = help[i][k] = 100 * step + 10 * i + k + rank;
            help[i][INTS] = 5;
            sign[i] = kind[i] == FAILING ? -1 : 1;
            switch (kind[i]) {
            case RECEIVE: MPI_Irecv(data[i], INTS, MPI_INT, other, tag, comm, &request[i]); break;
            case ANY_SOURCE: MPI_Irecv(data[i], INTS, MPI_INT, MPI_ANY_SOURCE, tag, comm, &request[i]); break;
            case TRUNCATED: MPI_Irecv(data[i], INTS - 1, MPI_INT, other, tag, comm, &request[i]); break;
            case NOBODY: MPI_Irecv(data[i], INTS, MPI_INT, MPI_PROC_NULL, tag, comm, &request[i]); break;
            case RECEIVES:
            case INACTIVE: MPI_Recv_init(data[i], INTS, MPI_INT, other, tag, comm, &request[i]); break;
            case SEND: MPI_Isend(data[i], INTS, MPI_INT, other, tag, comm, &request[i]); break;
            case SYNCHRONOUS: MPI_Issend(data[i], INTS, MPI_INT, other, tag, comm, &request[i]); break;
            case SENDS: MPI_Send_init(data[i], INTS, MPI_INT, other, tag, comm, &request[i]); break;
            case FAILING:
            case GENERAL:
                MPI_Grequest_start(query, release, cancel, &sign[i], &request[i]);
                MPI_Grequest_complete(request[i]);
                break;
#if MPI_VERSION >= 4
            case BARRIERS: MPI_Barrier_init(comm, MPI_INFO_NULL, &request[i]); break;
            case SUMS: MPI_Allreduce_init(help[i], data[i], INTS, MPI_INT, MPI_SUM, comm, MPI_INFO_NULL, &request[i]); break;
#endif
            default: break;
            }
            if (kind[i] >= RECEIVES && kind[i] != GENERAL && kind[i] != FAILING && request[i] != MPI_REQUEST_NULL) MPI_Start(&request[i]);
        }
        /* What the other's requests need; some of it late. */
        for (int i = 0; i < count; i++) {
            int tag = 10 * (step % 1000) + i;
            if (kind[i] == RECEIVE || kind[i] == ANY_SOURCE || kind[i] == TRUNCATED || kind[i] == RECEIVES)
                MPI_Isend(help[i], INTS, MPI_INT, other, tag, comm, &helper[helpers++]);
            if (kind[i] == SEND || kind[i] == SYNCHRONOUS || kind[i] == SENDS)
                MPI_Irecv(help[i], INTS, MPI_INT, other, tag, comm, &helper[helpers++]);
        }
        MPI_Status *all = ignored ? MPI_STATUSES_IGNORE : status;
        size_t room = sizeof lines[0];
        int told = 0;
        if (how == 0) {
            for (int i = 0; i < count; i++, told++) {
                int code = MPI_Wait(&request[i], ignored ? MPI_STATUS_IGNORE : &status[i]);
                tell(lines[told], room, "wait", i, code, ignored ? NULL : &status[i], 0);
            }
        } else if (how == 1 || how == 2) {
            int code = MPI_Waitall(count, request, all), errors = class_of(code) == MPI_ERR_IN_STATUS;
            for (int i = 0; i < count; i++, told++) {
                /* With an error a library may leave others under way: how many is time's. */
                int pending = errors && !ignored && class_of(status[i].MPI_ERROR) == MPI_ERR_PENDING;
                if (pending) status[i].MPI_ERROR = MPI_Wait(&request[i], &status[i]);
                if (errors && ignored) MPI_Wait(&request[i], MPI_STATUS_IGNORE);
                tell(lines[told], room, "all", i, code, ignored ? NULL : &status[i], errors);
            }
            if (count == 0) tell(lines[told++], room, "all", 0, code, NULL, 0);
        } else if (how == 3) {
            int code, flag = 0;
            do code = MPI_Testall(count, request, &flag, all);
            while (code == MPI_SUCCESS && !flag);
            int errors = class_of(code) == MPI_ERR_IN_STATUS;
            /* A test that fails may leave what is not complete; the wait ends it. */
            if (errors) MPI_Waitall(count, request, MPI_STATUSES_IGNORE);
            tell(lines[told++], room, "testall", 0, code, NULL, 0);
        } else {
            int index = 0, flag = 0, left = 1, turns = 0;
            while (left && turns++ < 1000000) {
                int done[MOST], some = 0, code;
                MPI_Status *one = ignored ? MPI_STATUS_IGNORE : status;
                memset(status, 0, sizeof status);
                if (how == 4) code = MPI_Waitany(count, request, &index, one), flag = 1;
                else if (how == 5) code = MPI_Testany(count, request, &index, &flag, one);
                else if (how == 6) code = MPI_Waitsome(count, request, &some, done, all);
                else code = MPI_Testsome(count, request, &some, done, all);
                if (how < 6) {
                    if (!flag) continue;
                    left = index != MPI_UNDEFINED;
                    if (left && told < MOST) tell(lines[told++], room, "any", index, code, ignored ? NULL : status, 0);
                } else {
                    left = some != MPI_UNDEFINED;
                    int errors = class_of(code) == MPI_ERR_IN_STATUS;
                    for (int k = 0; left && k < some && told < MOST; k++)
                        /* Which complete together is time's: so only each one's own code. */
                        tell(lines[told++], room, "some", done[k], errors && !ignored ? status[k].MPI_ERROR : errors && ignored ? 0 : code, ignored ? NULL : &status[k], 0);
                }
            }
            if (left) tell(lines[told < MOST ? told : MOST], room, "never ends", how, 0, NULL, 0);
        }
        qsort(lines, (size_t)told, sizeof lines[0], by_text);
        MPI_Waitall(helpers, helper, MPI_STATUSES_IGNORE);
        int length = snprintf(said, sizeof said, "rank %d step %d how %d:", rank, step, how);
        for (int i = 0; i < count; i++)
            length += snprintf(said + length, sizeof said - (size_t)length, " %s", KIND[kind[i]]);
        length += snprintf(said + length, sizeof said - (size_t)length, " ->");
        for (int i = 0; i < told; i++) length += snprintf(said + length, sizeof said - (size_t)length, "%s", lines[i]);
        for (int i = 0; i < count; i++) {
            int taken = kind[i] == RECEIVE || kind[i] == ANY_SOURCE || kind[i] == RECEIVES || kind[i] == SUMS;
            length += snprintf(said + length, sizeof said - (size_t)length, " %s%d", request[i] == MPI_REQUEST_NULL ? "gone" : "kept", taken ? data[i][1] : 0);
            if (request[i] != MPI_REQUEST_NULL) MPI_Request_free(&request[i]);
        }
        fprintf(output, "%s\n", said);
    }
    if (fclose(output) != 0) return 3;
    MPI_Barrier(comm);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
