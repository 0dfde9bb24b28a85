//! What the layer knows of each communicator, attached to it as an attribute.
//!
//! A communicator's id is a hash of its ordered members (world ranks) and of how many
//! communicators with the same members were met before it: all members meet them in
//! the order of their first collective, so no message is needed to agree on an id, and
//! a death while a communicator is made cannot break it. (Under MPI_THREAD_MULTIPLE,
//! communicators of the same members must meet their first collective in one order.)
//! Intercommunicators and those with processes of another world pass through.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::lane::way::Way;
use crate::native::{Handle, Native};

/// Which machine carries out a call; the same on all ranks of its communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Family {
    /// Over a tree, with bypass of the silent.
    Ftco,
    /// Up-correction and corrected broadcast.
    Corrected,
}

impl Family {
    /// How many there are.
    pub const COUNT: usize = 2;
}

/// What is known of a communicator.
pub struct Comm {
    /// The handle.
    pub handle: Handle,
    /// See the module.
    pub id: u64,
    /// This process's rank.
    pub me: u32,
    /// World ranks, by rank.
    pub members: Arc<[u32]>,
    /// False if the native MPI serves it.
    pub ours: bool,
    /// The tag of a pair's messages on the shadow communicator.
    pub tag: c_int,
    /// Collectives started on it, of each family.
    pub calls: [AtomicU32; Family::COUNT],
    /// Those since the last that synchronised.
    pub ahead: [AtomicU32; Family::COUNT],
    /// The engines hold an instance for it.
    pub started: [AtomicBool; Family::COUNT],
    /// What a pair's data go through, once both have agreed.
    pub way: OnceLock<Way>,
    /// Who was missing from the last collective.
    pub absent: Mutex<Arc<Vec<u32>>>,
}

/// Finds what is known of communicators.
pub struct Comms {
    native: &'static Native,
    keyval: c_int,
    world_group: Handle,
    met: Mutex<BTreeMap<Vec<u32>, u32>>,
    last: AtomicPtr<Comm>,
}

extern "C" fn not_copied(
    _: Handle,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: MPI passes a valid flag (MPI 4.1, section 7.7.2).
    unsafe { *flag = 0 };
    0
}

extern "C" fn forget(_: Handle, _: c_int, value: *mut c_void, extra: *mut c_void) -> c_int {
    // SAFETY: `extra` is the `Comms` given at creation, which lives as long as the process.
    let comms = unsafe { &*extra.cast::<Comms>() };
    let value = value.cast::<Comm>();
    let _ =
        comms
            .last
            .compare_exchange(value, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire);
    if !value.is_null() {
        // SAFETY: the attribute holds one reference, made in `learn`; it goes here.
        drop(unsafe { Arc::from_raw(value) });
    }
    0
}

