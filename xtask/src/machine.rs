//! The virtual machine: QEMU with a kernel, an initramfs of our own and perhaps the Debian image.
//! Its other end is `tests/src/bin/guest-init`.
//!
//! Three channels come out of it, each a unix socket: the kernel's console (ttyS0), and the
//! virtio-serial ports `output` (what the command prints) and `status` (how it ended).

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::target_directory;
use crate::command::{line, progress};
use crate::console::Console;
use crate::initramfs;
use crate::kernel::Kernel;

/// No journal of boot messages on the console, but all that is serious; an oops ends the machine.
/// The emulated CPU is slow and may be starved, so the watchdogs wait longer than usual.
const CMDLINE: &str = "sandbox.test_machine console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off \
                       tsc=reliable no_timer_check rcupdate.rcu_cpu_stall_timeout=60 \
                       watchdog_thresh=30 random.trust_cpu=on";
const CMDLINE_DEBIAN: &str = "systemd.unit=vm.target systemd.show_status=false";

/// Counts the boots of this process: several machines of one series may run at the same time, each
/// with a log of its own.
static BOOTS: AtomicUsize = AtomicUsize::new(1);

/// How long a lost kernel may go on to print why.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A kernel that KVM can run is up within a second.
const KVM_PATIENCE: Duration = Duration::from_secs(20);

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
    /// Kernel modules beside the usual ones.
    pub(crate) modules: Vec<String>,
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
    /// Whether an emulated processor met a breakpoint that was no more, see [`Console`].
    pub(crate) misled: bool,
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

impl Outcome {
    /// Why there is no exit status, if there is none.
    pub(crate) fn problem(&self) -> Option<String> {
        match self {
            Self::Exited(_) => None,
            Self::Died(reason) => Some(format!("the machine died: {reason}")),
            Self::TimedOut(after) => Some(format!("no end within {} seconds", after.as_secs())),
        }
    }
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
            modules: Vec::new(),
            command: Vec::new(),
        }
    }

    /// KVM where it was asked for by `SANDBOX_KVM=1` and has booted this machine once: the device
    /// may be there and still not be able to run a stock kernel. Emulation otherwise.
    fn accelerator(&self) -> &'static str {
        static PROBED: OnceLock<bool> = OnceLock::new();
        let asked = std::env::var_os("SANDBOX_KVM").is_some_and(|value| value == "1");
        let usable = *PROBED.get_or_init(|| {
            asked && Path::new("/dev/kvm").exists() && {
                let usable = self.boots_with_kvm();
                progress(if usable { "using KVM" } else { "KVM cannot boot a kernel: emulating" });
                usable
            }
        });
        // Instructions can only be counted where they are emulated.
        if usable && !self.icount { "kvm" } else { "tcg,thread=single" }
    }

    /// Boots a machine whose command is missing; that it can tell so is enough.
    fn boots_with_kvm(&self) -> bool {
        let probe = Self {
            disk: None,
            modules: Vec::new(),
            copies: Vec::new(),
            cmdline: String::new(),
            command: vec!["/probe".into()],
            timeout: KVM_PATIENCE,
            kernel: self.kernel.clone(),
            programs: self.programs.clone(),
            ..*self
        };
        let report = probe.boot_with("kvm", |_| Ok(()));
        report.is_ok_and(|report| matches!(report.outcome, Outcome::Exited(127)))
    }

    /// Boots, runs the command, gives what it prints to `sink` as it comes, and ends the machine.
    pub(crate) fn boot(&self, sink: impl FnMut(&[u8]) -> io::Result<()> + Send) -> Result<Report> {
        self.boot_with(self.accelerator(), sink)
    }

    fn boot_with(
        &self,
        accelerator: &str,
        sink: impl FnMut(&[u8]) -> io::Result<()> + Send,
    ) -> Result<Report> {
        let work = tempfile::Builder::new().prefix("sandbox-vm-").tempdir()?;
        let initramfs = work.path().join("initramfs");
        initramfs::write(self, &initramfs).context("writing the initramfs")?;
        let [console, printed, status] = ["console", "output", "status"].map(|name| {
            UnixListener::bind(work.path().join(name)).context("making a socket for QEMU")
        });
        let listeners = [console?, printed?, status?];

        let mut qemu = self.qemu(accelerator, work.path(), &initramfs);
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
        let boot = BOOTS.fetch_add(1, Ordering::Relaxed);
        let log = log.join(format!("console-{}-{boot}.log", self.kernel.series));
        let mut log = Console::new(&log)?;
        let (tell, events) = channel();
        thread::scope(|scope| {
            let tell_status = tell.clone();
            scope.spawn(move || read_status(status, &tell_status));
            let console = scope.spawn(move || {
                follow_console(console, &mut log, &tell);
                (log.tail(), log.misled)
            });
            let printed = scope.spawn(move || forward(printed, sink));
            let outcome = self.outcome(&events);
            // Everything printed before the status is in the socket by now; the kill ends it.
            let _ = child.kill();
            let joined = |_| anyhow::anyhow!("a thread panicked");
            printed.join().map_err(joined)?.context("passing on what the command printed")?;
            let (console_tail, misled) = console.join().map_err(joined)?;
            Ok(Report { outcome: outcome?, misled, console_tail })
        })
    }

    fn outcome(&self, events: &Receiver<Event>) -> Result<Outcome> {
        match events.recv_timeout(self.timeout) {
            Ok(Event::Status(text)) => exited(&text),
            Ok(Event::Fatal(reason)) => {
                thread::sleep(LAST_WORDS);
                Ok(Outcome::Died(reason))
            }
            // The channels are read by different threads, so a status may come after the end. When
            // both have read all, there is nothing more to receive.
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => {
                for event in events {
                    match event {
                        Event::Status(text) => return exited(&text),
                        Event::Fatal(reason) => return Ok(Outcome::Died(reason)),
                        Event::Ended => {}
                    }
                }
                Ok(Outcome::Died("it ended without telling an exit status".to_owned()))
            }
            Err(RecvTimeoutError::Timeout) => Ok(Outcome::TimedOut(self.timeout)),
        }
    }

    fn qemu(&self, accelerator: &str, work: &Path, initramfs: &Path) -> Command {
        // setpriv lets the machine die with us, however we die, and then becomes QEMU.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-machine", "q35", "-accel", accelerator, "-cpu", "max"])
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
            qemu.args(["-icount", "shift=0,sleep=off", "-seed", "1"]);
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
}

fn exited(status: &str) -> Result<Outcome> {
    let code = status.trim().parse();
    Ok(Outcome::Exited(code.with_context(|| format!("exit status {status:?}"))?))
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
