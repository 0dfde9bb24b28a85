//! UCX behind `c/ucx.c`: a worker, its links, and what they told.
//!
//! Invariant: C calls back only from within a call of this module on the same worker, and
//! a callback touches the [`Inbox`] alone. So no reference into the inbox may be alive
//! while C is called: the inbox is reached through its raw pointer, for one statement.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

use outlive_base::{Code, Entity, Error, Result};

use super::envelope::{ENVELOPE_BYTES, Gate, Position};
use crate::rail::frame::Header;

/// Room for words about an error.
const WORDS: usize = 512;

#[repr(C)]
struct Calls {
    arrived:
        unsafe extern "C" fn(*mut c_void, *const u8, usize, *const u8, usize, *mut c_void) -> c_int,
    sent: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int),
    fetched: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, usize),
    broken: unsafe extern "C" fn(*mut c_void, u64, c_int),
}

unsafe extern "C" {
    fn outlive_ucx_load(
        path: *const c_char,
        version: *mut c_uint,
        reason: *mut c_char,
        room: usize,
    ) -> c_int;
    fn outlive_ucx_meaning(status: c_int) -> c_int;
    #[cfg(test)]
    fn outlive_ucx_words(status: c_int) -> *const c_char;
    fn outlive_ucx_open(
        calls: *const Calls,
        owner: *mut c_void,
        out: *mut *mut c_void,
        reason: *mut c_char,
        room: usize,
    ) -> c_int;
    fn outlive_ucx_close(world: *mut c_void);
    fn outlive_ucx_address(world: *const c_void, length: *mut usize) -> *const u8;
    fn outlive_ucx_header_bytes_max(world: *const c_void) -> usize;
    fn outlive_ucx_fd(world: *const c_void) -> c_int;
    fn outlive_ucx_arm(world: *mut c_void) -> c_int;
    fn outlive_ucx_progress(world: *mut c_void) -> c_uint;
    fn outlive_ucx_connect(
        world: *mut c_void,
        address: *const u8,
        token: u64,
        out: *mut *mut c_void,
        reason: *mut c_char,
        room: usize,
    ) -> c_int;
    fn outlive_ucx_disconnect(link: *mut c_void);
    fn outlive_ucx_closing(world: *const c_void) -> c_uint;
    fn outlive_ucx_send(
        link: *mut c_void,
        header: *const u8,
        header_bytes: usize,
        data: *const u8,
        length: usize,
        user: *mut c_void,
    ) -> c_int;
    fn outlive_ucx_fetch(
        world: *mut c_void,
        descriptor: *mut c_void,
        buffer: *mut u8,
        length: usize,
        user: *mut c_void,
    ) -> c_int;
    fn outlive_ucx_flush(world: *mut c_void);
    fn outlive_ucx_flushing(world: *const c_void) -> c_uint;
}

/// Words that C wrote.
fn words(buffer: &[u8; WORDS]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&buffer[..end.unwrap_or(WORDS)]).into_owned()
}

/// The error of a UCX status; the numbers are those of `enum meaning` in `c/ucx.c`.
fn failed(status: c_int, entity: Entity, reason: String) -> Error {
    // SAFETY: a function of its argument alone.
    let (code, remedy) = match unsafe { outlive_ucx_meaning(status) } {
        2 => (
            Code::NoSpace,
            "give the job more memory, locked memory or descriptors (ulimit -l, -n)",
        ),
        3 => (
            Code::InvalidArgument,
            "give every process the same version of UCX",
        ),
        4 => (
            Code::Config,
            "name transports and devices that ucx_info -d lists in UCX_TLS and UCX_NET_DEVICES, \
             the same on all ranks, or unset them",
        ),
        5 => (
            Code::PeerVersion,
            "install UCX 1.11 or later, or choose the rail tcp",
        ),
        6 => (
            Code::TimedOut,
            "check the network between the nodes, or choose the rail tcp",
        ),
        7 => (Code::Internal, "please report this with the log"),
        _ => (
            Code::Network,
            "check the network between the nodes, or choose the rail tcp",
        ),
    };
    Error::new(code, entity, format!("UCX: {reason}"), remedy)
}

