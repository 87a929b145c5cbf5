//! PID 1 of the test machines, and what runs the command inside them.
//!
//! As PID 1 it makes the machine usable, and then runs the command itself (small machine) or hands
//! over to the systemd of the Debian image, whose `vm.service` is this same program again.
//! `xtask/src/machine.rs` is the other end: it writes the files under `/vm` of the initramfs and
//! reads the two virtio-serial ports.
//!
//! An error in here goes to the kernel console, and as PID 1's death is a kernel panic, `xtask`
//! sees it at once.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{MountFlags, mount, mount_move};
use rustix::process::WaitOptions;
use rustix::system::RebootCommand;

/// Where the initramfs carries what `xtask` says, and where it is kept for the command.
const ORDERS: &str = "/vm";
const KEPT_ORDERS: &str = "/run/vm";
/// The Debian image, when there is one.
const ROOT_DEVICE: &str = "/dev/vda";
const NEW_ROOT: &str = "/newroot";
/// Devices appear some moments after their module was loaded; emulation is slow.
const DEVICE_PATIENCE: Duration = Duration::from_secs(20);
/// As a shell does when it finds no program.
const NOT_FOUND: i32 = 127;

fn main() -> ExitCode {
    let done = if std::process::id() == 1 { boot() } else { serve(&path_of_debian()) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest-init: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn boot() -> Result<()> {
    attach("devtmpfs", "/dev", MountFlags::NOSUID, "mode=0755")?;
    load_modules()?;
    attach("tmpfs", "/run", MountFlags::NOSUID | MountFlags::NODEV, "mode=0755")?;
    copy_tree(Path::new(ORDERS), Path::new(KEPT_ORDERS))?;
    if Path::new(KEPT_ORDERS).join("debian").exists() {
        return hand_over();
    }
    small_machine()?;
    serve(OsStr::new("/bin:/usr/local/bin:/usr/bin:/sbin"))?;
    rustix::system::reboot(RebootCommand::PowerOff).context("powering off")
}

/// Loads the modules listed in `/vm/modules`, in that order: `xtask` put dependencies first.
fn load_modules() -> Result<()> {
    let list = Path::new(ORDERS).join("modules");
    let list = fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    for path in list.lines() {
        let file = File::open(path).with_context(|| format!("opening module {path}"))?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error).with_context(|| format!("loading module {path}")),
        }
    }
    Ok(())
}

/// Mounts what a Linux program expects to find, and brings the loopback interface up.
fn small_machine() -> Result<()> {
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let memory = MountFlags::NOSUID | MountFlags::NODEV;
    attach("proc", "/proc", quiet, "")?;
    attach("sysfs", "/sys", quiet, "")?;
    attach("devpts", "/dev/pts", MountFlags::NOSUID | MountFlags::NOEXEC, "mode=620,ptmxmode=666")?;
    attach("tmpfs", "/dev/shm", memory, "mode=1777")?;
    attach("tmpfs", "/tmp", memory, "mode=1777")?;
    attach("tmpfs", "/root", memory, "mode=0700")?;
    attach("securityfs", "/sys/kernel/security", quiet, "")?;
    attach("bpf", "/sys/fs/bpf", quiet, "mode=0700")?;
    attach("cgroup2", "/sys/fs/cgroup", quiet, "nsdelegate")?;
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, link).with_context(|| format!("linking {link}"))?;
    }
    rustix::system::sethostname(b"sandbox-vm").context("setting the host name")?;
    loopback_up()
}

/// Sets `IFF_UP` on `lo`; the kernel then gives it `127.0.0.1` and `::1` by itself.
fn loopback_up() -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("making a socket to configure lo")?;
    // SAFETY: all zero bytes are a valid `ifreq`: integers, and a union of plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = i16::try_from(up).context("flags of lo")?;
    // SAFETY: the descriptor is open, and `request` is an initialised `ifreq` that the kernel only
    // reads for this command.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    ensure!(done == 0, "bringing lo up: {}", io::Error::last_os_error());
    Ok(())
}

/// Mounts the Debian image, puts our programs and units into it, and becomes its systemd.
fn hand_over() -> Result<()> {
    let device = Path::new(ROOT_DEVICE);
    wait_for(|| device.exists()).with_context(|| format!("no {ROOT_DEVICE}"))?;
    fs::create_dir_all(NEW_ROOT)?;
    mount(device, NEW_ROOT, "ext4", MountFlags::NOATIME, c"")
        .with_context(|| format!("mounting {ROOT_DEVICE}"))?;

    let programs = Path::new(NEW_ROOT).join("usr/local/bin");
    copy_tree(Path::new("/bin"), &programs)?;
    fs::copy("/init", Path::new(KEPT_ORDERS).join("guest-init")).context("keeping guest-init")?;
    let units = Path::new("/run/systemd/system");
    fs::create_dir_all(units)?;
    fs::write(units.join("vm.service"), include_str!("vm.service"))?;
    fs::write(units.join("vm.target"), include_str!("vm.target"))?;

    for name in ["dev", "run"] {
        let place = Path::new(NEW_ROOT).join(name);
        mount_move(format!("/{name}"), &place)
            .with_context(|| format!("moving /{name} to {}", place.display()))?;
    }
    std::env::set_current_dir(NEW_ROOT)?;
    mount_move(".", "/").context("making the image the root")?;
    rustix::process::chroot(".").context("entering the image")?;
    std::env::set_current_dir("/")?;
    Err(Command::new("/usr/lib/systemd/systemd").exec()).context("starting systemd")
}

