//! Storage: errors of disks and file systems, and room where the node's storage lies.

use std::path::Path;

use outlive_control::health::{Sample, Sensor};

use super::processor::add;
use super::root::Root;

pub(super) fn read(root: &Root, storage: Option<&Path>, samples: &mut Vec<Sample>) {
    for disk in root.entries("sys/block") {
        let found = root.number(&format!("sys/block/{disk}/device/ioerr_cnt"));
        add(samples, Sensor::DiskErrors, &disk, found);
    }
    for device in root.entries("sys/fs/ext4") {
        let found = root.number(&format!("sys/fs/ext4/{device}/errors_count"));
        add(samples, Sensor::FilesystemErrors, &device, found);
    }
    match root.text("proc/mounts") {
        Ok(Some(text)) => mounts(&text, storage, samples),
        Ok(None) => {}
        Err(reason) => {
            samples.push(Sample::unknown(Sensor::FilesystemReadOnly, "", reason));
        }
    }
    if let Some(storage) = storage {
        room(storage, samples);
    }
}

/// A line of the table of mounts: device, directory, type, options.
struct Mount<'a> {
    device: &'a str,
    directory: String,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn of(line: &'a str) -> Option<Mount<'a>> {
        let mut words = line.split_whitespace();
        Some(Mount {
            device: words.next()?,
            directory: unescape(words.next()?),
            options: words.nth(1)?,
        })
    }

    fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|it| it == option)
    }

    /// It is read-only, and would not be if all were well: file systems that say what they do on
    /// an error, or that they had to stop.
    fn failed(&self) -> bool {
        let stopped = self.has("emergency_ro") || self.has("shutdown");
        stopped || (self.has("ro") && self.has("errors=remount-ro"))
    }
}

/// `\040` stands for a space.
fn unescape(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4);
        match code.and_then(|it| u8::from_str_radix(it, 8).ok()) {
            Some(letter) => {
                out.push(char::from(letter));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

/// Of each file system on a device, and of the one that holds the node's storage.
fn mounts(text: &str, storage: Option<&Path>, samples: &mut Vec<Sample>) {
    let all: Vec<Mount<'_>> = text.lines().filter_map(Mount::of).collect();
    let length = |mount: &&Mount<'_>| mount.directory.len();
    let holds = |mount: &&Mount<'_>| storage.is_some_and(|it| it.starts_with(&mount.directory));
    // Of two at the same directory the later one hides the other.
    let own = all.iter().filter(holds).max_by_key(length);
    let mut told = std::collections::BTreeSet::new();
    for mount in &all {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, mount));
        let on_device = mount.device.starts_with("/dev/");
        let is_shown = is_own || (on_device && told.insert(mount.device));
        if !is_shown {
            continue;
        }
        let bad = mount.failed() || (is_own && mount.has("ro"));
        let value = f64::from(u8::from(bad));
        let directory = mount.directory.as_str();
        samples.push(Sample::of(Sensor::FilesystemReadOnly, directory, value));
    }
}

fn room(storage: &Path, samples: &mut Vec<Sample>) {
    let found = match rustix::fs::statvfs(storage) {
        Ok(found) => found,
        Err(error) => {
            let reason = format!("{}: {error}", storage.display());
            samples.push(Sample::unknown(Sensor::StorageFree, "", reason));
            return;
        }
    };
    let used = found.f_blocks.saturating_sub(found.f_bfree);
    // As `df` does: what only root may use is nobody's.
    let free = share(found.f_bavail, used.saturating_add(found.f_bavail));
    add(samples, Sensor::StorageFree, "", Ok(free));
    // Some file systems make as many as they need, and say 0.
    let inodes = share(found.f_favail, found.f_files);
    add(samples, Sensor::StorageInodes, "", Ok(inodes));
}

/// In percent.
fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0 && part <= all).then(|| 100.0 * part as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::super::root::tests_support::Planted;
    use super::*;

    #[test]
    fn errors_of_disks_and_file_systems() {
        let planted = Planted::new();
        planted.write("sys/block/sda/device/ioerr_cnt", "0x1f\n");
        planted.write("sys/block/vda/size", "100\n");
        planted.write("sys/fs/ext4/sda1/errors_count", "2\n");
        planted.write("sys/fs/ext4/features/lazy_itable_init", "supported\n");
        let mut samples = Vec::new();
        read(&planted.root, None, &mut samples);
        assert_eq!(
            samples,
            [
                Sample::of(Sensor::DiskErrors, "sda", 31.0),
                Sample::of(Sensor::FilesystemErrors, "sda1", 2.0)
            ]
        );
    }

    #[test]
    fn a_file_system_that_became_read_only_is_told_from_one_that_is_meant_to_be() {
        let text = "/dev/sda1 / ext4 rw,relatime,errors=remount-ro 0 0\n\
                    /dev/sdb1 /data\\0401 ext4 ro,errors=remount-ro 0 0\n\
                    /dev/sdb1 /again ext4 ro,errors=remount-ro 0 0\n\
                    /dev/sr0 /cd iso9660 ro 0 0\n\
                    /dev/sdc /x xfs rw,shutdown 0 0\n\
                    tmpfs /scratch tmpfs ro 0 0\n\
                    proc /proc proc rw 0 0\n\
                    damaged\n";
        let mut samples = Vec::new();
        mounts(text, Some(Path::new("/scratch/job/node")), &mut samples);
        let of = |directory: &str, value| Sample::of(Sensor::FilesystemReadOnly, directory, value);
        assert_eq!(
            samples,
            [
                of("/", 0.0),
                of("/data 1", 1.0),
                of("/cd", 0.0),
                of("/x", 1.0),
                of("/scratch", 1.0)
            ]
        );
        assert_eq!(unescape("a\\9\\0"), "a\\9\\0");
    }

    #[test]
    fn room_is_a_share_and_a_directory_that_is_gone_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let mut samples = Vec::new();
        room(dir.path(), &mut samples);
        assert_eq!(samples[0].sensor, Sensor::StorageFree);
        assert!((0.0..=100.0).contains(samples[0].value.as_ref().unwrap()));
        samples.clear();
        room(&dir.path().join("gone"), &mut samples);
        assert!(samples[0].value.is_err());
        assert_eq!(
            (share(1, 0), share(3, 2), share(1, 4)),
            (None, None, Some(25.0))
        );
    }
}
