//! The native MPI below: its profiled functions and its constants.
//!
//! Invariants: nothing of MPI is linked; the library is found among the loaded
//! objects and asked with RTLD_NOLOAD, for an MPI that a host loaded privately
//! (RTLD_LOCAL) does not answer to a global lookup. Handles travel as `usize`: an
//! int of MPICH and a pointer of Open MPI or the standard ABI use the same registers;
//! MPICH's are masked to 32 bits when they come in.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A communicator, datatype, operator, request or group of any implementation.
pub type Handle = usize;
/// `MPI_Count`: 64 bits in all three families.
pub type Count = i64;

/// Which binary interface the loaded library has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Open MPI 4 and 5: handles are pointers.
    OpenMpi,
    /// MPICH and its ABI initiative: handles are ints.
    Mpich,
    /// The standard ABI of MPI 5.0, chapter 20.
    Standard,
}

/// Constants that differ.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// `MPI_COMM_WORLD`.
    pub world: Handle,
    /// `MPI_BYTE`.
    pub byte: Handle,
    /// `MPI_ERRORS_RETURN`.
    pub errors_return: Handle,
    /// `MPI_REQUEST_NULL`.
    pub request_null: Handle,
    /// `MPI_DATATYPE_NULL`.
    pub datatype_null: Handle,
    /// `MPI_OP_NULL`.
    pub op_null: Handle,
    /// `MPI_COMM_NULL`.
    pub comm_null: Handle,
    /// `MPI_IN_PLACE`.
    pub in_place: usize,
    /// `MPI_STATUS_IGNORE`.
    pub status_ignore: usize,
    /// `MPI_STATUSES_IGNORE`.
    pub statuses_ignore: usize,
    /// `MPI_ANY_SOURCE`.
    pub any_source: c_int,
    /// `MPI_UNDEFINED`.
    pub undefined: c_int,
    /// `MPI_TAG_UB`.
    pub tag_ub: c_int,
    /// Byte offset of `MPI_SOURCE` in a status.
    pub status_source: usize,
    /// `MPI_ERR_OTHER`.
    pub err_other: c_int,
    /// `MPI_ERR_IN_STATUS`.
    pub err_in_status: c_int,
    /// `MPI_ERR_TRUNCATE`.
    pub err_truncate: c_int,
    /// A process failed: ULFM's code where the library has one.
    pub err_failed: c_int,
    /// `MPI_ERR_ROOT`.
    pub err_root: c_int,
    /// `MPIX_ERR_REVOKED`, where the library has it.
    pub err_revoked: c_int,
    /// Bits of a handle that mean something.
    pub mask: usize,
}

/// Bytes of what the program has arrays of.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Of a handle.
    pub handle: usize,
    /// Of a status.
    pub status: usize,
    /// From a status's start to its `MPI_ERROR`.
    pub error: usize,
}

/// Room for a status of any implementation (20, 24 and 32 bytes).
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Status(pub [u8; 64]);

impl Default for Status {
    fn default() -> Status {
        Status([0; 64])
    }
}

impl Status {
    /// The sender.
    pub fn source(&self, constants: &Constants) -> c_int {
        let at = constants.status_source;
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        c_int::from_ne_bytes(bytes)
    }
}

type CopyFn =
    extern "C" fn(Handle, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
type DeleteFn = extern "C" fn(Handle, c_int, *mut c_void, *mut c_void) -> c_int;

macro_rules! native {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*; $($maybe:ident = $optional:literal: fn($($other:ty),*);)*) => {
        /// The profiled functions, by their own names without `PMPI_`.
        #[allow(missing_docs)]
        pub struct Native {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub $maybe: Option<unsafe extern "C" fn($($other),*) -> c_int>,)*
            pub wtime: unsafe extern "C" fn() -> f64,
            pub family: Family,
            pub constants: Constants,
        }
        impl Native {
            fn load(library: &Library) -> Option<Native> {
                // SAFETY: the symbols are the library's own functions of these C signatures
                // (MPI 4.1, appendix A); handles are register-sized in all families.
                unsafe {
                    Some(Native {
                        $($field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(library.symbol($symbol)?),)*
                        $($maybe: library.symbol($optional).map(|found| std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($other),*) -> c_int>(found)),)*
                        wtime: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> f64>(library.symbol("PMPI_Wtime")?),
                        family: library.family(),
                        constants: library.constants()?,
                    })
                }
            }
        }
    };
}

