/* The discrete compressible Navier-Stokes equations that BT, SP and LU share:
 * RNR-94-007, section 3.2 to 3.5. Fields are arrays of five variables on n^3
 * points, i fastest; a rank owns rows first..last-1 of j and may hold more.
 */
#ifndef NAS_FLOW_H
#define NAS_FLOW_H

#include "common.h"

#define VARIABLES 5

typedef double vector[VARIABLES];
typedef double block[VARIABLES][VARIABLES];

struct flow {
    size_t n;           /* points along each axis */
    size_t first, last; /* own rows of j */
    double dt, t1, t2, t3; /* 1/h^2, 1/(2h), 1/h */
    vector *u, *rhs, *forcing;
    double *velocity[3], *inverse, *square; /* u_d/rho, 1/rho, kinetic energy */
};

/* Ratios of specific heats and such, and the dissipation. */
#define C1 1.4
#define C2 0.4
#define C3 0.1
#define C4 1.0
#define C5 1.4
#define C34 (C3 * C4)
#define C1345 (C1 * C5 * C34)
#define DISSIPATION 0.25

/* Second-order dissipation of an axis (0 to 2), the same for all variables. */
static inline double dissipation_of(int axis)
{
    return axis == 2 ? 1.0 : 0.75;
}

static inline size_t point(const struct flow *f, size_t i, size_t j, size_t k)
{
    return (k * f->n + j) * f->n + i;
}

/* Sets up grid, forcing and the initial field; owns all rows. */
struct flow make_flow(size_t n, double dt);
/* rhs = forcing + R(u) inside, for own rows; not multiplied by dt. Needs two
 * rows of u beside the own ones. */
void compute_rhs(struct flow *f);
/* The field again as it was in the beginning. */
void reset_flow(struct flow *f);
/* Sums over own rows of squares: of rhs inside, and of u against the exact
 * solution, over all points or the inner ones. */
void residual_squares(const struct flow *f, vector sums);
void error_squares(const struct flow *f, int inner, vector sums);
/* dF/du of the inviscid and dN/du of the viscous flux along an axis. */
void jacobians(const double *u, int axis, block inviscid, block viscous);
/* a becomes its LU factors; then b is solved for, as a vector or column-wise. */
void factor(block a);
void solve_vector(block a, vector b);
void solve_block(block a, block b);

#endif
