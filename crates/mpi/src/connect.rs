//! The rails between processes of an MPI job: what their ranks must know of each other is
//! exchanged by the native library, before it is stood before.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use outlive_base::{Code, Entity, Error, Result};
use outlive_network::rail::tcp::{self, KEY_BYTES, Listener, Tcp};
#[cfg(feature = "ucx")]
use outlive_network::rail::ucx::{self, Door, Ucx};

use crate::layer;
use crate::native::Native;
use crate::settings::Settings;

/// Longest host name that is compared.
const NAME_BYTES: usize = 64;
/// What each rank tells the others: host name, and its listener's address as text.
const CARD_BYTES: usize = NAME_BYTES + 64;

fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// `bytes` of everyone, by rank, each as long as this one; called by all or by none.
fn gathered(native: &Native, own: &[u8], size: u32) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![0u8; own.len() * size as usize];
    let Ok(bytes) = c_int::try_from(own.len()) else {
        return Err(Error::internal("a card of 2 GiB"));
    };
    // SAFETY: MPI is initialised; the vector has room for as many bytes a rank.
    let result = unsafe {
        let byte = native.constants.byte;
        let (give, take) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
        (native.allgather)(give, bytes, byte, take, bytes, byte, native.constants.world)
    };
    if result != 0 {
        return Err(Error::internal("MPI_Allgather failed at the start"));
    }
    Ok(all.chunks_exact(own.len()).map(<[u8]>::to_vec).collect())
}

/// Everyone's words, by rank; called by all or by none.
fn cards(native: &Native, own: &str, size: u32) -> Result<Vec<String>> {
    let mut card = [0u8; CARD_BYTES];
    let length = own.len().min(CARD_BYTES);
    card[..length].copy_from_slice(&own.as_bytes()[..length]);
    let text = |card: Vec<u8>| {
        let end = card.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&card[..end.unwrap_or(card.len())]).into_owned()
    };
    Ok(gathered(native, &card, size)?
        .into_iter()
        .map(text)
        .collect())
}

/// The job's key, drawn at rank 0; called by all or by none.
fn secret(native: &Native, me: u32) -> Result<[u8; KEY_BYTES]> {
    let mut key = [0u8; KEY_BYTES];
    if me == 0 {
        getrandom::fill(&mut key)
            .map_err(|error| Error::internal(format!("no random bytes: {error}")))?;
    }
    // SAFETY: MPI is initialised; the key has that many bytes.
    let spread = unsafe {
        let (bytes, byte) = (KEY_BYTES as c_int, native.constants.byte);
        (native.bcast)(
            key.as_mut_ptr().cast(),
            bytes,
            byte,
            0,
            native.constants.world,
        )
    };
    if spread != 0 {
        return Err(Error::internal("MPI_Bcast failed at the start"));
    }
    Ok(key)
}

fn control(settings: &Settings) -> tcp::Options {
    tcp::Options {
        silence: settings.silence,
        incarnation: 0,
    }
}

fn one_host(native: &Native, size: u32) -> Result<bool> {
    let hosts = cards(native, &host_name(), size)?;
    Ok(hosts.iter().all(|host| *host == hosts[0]))
}

/// Everyone's number, by rank; a 0 more if MPI could not tell.
pub(crate) fn everyone(native: &Native, own: c_int) -> Vec<c_int> {
    let mut size = 0;
    // SAFETY: MPI is initialised; one int a rank fits the vector.
    unsafe {
        let Native { constants, .. } = native;
        (native.comm_size)(constants.world, &mut size);
        let mut all = vec![0 as c_int; size as usize];
        let result = (native.allgather)(
            (&raw const own).cast(),
            size_of::<c_int>() as c_int,
            constants.byte,
            all.as_mut_ptr().cast::<c_void>(),
            size_of::<c_int>() as c_int,
            constants.byte,
            constants.world,
        );
        if result != 0 {
            all.push(0);
        }
        all
    }
}