native! {
    init = "PMPI_Init": fn(*mut c_int, *mut *mut *mut c_char);
    init_thread = "PMPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "PMPI_Finalize": fn();
    bcast = "PMPI_Bcast": fn(*mut c_void, c_int, Handle, c_int, Handle);
    reduce = "PMPI_Reduce": fn(*const c_void, *mut c_void, c_int, Handle, Handle, c_int, Handle);
    allreduce = "PMPI_Allreduce": fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle);
    barrier = "PMPI_Barrier": fn(Handle);
    gather = "PMPI_Gather": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle);
    gatherv = "PMPI_Gatherv": fn(*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, c_int, Handle);
    allgather = "PMPI_Allgather": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle);
    allgatherv = "PMPI_Allgatherv": fn(*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle);
    reduce_local = "PMPI_Reduce_local": fn(*const c_void, *mut c_void, c_int, Handle, Handle);
    op_commutative = "PMPI_Op_commutative": fn(Handle, *mut c_int);
    comm_rank = "PMPI_Comm_rank": fn(Handle, *mut c_int);
    comm_size = "PMPI_Comm_size": fn(Handle, *mut c_int);
    comm_dup = "PMPI_Comm_dup": fn(Handle, *mut Handle);
    comm_free = "PMPI_Comm_free": fn(*mut Handle);
    comm_group = "PMPI_Comm_group": fn(Handle, *mut Handle);
    comm_test_inter = "PMPI_Comm_test_inter": fn(Handle, *mut c_int);
    comm_set_errhandler = "PMPI_Comm_set_errhandler": fn(Handle, Handle);
    comm_call_errhandler = "PMPI_Comm_call_errhandler": fn(Handle, c_int);
    comm_create_keyval = "PMPI_Comm_create_keyval": fn(CopyFn, DeleteFn, *mut c_int, *mut c_void);
    comm_set_attr = "PMPI_Comm_set_attr": fn(Handle, c_int, *mut c_void);
    comm_get_attr = "PMPI_Comm_get_attr": fn(Handle, c_int, *mut c_void, *mut c_int);
    group_translate = "PMPI_Group_translate_ranks": fn(Handle, c_int, *const c_int, Handle, *mut c_int);
    group_size = "PMPI_Group_size": fn(Handle, *mut c_int);
    group_free = "PMPI_Group_free": fn(*mut Handle);
    type_size = "PMPI_Type_size": fn(Handle, *mut c_int);
    type_extent = "PMPI_Type_get_extent": fn(Handle, *mut isize, *mut isize);
    type_true_extent = "PMPI_Type_get_true_extent": fn(Handle, *mut isize, *mut isize);
    type_envelope = "PMPI_Type_get_envelope": fn(Handle, *mut c_int, *mut c_int, *mut c_int, *mut c_int);
    pack = "PMPI_Pack": fn(*const c_void, c_int, Handle, *mut c_void, c_int, *mut c_int, Handle);
    unpack = "PMPI_Unpack": fn(*const c_void, c_int, *mut c_int, *mut c_void, c_int, Handle, Handle);
    pack_size = "PMPI_Pack_size": fn(c_int, Handle, Handle, *mut c_int);
    send = "PMPI_Send": fn(*const c_void, c_int, Handle, c_int, c_int, Handle);
    recv = "PMPI_Recv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    sendrecv = "PMPI_Sendrecv": fn(*const c_void, c_int, Handle, c_int, c_int, *mut c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    isend = "PMPI_Isend": fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    iprobe = "PMPI_Iprobe": fn(c_int, c_int, Handle, *mut c_int, *mut c_void);
    irecv = "PMPI_Irecv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    test = "PMPI_Test": fn(*mut Handle, *mut c_int, *mut c_void);
    testall = "PMPI_Testall": fn(c_int, *mut Handle, *mut c_int, *mut c_void);
    testany = "PMPI_Testany": fn(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    testsome = "PMPI_Testsome": fn(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    wait = "PMPI_Wait": fn(*mut Handle, *mut c_void);
    waitall = "PMPI_Waitall": fn(c_int, *mut Handle, *mut c_void);
    waitany = "PMPI_Waitany": fn(c_int, *mut Handle, *mut c_int, *mut c_void);
    waitsome = "PMPI_Waitsome": fn(c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    improbe = "PMPI_Improbe": fn(c_int, c_int, Handle, *mut c_int, *mut Handle, *mut c_void);
    mprobe = "PMPI_Mprobe": fn(c_int, c_int, Handle, *mut Handle, *mut c_void);
    type_contiguous = "PMPI_Type_contiguous": fn(c_int, Handle, *mut Handle);
    type_struct = "PMPI_Type_create_struct": fn(c_int, *const c_int, *const isize, *const Handle, *mut Handle);
    type_commit = "PMPI_Type_commit": fn(*mut Handle);
    type_free = "PMPI_Type_free": fn(*mut Handle);
    finalized = "PMPI_Finalized": fn(*mut c_int);
    probe = "PMPI_Probe": fn(c_int, c_int, Handle, *mut c_void);
    issend = "PMPI_Issend": fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    ssend = "PMPI_Ssend": fn(*const c_void, c_int, Handle, c_int, c_int, Handle);
    get_count = "PMPI_Get_count": fn(*const c_void, Handle, *mut c_int);
    error_class = "PMPI_Error_class": fn(c_int, *mut c_int);
    ;
    bcast_c = "PMPI_Bcast_c": fn(*mut c_void, Count, Handle, c_int, Handle);
    reduce_c = "PMPI_Reduce_c": fn(*const c_void, *mut c_void, Count, Handle, Handle, c_int, Handle);
    allreduce_c = "PMPI_Allreduce_c": fn(*const c_void, *mut c_void, Count, Handle, Handle, Handle);
    gather_c = "PMPI_Gather_c": fn(*const c_void, Count, Handle, *mut c_void, Count, Handle, c_int, Handle);
    gatherv_c = "PMPI_Gatherv_c": fn(*const c_void, Count, Handle, *mut c_void, *const Count, *const isize, Handle, c_int, Handle);
    allgather_c = "PMPI_Allgather_c": fn(*const c_void, Count, Handle, *mut c_void, Count, Handle, Handle);
    allgatherv_c = "PMPI_Allgatherv_c": fn(*const c_void, Count, Handle, *mut c_void, *const Count, *const isize, Handle, Handle);
    send_c = "PMPI_Send_c": fn(*const c_void, Count, Handle, c_int, c_int, Handle);
    ssend_c = "PMPI_Ssend_c": fn(*const c_void, Count, Handle, c_int, c_int, Handle);
    recv_c = "PMPI_Recv_c": fn(*mut c_void, Count, Handle, c_int, c_int, Handle, *mut c_void);
    sendrecv_c = "PMPI_Sendrecv_c": fn(*const c_void, Count, Handle, c_int, c_int, *mut c_void, Count, Handle, c_int, c_int, Handle, *mut c_void);
    isend_c = "PMPI_Isend_c": fn(*const c_void, Count, Handle, c_int, c_int, Handle, *mut Handle);
    issend_c = "PMPI_Issend_c": fn(*const c_void, Count, Handle, c_int, c_int, Handle, *mut Handle);
    irecv_c = "PMPI_Irecv_c": fn(*mut c_void, Count, Handle, c_int, c_int, Handle, *mut Handle);
    failure_ack = "MPIX_Comm_failure_ack": fn(Handle);
    failure_get_acked = "MPIX_Comm_failure_get_acked": fn(Handle, *mut Handle);
    is_revoked = "MPIX_Comm_is_revoked": fn(Handle, *mut c_int);
}

/// A loaded object that holds an MPI library.
struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    /// The object's own symbol; those that this library overrides do not count.
    fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle came from dlopen and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    fn family(&self) -> Family {
        if self.symbol("ompi_mpi_comm_world").is_some() {
            Family::OpenMpi
        } else if self.name.contains("mpi_abi") {
            Family::Standard
        } else {
            Family::Mpich
        }
    }

    fn constants(&self) -> Option<Constants> {
        // An executable may hold its own copy of a library's object (a copy relocation),
        // which all then use: what everybody sees comes first.
        let own = |name: &str| {
            let text = CString::new(name).ok()?;
            // SAFETY: a lookup; the name ends with a zero.
            let global = unsafe { libc::dlsym(libc::RTLD_DEFAULT, text.as_ptr()) };
            let found = if global.is_null() {
                self.symbol(name)?
            } else {
                global
            };
            Some(found as Handle)
        };
        Some(match self.family() {
            Family::OpenMpi => Constants {
                world: own("ompi_mpi_comm_world")?,
                byte: own("ompi_mpi_byte")?,
                errors_return: own("ompi_mpi_errors_return")?,
                request_null: own("ompi_request_null")?,
                datatype_null: own("ompi_mpi_datatype_null")?,
                op_null: own("ompi_mpi_op_null")?,
                comm_null: own("ompi_mpi_comm_null")?,
                in_place: 1,
                status_ignore: 0,
                statuses_ignore: 0,
                any_source: -1,
                undefined: -32766,
                tag_ub: 0,
                status_source: 0,
                err_other: 16,
                err_in_status: 18,
                err_truncate: 15,
                err_failed: 75,
                err_root: 8,
                err_revoked: 77,
                mask: usize::MAX,
            },
            Family::Mpich => Constants {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                request_null: 0x2c00_0000,
                datatype_null: 0x0c00_0000,
                op_null: 0x1800_0000,
                comm_null: 0x0400_0000,
                in_place: usize::MAX,
                status_ignore: 1,
                statuses_ignore: 1,
                any_source: -2,
                undefined: -32766,
                tag_ub: 0x6440_0001,
                status_source: 8,
                err_other: 15,
                err_in_status: 17,
                err_truncate: 14,
                err_failed: 15,
                err_root: 7,
                err_revoked: 15,
                mask: 0xffff_ffff,
            },
            Family::Standard => Constants {
                world: 0x101,
                byte: 0x247,
                errors_return: 0x143,
                request_null: 0x180,
                datatype_null: 0x200,
                op_null: 0x20,
                comm_null: 0x100,
                in_place: 1,
                status_ignore: 0,
                statuses_ignore: 0,
                any_source: -1,
                undefined: -32766,
                tag_ub: 501,
                status_source: 0,
                err_other: 16,
                err_in_status: 19,
                err_truncate: 15,
                err_failed: 16,
                err_root: 8,
                err_revoked: 16,
                mask: usize::MAX,
            },
        })
    }
}

// SAFETY: function addresses and numbers, written once.
unsafe impl Send for Native {}
// SAFETY: as above; never changed after they are made.
unsafe impl Sync for Native {}

extern "C" fn collect(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid entry, and back the vector given to it.
    unsafe {
        let names = &mut *data.cast::<Vec<CString>>();
        let name = (*info).dlpi_name;
        if !name.is_null() {
            names.push(CStr::from_ptr(name).to_owned());
        }
    }
    0
}

/// The loaded objects whose file is an MPI library, in the order of loading.
fn libraries() -> Vec<Library> {
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: the callback gets this vector back and nothing else happens to it.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut names).cast()) };
    let mpi = names.into_iter().filter_map(|path| {
        let text = path.to_string_lossy().into_owned();
        let file = text.rsplit('/').next().unwrap_or("").to_owned();
        let known = [
            "libmpi.so",
            "libmpi_abi.so",
            "libmpich.so",
            "libmpi-",
            "libpmpi.so",
        ];
        known
            .iter()
            .any(|known| file.starts_with(known))
            .then_some((path, file))
    });
    let open = |(path, name): (CString, String)| {
        // SAFETY: the object is loaded already; NOLOAD makes this a lookup.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Library { handle, name })
    };
    mpi.filter_map(open).collect()
}

