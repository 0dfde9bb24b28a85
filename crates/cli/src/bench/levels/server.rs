//! The memory server of a job that is measured: a process of its own, as in use, so that its
//! processor time is its own too.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use outlive_base::Result;
use serde::Deserialize;

use super::super::session::{failed, odd};

/// What `outlive memory-server --json` says once it can be used.
#[derive(Deserialize)]
struct Started {
    address: String,
}

/// A server that ends with this.
pub struct MemoryServer {
    child: Child,
    /// `HOST:PORT`.
    pub address: String,
}

impl MemoryServer {
    /// Starts one with so many bytes, for the job that will be in this store.
    ///
    /// # Errors
    /// If it does not come up; it says itself why.
    pub fn start(store: &Path, bytes: u64) -> Result<MemoryServer> {
        let me = std::env::current_exe().map_err(|error| failed("find itself", &error))?;
        let mut command = Command::new(me);
        command
            .args(["memory-server", "--json", "--job", "bench", "--memory"])
            .arg(format!("{bytes}B"))
            .arg("--store")
            .arg(store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        outlive_launch::process::tie(&mut command);
        let child = command
            .spawn()
            .map_err(|error| failed("start the memory server", &error))?;
        let mut server = MemoryServer {
            child,
            address: String::new(),
        };
        server.address = server.said()?.address;
        Ok(server)
    }

    /// Its number as a process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&mut self) -> Result<Started> {
        let not_up = || odd("the memory server does not come up");
        let out = self.child.stdout.take().ok_or_else(not_up)?;
        let mut text = String::new();
        // An object over several lines, or nothing if it has ended.
        for line in BufReader::new(out.take(1 << 16)).lines() {
            let line = line.map_err(|error| failed("hear the memory server", &error))?;
            text.push_str(&line);
            if line == "}" {
                break;
            }
        }
        serde_json::from_str(&text).map_err(|_| not_up())
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
