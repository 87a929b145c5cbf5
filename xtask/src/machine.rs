//! The virtual machine: QEMU with a kernel, an initramfs of our own and perhaps the Debian image.
//! Its other end is `tests/src/bin/guest-init`.
//!
//! Three channels come out of it, each a unix socket: the kernel's console (ttyS0), and the
//! virtio-serial ports `output` (what the command prints) and `status` (how it ended).

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::build::target_directory;
use crate::command::line;
use crate::console::Console;
use crate::cpio::Archive;
use crate::kernel::Kernel;
use crate::modules::Modules;

/// Loaded where the kernel has them as modules: the disk, and what the tests and agents use.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "ext4",
    "overlay",
    "fuse",
    "af_packet",
    "sctp",
    "vsock_loopback",
    "autofs4",
];
/// No journal of boot messages on the console, but all that is serious; an oops ends the machine.
/// The emulated CPU is slow and may be starved, so the watchdogs wait longer than usual.
const CMDLINE: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off \
                       tsc=reliable no_timer_check rcupdate.rcu_cpu_stall_timeout=60 \
                       watchdog_thresh=30 random.trust_cpu=on";
const CMDLINE_DEBIAN: &str = "systemd.unit=vm.target systemd.show_status=false";

/// How long a lost kernel may go on to print why.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A machine that can be booted any number of times; nothing of one boot is left for the next.
pub(crate) struct Machine {
    pub(crate) kernel: Kernel,
    /// The Debian image; without one the machine is an initramfs with static programs.
    pub(crate) disk: Option<PathBuf>,
    /// The directory whose programs go to `/bin`, or `/usr/local/bin` of Debian.
    pub(crate) programs: PathBuf,
    /// More kernel parameters.
    pub(crate) cmdline: String,
    pub(crate) icount: bool,
    pub(crate) timeout: Duration,
    /// In MiB.
    pub(crate) memory: u32,
    pub(crate) copies: Vec<Copied>,
    pub(crate) command: Vec<OsString>,
}

/// A file or directory of the host and where it goes in the machine.
#[derive(Clone)]
pub(crate) struct Copied {
    pub(crate) host: PathBuf,
    /// Absolute.
    pub(crate) guest: PathBuf,
}

pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// The last lines of the kernel's console.
    pub(crate) console_tail: String,
}

pub(crate) enum Outcome {
    /// The command's exit status.
    Exited(u8),
    /// A panic, a stall, or an end without a status.
    Died(String),
    TimedOut(Duration),
}

/// What the threads that read the channels tell.
enum Event {
    Status(String),
    /// The console shows that nothing more is to be expected.
    Fatal(String),
    /// QEMU closed the console, that is, it ended.
    Ended,
}

impl Machine {
    pub(crate) fn new(kernel: Kernel, disk: Option<PathBuf>) -> Self {
        Self {
            kernel,
            disk,
            programs: target_directory().join("dist"),
            cmdline: String::new(),
            icount: false,
            timeout: Duration::from_mins(10),
            memory: 2048,
            copies: Vec::new(),
            command: Vec::new(),
        }
    }

    /// Boots, runs the command, gives what it prints to `sink` as it comes, and ends the machine.
    pub(crate) fn boot(&self, sink: impl FnMut(&[u8]) -> io::Result<()> + Send) -> Result<Report> {
        let work = tempfile::Builder::new().prefix("sandbox-vm-").tempdir()?;
        let initramfs = work.path().join("initramfs");
        self.write_initramfs(&initramfs).context("writing the initramfs")?;
        let [console, printed, status] = ["console", "output", "status"].map(|name| {
            UnixListener::bind(work.path().join(name)).context("making a socket for QEMU")
        });
        let listeners = [console?, printed?, status?];

        let mut qemu = self.qemu(work.path(), &initramfs);
        let mut child = qemu.spawn().with_context(|| format!("cannot start: {}", line(&qemu)))?;
        let report = accept_all(&mut child, &listeners)
            .with_context(|| format!("failed: {}", line(&qemu)))
            .and_then(|channels| self.watch(&mut child, channels, sink));
        // Whatever came of it, no machine is left behind. That it has ended already is no error.
        let _ = child.kill();
        child.wait().context("waiting for QEMU")?;
        report
    }

