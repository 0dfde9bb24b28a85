//! Memory shared by a rank and its agent: control block, slabs, IPC.