/// The rail over TCP; called by all ranks or by none.
///
/// # Errors
/// If MPI, or the network, gives no connection.
pub(crate) fn tcp(native: &Native, settings: &Settings, me: u32, size: u32) -> Result<Tcp> {
    let listener = listen(settings, one_host(native, size)?);
    let told = match listener.as_ref().map(Listener::address) {
        Ok(Ok(address)) => address.to_string(),
        _ => String::new(),
    };
    // Both exchanges happen on every rank, also where something failed.
    let told = cards(native, &told, size)?;
    let key = secret(native, me)?;
    let listener = listener?;
    let parse = |(rank, text): (usize, &String)| {
        text.parse::<SocketAddr>().map_err(|_| {
            Error::new(
                Code::Network,
                Entity::Rank(rank as u32),
                "it has no address to be called at",
                "set OUTLIVE_COLLECTIVES_INTERFACE to an address of each node",
            )
        })
    };
    let addresses = told
        .iter()
        .enumerate()
        .map(parse)
        .collect::<Result<Vec<_>>>()?;
    let mut rail = Tcp::new(listener, me, addresses, key, control(settings))?;
    if size <= layer::CALL_ALL_MAX {
        rail.call_all();
    }
    Ok(rail)
}

fn listen(settings: &Settings, one_host: bool) -> Result<Listener> {
    let address = match settings.interface {
        Some(address) => address,
        None if one_host => IpAddr::V4(Ipv4Addr::LOCALHOST),
        None => {
            let name = host_name();
            let found = (name.as_str(), 0).to_socket_addrs();
            let mut found = found.into_iter().flatten().map(|address| address.ip());
            found
                .find(|address| !address.is_loopback())
                .ok_or_else(|| {
                    Error::new(
                        Code::Network,
                        Entity::Address(name.clone()),
                        "the host's name has no address that others reach",
                        "set OUTLIVE_COLLECTIVES_INTERFACE to an address of each node",
                    )
                })?
        }
    };
    Listener::within(address, settings.ports)
}

/// Why a library without the feature `ucx` serves no such rail.
#[cfg(not(feature = "ucx"))]
pub(crate) fn no_ucx() -> Error {
    Error::new(
        Code::Config,
        Entity::Option("OUTLIVE_COLLECTIVES_RAIL".into()),
        "this liboutlive_mpi.so was built without UCX",
        "build it with --features ucx (docs/how-to/build.md), or give tcp or mpi",
    )
}

/// The rail over UCX; called by all ranks or by none.
///
/// # Errors
/// If MPI, UCX or the network gives no connection.
#[cfg(feature = "ucx")]
pub(crate) fn ucx(native: &Native, settings: &Settings, me: u32, size: u32) -> Result<Ucx> {
    let listener = listen(settings, one_host(native, size)?);
    let options = ucx::Options {
        control: control(settings),
        library: settings.ucx_library.clone(),
    };
    let door = listener.and_then(|listener| Door::open(listener, options));
    // All exchanges happen on every rank, also where something failed.
    let mut card = door.as_ref().map_or_else(|_| Vec::new(), Door::card);
    let own = c_int::try_from(card.len()).unwrap_or(0);
    let lengths = everyone(native, own);
    let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
    card.resize(longest as usize, 0);
    let all = gathered(native, &card, size)?;
    let key = secret(native, me)?;
    let door = door?;
    if let Some(rank) = lengths.iter().position(|length| *length == 0) {
        return Err(Error::new(
            Code::Network,
            Entity::Rank(rank as u32),
            "UCX could not be opened there",
            "see what that rank says",
        ));
    }
    if settings.verbose && !door.warning().is_empty() {
        eprintln!("outlive: rank {me}: UCX warns: {}", door.warning());
    }
    let cut = |(card, length): (&Vec<u8>, &c_int)| card[..*length as usize].to_vec();
    let cards: Vec<_> = all.iter().zip(&lengths).map(cut).collect();
    let mut rail = Ucx::new(door, me, &cards, key)?;
    if size <= layer::CALL_ALL_MAX {
        rail.meet(settings.silence)?;
    } else {
        rail.meet_neighbours(settings.silence)?;
    }
    Ok(rail)
}
