//! The next kernel as segments of our own: kexec_load(2) with KEXEC_ON_CRASH.
//!
//! kexec_file_load(2) digests kernel and initramfs by SHA-256, the zeroes included that
//! the kernel needs for its decompression, and its purgatory does so again after the
//! panic. Here the segments are made as the boot protocol for 64-bit entry says
//! (Documentation/arch/x86/boot.rst of Linux), and [`crate::stub`] checks a digest that
//! costs three instructions for 8 bytes.
//!
//! Layout in the crash area, from its start:
//!
//! ```text
//! gap           the kernel takes its control pages and page tables from here
//! kernel        the file behind its setup sectors; `init_size` bytes stay free for it
//! info          boot parameters, boot line, stub, stack: a page each
//! initramfs
//! ```
//!
//! Invariant: nothing but the kernel lies in its `init_size` bytes. The gap must hold all
//! that kexec allocates, for the first hole that is large enough is taken: else page
//! tables would stand where the kernel decompresses itself.

use crate::stub;
use crate::sys::Segment;

const PAGE: u64 = 4096;
/// Of the boot parameters: struct boot_params, a page.
const PARAMS: usize = 4096;
const INFO_PAGES: u64 = 4;
/// Control code, vmcoreinfo, page tables of the segments: 30 pages are usual.
const CONTROL_PAGES: u64 = 448;
const GIB: u64 = 1 << 30;

// Offsets in struct boot_params, which are those of the setup header in a bzImage too.
const SCREEN: std::ops::Range<usize> = 0..0x40;
const RSDP: std::ops::Range<usize> = 0x70..0x78;
const EXT_RAMDISK: [usize; 2] = [0xc0, 0xc4];
const EXT_LINE: usize = 0xc8;
const E820_COUNT: usize = 0x1e8;
const HEADER: usize = 0x1f1;
const HEADER_END: usize = 0x290;
const SETUP_SECTORS: usize = 0x1f1;
const BOOT_FLAG: usize = 0x1fe;
const JUMP: usize = 0x201;
const MAGIC: usize = 0x202;
const PROTOCOL: usize = 0x206;
const LOADER: usize = 0x210;
const LOAD_FLAGS: usize = 0x211;
const RAMDISK: [usize; 2] = [0x218, 0x21c];
const LINE: usize = 0x228;
const ALIGNMENT: usize = 0x230;
const RELOCATABLE: usize = 0x234;
const XLOAD_FLAGS: usize = 0x236;
const LINE_MAX: usize = 0x238;
const SUBARCH: std::ops::Range<usize> = 0x23c..0x248;
const SETUP_DATA: std::ops::Range<usize> = 0x250..0x258;
const PREFERRED: usize = 0x258;
const INIT_SIZE: usize = 0x260;
const E820: usize = 0x2d0;
const E820_ENTRY: usize = 20;
const E820_MAX: usize = 128;
const E820_RAM: u32 = 1;

/// The boot loader number of kexec (0xD).
const KEXEC_LOADER: u8 = 0xd0;
const ABOVE_4G: u16 = 2;
const ENTRY_64: u16 = 1;

/// A memory range: first byte, byte behind the last.
pub type Range = (u64, u64);

/// What is loaded: segments, and where the stub is entered.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    kernel: Segment<'a>,
    initrd: Segment<'a>,
    info: Vec<u8>,
    info_at: u64,
    /// Where the panic jumps to.
    pub entry: u64,
}

impl Plan<'_> {
    /// The segments, by ascending address.
    pub fn segments(&self) -> [Segment<'_>; 3] {
        let info = Segment {
            bytes: &self.info,
            at: self.info_at,
        };
        [self.kernel, info, self.initrd]
    }
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// Puts both halves of a number where the boot protocol wants them.
fn put(params: &mut [u8], low: usize, high: usize, value: u64) {
    params[low..low + 4].copy_from_slice(&(value as u32).to_le_bytes());
    params[high..high + 4].copy_from_slice(&((value >> 32) as u32).to_le_bytes());
}

/// Memory of the machine as the running kernel was told it (/sys/kernel/boot_params/data).
fn memory(running: &[u8]) -> Result<Vec<(u64, u64, u32)>, String> {
    let count = usize::from(running[E820_COUNT]);
    if count == 0 || count >= E820_MAX {
        return Err(format!("the firmware names {count} ranges of memory"));
    }
    let entry = |n: usize| {
        let at = E820 + n * E820_ENTRY;
        (
            long(running, at),
            long(running, at + 8),
            word(running, at + 16),
        )
    };
    Ok((0..count).map(entry).collect())
}