fn path_of_debian() -> OsString {
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()
}

/// Runs the command, streams what it prints, and tells how it ended.
fn serve(path: &OsStr) -> Result<()> {
    let orders = Path::new(KEPT_ORDERS);
    let copies = orders.join("copy");
    if copies.exists() {
        copy_tree(&copies, Path::new("/"))?;
    }
    let command = fs::read(orders.join("command")).context("reading the command")?;
    let mut words = command.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec()));
    let Some(program) = words.next() else { bail!("the command is empty") };

    let mut ports = ports()?;
    let (Some(mut output), Some(mut status)) = (ports.remove("output"), ports.remove("status"))
    else {
        bail!("no virtio-serial ports named output and status");
    };
    let exit = match start(&program, words, path) {
        Ok((pid, pipe)) => exit_code(relay(pid, pipe, &mut output)?),
        Err(error) => {
            writeln!(output, "guest-init: cannot run {}: {error}", program.display())?;
            NOT_FOUND
        }
    };
    output.flush()?;
    writeln!(status, "{exit}").context("telling the exit status")
}

/// Starts the command in its own session, with both its outputs on one pipe: lines stay in order,
/// and unlike a virtio port a pipe may be opened again through /dev/stderr.
fn start(
    program: &OsStr,
    args: impl Iterator<Item = OsString>,
    path: &OsStr,
) -> io::Result<(rustix::process::Pid, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    let child = Command::new(program)
        .args(args)
        .env_clear()
        .env("PATH", path)
        .envs([("HOME", "/root"), ("USER", "root"), ("LOGNAME", "root"), ("LANG", "C.UTF-8")])
        .envs([("SHELL", "/bin/bash"), ("TERM", "dumb"), ("RUST_BACKTRACE", "1")])
        .current_dir("/root")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()?;
    let pid = rustix::process::Pid::from_child(&child);
    Ok((pid, reader.into()))
}

/// Copies the pipe to the port until the command has ended and nothing is left in the pipe.
/// What the command left running may hold the pipe open, so its end is not waited for. A thread
/// reaps every child: PID 1 inherits orphans, and a test may look whether they are gone.
fn relay(command: rustix::process::Pid, pipe: OwnedFd, output: &mut File) -> Result<ExitStatus> {
    let (mut ended, tell) = io::pipe()?;
    std::thread::spawn(move || reap(command, tell));
    let mut pipe = File::from(pipe);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let mut waits = [PollFd::new(&pipe, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for output"),
        }
        let [readable, over] = waits.each_ref().map(|wait| !wait.revents().is_empty());
        if readable {
            let length = pipe.read(&mut buffer).context("reading output")?;
            if length > 0 {
                output.write_all(&buffer[..length]).context("sending output")?;
                continue;
            }
        }
        if over || readable {
            let mut status = [0; 4];
            ended.read_exact(&mut status).context("no exit status of the command")?;
            return Ok(ExitStatus::from_raw(i32::from_ne_bytes(status)));
        }
    }
}

/// Waits for every child for as long as there are any; tells the command's raw wait status.
fn reap(command: rustix::process::Pid, mut tell: io::PipeWriter) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                if let Err(error) = tell.write_all(&status.as_raw().to_ne_bytes()) {
                    eprintln!("guest-init: telling the exit status: {error}");
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(NOT_FOUND)
}

/// The virtio-serial ports by the names `xtask` gave them, open for writing.
fn ports() -> Result<BTreeMap<String, File>> {
    let class = Path::new("/sys/class/virtio-ports");
    wait_for(|| fs::read_dir(class).is_ok_and(|entries| entries.count() >= 2))
        .context("no virtio-serial ports")?;
    let mut ports = BTreeMap::new();
    for entry in fs::read_dir(class)? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("name")).context("name of a port")?;
        let device = Path::new("/dev").join(entry.file_name());
        let port = OpenOptions::new().write(true).open(&device);
        let port = port.with_context(|| format!("opening {}", device.display()))?;
        ports.insert(name.trim().to_owned(), port);
    }
    Ok(ports)
}

fn wait_for(ready: impl Fn() -> bool) -> Result<()> {
    let since = Instant::now();
    while !ready() {
        ensure!(since.elapsed() < DEVICE_PATIENCE, "not there after {DEVICE_PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn attach(kind: &str, place: &str, flags: MountFlags, options: &str) -> Result<()> {
    // sysfs and proc have the directories that are mounted on; the rest is made here.
    match fs::create_dir_all(place) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("making {place}"));
        }
        _ => {}
    }
    let options = std::ffi::CString::new(options)?;
    mount(kind, place, kind, flags, options.as_c_str())
        .with_context(|| format!("mounting {kind} on {place}"))
}

/// Copies files with their modes, and links, into directories that may already exist.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    if !to.is_dir() {
        let mode = fs::metadata(from)?.permissions().mode();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(mode & 0o7777)
            .create(to)
            .with_context(|| format!("making {}", to.display()))?;
    }
    for entry in fs::read_dir(from).with_context(|| format!("listing {}", from.display()))? {
        let entry = entry?;
        let target: PathBuf = to.join(OsStr::from_bytes(entry.file_name().as_bytes()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)
                .with_context(|| format!("linking {}", target.display()))?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("copying to {}", target.display()))?;
        }
    }
    Ok(())
}
