//! Devices go by a list; procfs, sysfs and cgroupfs are read only; nobody leaves its cgroup.

use crate::harness::{
    Bystander, Denial, Ground, Lent, Policy, Session, Why, both, cgroup_root, is_root, trial,
};
use crate::probe::{Operation, Place};
use anyhow::Context as _;
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A38", "devices::nodes_cannot_be_made"),
    ("A38", "devices::others_are_refused"),
    ("D2.35", "devices::nodes_cannot_be_made"),
    ("D2.35", "devices::others_are_refused"),
    ("A1", "kernel_interfaces::nobody_leaves_its_cgroup"),
    ("A2", "kernel_interfaces::nobody_leaves_its_cgroup"),
    ("A5", "kernel_interfaces::are_read_only"),
    ("D2.44", "kernel_interfaces::are_read_only"),
    ("D5.78", "kernel_interfaces::nobody_leaves_its_cgroup"),
    ("D7.108", "devices::harmless_ones_work"),
    ("D2.43", "kernel_interfaces::are_read_only"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [
        both("kernel_interfaces::are_read_only", interfaces),
        both("kernel_interfaces::nobody_leaves_its_cgroup", cgroups),
    ];
    let once = [
        trial("devices::harmless_ones_work", harmless),
        trial("devices::others_are_refused", refused),
        trial("devices::nodes_cannot_be_made", nodes),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

fn open(path: impl Into<Place>, flags: i32) -> Operation {
    Operation::Open { path: path.into(), flags }
}

fn harmless() -> anyhow::Result<()> {
    let ground = Ground::new("devices")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    for name in ["null", "zero", "full", "random", "urandom"] {
        let path = format!("/dev/{name}");
        session.allowed(&format!("read of {path}"), &open(&path, libc::O_RDONLY))?;
        session.allowed(&format!("write of {path}"), &open(&path, libc::O_RDWR))?;
    }
    let flags = libc::O_WRONLY | libc::O_TRUNC | libc::O_CREAT;
    session.allowed("> /dev/null", &open("/dev/null", flags))?;
    let write = Operation::Write { path: "/dev/null".into(), text: "text".into(), flags };
    session.allowed("write to /dev/null", &write)?;
    session.finish()
}

/// A node that the administrator has put into the workspace, and the usual ones.
fn refused() -> anyhow::Result<()> {
    // The home may be mounted `nodev`, which would be another guard.
    let ground = Ground::beneath(std::path::Path::new("/"), "devices-refused")?;
    let workspace = ground.workspace();
    let mut bystander = Bystander::new()?;
    let mut made = Vec::new();
    for (kind, name, device) in [
        (libc::S_IFBLK, "disk", (8u32, 0u32)),
        (libc::S_IFBLK, "ram", (1, 0)),
        (libc::S_IFCHR, "mem", (1, 1)),
        (libc::S_IFCHR, "kmsg", (1, 11)),
    ] {
        let path = workspace.join(name);
        let answer = bystander.perform(&Operation::Mknod { path: path.clone(), kind, device })?;
        anyhow::ensure!(answer.errno == 0, "mknod {path}: {answer}");
        // The machine may lack the device itself.
        let answer = bystander.perform(&open(path.path(), libc::O_RDONLY | libc::O_NONBLOCK))?;
        anyhow::ensure!(answer.errno != libc::EACCES, "a bystander's open of {path}: {answer}");
        made.push((path, device));
    }
    for (path, device) in [("/dev/mem", (1, 1)), ("/dev/kmsg", (1, 11)), ("/dev/port", (1, 4))] {
        if std::fs::symlink_metadata(path).is_ok() {
            made.push((path.into(), device));
        }
    }
    let mut session = Session::start(&ground, &Policy::preset())?;
    for (path, device) in &made {
        let denial = Denial::by(&["file_open"])
            .device(path, device.0.into(), device.1.into())
            .because(Why::Reason(&["device"]));
        for flags in [libc::O_RDONLY, libc::O_WRONLY] {
            session.refused(&format!("open of {path}"), &open(path.path(), flags), &denial)?;
        }
    }
    // The kernel log is a device that an administrator may read: what refuses it is the session.
    let answer = bystander.perform(&open("/dev/kmsg", libc::O_RDONLY | libc::O_NONBLOCK))?;
    if answer.errno != 0 {
        session.problem(format!("a bystander's open of /dev/kmsg: {answer}"));
    }
    session.finish()
}

fn nodes() -> anyhow::Result<()> {
    let ground = Ground::new("nodes")?;
    let workspace = ground.workspace();
    let mut session = Session::start(&ground, &Policy::preset())?;
    for (name, kind, device) in [
        ("character device", libc::S_IFCHR, (1, 1)),
        ("listed character device", libc::S_IFCHR, (1, 3)),
        ("block device", libc::S_IFBLK, (8, 0)),
        ("whiteout", libc::S_IFCHR, (0, 0)),
    ] {
        let path = ground.absent(&workspace);
        let denial = Denial::by(&["path_mknod"])
            .any_object()
            .because(Why::Reason(&["device", "default", "rule"]));
        let mknod = Operation::Mknod { path: path.clone(), kind, device };
        session.refused(&format!("mknod of a {name}"), &mknod, &denial)?;
        if std::fs::symlink_metadata(&path).is_ok() {
            session.problem(format!("mknod of a {name} left a node"));
        }
        let path = ground.absent(&workspace);
        let answer = Bystander::new()?.perform(&Operation::Mknod { path, kind, device })?;
        if answer.errno != 0 {
            session.problem(format!("a bystander's mknod of a {name}: {answer}"));
        }
    }
    for (name, kind) in [("fifo", libc::S_IFIFO), ("socket", libc::S_IFSOCK)] {
        let path = ground.absent(&workspace);
        session.allowed(name, &Operation::Mknod { path, kind, device: (0, 0) })?;
    }
    session.finish()
}

/// Those of the kernel's file systems that pin themselves: they look internal (`SB_KERNMOUNT`) and
/// are not.
fn mount_pinned() -> anyhow::Result<()> {
    use rustix::mount::{MountFlags, mount};
    for (kind, at) in [("tracefs", "/sys/kernel/tracing"), ("debugfs", "/sys/kernel/debug")] {
        match mount(kind, at, kind, MountFlags::empty(), None) {
            Ok(()) | Err(rustix::io::Errno::BUSY) => {}
            Err(error) => anyhow::bail!("mounting {kind}: {error}"),
        }
    }
    Ok(())
}

fn interfaces() -> anyhow::Result<()> {
    mount_pinned()?;
    let ground = Ground::new("interfaces")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    for path in ["/proc/self/status", "/proc/self/maps", "/proc/meminfo", "/proc/sys/kernel/ostype"]
    {
        session.allowed(&format!("read of {path}"), &open(path, libc::O_RDONLY))?;
    }
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/sys/kernel/mm/ksm/run",
        "/sys/power/state",
        "/sys/kernel/tracing/tracing_on",
        "/sys/kernel/debug/clear_warn_once",
    ] {
        let pinned = path.contains("/tracing/") || path.contains("/debug/");
        if !pinned && std::fs::metadata(path).is_err() {
            continue;
        }
        // Of procfs nobody can be given anything, and to the others' files no user but root comes.
        let given = path.starts_with("/sys/") && !pinned;
        let _lent = given.then(|| Lent::of(path)).transpose()?;
        let write = open(path, libc::O_WRONLY);
        let denial = Denial::write(path);
        let denial = if given { denial } else { denial.told_to_root() };
        session.refused(&format!("write of {path}"), &write, &denial)?;
        let answer = bystander.perform(&write)?;
        if answer.errno != 0 && (given || is_root()) {
            session.problem(format!("a bystander's open of {path}: {answer}"));
        }
    }
    session.finish()
}

fn cgroups() -> anyhow::Result<()> {
    let ground = Ground::new("cgroups")?;
    let root = cgroup_root()?;
    let elsewhere = root.join(format!("elsewhere-{}", std::process::id()));
    std::fs::create_dir(&elsewhere).context("making a cgroup")?;
    let result = leave(&ground, &root.into(), &elsewhere.clone().into());
    std::fs::remove_dir(&elsewhere).context("removing the cgroup")?;
    result
}

/// Its user manages all cgroups, as far as their files go.
fn leave(ground: &Ground, root: &Place, elsewhere: &Place) -> anyhow::Result<()> {
    let mut session = Session::start(ground, &Policy::preset())?;
    let own = session.started()?["cgroup"].as_str().unwrap_or_default().to_owned();
    anyhow::ensure!(
        std::path::Path::new(&own).is_dir(),
        "the session's cgroup {own:?} is no directory"
    );
    let mut bystander = Bystander::new()?;
    let mut lent = Vec::new();
    for cgroup in [root, elsewhere, &Place::from(own)] {
        lent.push(Lent::of(cgroup)?);
        for name in ["cgroup.procs", "cgroup.threads"] {
            let path = cgroup.join(name);
            lent.push(Lent::of(&path)?);
            let write =
                Operation::Write { path: path.clone(), text: "0".into(), flags: libc::O_WRONLY };
            session.refused(&format!("write to {path}"), &write, &Denial::write(&path))?;
        }
    }
    let child = root.join("made-by-member");
    let denial = Denial::by(&["path_mkdir"]).access("create").path(&child);
    session.refused("mkdir of a cgroup", &Operation::Mkdir { path: child }, &denial)?;
    let into = Operation::IntoCgroup { cgroup: elsewhere.clone() };
    let denial = Denial::by(&["task_alloc"]).task().because(Why::Reason(&["into_cgroup"]));
    session.refused("clone3(CLONE_INTO_CGROUP)", &into, &denial)?;
    let fork = Operation::Fork { then: Box::new(open("/proc/self/cgroup", libc::O_RDONLY)) };
    let before = session.identity()?.cgroup.clone();
    let answer = session.allowed("plain fork", &fork)?;
    if answer.text() != before {
        session.problem(format!("a child is in {:?}, its parent in {before:?}", answer.text()));
    }
    // Both ways are real.
    let write = Operation::Write {
        path: elsewhere.join("cgroup.procs"),
        text: "0".into(),
        flags: libc::O_WRONLY,
    };
    for operation in [write, into] {
        let answer = bystander.perform(&operation)?;
        if answer.errno != 0 {
            session.problem(format!("a bystander: {answer}\n    {operation:?}"));
        }
    }
    session.finish()
}