/// What UCX calls a status.
#[cfg(test)]
pub(super) fn name(status: c_int) -> String {
    // SAFETY: UCX is loaded by the tests that ask; its words are static.
    let text = unsafe { std::ffi::CStr::from_ptr(outlive_ucx_words(status)) };
    text.to_string_lossy().into_owned()
}

/// Why UCX cannot be used, to be told again to each who asks.
#[derive(Clone)]
struct Absent {
    code: Code,
    file: String,
    reason: String,
}

static LOADED: OnceLock<std::result::Result<PathBuf, Absent>> = OnceLock::new();

/// Opens UCX's library, once for the process: `path`, or the one that the process has
/// already, or the system's.
///
/// # Errors
/// [`Code::NotFound`] if there is none, [`Code::PeerVersion`] if it is too old or another
/// thing, [`Code::InvalidArgument`] if another one was opened before.
pub(super) fn load(path: Option<&Path>) -> Result<()> {
    let wanted = path.unwrap_or(Path::new("libucp.so.0"));
    match LOADED.get_or_init(|| open_library(path, wanted)) {
        Ok(loaded) if path.is_none() || loaded == wanted => Ok(()),
        Ok(loaded) => Err(Error::new(
            Code::InvalidArgument,
            Entity::File(wanted.display().to_string()),
            format!("this process uses {} already", loaded.display()),
            "name one library for all rails of a process",
        )),
        Err(absent) => Err(Error::new(
            absent.code,
            Entity::File(absent.file.clone()),
            absent.reason.clone(),
            "install UCX 1.11 or later (Debian: libucx0), name its libucp.so.0 in \
             OUTLIVE_COLLECTIVES_UCX_LIBRARY, or choose the rail tcp",
        )),
    }
}

fn open_library(path: Option<&Path>, wanted: &Path) -> std::result::Result<PathBuf, Absent> {
    let absent = |code, reason: String| Absent {
        code,
        file: wanted.display().to_string(),
        reason,
    };
    let name = path.map(|path| CString::new(path.as_os_str().as_bytes()));
    let Ok(name) = name.transpose() else {
        return Err(absent(Code::NotFound, "a path with a zero byte".into()));
    };
    let (mut version, mut buffer) = ([0; 3], [0u8; WORDS]);
    let name = name.as_ref().map_or(null(), |name| name.as_ptr());
    // SAFETY: called once; a path or null, three numbers, a buffer and its size.
    let found = unsafe {
        outlive_ucx_load(
            name,
            version.as_mut_ptr(),
            buffer.as_mut_ptr().cast(),
            WORDS,
        )
    };
    match found {
        0 => Ok(wanted.to_owned()),
        -1 => Err(absent(Code::NotFound, words(&buffer))),
        _ => Err(absent(Code::PeerVersion, words(&buffer))),
    }
}

/// The data of a message that arrived.
pub(super) enum Data {
    /// All of it.
    Here(Vec<u8>),
    /// To be fetched: UCX's descriptor and the length.
    There(NonNull<c_void>, usize),
}

/// A message whose sender has proved the key.
pub(super) struct Arrival {
    pub(super) from: u32,
    pub(super) place: Position,
    pub(super) header: Header,
    pub(super) data: Data,
}

/// What C told since it was looked at.
pub(super) struct Inbox {
    gate: Gate,
    arrivals: Vec<Arrival>,
    sent: Vec<(u64, bool)>,
    fetched: Vec<(u64, Option<usize>)>,
    broken: Vec<u64>,
    /// Messages of strangers, or that no frame is in.
    refused: u64,
}

