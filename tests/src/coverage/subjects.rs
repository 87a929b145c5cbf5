//! What is to be tried: ways around the rules and out of the session, and cases from practice.

/// A group of rows: its heading, and each row's id and description.
pub(super) type Group = (&'static str, &'static [(&'static str, &'static str)]);

pub(super) const GROUPS: &[Group] = &[
    ("Paths: ways to an object that its name does not show", PATHS),
    ("Leaving the session, or never being in it", MEMBERSHIP),
    ("Changes without a write to an opened file", CHANGES),
    ("The sandbox itself and the kernel", ENFORCER),
    ("Ways to the network", NETWORK),
    ("Cases: reading, and telling objects apart", READS),
    ("Cases: writing", WRITES),
    ("Cases: the network", REACHES),
    ("Cases: leaving, killing, blinding", LEAVING),
    ("Cases: start, platforms, honesty", HONESTY),
    ("Cases: what must keep working", WORK),
];

/// Groups whose rows are tried as root and as an ordinary user.
pub(super) const TWOFOLD: &[&str] = &[
    "Leaving the session, or never being in it",
    "The sandbox itself and the kernel",
    "Cases: leaving, killing, blinding",
    "Cases: start, platforms, honesty",
];

/// The rows of those groups.
#[cfg(test)]
pub(super) fn twofold() -> impl Iterator<Item = &'static str> {
    let groups = GROUPS.iter().filter(|(heading, _)| TWOFOLD.contains(heading));
    groups.flat_map(|(_, group)| group.iter().map(|(id, _)| *id))
}

const PATHS: &[(&str, &str)] = &[
    (
        "A13",
        "Symbolic links, `..`, `/proc/self/root`, another process's root, the working directory",
    ),
    ("A14", "A hard link: a second name of the same file"),
    ("A15", "A bind mount shows the object at another path"),
    ("A16", "A detached copy of a mount (`open_tree`), which no mount hook sees"),
    ("A17", "Another root directory (`chroot`, `pivot_root`) shortens every path"),
    ("A18", "A file handle opens the object without any path"),
    ("A19", "A path longer than the system's limit, reached step by step"),
    ("A20", "Deep trees and long names, beyond what a bounded loop or key can hold"),
    ("A21", "Names that look like something else: deleted files, anonymous memory"),
    ("A22", "Namespace files, and files that are only named like them"),
    ("A23", "A descriptor without access (`O_PATH`), opened again"),
    ("A24", "Overlay and FUSE file systems: other device and inode numbers, merged views"),
    ("A25", "btrfs subvolumes, whose device number differs from the superblock's"),
    ("A26", "An inode number that is used again, or met on another file system"),
    ("A27", "A protected file is replaced by renaming a new one over it"),
    ("A28", "A protected file that does not exist when the session begins"),
];

const MEMBERSHIP: &[(&str, &str)] = &[
    ("A1", "A member moves itself to another cgroup"),
    ("A2", "A child is born in another cgroup (`CLONE_INTO_CGROUP`)"),
    ("A3", "A child cgroup that is made after the start"),
    ("A4", "Another process is asked to act: systemd, D-Bus, docker, an agent's socket"),
    ("A5", "Kernel settings that make the kernel run a program outside, as root"),
    ("A6", "Somebody else moves the member"),
    ("A7", "The member is moved after its session was looked up"),
    ("A8", "A hybrid machine, with hierarchies of version 1 too"),
    ("A9", "A private cgroup namespace, whose root is not the root"),
    ("A10", "io_uring's kernel threads do the work"),
    ("A11", "An object that a helper opened outside comes in"),
    ("A12", "A socket that was made outside is used inside"),
];

const ENFORCER: &[(&str, &str)] = &[
    ("A46", "`BPF_LINK_DETACH` from inside"),
    ("A47", "The last mount of the bpffs is taken away, lazily too"),
    ("A48", "Pins are removed or renamed, links and maps changed by number"),
    ("A49", "The supervising program is killed, stopped, traced, starved"),
    ("A50", "The control interface of a daemon is reached from inside"),
    ("A51", "Modules, kexec, perf, tracing, the machine's memory"),
    ("A52", "Own BPF programs that overrule a verdict"),
    ("A53", "A name that a policy might trust (`PR_SET_NAME`, a copied program)"),
    ("A54", "A flood of events hides one, or turns enforcement off"),
    ("A55", "The operation is done before a killing signal arrives"),
    ("A56", "Secrets in the memory, environment and descriptors of other processes"),
    ("A57", "Typing into a terminal (`TIOCSTI`, `TIOCLINUX`)"),
    ("A58", "Keyrings, System V and POSIX objects of outsiders"),
    ("A59", "Setuid programs gain privileges"),
    ("A60", "Files in the workspace that the user's programs run later"),
    ("A61", "The agent edits its own guard: policy, state, pins"),
    ("A62", "A switch that turns the sandbox off from inside"),
    ("A63", "Another ABI: 32-bit system calls"),
    ("A64", "Descriptors that leak into the session"),
];

