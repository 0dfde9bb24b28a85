//! From MPI_Init to MPI_Finalize.

use std::ffi::c_int;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outlive_base::{Code, Entity, Error, Result, segments};
use outlive_network::rail::{Content, Rail};
use outlive_protocols::collective::{Call, CollectiveKind};

use crate::body::Nothing;
use crate::comms::Comms;
use crate::connect;
use crate::layer::{self, Layer};
use crate::native::Native;
use crate::settings::{Mode, RailKind, Settings};
use crate::shadow::Shadow;

/// How long a rank that knows of a death serves the late ones at its end, at most ...
const LINGER: Duration = Duration::from_secs(2);
/// ... and at least.
const LINGER_LEAST: Duration = Duration::from_millis(200);

/// After the native initialisation: opens the layer. What goes wrong leaves the native
/// library to serve alone, on all ranks alike, and is said if words are wanted.
pub fn begin(native: &'static Native) {
    let (mut me, mut size) = (0, 0);
    let world = native.constants.world;
    // SAFETY: MPI is initialised; pointers to locals.
    unsafe {
        (native.comm_rank)(world, &mut me);
        (native.comm_size)(world, &mut size);
    }
    // Every rank serves or none does, and all alike: the native library cannot mix.
    let wanted = wanted(native);
    let print = match &wanted {
        // Never 0, which stands for none.
        Ok(Some(settings)) => (settings.fingerprint() >> 1) as c_int | 1,
        _ => 0,
    };
    let all = connect::everyone(native, print);
    let together = all.iter().all(|other| *other == print);
    let settings = match wanted {
        Ok(Some(settings)) if together => settings,
        Ok(Some(_)) if !all.contains(&0) => {
            let error = Error::new(
                Code::Config,
                Entity::Option("OUTLIVE_COLLECTIVES".into()),
                "its variables are not the same on all ranks",
                "give every rank the same environment",
            );
            eprintln!("outlive: rank {me}: native collectives stay in use: {error}");
            return;
        }
        Err(error) => {
            eprintln!("outlive: rank {me}: native collectives stay in use: {error}");
            return;
        }
        _ => return,
    };
    let made = make(native, settings, me as u32, size as u32);
    if connect::everyone(native, c_int::from(made.is_ok())).contains(&0) {
        if let Err(error) = made {
            eprintln!("outlive: rank {me}: native collectives stay in use: {error}");
        }
        return;
    }
    if let Ok(layer) = made {
        if layer.settings.verbose && me == 0 {
            eprintln!(
                "outlive: {} collectives for {} over {} ({:?}{})",
                layer.settings.says(),
                outlive_base::count(size.unsigned_abs(), "rank"),
                layer.rail_name(),
                native.family,
                if layer.ulfm {
                    ", failures from ULFM"
                } else {
                    ""
                },
            );
        }
        layer::open(layer);
    }
}

/// The settings, if they want more than the native library; nothing is sent to others.
fn wanted(native: &Native) -> Result<Option<Settings>> {
    let settings = Settings::from(|name| std::env::var(name).ok())?;
    if settings.mode == Mode::Native {
        return Ok(None);
    }
    native.check().map_err(|what| {
        Error::new(
            Code::PeerVersion,
            Entity::Call,
            format!("this MPI library is not as its table says: {what}"),
            "use Open MPI 4 or 5, MPICH 4 or 5, or the standard ABI",
        )
    })?;
    Ok(Some(settings))
}

fn make(native: &'static Native, settings: Settings, me: u32, size: u32) -> Result<Layer> {
    let mut shadow = 0;
    // SAFETY: MPI is initialised; a pointer to a local.
    let made = unsafe {
        let dup = (native.comm_dup)(native.constants.world, &mut shadow);
        dup == 0 && (native.comm_set_errhandler)(shadow, native.constants.errors_return) == 0
    };
    let comms = Comms::new(native).filter(|_| made);
    let comms = comms.ok_or_else(|| Error::internal("MPI gave no duplicate of the world"))?;
    let ulfm = std::env::var("OMPI_MCA_mpi_ft_enable").is_ok_and(|value| value == "1")
        && native.failure_ack.is_some()
        && native.failure_get_acked.is_some();
    let rail: Box<dyn Rail + Send> = match settings.rail.unwrap_or(RailKind::Mpi) {
        RailKind::Mpi => Box::new(Shadow::new(native, shadow, me, size, ulfm)),
        RailKind::Tcp => Box::new(connect::tcp(native, &settings, me, size)?),
        #[cfg(feature = "ucx")]
        RailKind::Ucx => Box::new(connect::ucx(native, &settings, me, size)?),
        #[cfg(not(feature = "ucx"))]
        RailKind::Ucx => return Err(connect::no_ucx()),
    };
    Ok(Layer::new(native, comms, settings, shadow, rail, ulfm))
}

/// The program has called MPI_Finalize, and the native finalisation was left out.
static LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// True if MPI_Finalize has ended without the native finalisation, which so knows nothing
/// of it.
pub fn ended_without_native() -> bool {
    LEFT_OUT.load(Ordering::Acquire)
}

/// MPI_Finalize: everyone alive comes, latecomers are served. `None` if the native
/// finalisation is to follow: with a dead process it may hang (open-mpi/ompi#11404), so it
/// is left out and the program ends without it. A second call is an error, as MPI says,
/// and does not reach the native library either.
pub fn end(native: &Native) -> Option<c_int> {
    if ended_without_native() {
        return Some(native.constants.err_other);
    }
    let layer = layer::layer()?;
    let mut missed = false;
    if let Some(comm) = layer.comms.get(native.constants.world)
        && comm.ours
    {
        let call = Call {
            kind: CollectiveKind::Barrier,
            root: 0,
            value: None,
            ordered: false,
        };
        let value = Some(Content::default());
        // If it fails, its bound has passed: the end comes anyway.
        let family = layer.family(&call, 0);
        let ended = layer.run(&comm, call, family, value, &mut Nothing);
        // Its result says the same to all, also to those who have not heard of a death: a rank
        // that alone went on to the native finalisation would wait there for the others.
        missed = ended.is_ok_and(|outcome| !outcome.absent.is_empty());
    }
    layer.ask_failures();
    let whole = !missed && layer.dead().is_empty();
    if whole {
        layer.linger(LINGER, Duration::ZERO);
    } else {
        layer.linger(LINGER, LINGER_LEAST);
    }
    layer::close();
    layer.leave();
    if whole {
        return None;
    }
    LEFT_OUT.store(true, Ordering::Release);
    remove_segments();
    Some(0)
}

/// What the native finalisation would have removed: the names of the memory that it shares on
/// this host, 8 MB and more. Whoever still maps it keeps it.
fn remove_segments() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for segment in segments::mapped(&maps) {
        let path = Path::new(segments::DIR).join(&segment.name);
        let (major, minor) = segment.device;
        let id = (rustix::fs::makedev(major, minor), segment.inode);
        let own = rustix::process::geteuid().as_raw();
        let same = |meta: std::fs::Metadata| meta.uid() == own && (meta.dev(), meta.ino()) == id;
        if path.symlink_metadata().is_ok_and(same) {
            // Another rank may have been quicker.
            let _ = std::fs::remove_file(&path);
        }
    }
}