/// Pages that kexec may allocate: it maps all memory, by 1 GiB or 2 MiB.
fn gap(memory: &[(u64, u64, u32)]) -> u64 {
    let tables = memory
        .iter()
        .filter(|(_, _, kind)| *kind == E820_RAM)
        .map(|(_, length, _)| length.div_ceil(GIB) + 3);
    (CONTROL_PAGES + tables.sum::<u64>()) * PAGE
}

/// Plans the segments of a kernel (a bzImage), its initramfs and boot line in the crash
/// area. `running` are the boot parameters of the running kernel.
///
/// # Errors
/// Why kexec_load does not serve this machine or kernel, in words.
pub(crate) fn plan<'a>(
    kernel: &'a [u8],
    initrd: &'a [u8],
    line: &str,
    crash: Range,
    running: &[u8],
) -> Result<Plan<'a>, String> {
    if running.len() != PARAMS {
        return Err(format!("{} bytes of boot parameters", running.len()));
    }
    if kernel.len() < PARAMS || word(kernel, MAGIC) != 0x5372_6448 {
        return Err("the kernel is no bzImage".into());
    }
    let flags = short(kernel, XLOAD_FLAGS);
    if short(kernel, PROTOCOL) < 0x020c || kernel[RELOCATABLE] == 0 || flags & ENTRY_64 == 0 {
        return Err("the kernel is not relocatable by its 64-bit entry".into());
    }
    let limit = (word(kernel, LINE_MAX) as usize).min(PAGE as usize - 1);
    if line.len() > limit || line.contains('\0') {
        return Err(format!("the boot line has more than {limit} bytes"));
    }
    let sectors = match kernel[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let body = kernel
        .get((sectors + 1) * 512..)
        .filter(|body| body.len() > 0x200)
        .ok_or("the kernel is shorter than it says")?;
    let memory = memory(running)?;

    let alignment = u64::from(word(kernel, ALIGNMENT)).max(PAGE);
    let at = (crash.0 + gap(&memory)).next_multiple_of(alignment);
    let room = u64::from(word(kernel, INIT_SIZE)).max(body.len() as u64);
    let info_at = (at + room).next_multiple_of(PAGE);
    let initrd_at = info_at + INFO_PAGES * PAGE;
    let end = initrd_at + (initrd.len() as u64).next_multiple_of(PAGE);
    if end > crash.1 {
        let missing = (end - crash.1).div_ceil(1 << 20);
        return Err(format!("crashkernel= is {missing} MiB too small for it"));
    }
    if at < long(kernel, PREFERRED) {
        // It would move to its preferred address, where the running kernel is.
        return Err("the crash area is below the preferred address of the kernel".into());
    }
    if end > 4 * GIB && flags & ABOVE_4G == 0 {
        return Err("the crash area is above 4 GiB, where the kernel cannot start".into());
    }

    let kernel_segment = Segment { bytes: body, at };
    let initrd_segment = Segment {
        bytes: initrd,
        at: initrd_at,
    };
    let line_at = info_at + PAGE;
    let mut info = parameters(
        kernel,
        running,
        line_at,
        (initrd_at, initrd.len() as u64),
        &memory,
    );
    info.extend_from_slice(line.as_bytes());
    info.resize(2 * PARAMS, 0);
    let first = Segment {
        bytes: &info,
        at: info_at,
    };
    let stub_at = info_at + 2 * PAGE;
    let (stub, entry) = stub::make(
        stub_at,
        info_at,
        at + 0x200,
        &[kernel_segment, first, initrd_segment],
    );
    info.extend_from_slice(&stub);
    // The page behind it is the stack.
    info.resize((INFO_PAGES * PAGE) as usize, 0);
    Ok(Plan {
        kernel: kernel_segment,
        initrd: initrd_segment,
        info,
        info_at,
        entry,
    })
}

