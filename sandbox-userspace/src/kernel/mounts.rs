//! Placeholder of mounts.
