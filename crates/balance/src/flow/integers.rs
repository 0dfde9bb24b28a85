//! Loads of whole units.

use crate::links::Links;

/// Turns a flow of whole units into integers and finishes until no two
/// neighbours could come closer by a unit: the flow is rounded to nearest, then
/// pairs are levelled in ascending order as long as one unit helps. The sum is
/// kept exactly. Returns the integer amounts (parallel to the links) and loads.
pub fn integer_finish(
    links: &Links,
    loads: &[i64],
    speeds: &[f64],
    flow: &[f64],
) -> (Vec<i64>, Vec<i64>) {
    let mut amounts = vec![0i64; links.len()];
    let mut loads = loads.to_vec();
    let mut shift = |loads: &mut [i64], link: usize, from: u32, units: i64| {
        amounts[link] += units;
        amounts[links.reverse(link)] -= units;
        loads[from as usize] -= units;
        loads[links.to(link) as usize] += units;
    };
    let rounded = |from: u32| links.of(from).filter(move |&link| links.to(link) > from);
    for from in 0..links.count() as u32 {
        for link in rounded(from) {
            shift(&mut loads, link, from, libm::round(flow[link]) as i64);
        }
    }
    // The sum of squared loads over speeds falls with every unit: this ends.
    let mut moved = true;
    while moved {
        moved = false;
        for from in 0..links.count() as u32 {
            for link in rounded(from) {
                let to = links.to(link);
                let (wi, wj) = (loads[from as usize] as f64, loads[to as usize] as f64);
                let (ci, cj) = (speeds[from as usize], speeds[to as usize]);
                let units = ((wi * cj - wj * ci) / (ci + cj)) as i64;
                if units != 0 {
                    shift(&mut loads, link, from, units);
                    moved = true;
                }
            }
        }
    }
    (amounts, loads)
}