    /// Follows the channels until the machine has told a status, died, or used up its time.
    fn watch(
        &self,
        child: &mut Child,
        [console, printed, status]: [UnixStream; 3],
        sink: impl FnMut(&[u8]) -> io::Result<()> + Send,
    ) -> Result<Report> {
        let log = target_directory().join("vm");
        fs::create_dir_all(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut log = Console::new(&log.join(format!("console-{}.log", self.kernel.series)))?;
        let (tell, events) = channel();
        thread::scope(|scope| {
            let tell_status = tell.clone();
            scope.spawn(move || read_status(status, &tell_status));
            let console = scope.spawn(move || {
                follow_console(console, &mut log, &tell);
                log.tail()
            });
            let printed = scope.spawn(move || forward(printed, sink));
            let outcome = self.outcome(&events);
            // Everything printed before the status is in the socket by now; the kill ends it.
            let _ = child.kill();
            let joined = |_| anyhow::anyhow!("a thread panicked");
            printed.join().map_err(joined)?.context("passing on what the command printed")?;
            let console_tail = console.join().map_err(joined)?;
            Ok(Report { outcome: outcome?, console_tail })
        })
    }

    fn outcome(&self, events: &Receiver<Event>) -> Result<Outcome> {
        let deadline = Instant::now() + self.timeout;
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Status(text)) => {
                let status = text.trim().parse();
                Ok(Outcome::Exited(status.with_context(|| format!("exit status {text:?}"))?))
            }
            Ok(Event::Fatal(reason)) => {
                thread::sleep(LAST_WORDS);
                Ok(Outcome::Died(reason))
            }
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => {
                Ok(Outcome::Died("it ended without telling an exit status".to_owned()))
            }
            Err(RecvTimeoutError::Timeout) => Ok(Outcome::TimedOut(self.timeout)),
        }
    }

    fn qemu(&self, work: &Path, initramfs: &Path) -> Command {
        // setpriv lets the machine die with us, however we die, and then becomes QEMU.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-machine", "q35", "-accel", "tcg", "-cpu", "max"])
            .args(["-smp", if self.icount { "1" } else { "2" }])
            .args(["-m", &self.memory.to_string()])
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initramfs)
            .arg("-append")
            .arg(self.parameters())
            .args(["-device", "virtio-serial-pci"]);
        for name in ["console", "output", "status"] {
            let path = work.join(name);
            qemu.arg("-chardev").arg(format!("socket,id={name},path={}", path.display()));
        }
        qemu.args(["-serial", "chardev:console"]);
        for name in ["output", "status"] {
            qemu.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
        }
        if self.icount {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        if let Some(disk) = &self.disk {
            let disk = disk.display().to_string().replace(',', ",,");
            let drive = format!("file={disk},format=raw,if=none,id=root,snapshot=on,cache=unsafe");
            qemu.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=root"]);
        }
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
        qemu
    }

    fn parameters(&self) -> String {
        let debian = if self.disk.is_some() { CMDLINE_DEBIAN } else { "" };
        [CMDLINE, debian, &self.cmdline].join(" ").trim().to_owned()
    }

    /// The programs, the modules, and under `/vm` what guest-init is to do.
    fn write_initramfs(&self, path: &Path) -> Result<()> {
        let mut archive = Archive::new(io::BufWriter::new(fs::File::create(path)?));
        archive.character_device(Path::new("/dev/console"), (5, 1))?;
        for directory in ["/proc", "/sys", "/tmp", "/root", "/run", "/etc"] {
            archive.directory(Path::new(directory))?;
        }
        let users = "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n\
                     nobody:x:65534:65534::/nonexistent:/bin/false\n";
        archive.file(Path::new("/etc/passwd"), 0o644, users.as_bytes())?;
        let groups = "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n";
        archive.file(Path::new("/etc/group"), 0o644, groups.as_bytes())?;

        let entries = fs::read_dir(&self.programs).with_context(|| {
            let programs = self.programs.display();
            format!("no programs in {programs}; run: cargo xtask build")
        })?;
        for entry in entries {
            let entry = entry?;
            let is_init = entry.file_name() == "guest-init";
            let guest =
                if is_init { "/init".into() } else { Path::new("/bin").join(entry.file_name()) };
            archive.file(&guest, 0o755, &read(&entry.path())?)?;
        }

        let dep = fs::read_to_string(self.kernel.modules.join("modules.dep"))
            .with_context(|| format!("no modules.dep in {}", self.kernel.modules.display()))?;
        let mut list = String::new();
        for module in Modules::parse(&dep).order(MODULES) {
            let guest = Path::new("/lib/modules").join(module.trim_end_matches(".xz"));
            archive.file(&guest, 0o644, &module_code(&self.kernel.modules.join(module))?)?;
            list.push_str(&format!("{}\n", guest.display()));
        }
        archive.file(Path::new("/vm/modules"), 0o644, list.as_bytes())?;
        let command: Vec<_> = self.command.iter().map(|word| word.as_bytes()).collect();
        archive.file(Path::new("/vm/command"), 0o644, &command.join(&0))?;
        if self.disk.is_some() {
            archive.file(Path::new("/vm/debian"), 0o644, b"")?;
        }
        for copied in &self.copies {
            let guest = copied.guest.strip_prefix("/").context("a relative path in the machine")?;
            add(&mut archive, &copied.host, &Path::new("/vm/copy").join(guest))?;
        }
        archive.finish()?.into_inner().context("flushing")?;
        Ok(())
    }
}