/// The native MPI, if one is loaded; found at the first call.
pub fn native() -> Option<&'static Native> {
    static NATIVE: OnceLock<Option<Native>> = OnceLock::new();
    NATIVE
        .get_or_init(|| libraries().iter().find_map(Native::load))
        .as_ref()
}

/// A function of a loaded MPI library or of its Fortran layer that is not ours.
pub fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a lookup behind this object; the name ends with a zero.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

impl Native {
    /// A handle as it came in, without what its register held beside it.
    pub fn clean(&self, handle: Handle) -> Handle {
        handle & self.constants.mask
    }

    /// Sizes in arrays of the program's.
    pub fn layout(&self) -> Layout {
        let (handle, status, error) = match self.family {
            Family::OpenMpi => (8, 24, 8),
            Family::Mpich => (4, 20, 16),
            Family::Standard => (8, 32, 8),
        };
        Layout {
            handle,
            status,
            error,
        }
    }

    /// Checks the table against the running library, after its initialisation.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self) -> Result<(), String> {
        let Constants { world, byte, .. } = self.constants;
        let (mut rank, mut size, mut bytes, mut flag) = (-1, -1, -1, -1);
        // SAFETY: between MPI_Init and MPI_Finalize, with this library's own handles and
        // pointers to locals.
        let good = unsafe {
            (self.comm_rank)(world, &mut rank) == 0
                && (self.comm_size)(world, &mut size) == 0
                && (self.type_size)(byte, &mut bytes) == 0
                && (self.comm_test_inter)(world, &mut flag) == 0
        };
        if !good || rank < 0 || size <= rank || bytes != 1 || flag != 0 {
            return Err(format!(
                "{:?}: rank {rank} of {size}, a byte of {bytes} bytes",
                self.family
            ));
        }
        let mut status = Status::default();
        let (mut given, mut taken) = (7u8, 0u8);
        // SAFETY: as above; a message to this process itself.
        let sent = unsafe {
            (self.sendrecv)(
                (&raw mut given).cast(),
                1,
                byte,
                rank,
                77,
                (&raw mut taken).cast(),
                1,
                byte,
                self.constants.any_source,
                77,
                world,
                (&raw mut status).cast(),
            )
        };
        if sent != 0 || taken != 7 || status.source(&self.constants) != rank {
            return Err(format!("{:?}: a status has another layout", self.family));
        }
        Ok(())
    }
}