/// The hash of a communicator's members and its number among equals (FNV-1a).
fn identify(members: &[u32], number: u32) -> u64 {
    let words = members.iter().chain([&number]);
    let bytes = words.flat_map(|word| word.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

impl Comms {
    /// Makes the attribute's key. The result lives as long as the process: MPI calls
    /// back into it until its own end.
    pub fn new(native: &'static Native) -> Option<&'static Comms> {
        let mut world_group = 0;
        // SAFETY: after MPI_Init, a pointer to a local.
        if unsafe { (native.comm_group)(native.constants.world, &mut world_group) } != 0 {
            return None;
        }
        let comms = Box::leak(Box::new(Comms {
            native,
            keyval: 0,
            world_group,
            met: Mutex::default(),
            last: AtomicPtr::default(),
        }));
        let extra = ptr::from_mut(comms).cast::<c_void>();
        // SAFETY: the callbacks have MPI's signatures; `extra` is never freed.
        let made = unsafe {
            let mut keyval = 0;
            let made = (native.comm_create_keyval)(not_copied, forget, &mut keyval, extra);
            comms.keyval = keyval;
            made
        };
        (made == 0).then_some(comms)
    }

    /// What is known of `handle`; `None` if MPI does not know it.
    pub fn get(&self, handle: Handle) -> Option<Arc<Comm>> {
        let last = self.last.load(Ordering::Acquire);
        // SAFETY: a pointer in `last` belongs to a live attribute: `forget` removes it first,
        // and a program may not free a communicator while it uses it.
        if let Some(comm) = unsafe { last.as_ref() }
            && comm.handle == handle
        {
            // SAFETY: as above; the attribute's own reference stays.
            unsafe { Arc::increment_strong_count(last) };
            // SAFETY: the reference counted just now.
            return Some(unsafe { Arc::from_raw(last) });
        }
        let (mut value, mut found) = (ptr::null_mut::<Comm>(), 0);
        // SAFETY: pointers to locals; MPI writes the attribute's value through the first.
        let result = unsafe {
            let value = (&raw mut value).cast();
            (self.native.comm_get_attr)(handle, self.keyval, value, &mut found)
        };
        if result != 0 {
            return None;
        }
        if found == 0 {
            return self.learn(handle);
        }
        self.last.store(value, Ordering::Release);
        // SAFETY: the attribute holds a reference of its own.
        unsafe {
            Arc::increment_strong_count(value);
            Some(Arc::from_raw(value))
        }
    }

    fn learn(&self, handle: Handle) -> Option<Arc<Comm>> {
        let native = self.native;
        let (mut inter, mut me, mut group, mut size) = (0, 0, 0, 0);
        // SAFETY: pointers to locals; a wrong handle is MPI's to refuse.
        let known = unsafe {
            (native.comm_test_inter)(handle, &mut inter) == 0
                && (native.comm_rank)(handle, &mut me) == 0
                && (native.comm_size)(handle, &mut size) == 0
                && (native.comm_group)(handle, &mut group) == 0
        };
        if !known {
            return None;
        }
        let places: Vec<c_int> = (0..size).collect();
        let mut ranks = vec![native.constants.undefined; places.len()];
        // SAFETY: both arrays hold `size` ranks; both groups are live.
        let translated = unsafe {
            let (from, to) = (places.as_ptr(), ranks.as_mut_ptr());
            let result = (native.group_translate)(group, size, from, self.world_group, to);
            (native.group_free)(&mut group);
            result == 0
        };
        let whole = translated && ranks.iter().all(|rank| *rank >= 0);
        let ours = whole && inter == 0 && size > 1;
        let members: Vec<u32> = ranks.iter().map(|rank| *rank as u32).collect();
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let number = if ours {
            met.entry(members.clone()).or_default()
        } else {
            &mut 0
        };
        let pair = u32::from(members.first() > members.get(1));
        let comm = Arc::new(Comm {
            handle,
            id: identify(&members, *number),
            me: me as u32,
            ours,
            tag: 1 + (2 * *number + pair) as c_int,
            members: members.into(),
            calls: Default::default(),
            ahead: Default::default(),
            started: Default::default(),
            way: OnceLock::new(),
            absent: Mutex::default(),
        });
        *number += 1;
        let value = Arc::into_raw(Arc::clone(&comm)).cast_mut();
        // SAFETY: the attribute takes over the reference made for it.
        let set = unsafe { (native.comm_set_attr)(handle, self.keyval, value.cast()) };
        if set != 0 {
            // SAFETY: nobody else took it.
            drop(unsafe { Arc::from_raw(value) });
        }
        Some(comm)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_depends_on_members_order_and_number() {
        let ids = [
            super::identify(&[0, 1], 0),
            super::identify(&[1, 0], 0),
            super::identify(&[0, 1], 1),
            super::identify(&[0, 1, 2], 0),
        ];
        for (place, id) in ids.iter().enumerate() {
            assert!(!ids[..place].contains(id));
        }
    }
}