/// What happened: [`Worker::news`].
pub(super) struct News {
    pub(super) arrivals: Vec<Arrival>,
    /// Sends that ended: their token, and whether UCX took them.
    pub(super) sent: Vec<(u64, bool)>,
    /// Fetches that ended: their token, and how many bytes came.
    pub(super) fetched: Vec<(u64, Option<usize>)>,
    /// Links that UCX gave up.
    pub(super) broken: Vec<u64>,
}

impl Inbox {
    fn arrive(&mut self, envelope: &[u8], length: usize, data: Data) -> bool {
        let opened = self.gate.unseal(envelope);
        let fits = opened.filter(|(.., header)| header.tail_bytes() == length as u64);
        let Some((from, place, header)) = fits else {
            self.refused += 1;
            return false;
        };
        self.arrivals.push(Arrival {
            from,
            place,
            header,
            data,
        });
        true
    }
}

unsafe extern "C" fn arrived(
    inbox: *mut c_void,
    envelope: *const u8,
    envelope_bytes: usize,
    data: *const u8,
    length: usize,
    descriptor: *mut c_void,
) -> c_int {
    if envelope_bytes != ENVELOPE_BYTES {
        // SAFETY: the worker's inbox, to which nobody else has a reference now.
        unsafe { (*inbox.cast::<Inbox>()).refused += 1 };
        return -1;
    }
    // SAFETY: UCX gives that many bytes; the inbox as above.
    let (inbox, envelope) = unsafe {
        let envelope = std::slice::from_raw_parts(envelope, envelope_bytes);
        (&mut *inbox.cast::<Inbox>(), envelope)
    };
    if let Some(descriptor) = NonNull::new(descriptor) {
        let kept = inbox.arrive(envelope, length, Data::There(descriptor, length));
        return if kept { 1 } else { -1 };
    }
    let bytes: &[u8] = if length == 0 {
        &[]
    } else {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(data, length) }
    };
    if inbox.arrive(envelope, length, Data::Here(Vec::new()))
        && let Some(Arrival {
            data: Data::Here(copy),
            ..
        }) = inbox.arrivals.last_mut()
    {
        // Copied only now: strangers' bytes are not.
        copy.extend_from_slice(bytes);
    }
    0
}

unsafe extern "C" fn sent(inbox: *mut c_void, token: *mut c_void, status: c_int) {
    // SAFETY: the worker's inbox, to which nobody else has a reference now.
    unsafe {
        (*inbox.cast::<Inbox>())
            .sent
            .push((token as u64, status == 0))
    };
}

unsafe extern "C" fn fetched(inbox: *mut c_void, token: *mut c_void, status: c_int, length: usize) {
    let length = (status == 0).then_some(length);
    // SAFETY: as above.
    unsafe {
        (*inbox.cast::<Inbox>())
            .fetched
            .push((token as u64, length))
    };
}

unsafe extern "C" fn broken(inbox: *mut c_void, token: u64, _status: c_int) {
    // SAFETY: as above.
    unsafe { (*inbox.cast::<Inbox>()).broken.push(token) };
}

/// How a send or fetch began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    /// It is over already.
    Done,
    /// [`News`] will tell.
    Later,
    /// It cannot be.
    Failed,
}

fn begun(status: c_int) -> Begun {
    match status {
        0 => Begun::Done,
        1 => Begun::Later,
        _ => Begun::Failed,
    }
}

/// A connection to one process.
pub(super) struct Link(NonNull<c_void>);

/// UCX's context and worker.
pub(super) struct Worker {
    raw: NonNull<c_void>,
    inbox: NonNull<Inbox>,
    /// A warning of UCX while it was opened.
    pub(super) warning: String,
    /// It is not closed at its end.
    kept: bool,
}

// SAFETY: one owner uses it at a time; UCX is told so (UCS_THREAD_MODE_SERIALIZED).
unsafe impl Send for Worker {}
// SAFETY: a link is used with its worker only.
unsafe impl Send for Link {}