const LEAVING: &[(&str, &str)] = &[
    ("D5.77", "Child, sibling and root cgroup, threads, a cgroup mount of its own, version 1"),
    ("D5.78", "`clone3` into another cgroup, by a descriptor that may only be read"),
    ("D5.79", "Double fork, `setsid`, a parent that exits"),
    ("D5.80", "The supervising program is killed or stopped; it starts again"),
    ("D5.81", "The agent attacks the supervising program and its cgroup"),
    ("D5.83", "A flood of denials while another denial matters"),
    ("D5.85", "A task calls itself something else"),
    ("D5.86", "io_uring, with worker and polling threads too"),
    ("D5.87", "Root of a user namespace"),
    ("D5.88", "The loader, interpreters, a static program"),
    ("D5.90", "No flag, variable or file of the agent's changes what is enforced"),
    ("D5.91", "A policy that is exchanged while the session runs"),
    ("D5.93", "A policy that is larger than the maps"),
    ("D4.75", "`TIOCSTI` and `TIOCLINUX` on a terminal"),
];

const HONESTY: &[(&str, &str)] = &[
    ("D6.94", "`bpf` is missing from the list of LSMs"),
    ("D6.95", "Something needed is missing, and the agent is started all the same"),
    ("D6.96", "A mode or flag is ignored by a release"),
    ("D6.97", "A package lacks a part"),
    ("D6.98", "Hybrid cgroups, a private cgroup namespace, a broken rule"),
    ("D6.100", "Another kernel, the same verdicts"),
    ("D6.101", "What is explained is what the kernel does"),
    ("D6.102", "Each claim names its test"),
];

const CHANGES: &[(&str, &str)] = &[
    ("A29", "A refused creation must not leave an empty file"),
    ("A30", "`truncate` by path"),
    ("A31", "`ftruncate`, and opening with `O_TRUNC`"),
    ("A32", "`fallocate` on a descriptor that somebody else opened"),
    ("A33", "Mode, owner and times"),
    ("A34", "Extended attributes and access control lists"),
    ("A35", "Inode flags, by `ioctl` and by `file_setattr`"),
    ("A36", "Rename into, out of, over; exchange; a directory above"),
    ("A37", "A file without a name (`O_TMPFILE`) is linked to one"),
    ("A38", "Device nodes, FIFOs, whiteouts"),
    ("A39", "Binding a unix socket makes a name"),
    ("A40", "Making and removing directories, links and names"),
    ("A41", "Writable shared mappings, and `mprotect` towards writing"),
    ("A42", "`splice`, `sendfile`, `copy_file_range` and io_uring instead of `write`"),
    ("A43", "The mount API: `fsmount`, `move_mount`, `mount_setattr`, `open_tree`"),
    ("A44", "Running a file that has no path"),
    ("A45", "Running a denied program through the loader, an interpreter or a copy"),
];

const READS: &[(&str, &str)] = &[
    ("D1.1", "A hard link to a protected file, made during the session or before"),
    ("D1.3", "A bind mount of a protected directory, made during the session or before"),
    ("D1.4", "A detached mount by an unprivileged user in a user namespace"),
    ("D1.5", "Root changes its root directory to the protected one"),
    ("D1.7", "`/proc/self/root` and another process's root"),
    ("D1.8", "`..` behind a link to a directory"),
    ("D1.9", "The protected name appears during the session, as a link to elsewhere"),
    ("D1.11", "A denial within an allowed place, nested"),
    ("D1.12", "A secret 21, 60 and 600 directories deep, and beyond the longest path"),
    ("D1.13", "Rules with names of every length up to the longest"),
    ("D1.14", "A credential that is rewritten by rename stays closed"),
    ("D1.15", "A credential that appears later is closed from the first moment"),
    ("D1.17", "A secret in the lower layer of an overlay, before and after it is copied up"),
    ("D1.18", "A home directory on a btrfs subvolume"),
    ("D1.20", "Opening or running an `O_PATH` descriptor again"),
    ("D1.22", "A helper outside passes a descriptor in"),
    ("D1.23", "The environment of processes outside the session"),
    ("D1.24", "The memory of processes outside the session"),
    ("D1.25", "What `/proc` tells of the supervising process: command line, descriptors, cgroup"),
    ("D1.26", "A core dump that would be written outside"),
];

