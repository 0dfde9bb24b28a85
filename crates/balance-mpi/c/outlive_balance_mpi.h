/* Balancing over an MPI communicator. */
#ifndef OUTLIVE_BALANCE_MPI_H
#define OUTLIVE_BALANCE_MPI_H

#include <mpi.h>

#include "outlive_balance.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over comm, which is duplicated for the call. */
int outlive_balance_mpi(MPI_Comm comm, const outlive_balance_queries *queries,
                        const outlive_balance_options *options, outlive_balance_result *result);

#ifdef __cplusplus
}
#endif
#endif
