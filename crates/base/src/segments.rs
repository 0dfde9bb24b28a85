//! Shared memory of MPI libraries, as `/proc/PID/maps` shows it.
//!
//! A library makes files in `/dev/shm` that its processes map, and removes them in
//! MPI_Finalize, which killed processes never reach. Only what a job's own process was seen to
//! map may be removed for it: names alone prove nothing.

/// Where they lie.
pub const DIR: &str = "/dev/shm/";

/// How the names of such files begin.
const KNOWN: [&str; 12] = [
    // MPICH 4 and 5, for as long as a job runs; the second while windows are made.
    "mpich_shm_",
    "mpich_shar_tmp",
    // Open MPI 5, 3 and 4; windows.
    "sm_segment.",
    "vader_segment.",
    "osc_sm.",
    "osc_rdma.",
    "open_mpi.",
    // Below either.
    "ucx_shm_posix_",
    "psm2_shm.",
    "psm3_shm.",
    // Intel MPI, by reports of others.
    "Intel_MPI_",
    // Cray MPICH and MVAPICH2 keep MPICH's names; MVAPICH2's own buffers besides.
    "mvapich",
];

/// A file that a process maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Its number there.
    pub inode: u64,
    /// Its name below [`DIR`].
    pub name: String,
}

/// True if a file of this name may be a segment of an MPI library.
pub fn is_known(name: &str) -> bool {
    !name.contains('/') && KNOWN.iter().any(|known| name.starts_with(known))
}

/// The segments in the text of `/proc/PID/maps`, those that are removed already left out.
pub fn mapped(maps: &str) -> impl Iterator<Item = Mapped> + '_ {
    maps.lines().filter_map(of_line)
}

/// `7f..-7f.. rw-s 00000000 00:1b 30233      /dev/shm/mpich_shm_294a74b8_0`
fn of_line(line: &str) -> Option<Mapped> {
    let name = &line[line.find(DIR)? + DIR.len()..];
    if !is_known(name) || name.ends_with(" (deleted)") {
        return None;
    }
    let mut words = line.split_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    Some(Mapped {
        device: (
            u32::from_str_radix(major, 16).ok()?,
            u32::from_str_radix(minor, 16).ok()?,
        ),
        inode: words.next()?.parse().ok()?,
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
558b22b59000-558b22b5a000 r--p 00000000 fe:00 9978497                    /tmp/a b
7fa96a91a000-7fa96a94b000 rw-s 00000000 00:1b 30236                      /dev/shm/mpich_shar_tmpz1IUOV (deleted)
7fa96a990000-7fa96ab96000 rw-s 00000000 00:1b 30233                      /dev/shm/mpich_shm_294a74b8_0
7fa96a990000-7fa96ab96000 rw-s 00000000 01:a0 7                          /dev/shm/sm_segment.vm.0.f1a00001.1
7fa96ac10000-7fa96b029000 rw-s 00000000 00:1b 30232                      /dev/shm/data-of-mine
7fa96ac10000-7fa96b029000 rw-s 00000000 00:1b 30232                      /dev/shm/sub/mpich_shm_1
7fa96ac10000-7fa96b029000 rw-s 00000000 zz:1b 30232                      /dev/shm/mpich_shm_2
7fa96ac10000-7fa96b029000 rw-p 00000000 00:00 0 
7fa96ac10000 /dev/shm/mpich_shm_3
";

    #[test]
    fn only_segments_that_are_there_are_found() {
        let found: Vec<Mapped> = mapped(MAPS).collect();
        let whole = |device, inode, name: &str| Mapped {
            device,
            inode,
            name: name.to_owned(),
        };
        assert_eq!(
            found,
            [
                whole((0, 0x1b), 30233, "mpich_shm_294a74b8_0"),
                whole((1, 0xa0), 7, "sm_segment.vm.0.f1a00001.1"),
            ]
        );
    }
}
