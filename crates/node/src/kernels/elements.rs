//! Finite elements, as MiniFE: the operator of Poisson's equation is assembled from trilinear
//! hexahedra on a mesh that is not straight, and conjugate gradients take some steps on it.
//!
//! Nodes with x = 0 are held (Dirichlet): their rows and columns are those of the identity.

use crate::rows::{Matrix, solve};

type Call = Box<dyn FnMut() -> f64 + Send>;
type Point = [f64; 3];

/// Iterations of one call.
const ITERATIONS: usize = 10;
/// Of a node: 27 values of 8 bytes and places of 4, its row's end, four vectors, its place.
const NODE_BYTES: u64 = 27 * 12 + 4 + 4 * 8 + 24;
/// Points of the Gauss rule with two in each direction, of -1 to 1; their weights are 1.
const GAUSS: f64 = 0.577_350_269_189_625_8;

/// A mesh of hexahedra: nodes in each direction.
struct Mesh {
    nodes: [usize; 3],
    points: Vec<Point>,
}

impl Mesh {
    /// Of the unit cube, bent so that no element is like another.
    fn bent(nodes: [usize; 3]) -> Mesh {
        let [nx, ny, nz] = nodes;
        let part = |at: usize, of: usize| at as f64 / (of - 1).max(1) as f64;
        let points = (0..nx * ny * nz).map(|node| {
            let (x, y, z) = (
                part(node % nx, nx),
                part(node / nx % ny, ny),
                part(node / (nx * ny), nz),
            );
            [
                x + 0.1 * x * y * z,
                y + 0.1 * x * (1.0 - y) * z,
                z + 0.1 * x * y * y,
            ]
        });
        let points = points.collect();
        Mesh { nodes, points }
    }

    /// The corners of an element, x first; in the order of [`corner`].
    fn corners(&self, [x, y, z]: [usize; 3]) -> [usize; 8] {
        let [nx, ny, _] = self.nodes;
        std::array::from_fn(|at| {
            let [i, j, k] = corner(at).map(|side| usize::from(side > 0.0));
            (x + i) + nx * ((y + j) + ny * (z + k))
        })
    }

    /// All elements.
    fn elements(&self) -> impl Iterator<Item = [usize; 3]> {
        let [nx, ny, nz] = self.nodes.map(|nodes| nodes.saturating_sub(1));
        (0..nx * ny * nz).map(move |at| [at % nx, at / nx % ny, at / (nx * ny)])
    }

    /// Whether a node's value is given.
    fn is_held(&self, node: usize) -> bool {
        node.is_multiple_of(self.nodes[0])
    }

    /// Rows with a place for each node that shares an element, and no values.
    fn rows(&self) -> Matrix {
        let [nx, ny, nz] = self.nodes;
        let near = |at: usize, of: usize| at.saturating_sub(1)..(at + 2).min(of);
        let (mut ends, mut places) = (Vec::new(), Vec::new());
        for node in 0..nx * ny * nz {
            for z in near(node / (nx * ny), nz) {
                for y in near(node / nx % ny, ny) {
                    places.extend(near(node % nx, nx).map(|x| (x + nx * (y + ny * z)) as u32));
                }
            }
            ends.push(places.len() as u32);
        }
        let values = vec![0.0; places.len()];
        Matrix {
            ends,
            places,
            values,
        }
    }
}

/// Where a corner lies in the element of reference, from -1 to 1.
fn corner(at: usize) -> Point {
    std::array::from_fn(|axis| if at >> axis & 1 == 1 { 1.0 } else { -1.0 })
}

/// The derivatives of the eight shape functions in the element of reference.
fn slopes(at: Point) -> [Point; 8] {
    std::array::from_fn(|shape| {
        let side = corner(shape);
        let term: Point = std::array::from_fn(|axis| 1.0 + side[axis] * at[axis]);
        std::array::from_fn(|axis| side[axis] * term[(axis + 1) % 3] * term[(axis + 2) % 3] / 8.0)
    })
}

fn cross(a: Point, b: Point) -> Point {
    std::array::from_fn(|axis| {
        let (next, last) = ((axis + 1) % 3, (axis + 2) % 3);
        a[next] * b[last] - a[last] * b[next]
    })
}

fn dot(a: Point, b: Point) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

/// The integrals of the products of the gradients of two shape functions over an element.
fn stiffness(corners: &[Point; 8]) -> [[f64; 8]; 8] {
    let mut sums = [[0.0; 8]; 8];
    for point in 0..8 {
        let slopes = slopes(corner(point).map(|side| side * GAUSS));
        // Columns of the Jacobian: how the place moves along each axis of the reference.
        let along: [Point; 3] = std::array::from_fn(|axis| {
            std::array::from_fn(|of| (0..8).map(|at| slopes[at][axis] * corners[at][of]).sum())
        });
        let cofactors: [Point; 3] =
            std::array::from_fn(|axis| cross(along[(axis + 1) % 3], along[(axis + 2) % 3]));
        let volume = dot(along[0], cofactors[0]);
        // The determinant times the gradients.
        let gradients: [Point; 8] = slopes.map(|slope| {
            std::array::from_fn(|of| (0..3).map(|axis| slope[axis] * cofactors[axis][of]).sum())
        });
        for (sums, row) in sums.iter_mut().zip(&gradients) {
            for (sum, column) in sums.iter_mut().zip(&gradients) {
                *sum += dot(*row, *column) / volume;
            }
        }
    }
    sums
}

