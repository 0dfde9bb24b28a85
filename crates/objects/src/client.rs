//! Requests, made from threads that wait for them.

use std::sync::{Arc, OnceLock};

use object_store::ObjectStore;
use object_store::multipart::MultipartStore;
use tokio::runtime::Runtime;

/// Threads that move bytes between sockets and requests. Who makes a request waits for it in a
/// thread of its own, and there are few of those.
const WORKERS: usize = 2;

/// Both sides of a store: whole objects, and parts of them.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub objects: Arc<dyn ObjectStore>,
    pub parts: Arc<dyn Parts>,
}

/// [`MultipartStore`] that can be shown.
pub(crate) trait Parts: MultipartStore + std::fmt::Debug {}
impl<T: MultipartStore + std::fmt::Debug> Parts for T {}

impl Client {
    pub fn of<T: ObjectStore + MultipartStore>(store: T) -> Client {
        let store = Arc::new(store);
        Client {
            objects: store.clone(),
            parts: store,
        }
    }
}

/// Waits for a request. Its bound is the client's ([`crate::place`]).
///
/// # Panics
/// In a thread of the runtime itself, where nothing of this crate waits.
pub(crate) fn wait<T>(request: impl Future<Output = T>) -> T {
    runtime().block_on(request)
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let made = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("outlive-objects")
            .enable_all()
            .build();
        made.unwrap_or_else(|error| panic!("no thread can be started: {error}"))
    })
}

/// A number that nobody else draws, for names of what is there for a moment.
pub(crate) fn nonce() -> u64 {
    let drawn = getrandom::u64();
    drawn.unwrap_or_else(|error| panic!("no random number: {error}"))
}
