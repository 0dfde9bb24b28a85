//! A user's rights on files, taken for a while.

use std::ffi::c_long;
use std::io;

use crate::sys::answer;

/// The rights on files that this thread had before.
#[derive(Debug)]
pub struct FileRights {
    groups: Vec<u32>,
    uid: u32,
    gid: u32,
    dumpable: i32,
}

/// Takes a user's rights on files, for this thread.
pub fn take_file_rights(uid: u32, gid: u32, groups: &[u32]) -> io::Result<FileRights> {
    // SAFETY: plain numbers, and a buffer with room for as many groups as there are.
    let before = unsafe {
        let mut own = vec![0; libc::getgroups(0, std::ptr::null_mut()).max(0) as usize];
        libc::getgroups(own.len() as i32, own.as_mut_ptr());
        FileRights {
            groups: own,
            uid: libc::geteuid(),
            gid: libc::getegid(),
            dumpable: libc::prctl(libc::PR_GET_DUMPABLE),
        }
    };
    set_file_rights(uid, gid, groups).inspect_err(|_| {
        let _ = before.put_back();
    })?;
    Ok(before)
}

impl FileRights {
    /// Gives them back to this thread.
    ///
    /// # Errors
    /// They cannot be had again.
    pub fn put_back(&self) -> io::Result<()> {
        // Users first: root may choose its groups.
        set_file_user(self.uid)?;
        set_file_rights(self.uid, self.gid, &self.groups)?;
        // SAFETY: plain numbers. A change of users took it away.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, self.dumpable) };
        Ok(())
    }
}

fn set_file_user(uid: u32) -> io::Result<()> {
    // SAFETY: plain numbers. Errors are not told: the second call gives what is set.
    let set = unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsuid, u32::MAX)
    };
    if set == c_long::from(uid) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

fn set_file_rights(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: plain numbers and an array with its length. Made directly, the calls are for
    // this thread alone.
    let set = unsafe {
        answer(libc::syscall(
            libc::SYS_setgroups,
            groups.len(),
            groups.as_ptr(),
        ))?;
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsgid, u32::MAX)
    };
    if set != c_long::from(gid) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    set_file_user(uid)
}
