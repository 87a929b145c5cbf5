//! The programs attached to each session's cgroup.

mod address;