/// The boot parameters: the header of the kernel's file, and of the running kernel what
/// belongs to the machine (screen, platform, ACPI, memory).
fn parameters(
    kernel: &[u8],
    running: &[u8],
    line_at: u64,
    initrd: (u64, u64),
    memory: &[(u64, u64, u32)],
) -> Vec<u8> {
    let mut params = vec![0; PARAMS];
    let header_end = (JUMP + 1 + usize::from(kernel[JUMP])).min(HEADER_END);
    params[HEADER..header_end].copy_from_slice(&kernel[HEADER..header_end]);
    for kept in [SCREEN, RSDP, SUBARCH] {
        params[kept.clone()].copy_from_slice(&running[kept]);
    }
    params[SETUP_DATA].fill(0);
    params[LOADER] = KEXEC_LOADER;
    // The real-mode part does not run: no heap, and not quiet.
    params[LOAD_FLAGS] &= !0xa0;
    params[BOOT_FLAG..BOOT_FLAG + 2].copy_from_slice(&0xaa55u16.to_le_bytes());
    put(&mut params, LINE, EXT_LINE, line_at);
    put(&mut params, RAMDISK[0], EXT_RAMDISK[0], initrd.0);
    put(&mut params, RAMDISK[1], EXT_RAMDISK[1], initrd.1);
    params[E820_COUNT] = memory.len() as u8;
    let table = E820..E820 + memory.len() * E820_ENTRY;
    params[table.clone()].copy_from_slice(&running[table]);
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const CRASH: Range = (512 * MIB, 640 * MIB);

    /// A bzImage of nothing: header and numbered words.
    fn image() -> Vec<u8> {
        let mut image = vec![0; 5 * 512];
        image[SETUP_SECTORS] = 4;
        image[JUMP] = 0x6a;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PROTOCOL..PROTOCOL + 2].copy_from_slice(&0x20fu16.to_le_bytes());
        image[LOAD_FLAGS] = 0xa1;
        image[ALIGNMENT..ALIGNMENT + 4].copy_from_slice(&(2 * MIB as u32).to_le_bytes());
        image[RELOCATABLE] = 1;
        image[XLOAD_FLAGS] = 3;
        image[LINE_MAX..LINE_MAX + 4].copy_from_slice(&2047u32.to_le_bytes());
        image[PREFERRED..PREFERRED + 4].copy_from_slice(&(16 * MIB as u32).to_le_bytes());
        image[INIT_SIZE..INIT_SIZE + 4].copy_from_slice(&(50 * MIB as u32).to_le_bytes());
        image.extend((0..100_000u32).flat_map(u32::to_le_bytes));
        image
    }

    /// Boot parameters with 1 GiB of memory.
    fn running() -> Vec<u8> {
        let mut params = vec![0; PARAMS];
        params[7] = 3;
        params[E820_COUNT] = 2;
        for (n, (at, length)) in [(0, 640 << 10), (MIB, 1023 * MIB)].into_iter().enumerate() {
            let entry = E820 + n * E820_ENTRY;
            params[entry..entry + 8].copy_from_slice(&at.to_le_bytes());
            params[entry + 8..entry + 16].copy_from_slice(&length.to_le_bytes());
            params[entry + 16] = 1;
        }
        params
    }

    #[test]
    fn segments_leave_room_for_page_tables_and_decompression() {
        let (kernel, initrd) = (image(), vec![5; 10_000]);
        let plan = plan(&kernel, &initrd, "quiet x=1", CRASH, &running()).unwrap();
        let [first, info, last] = plan.segments();
        assert!(first.at >= CRASH.0 + (CONTROL_PAGES + 2) * PAGE);
        assert_eq!(first.at % (2 * MIB), 0);
        assert_eq!(first.bytes, &kernel[5 * 512..]);
        assert_eq!(info.at, first.at + 50 * MIB);
        assert_eq!(last.at, info.at + 4 * PAGE);
        assert!(plan.entry > info.at + 2 * PAGE && plan.entry < info.at + 3 * PAGE);
        let params = &info.bytes[..PARAMS];
        assert_eq!(u64::from(word(params, LINE)), info.at + PAGE);
        assert_eq!(&info.bytes[PARAMS..PARAMS + 10], b"quiet x=1\0");
        assert_eq!(u64::from(word(params, RAMDISK[0])), last.at);
        assert_eq!(word(params, RAMDISK[1]), 10_000);
        assert_eq!((params[LOADER], params[LOAD_FLAGS]), (0xd0, 1));
        // Screen and memory are those of the machine.
        assert_eq!(params[7], 3);
        assert_eq!(memory(params).unwrap(), memory(&running()).unwrap());
    }

    #[test]
    fn what_does_not_serve_is_told() {
        let told = |change: &dyn Fn(&mut Vec<u8>), crash: Range, line: &str| {
            let mut kernel = image();
            change(&mut kernel);
            plan(&kernel, &[1; 5000], line, crash, &running()).unwrap_err()
        };
        let small = (CRASH.0, CRASH.0 + 52 * MIB);
        assert!(told(&|_| {}, small, "").contains("1 MiB too small"));
        let low = (8 * MIB, 100 * MIB);
        assert!(told(&|_| {}, low, "").contains("below the preferred"));
        let high = (4096 * MIB, 5000 * MIB);
        assert!(told(&|k| k[XLOAD_FLAGS] = 1, high, "").contains("above 4 GiB"));
        assert!(told(&|k| k[MAGIC] = 0, CRASH, "").contains("no bzImage"));
        assert!(told(&|k| k[RELOCATABLE] = 0, CRASH, "").contains("relocatable"));
        assert!(told(&|k| k.truncate(4096), CRASH, &"x".repeat(3000)).contains("2047"));
        let short = |k: &mut Vec<u8>| {
            k.truncate(4096);
            k[SETUP_SECTORS] = 60;
        };
        assert!(told(&short, CRASH, "").contains("shorter"));
    }
}