impl Worker {
    /// A worker with the transports that UCX's variables allow.
    ///
    /// # Errors
    /// By what UCX says, for example [`Code::Config`] if no transport is left.
    pub(super) fn open() -> Result<Worker> {
        let inbox = NonNull::from(Box::leak(Box::new(Inbox {
            gate: Gate::shut(),
            arrivals: Vec::new(),
            sent: Vec::new(),
            fetched: Vec::new(),
            broken: Vec::new(),
            refused: 0,
        })));
        let calls = Calls {
            arrived,
            sent,
            fetched,
            broken,
        };
        let (mut raw, mut buffer) = (null_mut(), [0u8; WORDS]);
        // SAFETY: UCX is loaded (`load` came first); the calls are copied; the inbox lives
        // until the worker is dropped.
        let status = unsafe {
            let reason = buffer.as_mut_ptr().cast();
            outlive_ucx_open(&calls, inbox.as_ptr().cast(), &mut raw, reason, WORDS)
        };
        let Some(raw) = NonNull::new(raw).filter(|_| status == 0) else {
            // SAFETY: from Box::leak above; C keeps nothing of a worker that failed.
            drop(unsafe { Box::from_raw(inbox.as_ptr()) });
            return Err(failed(status, Entity::Call, words(&buffer)));
        };
        let worker = Worker {
            raw,
            inbox,
            warning: words(&buffer),
            kept: false,
        };
        // SAFETY: the worker is open.
        let room = unsafe { outlive_ucx_header_bytes_max(raw.as_ptr()) };
        if room < ENVELOPE_BYTES {
            let reason = format!("its transports take headers of {room} bytes");
            return Err(failed(-22, Entity::Call, reason));
        }
        Ok(worker)
    }

    /// Its address, for [`Worker::connect`] of others.
    pub(super) fn address(&self) -> Vec<u8> {
        let mut length = 0;
        // SAFETY: the worker is open; it keeps the address until it is closed.
        unsafe {
            let bytes = outlive_ucx_address(self.raw.as_ptr(), &mut length);
            std::slice::from_raw_parts(bytes, length).to_vec()
        }
    }

    /// From now on, those who pass this gate are heard.
    pub(super) fn open_gate(&mut self, gate: Gate) {
        // SAFETY: see the module.
        unsafe { (*self.inbox.as_ptr()).gate = gate };
    }

    /// Messages of strangers, or that no frame was in.
    pub(super) fn refused(&self) -> u64 {
        // SAFETY: see the module.
        unsafe { (*self.inbox.as_ptr()).refused }
    }

