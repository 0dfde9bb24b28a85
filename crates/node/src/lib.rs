//! How quiet the cores of a node are: fixed work and fixed time quanta, what hit the samples
//! that took long, kernels that show how much the hardware itself varies, and what the noise
//! of one core costs a job of many ranks; and how an MPI job fares that really runs. Beside them
//! [`pages`]: huge pages for programs that were not changed, [`decouple`]: their system calls
//! on other cores, and [`lock`]: their memory kept in memory.
//!
//! [`stats`], [`spectrum`], [`trace`], [`counters`], [`attribute`], [`extrapolate`], [`model`],
//! [`text`], [`picture`], [`ranks`], [`compare`] and [`page`] have no input or output. [`cores`], [`cycles`],
//! [`measure`], [`interruptions`], [`tracefs`], [`kernels`] and [`variation`] look at the machine, as does [`health`],
//! which reads its sensors. The page `docs/design/quiet.md` says what is measured how.

pub mod attribute;
pub mod compare;
pub mod cores;
pub mod counters;
pub mod cpus;
pub mod cycles;
pub mod decouple;
pub mod extrapolate;
pub mod health;
pub mod interruptions;
pub mod kernels;
pub mod lock;
pub mod measure;
pub mod model;
pub mod page;
pub mod pages;
pub mod picture;
pub mod placement;
pub mod quiet;
pub mod ranks;
mod rows;
pub mod spectrum;
pub mod stats;
pub mod text;
pub mod trace;
pub mod tracefs;
pub mod variation;
