//! What NVMe devices say of themselves: the critical warning of the SMART log (NVM Express base
//! specification 2.0, section 5.16.1.3), where this user may ask.

use std::fs::File;
use std::os::fd::AsRawFd;

use outlive_control::health::{Sample, Sensor};

use super::root::Root;

/// The log page and its length in bytes.
const SMART: u32 = 0x02;
const LOG_BYTES: usize = 512;
/// Of the whole device.
const ALL_NAMESPACES: u32 = u32::MAX;
/// The admin command that reads a log page.
const GET_LOG_PAGE: u8 = 0x02;
/// How long the device may take, in milliseconds.
const TIMEOUT_MS: u32 = 2_000;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)` of `linux/nvme_ioctl.h`.
const ADMIN_COMMAND: u32 = 0xC048_4E41;

/// `struct nvme_passthru_cmd`.
#[repr(C)]
#[derive(Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

pub(super) fn read(root: &Root, samples: &mut Vec<Sample>) {
    for device in root.entries("sys/class/nvme") {
        let found = log_of(&device).map(|log| f64::from(log[0]));
        samples.push(Sample {
            sensor: Sensor::DiskSmart,
            source: device,
            value: found.map_err(|error| error.to_string()),
        });
    }
}

fn log_of(device: &str) -> std::io::Result<[u8; LOG_BYTES]> {
    let file = File::open(format!("/dev/{device}"))?;
    let mut log = [0u8; LOG_BYTES];
    let words = (LOG_BYTES / 4 - 1) as u32;
    let mut command = Command {
        opcode: GET_LOG_PAGE,
        namespace: ALL_NAMESPACES,
        address: log.as_mut_ptr() as u64,
        data_length: LOG_BYTES as u32,
        words_10_15: [SMART | words << 16, 0, 0, 0, 0, 0],
        timeout_ms: TIMEOUT_MS,
        ..Command::default()
    };
    // SAFETY: the structure is the one that this request takes, and the kernel writes no more than
    // `data_length` bytes to `address`, which is that of `log`; both live longer than the call.
    let done = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            ADMIN_COMMAND as _,
            core::ptr::from_mut(&mut command),
        )
    };
    match done {
        0 => Ok(log),
        -1 => Err(std::io::Error::last_os_error()),
        status => Err(std::io::Error::other(format!(
            "the device says {status:#x}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_the_size_that_the_request_names() {
        let size = (ADMIN_COMMAND >> 16 & 0x3fff) as usize;
        assert_eq!(core::mem::size_of::<Command>(), size);
    }

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        assert!(log_of("none-of-this-name").is_err());
        assert!(log_of("null").is_err(), "not such a device");
    }
}
