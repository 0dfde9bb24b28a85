//! Sparse matrices in rows, and conjugate gradients on them: what several kernels measure.

/// A square matrix in rows.
pub(crate) struct Matrix {
    /// Where each row ends in the other two.
    pub ends: Vec<u32>,
    /// The columns of its entries.
    pub places: Vec<u32>,
    /// Their values.
    pub values: Vec<f64>,
}

impl Matrix {
    /// The product with a vector.
    fn times(&self, x: &[f64], y: &mut [f64]) {
        let mut from = 0;
        for (y, &end) in y.iter_mut().zip(&self.ends) {
            let row = from..end as usize;
            let terms = self.places[row.clone()].iter().zip(&self.values[row]);
            *y = terms.map(|(&place, value)| value * x[place as usize]).sum();
            from = end as usize;
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves for the right-hand side of a solution of ones, from zero, by conjugate gradients; the mean
/// of the solution. The vectors are as long as the matrix has rows.
pub(crate) fn solve(matrix: &Matrix, iterations: usize, [x, r, p, q]: &mut [Vec<f64>; 4]) -> f64 {
    p.fill(1.0);
    matrix.times(p, r);
    x.fill(0.0);
    p.copy_from_slice(r);
    let mut norm = dot(r, r);
    for _ in 0..iterations {
        matrix.times(p, q);
        let along = dot(p, q);
        if along <= 0.0 || norm <= 0.0 {
            break;
        }
        let alpha = norm / along;
        x.iter_mut().zip(&*p).for_each(|(x, p)| *x += alpha * p);
        r.iter_mut().zip(&*q).for_each(|(r, q)| *r -= alpha * q);
        let before = std::mem::replace(&mut norm, dot(r, r));
        p.iter_mut()
            .zip(&*r)
            .for_each(|(p, r)| *p = r + norm / before * *p);
    }
    x.iter().sum::<f64>() / x.len() as f64
}