/// Adds a file, or a directory with all in it.
fn add<W: io::Write>(archive: &mut Archive<W>, host: &Path, guest: &Path) -> Result<()> {
    let about = fs::metadata(host).with_context(|| format!("cannot read {}", host.display()))?;
    if !about.is_dir() {
        return Ok(archive.file(guest, about.permissions().mode(), &read(host)?)?);
    }
    archive.directory(guest)?;
    for entry in fs::read_dir(host)? {
        let entry = entry?;
        add(archive, &entry.path(), &guest.join(entry.file_name()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A module as the kernel loads it; not every kernel can decompress by itself.
fn module_code(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return read(path);
    }
    let mut xz = Command::new("xz");
    let output = xz.args(["--decompress", "--stdout"]).arg(path).output()?;
    if !output.status.success() {
        bail!("failed: {}: {}", line(&xz), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// QEMU connects to all its sockets at its start; if it ends before, something is wrong with it.
fn accept_all(child: &mut Child, listeners: &[UnixListener; 3]) -> Result<[UnixStream; 3]> {
    let mut accept = |listener: &UnixListener| -> Result<UnixStream> {
        listener.set_nonblocking(true)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(status) = child.try_wait()? {
                bail!("QEMU ended at its start ({status})");
            }
            thread::sleep(Duration::from_millis(2));
        }
    };
    Ok([accept(&listeners[0])?, accept(&listeners[1])?, accept(&listeners[2])?])
}

/// Sends fail only when nobody waits any more, because the outcome is known.
fn read_status(status: UnixStream, tell: &Sender<Event>) {
    let mut text = String::new();
    if BufReader::new(status).read_line(&mut text).is_ok() && text.ends_with('\n') {
        let _ = tell.send(Event::Status(text));
    }
}

fn follow_console(mut console: UnixStream, log: &mut Console, tell: &Sender<Event>) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = console.read(&mut buffer) {
        if let Some(reason) = log.add(&buffer[..length]) {
            let _ = tell.send(Event::Fatal(reason));
        }
    }
    let _ = tell.send(Event::Ended);
}

fn forward(
    mut printed: UnixStream,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match printed.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => sink(&buffer[..length])?,
            // QEMU was killed with bytes for it in the socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
