/* What a program may ask liboutlive_mpi.so: who contributed, who is dead.
 *
 * Link with -loutlive_mpi before MPI, or load the library with LD_PRELOAD and look the
 * functions up. Include mpi.h of the MPI in use before this header. */
#ifndef OUTLIVE_MPI_H
#define OUTLIVE_MPI_H
#ifdef __cplusplus
extern "C" {
#endif

/* 1 if Outlive serves this process's collectives, else 0. */
int outlive_mpi_active(void);

/* Ranks of `comm` that did not contribute to the last Reduce, Allreduce or Barrier on it
 * (of any family: ftco, corrected-tree, corrected-gossip),
 * as far as this process got its result (every process of an Allreduce or Barrier, the
 * root of a Reduce). The first `capacity` of them, ascending, go into `ranks` (may be
 * NULL if capacity is 0). Returns how many there are, or a negative OUTLIVE_E_ code:
 * -101 if Outlive does not serve this communicator, -100 for a negative capacity. */
int outlive_mpi_absent(MPI_Comm comm, int ranks[], int capacity);

/* Ranks of MPI_COMM_WORLD that this process knows to be dead; like above. News that have
 * arrived are taken in first; a result does not wait for them, so a rank may be absent from
 * a result before it is on this list. */
int outlive_mpi_dead(int ranks[], int capacity);

#ifdef __cplusplus
}
#endif
#endif
