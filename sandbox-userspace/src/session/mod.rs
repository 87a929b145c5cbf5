//! Sessions: cgroup, agent process, life-time.