    /// Readable when there is news, once [`Worker::arm`] said so.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open until the worker is closed.
        unsafe { BorrowedFd::borrow_raw(outlive_ucx_fd(self.raw.as_ptr())) }
    }

    /// True if one may sleep until the descriptor can be read.
    pub(super) fn arm(&mut self) -> bool {
        // SAFETY: the worker is open.
        unsafe { outlive_ucx_arm(self.raw.as_ptr()) == 1 }
    }

    /// One round; true if something moved.
    pub(super) fn progress(&mut self) -> bool {
        // SAFETY: the worker is open.
        unsafe { outlive_ucx_progress(self.raw.as_ptr()) > 0 }
    }

    /// What was told; `None` if nothing was.
    pub(super) fn news(&mut self) -> Option<News> {
        // SAFETY: see the module.
        let inbox = unsafe { &mut *self.inbox.as_ptr() };
        let nothing = inbox.arrivals.is_empty()
            && inbox.sent.is_empty()
            && inbox.fetched.is_empty()
            && inbox.broken.is_empty();
        (!nothing).then(|| News {
            arrivals: std::mem::take(&mut inbox.arrivals),
            sent: std::mem::take(&mut inbox.sent),
            fetched: std::mem::take(&mut inbox.fetched),
            broken: std::mem::take(&mut inbox.broken),
        })
    }

    /// A link to the worker of `rank` at `address`; `token` names it if it breaks.
    ///
    /// # Errors
    /// By what UCX says, for example [`Code::Config`] if no transport reaches it.
    pub(super) fn connect(&mut self, rank: u32, address: &[u8], token: u64) -> Result<Link> {
        let (mut link, mut buffer) = (null_mut(), [0u8; WORDS]);
        // SAFETY: the worker is open; an address as a worker gave it.
        let status = unsafe {
            let (raw, reason) = (self.raw.as_ptr(), buffer.as_mut_ptr().cast());
            outlive_ucx_connect(raw, address.as_ptr(), token, &mut link, reason, WORDS)
        };
        match NonNull::new(link) {
            Some(link) if status == 0 => Ok(Link(link)),
            _ => Err(failed(status, Entity::Rank(rank), words(&buffer))),
        }
    }

    /// Gives a link up: what was under way on it fails.
    pub(super) fn disconnect(&mut self, link: Link) {
        // SAFETY: a link of this worker, used for the last time.
        unsafe { outlive_ucx_disconnect(link.0.as_ptr()) };
    }

    /// True while links are being closed.
    pub(super) fn closing(&self) -> bool {
        // SAFETY: the worker is open.
        unsafe { outlive_ucx_closing(self.raw.as_ptr()) > 0 }
    }

    /// Sends.
    ///
    /// # Safety
    /// Both slices stay where they are until the send is over.
    pub(super) unsafe fn send(
        &mut self,
        link: &Link,
        envelope: &[u8],
        data: &[u8],
        token: u64,
    ) -> Begun {
        // SAFETY: a live link of this worker; the caller keeps the bytes.
        begun(unsafe {
            let (head, body, user) = (envelope.as_ptr(), data.as_ptr(), token as *mut c_void);
            outlive_ucx_send(
                link.0.as_ptr(),
                head,
                envelope.len(),
                body,
                data.len(),
                user,
            )
        })
    }

    /// Fetches the data of an arrival, whose descriptor is used up.
    ///
    /// # Safety
    /// `buffer` has room for `length` bytes and stays until the fetch is over.
    pub(super) unsafe fn fetch(
        &mut self,
        descriptor: NonNull<c_void>,
        buffer: *mut u8,
        length: usize,
        token: u64,
    ) -> Begun {
        // SAFETY: a descriptor of this worker; the caller keeps the buffer.
        begun(unsafe {
            let (raw, user) = (self.raw.as_ptr(), token as *mut c_void);
            outlive_ucx_fetch(raw, descriptor.as_ptr(), buffer, length, user)
        })
    }

    /// It stays open at its end, until the process's own.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    /// Begins to push out all that was sent.
    pub(super) fn flush(&mut self) {
        // SAFETY: the worker is open.
        unsafe { outlive_ucx_flush(self.raw.as_ptr()) };
    }

    /// True until a flush that was begun is over.
    pub(super) fn flushing(&self) -> bool {
        // SAFETY: the worker is open.
        unsafe { outlive_ucx_flushing(self.raw.as_ptr()) != 0 }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // SAFETY: from `open`; C calls back no more once it is closed.
        unsafe {
            outlive_ucx_close(self.raw.as_ptr());
            drop(Box::from_raw(self.inbox.as_ptr()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_ucx_is_a_coded_error() {
        load(None).expect("UCX is here where this feature is tested");
        let mut codes = std::collections::BTreeSet::new();
        for status in -100..0 {
            let error = failed(status, Entity::Call, name(status));
            assert!(error.reason().starts_with("UCX: "), "{error}");
            codes.insert(error.code());
        }
        assert_eq!(codes.len(), 7, "{codes:?}");
        let none = failed(-14, Entity::Call, name(-14));
        assert_eq!(none.code(), Code::Config, "no device");
        assert!(none.reason().contains("No such device"), "{none}");
    }
}