const WRITES: &[(&str, &str)] = &[
    ("D2.28", "A refused creation leaves no file"),
    ("D2.29", "Truncation without an open, and on a descriptor from before"),
    ("D2.30", "Every kind of metadata outside the workspace; the same inside works"),
    ("D2.31", "A file of the workspace is renamed onto a protected one"),
    ("D2.33", "A file without a name is linked outside"),
    ("D2.34", "Rename and link instead of writing to files that run at login or by schedule"),
    ("D2.35", "A node of the disk is made, or the existing one opened; a FIFO works"),
    ("D2.36", "A socket is bound outside the workspace"),
    ("D2.37", "Writing into a directory that is closed to reading"),
    ("D2.39", "Files of a project that the user's own programs run later"),
    ("D2.40", "A linked git worktree does not open all of the main repository"),
    ("D2.42", "A writable mapping of a file outside that was opened before"),
    ("D2.43", "The agent changes what guards it: policy, state, pins, log"),
    ("D2.44", "Kernel settings that make the kernel run a program"),
    ("D2.45", "A tree outside is deleted recursively"),
];

const NETWORK: &[(&str, &str)] = &[
    ("A65", "TCP over IPv4"),
    ("A66", "TCP over IPv6 to an IPv4-mapped address"),
    ("A67", "UDP without connecting"),
    ("A68", "UDP to an address whose family is not said"),
    ("A69", "UDP of an IPv6 socket to an IPv4 address"),
    ("A70", "Connected UDP"),
    ("A71", "TCP fast open: data and connection in one call"),
    ("A72", "Multipath TCP"),
    ("A73", "SCTP"),
    ("A74", "SCTP by sending, without connecting"),
    ("A75", "SCTP by a socket option"),
    ("A76", "UDP-Lite"),
    ("A77", "Raw sockets"),
    ("A78", "Ping sockets"),
    ("A79", "Packets below IP"),
    ("A80", "Sockets to other virtual machines"),
    ("A81", "Unix sockets by path and by abstract name"),
    ("A82", "Connecting by io_uring"),
    ("A83", "Sockets that others made, and packets that take another way"),
];

const REACHES: &[(&str, &str)] = &[
    ("D3.46", "A program that pays no attention to a proxy"),
    ("D3.47", "A setting makes enforcement do nothing"),
    ("D3.48", "The IPv6 address of a host whose IPv4 address is listed"),
    ("D3.50", "Fast open"),
    ("D3.51", "Multipath TCP: connecting and binding"),
    ("D3.52", "SCTP in three ways"),
    ("D3.54", "Raw, packet, vsock, crypto and netlink sockets; every family"),
    ("D3.55", "The same from a 32-bit entry"),
    ("D3.56", "A socket from outside"),
    ("D3.58", "Names as a way out: a question about a name that carries data"),
    ("D3.59", "Another name server than the machine's, by UDP, TCP and IPv6"),
    ("D3.61", "The addresses of a name change while the session runs"),
    ("D3.63", "A relay of the agent's own carries the traffic"),
    ("D3.64", "HTTP and HTTPS alike"),
    ("D3.65", "Services of the machine at loopback"),
    ("D3.66", "A connection from outside"),
    ("D3.67", "A session that only reports stops nothing"),
    ("D4.68", "The sockets of docker, podman, containerd and libvirt"),
    ("D4.69", "systemd and its manager of the user act for the agent"),
    ("D4.70", "A service of D-Bus reads a file for the agent"),
    ("D4.72", "The agents of ssh and gpg, by path"),
    ("D4.73", "Datagrams to unix sockets, by path and abstract name, without connecting"),
    ("D4.76", "What runs later: cron, timers, autostart, start-up files of shells"),
];

const WORK: &[(&str, &str)] = &[
    ("D7.103", "git in a linked worktree"),
    ("D7.105", "A working directory that holds repositories and is none"),
    ("D7.108", "Common devices, shared memory, `/proc/self`, pipes, event and process descriptors"),
    ("D7.109", "Temporary files and here-documents"),
    ("D7.113", "An agent's own sandbox (bubblewrap) inside a session"),
    ("D7.110", "Package managers, compilers and their caches"),
];

/// Rows without a test, and why.
pub(super) const UNTESTED: &[(&str, &str)] = &[
    ("A50", "there is no daemon, so nothing to be reached"),
    (
        "A55",
        "no verdict is a signal: every refusal is an error of the system call, and nothing changed",
    ),
    ("D3.63", "what a relay connects to is connected to as by any other member: A65 to A83"),
    ("D6.97", "there are no packages yet; each start proves itself before the agent runs"),
    ("D6.102", "this document and its test on the host"),
];
