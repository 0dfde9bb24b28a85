/* Runs another partitioner over the steps that `outlive bench balance` wrote, each
 * step from the partition that it made in the step before, and prints the mean
 * processor time of a step in seconds. That command compiles it, once for each
 * library, with -DWITH_METIS, -DWITH_SCOTCH or -DWITH_ZOLTAN; see README.md. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef WITH_METIS
#include <metis.h>
#endif
#ifdef WITH_SCOTCH
#include <scotch.h>
#endif
#ifdef WITH_ZOLTAN
#include <mpi.h>
#include <zoltan.h>
#endif

static uint64_t tasks, entries;
static uint64_t *offsets;
static uint32_t *neighbours;
static double *coordinates, *weights;
static uint32_t *parts;
static int processes;
/* How much a migrated task weighs against a cut edge: what each library's own
 * parameter for it is set to. */
static double migration_price = 1.0;

static void die(const char *what) {
    fprintf(stderr, "peers: %s\n", what);
    exit(1);
}

static void *take(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) die("out of memory");
    return memory;
}

static void load(const char *path, void *to, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fread(to, 1, bytes, file) != bytes) die(path);
    fclose(file);
}

static void load_graph(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/graph.bin", folder);
    FILE *file = fopen(path, "rb");
    if (!file || fread(&tasks, 8, 1, file) != 1 || fread(&entries, 8, 1, file) != 1) die(path);
    offsets = take((tasks + 1) * 8);
    neighbours = take(entries * 4);
    coordinates = take(tasks * 24);
    weights = take(tasks * 8);
    parts = take(tasks * 4);
    if (fread(offsets, 8, tasks + 1, file) != tasks + 1) die(path);
    if (fread(neighbours, 4, entries, file) != entries) die(path);
    if (fread(coordinates, 24, tasks, file) != tasks) die(path);
    fclose(file);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#ifndef WITH_ZOLTAN
/* Integers that keep the ratios of the weights, for libraries that want them. */
static int weight_of(uint64_t task) { return (int)lround(weights[task] * 100.0); }
#endif

#ifdef WITH_METIS
static void run_metis(double tolerance) {
    idx_t n = (idx_t)tasks, constraints = 1, k = processes, cut;
    idx_t *xadj = take((tasks + 1) * sizeof *xadj), *adjncy = take(entries * sizeof *adjncy);
    idx_t *vwgt = take(tasks * sizeof *vwgt), *out = take(tasks * sizeof *out);
    for (uint64_t i = 0; i <= tasks; i++) xadj[i] = (idx_t)offsets[i];
    for (uint64_t i = 0; i < entries; i++) adjncy[i] = (idx_t)neighbours[i];
    for (uint64_t i = 0; i < tasks; i++) vwgt[i] = weight_of(i);
    idx_t options[METIS_NOPTIONS];
    METIS_SetDefaultOptions(options);
    options[METIS_OPTION_UFACTOR] = (idx_t)lround(tolerance * 1000.0);
    if (METIS_PartGraphKway(&n, &constraints, xadj, adjncy, vwgt, NULL, NULL, &k, NULL, NULL, options,
                            &cut, out) != METIS_OK)
        die("METIS_PartGraphKway");
    for (uint64_t i = 0; i < tasks; i++) parts[i] = (uint32_t)out[i];
    free(xadj), free(adjncy), free(vwgt), free(out);
}
#endif

#ifdef WITH_SCOTCH
static void run_scotch(double tolerance, int remap) {
    SCOTCH_Graph graph;
    SCOTCH_Strat strategy;
    SCOTCH_Num *rows = take((tasks + 1) * sizeof *rows), *to = take(entries * sizeof *to);
    SCOTCH_Num *velo = take(tasks * sizeof *velo), *out = take(tasks * sizeof *out);
    SCOTCH_Num *old = take(tasks * sizeof *old), *price = take(tasks * sizeof *price);
    for (uint64_t i = 0; i <= tasks; i++) rows[i] = (SCOTCH_Num)offsets[i];
    for (uint64_t i = 0; i < entries; i++) to[i] = (SCOTCH_Num)neighbours[i];
    for (uint64_t i = 0; i < tasks; i++) {
        velo[i] = weight_of(i);
        old[i] = (SCOTCH_Num)parts[i];
        price[i] = 1;
    }
    SCOTCH_graphInit(&graph);
    SCOTCH_stratInit(&strategy);
    if (SCOTCH_graphBuild(&graph, 0, (SCOTCH_Num)tasks, rows, rows + 1, velo, NULL, (SCOTCH_Num)entries,
                          to, NULL))
        die("SCOTCH_graphBuild");
    SCOTCH_Num flags = remap ? SCOTCH_STRATREMAP : SCOTCH_STRATDEFAULT;
    if (SCOTCH_stratGraphMapBuild(&strategy, flags, processes, tolerance)) die("SCOTCH_strat");
    int failed = remap ? SCOTCH_graphRepart(&graph, processes, old, migration_price, price, &strategy, out)
                       : SCOTCH_graphPart(&graph, processes, &strategy, out);
    if (failed) die("SCOTCH_graphPart");
    for (uint64_t i = 0; i < tasks; i++) parts[i] = (uint32_t)out[i];
    SCOTCH_stratExit(&strategy);
    SCOTCH_graphExit(&graph);
    free(rows), free(to), free(velo), free(out), free(old), free(price);
}
#endif

#ifdef WITH_ZOLTAN
static int z_count(void *data, int *error) {
    (void)data;
    *error = ZOLTAN_OK;
    return (int)tasks;
}
static void z_list(void *data, int gids, int lids, ZOLTAN_ID_PTR global, ZOLTAN_ID_PTR local, int wdim,
                   float *load_of, int *error) {
    (void)data, (void)gids, (void)lids, (void)wdim;
    for (uint64_t i = 0; i < tasks; i++) {
        global[i] = local[i] = (ZOLTAN_ID_TYPE)i;
        load_of[i] = (float)weights[i];
    }
    *error = ZOLTAN_OK;
}
static int z_dimensions(void *data, int *error) {
    (void)data;
    *error = ZOLTAN_OK;
    return 3;
}
static void z_geometry(void *data, int gids, int lids, int count, ZOLTAN_ID_PTR global,
                       ZOLTAN_ID_PTR local, int dimensions, double *out, int *error) {
    (void)data, (void)gids, (void)lids, (void)local, (void)dimensions;
    for (int i = 0; i < count; i++) memcpy(out + 3 * i, coordinates + 3 * (size_t)global[i], 24);
    *error = ZOLTAN_OK;
}
static void z_edge_counts(void *data, int gids, int lids, int count, ZOLTAN_ID_PTR global,
                          ZOLTAN_ID_PTR local, int *out, int *error) {
    (void)data, (void)gids, (void)lids, (void)local;
    for (int i = 0; i < count; i++) out[i] = (int)(offsets[global[i] + 1] - offsets[global[i]]);
    *error = ZOLTAN_OK;
}
static void z_edges(void *data, int gids, int lids, int count, ZOLTAN_ID_PTR global, ZOLTAN_ID_PTR local,
                    int *degrees, ZOLTAN_ID_PTR near, int *owners, int wdim, float *edge_weights,
                    int *error) {
    (void)data, (void)gids, (void)lids, (void)local, (void)degrees;
    size_t next = 0;
    for (int i = 0; i < count; i++)
        for (uint64_t e = offsets[global[i]]; e < offsets[global[i] + 1]; e++, next++) {
            near[next] = neighbours[e];
            owners[next] = 0;
            if (wdim) edge_weights[next] = 1.0f;
        }
    *error = ZOLTAN_OK;
}
static void z_parts(void *data, int gids, int lids, int count, ZOLTAN_ID_PTR global, ZOLTAN_ID_PTR local,
                    int *out, int *error) {
    (void)data, (void)gids, (void)lids, (void)local;
    for (int i = 0; i < count; i++) out[i] = (int)parts[global[i]];
    *error = ZOLTAN_OK;
}

static void run_zoltan(struct Zoltan_Struct *zoltan) {
    int changes, gids, lids, imports, exports;
    ZOLTAN_ID_PTR ig, il, eg, el;
    int *ip, *it, *ep, *et;
    if (Zoltan_LB_Partition(zoltan, &changes, &gids, &lids, &imports, &ig, &il, &ip, &it, &exports, &eg,
                            &el, &ep, &et) != ZOLTAN_OK)
        die("Zoltan_LB_Partition");
    for (int i = 0; i < exports; i++) parts[eg[i]] = (uint32_t)et[i];
    Zoltan_LB_Free_Part(&ig, &il, &ip, &it);
    Zoltan_LB_Free_Part(&eg, &el, &ep, &et);
}

static struct Zoltan_Struct *zoltan_for(const char *peer, double tolerance) {
    float version;
    char text[32];
    if (Zoltan_Initialize(0, NULL, &version) != ZOLTAN_OK) die("Zoltan_Initialize");
    struct Zoltan_Struct *zoltan = Zoltan_Create(MPI_COMM_WORLD);
    Zoltan_Set_Param(zoltan, "DEBUG_LEVEL", "0");
    Zoltan_Set_Param(zoltan, "NUM_GID_ENTRIES", "1");
    Zoltan_Set_Param(zoltan, "NUM_LID_ENTRIES", "1");
    Zoltan_Set_Param(zoltan, "OBJ_WEIGHT_DIM", "1");
    Zoltan_Set_Param(zoltan, "EDGE_WEIGHT_DIM", "0");
    Zoltan_Set_Param(zoltan, "RETURN_LISTS", "PARTS");
    snprintf(text, sizeof text, "%d", processes);
    Zoltan_Set_Param(zoltan, "NUM_GLOBAL_PARTS", text);
    snprintf(text, sizeof text, "%.4f", 1.0 + tolerance);
    Zoltan_Set_Param(zoltan, "IMBALANCE_TOL", text);
    if (!strcmp(peer, "zoltan-rcb")) {
        Zoltan_Set_Param(zoltan, "LB_METHOD", "RCB");
    } else if (!strcmp(peer, "zoltan-hsfc")) {
        Zoltan_Set_Param(zoltan, "LB_METHOD", "HSFC");
    } else {
        Zoltan_Set_Param(zoltan, "LB_METHOD", "GRAPH");
        Zoltan_Set_Param(zoltan, "GRAPH_PACKAGE", "PHG");
        int again = !strcmp(peer, "zoltan-phg-repartition");
        snprintf(text, sizeof text, "%.4f", 1.0 / migration_price);
        if (again) Zoltan_Set_Param(zoltan, "PHG_REPART_MULTIPLIER", text);
        Zoltan_Set_Param(zoltan, "LB_APPROACH", again ? "REPARTITION" : "PARTITION");
    }
    Zoltan_Set_Num_Obj_Fn(zoltan, z_count, NULL);
    Zoltan_Set_Obj_List_Fn(zoltan, z_list, NULL);
    Zoltan_Set_Num_Geom_Fn(zoltan, z_dimensions, NULL);
    Zoltan_Set_Geom_Multi_Fn(zoltan, z_geometry, NULL);
    Zoltan_Set_Num_Edges_Multi_Fn(zoltan, z_edge_counts, NULL);
    Zoltan_Set_Edge_List_Multi_Fn(zoltan, z_edges, NULL);
    Zoltan_Set_Part_Multi_Fn(zoltan, z_parts, NULL);
    return zoltan;
}
#endif

int main(int argc, char **argv) {
    if (argc != 9) die("FOLDER PEER PROCESSES FIRST STEPS TOLERANCE OUT MIGRATION_PRICE");
    migration_price = atof(argv[8]);
#ifdef WITH_ZOLTAN
    MPI_Init(&argc, &argv);
#endif
    const char *folder = argv[1], *peer = argv[2];
    (void)peer; /* METIS has one method only; its parts are named by the command */
    processes = atoi(argv[3]);
    int first = atoi(argv[4]), steps = atoi(argv[5]);
    double tolerance = atof(argv[6]), total = 0;
    char path[4096];
    load_graph(folder);
    snprintf(path, sizeof path, "%s/start-%d.bin", folder, processes);
    load(path, parts, tasks * 4);
#ifdef WITH_ZOLTAN
    struct Zoltan_Struct *zoltan = zoltan_for(peer, tolerance);
#endif
    for (int step = first + 1; step <= first + steps; step++) {
        snprintf(path, sizeof path, "%s/weights-%d.bin", folder, step);
        load(path, weights, tasks * 8);
        double start = seconds();
#ifdef WITH_ZOLTAN
        run_zoltan(zoltan);
#endif
#ifdef WITH_METIS
        run_metis(tolerance);
#endif
#ifdef WITH_SCOTCH
        run_scotch(tolerance, !strcmp(peer, "scotch-remap"));
#endif
        total += seconds() - start;
        snprintf(path, sizeof path, "%s/parts-%d.bin", argv[7], step);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(parts, 4, tasks, file) != tasks) die(path);
        fclose(file);
    }
    printf("%.6f\n", total / steps);
#ifdef WITH_ZOLTAN
    Zoltan_Destroy(&zoltan);
    MPI_Finalize();
#endif
    return 0;
}
