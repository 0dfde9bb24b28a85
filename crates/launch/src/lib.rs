//! Supervision of a launcher's command, spares, restart.