/// Adds all elements up. Of held nodes only the diagonal stays, if `holds`.
fn assemble(mesh: &Mesh, matrix: &mut Matrix, holds: bool) {
    matrix.values.fill(0.0);
    for element in mesh.elements() {
        let nodes = mesh.corners(element);
        let sums = stiffness(&nodes.map(|node| mesh.points[node]));
        for (row, sums) in nodes.iter().zip(&sums) {
            for (column, sum) in nodes.iter().zip(sums) {
                if !(holds && (mesh.is_held(*row) || mesh.is_held(*column))) {
                    add(matrix, *row, *column as u32, *sum);
                }
            }
        }
    }
    for node in (0..mesh.points.len()).filter(|node| holds && mesh.is_held(*node)) {
        add(matrix, node, node as u32, 1.0);
    }
}

fn add(matrix: &mut Matrix, row: usize, column: u32, value: f64) {
    let from = row
        .checked_sub(1)
        .map_or(0, |before| matrix.ends[before] as usize);
    let places = &matrix.places[from..matrix.ends[row] as usize];
    if let Ok(at) = places.binary_search(&column) {
        matrix.values[from + at] += value;
    }
}

pub(super) fn fem(bytes: u64) -> (u64, Call) {
    let nodes = (bytes / NODE_BYTES) as usize;
    // A flat mesh whose size follows the working set closely.
    let side = ((nodes as f64).cbrt() as usize).max(2);
    let deep = (nodes / (side * side)).max(2);
    let mesh = Mesh::bent([side, side, deep]);
    let mut matrix = mesh.rows();
    let nodes = mesh.points.len();
    let mut vectors = [(); 4].map(|()| vec![0.0; nodes]);
    let call = move || {
        assemble(&mesh, &mut matrix, true);
        solve(&matrix, ITERATIONS, &mut vectors)
    };
    (NODE_BYTES * nodes as u64, Box::new(call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlive_base::rng::Sequence;

    fn dense(matrix: &Matrix) -> Vec<Vec<f64>> {
        let count = matrix.ends.len();
        let mut from = 0;
        let row = |end: &u32| {
            let mut row = vec![0.0; count];
            for at in from..*end as usize {
                row[matrix.places[at] as usize] += matrix.values[at];
            }
            from = *end as usize;
            row
        };
        matrix.ends.iter().map(row).collect()
    }

    /// The known matrix of a cube: 1/3 h in the diagonal, nothing along edges, -1/12 h across
    /// faces and through the middle.
    #[test]
    fn a_cube_has_its_known_matrix() {
        for side in [1.0, 0.25] {
            let points = std::array::from_fn(|at| corner(at).map(|one| one * side / 2.0));
            for (i, row) in stiffness(&points).iter().enumerate() {
                for (j, value) in row.iter().enumerate() {
                    let wanted = match (i ^ j).count_ones() {
                        0 => side / 3.0,
                        1 => 0.0,
                        _ => -side / 12.0,
                    };
                    assert!((value - wanted).abs() < 1e-14, "{i} {j}: {value}");
                }
            }
        }
    }

    /// The patch test: on a mesh of any shape a linear function solves the equation, so
    /// inner nodes have no residual, whatever the elements' shapes are.
    #[test]
    fn linear_functions_have_no_residual_on_a_mesh_of_any_shape() {
        for seed in outlive_base::seeds!(5) {
            let mut random = Sequence::new(seed, 0);
            let mut mesh = Mesh::bent([5, 4, 6]);
            let mut shift = || (random.below(1_000) as f64 / 1_000.0 - 0.5) * 0.08;
            for point in &mut mesh.points {
                point.iter_mut().for_each(|one| *one += shift());
            }
            let mut matrix = mesh.rows();
            assemble(&mesh, &mut matrix, false);
            let slope = [1.0 + shift(), -2.0, 0.5];
            let values: Vec<f64> = mesh.points.iter().map(|at| 3.0 + dot(slope, *at)).collect();
            let rows = dense(&matrix);
            let mut inner = 0;
            for (node, row) in rows.iter().enumerate() {
                let residual: f64 = row.iter().zip(&values).map(|(a, b)| a * b).sum();
                let (x, y, z) = (node % 5, node / 5 % 4, node / 20);
                let is_inner = (1..4).contains(&x) && (1..3).contains(&y) && (1..5).contains(&z);
                assert_eq!(
                    residual.abs() < 1e-12,
                    is_inner,
                    "seed {seed}: {node}: {residual}"
                );
                inner += u32::from(is_inner);
            }
            assert_eq!(inner, 24);
        }
    }

    #[test]
    fn the_operator_is_symmetric_and_conjugate_gradients_find_the_solution_of_ones() {
        let mesh = Mesh::bent([4, 5, 3]);
        let mut matrix = mesh.rows();
        assemble(&mesh, &mut matrix, true);
        let rows = dense(&matrix);
        for (i, row) in rows.iter().enumerate() {
            for (j, value) in row.iter().enumerate() {
                assert!((value - rows[j][i]).abs() < 1e-14, "{i} {j}");
                let held = mesh.is_held(i) || mesh.is_held(j);
                assert!(
                    !held || *value == f64::from(u8::from(i == j)),
                    "{i} {j}: {value}"
                );
            }
        }
        let mut vectors = [(); 4].map(|()| vec![0.0; 60]);
        solve(&matrix, 200, &mut vectors);
        assert!(
            vectors[0].iter().all(|x| (x - 1.0).abs() < 1e-8),
            "{:?}",
            vectors[0]
        );
    }
}
