//! How fast parities are added up, beside ISA-L where it is at hand; both must give the same bytes.
//!
//!     cargo run --release -p outlive-vault --example parities [LIBISAL.SO]
//!
//! What is measured is what a node does for one parity: it takes K segments one after the other, a
//! MiB at a time, and adds each, multiplied by its factor. Figures are GB/s of segments, of one
//! thread: the median of many turns.
#![allow(missing_docs)]

use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::hint::black_box;
use std::time::Instant;

use outlive_codec::field::add_multiple;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const NOW: c_int = 2;
/// Bytes of a transfer, as the vault takes them.
const CHUNK: usize = 1 << 20;
/// So many sets of segments take turns, so that no segment comes from a cache.
const SETS: usize = 16;
const TURNS: usize = 30 * SETS;

type Tables = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
type Encode = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    *const c_uchar,
    *const *const c_uchar,
    *const *mut c_uchar,
);
type Update = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_uchar,
    *const c_uchar,
    *const *mut c_uchar,
);

struct Isal {
    tables: Tables,
    encode: Encode,
    update: Update,
}

fn isal(path: &str) -> Option<Isal> {
    let path = CString::new(path).ok()?;
    // SAFETY: the name ends with a zero.
    let library = unsafe { dlopen(path.as_ptr(), NOW) };
    if library.is_null() {
        return None;
    }
    let find = |name: &str| {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open, the name ends with a zero.
        let found = unsafe { dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    // SAFETY: these functions have these types in isa-l's erasure_code.h since 2.14.
    unsafe {
        Some(Isal {
            tables: std::mem::transmute::<*mut c_void, Tables>(find("ec_init_tables")?),
            encode: std::mem::transmute::<*mut c_void, Encode>(find("ec_encode_data")?),
            update: std::mem::transmute::<*mut c_void, Update>(find("ec_encode_data_update")?),
        })
    }
}

/// The median of the turns, in GB/s of `bytes` each.
fn median(bytes: usize, mut turn: impl FnMut(usize)) -> f64 {
    let mut seconds: Vec<f64> = (0..TURNS)
        .map(|nth| {
            let begun = Instant::now();
            turn(nth % SETS);
            begun.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    bytes as f64 / seconds[TURNS / 2] / 1e9
}

fn main() {
    let library = std::env::args().nth(1).and_then(|path| isal(&path));
    for k in [4, 6, 8, 16] {
        let segment = |nth: usize| (0..CHUNK).map(move |i| (i * 7 + i / 251 + nth) as u8);
        let sets: Vec<Vec<Vec<u8>>> = (0..SETS)
            .map(|set| (0..k).map(|nth| segment(set * k + nth).collect()).collect())
            .collect();
        let factors: Vec<u8> = (0..k).map(|nth| (nth * 37 + 2) as u8).collect();
        let mut sum = vec![0; CHUNK];
        let ours = median(k * CHUNK, |set| {
            sum.fill(0);
            for (segment, factor) in sets[set].iter().zip(&factors) {
                add_multiple(&mut sum, segment, *factor);
            }
            black_box(&sum);
        });
        let plain = median(k * CHUNK, |set| {
            sum.fill(0);
            for segment in &sets[set] {
                add_multiple(&mut sum, segment, 1);
            }
            black_box(&sum);
        });
        print!("K = {k}: with factors {ours:.1}, without {plain:.1}");
        if let Some(isal) = &library {
            let (count, length) = (k as c_int, CHUNK as c_int);
            let mut tables = vec![0; 32 * k];
            // SAFETY: 32 bytes of tables for each factor.
            unsafe { (isal.tables)(count, 1, factors.as_ptr(), tables.as_mut_ptr()) };
            let mut theirs = vec![0u8; CHUNK];
            let into = [theirs.as_mut_ptr()];
            let one_by_one = median(k * CHUNK, |set| {
                // SAFETY: each buffer is of that length, the tables are of k factors.
                unsafe {
                    std::ptr::write_bytes(into[0], 0, CHUNK);
                    for (nth, segment) in sets[set].iter().enumerate() {
                        let (nth, tables) = (nth as c_int, tables.as_ptr());
                        let from = segment.as_ptr();
                        (isal.update)(length, count, 1, nth, tables, from, into.as_ptr());
                    }
                }
            });
            let at_once = median(k * CHUNK, |set| {
                let from: Vec<*const u8> = sets[set].iter().map(|it| it.as_ptr()).collect();
                // SAFETY: as above.
                unsafe {
                    (isal.encode)(
                        length,
                        count,
                        1,
                        tables.as_ptr(),
                        from.as_ptr(),
                        into.as_ptr(),
                    );
                }
            });
            sum.fill(0);
            for (segment, factor) in sets[SETS - 1].iter().zip(&factors) {
                add_multiple(&mut sum, segment, *factor);
            }
            assert!(sum == theirs, "ISA-L gives other bytes");
            print!("; ISA-L one by one {one_by_one:.1}, all at once {at_once:.1}, same bytes");
        }
        println!();
    }
}
