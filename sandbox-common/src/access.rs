//! What a task wants to do to an object.

bitflags::bitflags! {
    /// A set of accesses. In a rule: what it grants or denies. In an event: what was attempted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct Access: u32 {
        /// Read a file's content, list a directory. Same bit as the kernel's `FMODE_READ`.
        const READ = 1;
        /// Write or truncate a file's content. Same bit as the kernel's `FMODE_WRITE`.
        const WRITE = 1 << 1;
        /// Make a name: create, mkdir, mknod, symlink, link and rename to it.
        const CREATE = 1 << 2;
        /// Take a name away: unlink, rmdir, rename from it or over it.
        const DELETE = 1 << 3;
        /// Change mode, owner, times, extended attributes.
        const ATTRIBUTES = 1 << 4;
        /// Run a file as a program.
        const EXECUTE = 1 << 5;
        /// Make a socket, connect or send to an address.
        const CONNECT = 1 << 6;
        /// Look into another process or change it: ptrace, its memory, environment, descriptors.
        const TRACE = 1 << 7;
        /// Send a signal to another process.
        const SIGNAL = 1 << 8;
        /// Change scheduling or limits of another process.
        const CONTROL = 1 << 9;
        /// Mount, unmount, change the root; make a user namespace.
        const MOUNT = 1 << 10;
        /// Reach for the kernel itself: BPF, perf, modules, its log, its clock.
        const KERNEL = 1 << 11;
        /// Type into a terminal.
        const TYPE = 1 << 12;
        /// Take connections or datagrams from others.
        const LISTEN = 1 << 13;
    }
}

impl Access {
    /// What a `write` rule speaks of: every way to change a file or a name.
    pub const WRITES: Self =
        Self::WRITE.union(Self::CREATE).union(Self::DELETE).union(Self::ATTRIBUTES);
}
