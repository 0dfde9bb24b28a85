//! Authenticated rails between agents.
