//! What is tried here, and what of it the policy permits.

use super::decoys::{DIRECTORY, Decoys, FILE, PROGRAM, SECRETS, SOCKETS};
use super::{Act, Attempt, DECOY, Expected, Group};
use crate::policy::explain::{Asked, Object, Wish};
use crate::policy::rule::{Kind, Protocol};
use crate::session::user::User;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Services that act for whoever asks, where they listen.
const SERVICES: &[&str] = &[
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/libvirt/libvirt-sock",
    "/run/snapd.socket",
    "/run/pcscd/pcscd.comm",
    "/tmp/.X11-unix/X0",
];
/// The same in the user's runtime directory.
const OF_USER: &[&str] = &["systemd/private", "bus", "podman/podman.sock", "gnupg/S.gpg-agent"];
/// Places with credentials in a home, of which those are tried that are there and closed.
const CREDENTIALS: &[&str] = &[
    ".ssh/id_ed25519",
    ".ssh/id_rsa",
    ".ssh/known_hosts",
    ".ssh/config",
    ".aws/credentials",
    ".netrc",
    ".git-credentials",
    ".config/gh/hosts.yml",
    ".kube/config",
    ".docker/config.json",
    ".npmrc",
    ".pypirc",
];
/// Kernel settings that run a program or end the machine, and the machine's memory: only opened.
const SETTINGS: &[(&str, &str)] = &[
    ("A5", "/proc/sys/kernel/core_pattern"),
    ("A5", "/proc/sys/kernel/modprobe"),
    ("A5", "/sys/kernel/uevent_helper"),
    ("D2.44", "/proc/sysrq-trigger"),
    ("A51", "/sys/kernel/debug/tracing/kprobe_events"),
    ("A51", "/sys/kernel/tracing/kprobe_events"),
    ("A51", "/dev/mem"),
    ("A51", "/dev/kmsg"),
    ("A38", "/dev/sda"),
    ("A38", "/dev/vda"),
    ("A38", "/dev/nvme0n1"),
];

/// What the attempts depend on.
pub struct Ground<'a> {
    /// The policy.
    pub asked: &'a Asked<'a>,
    /// Members may make user namespaces.
    pub namespaces: bool,
    /// The stand-in for the session's directory for temporary files.
    pub temporary: &'a Path,
    /// The agent's user.
    pub user: &'a User,
    /// Where cgroup v2 is mounted.
    pub cgroups: &'a Path,
    /// This program, which the session runs.
    pub program: &'a Path,
    /// What was made to be attacked.
    pub decoys: &'a Decoys,
}

/// The attempts, grouped.
pub fn plan(ground: &Ground<'_>) -> Vec<Attempt> {
    let mut plan = Plan { ground, attempts: Vec::new(), group: Group::Reading };
    plan.reading();
    plan.changing();
    plan.running();
    plan.leaving();
    plan.processes();
    plan.kernel();
    plan.network();
    plan.attempts
}

struct Plan<'a> {
    ground: &'a Ground<'a>,
    attempts: Vec<Attempt>,
    group: Group,
}

impl Plan<'_> {
    fn add(&mut self, row: &str, name: impl Into<String>, expected: Expected, act: Act) {
        let (row, name) = (row.to_owned(), name.into());
        self.attempts.push(Attempt { group: self.group, row, name, expected, act });
    }

    fn never(&mut self, row: &str, name: impl Into<String>, act: Act) {
        self.add(row, name, Expected::Refused, act);
    }

    fn twin(&mut self, name: &str, act: Act) {
        self.add("", format!("{name} (harmless twin)"), Expected::Works, act);
    }

    /// To be refused, unless the policy permits it.
    fn unless(&mut self, permitted: bool, row: &str, name: impl Into<String>, act: Act) {
        let expected = if permitted { Expected::Permitted } else { Expected::Refused };
        self.add(row, name, expected, act);
    }

    fn decoy(&self, name: &str) -> String {
        self.ground.decoys.directory.join(name).to_string_lossy().into_owned()
    }

    fn allows(&self, path: &Path, kind: Kind) -> bool {
        let Ok(path) = Asked::resolve(path) else { return false };
        self.ground.asked.decide(&Object::Path(path), Wish::File(kind)).allow
    }

    fn reaches(&self, to: IpAddr, port: u16, protocol: Protocol) -> bool {
        self.ground.asked.decide(&Object::Address(to, port), Wish::Reach(protocol)).allow
    }

    /// Whether a member may make files of its own in its directory for temporary files.
    fn has_place(&self) -> bool {
        [Kind::Read, Kind::Write]
            .iter()
            .all(|kind| self.allows(&self.ground.temporary.join("own"), *kind))
    }

    fn reading(&mut self) {
        self.group = Group::Reading;
        let directory = self.ground.decoys.directory.clone();
        let closed = SECRETS.iter().find(|name| !self.allows(&directory.join(name), Kind::Read));
        let home = self.ground.user.home.clone();
        let there: Vec<_> = CREDENTIALS
            .iter()
            .map(|name| home.join(name))
            .filter(|path| path.is_file() && !self.allows(path, Kind::Read))
            .collect();
        let secret = closed.map(|name| directory.join(name));
        let Some(secret) = secret.as_ref().or(there.first()).cloned() else { return };
        let (place, name) = (secret.parent().unwrap_or(&secret), secret.file_name());
        let name = name.unwrap_or_default().to_string_lossy().into_owned();
        let (place, path) = (place.to_string_lossy().into_owned(), secret.to_string_lossy());
        let path = path.into_owned();
        for other in there.iter().filter(|other| **other != secret) {
            let act = Act::Read(other.to_string_lossy().into_owned());
            self.never("D1.1", format!("read {}", other.display()), act);
        }
        let read = || Act::Read(path.clone());
        self.never("D1.1", format!("read {path}"), read());
        self.never(
            "A13",
            "the same by `..`",
            Act::Read(format!("{place}/../{}/{name}", last(&place))),
        );
        self.never("A13", "by /proc/self/root", Act::Read(format!("/proc/self/root{path}")));
        let outside = format!("/proc/{}/root{path}", self.ground.decoys.outsider);
        self.never("A13", "by the root of another process", Act::Read(outside));
        self.never("A23", "by O_PATH and reopening", Act::Reopen(path.clone()));
        self.never("A18", "by a file handle", Act::Handle(path.clone()));
        self.never("D5.79", "as a daemon", Act::Daemon(Box::new(read())));
        let named = |name: &str| Act::Named(name.to_owned(), Box::new(read()));
        self.never("A53", "called dpkg", named("dpkg"));
        self.never("A53", "called sandbox", named("sandbox"));
        if self.has_place() {
            let (to, at) = (path.clone(), "TMPDIR/link".to_owned());
            self.never("A13", "by a symbolic link", Act::Symlinked { to, at });
            self.never("A14", "by a second name", Act::Link(path.clone(), "TMPDIR/name".into()));
            self.never("A36", "by moving it", Act::Rename(path.clone(), "TMPDIR/moved".into()));
            let at = || "TMPDIR/mount".to_owned();
            self.twin("make a directory", Act::Mkdir(at()));
            let (directory, name) = (place.clone(), name.clone());
            self.never("A15", "by a bind mount", Act::Bound { directory, at: at(), name });
        }
        let (directory, name) = (place, name);
        self.never("A16", "by a detached mount", Act::Detached { directory, name });
        if self.has_place() {
            self.twin("make a file", Act::Create("TMPDIR/own".into()));
            let own = || "TMPDIR/own".to_owned();
            self.twin("read it", Act::Read(own()));
            self.twin("by O_PATH and reopening", Act::Reopen(own()));
            let at = "TMPDIR/link".to_owned();
            self.twin("by a symbolic link", Act::Symlinked { to: own(), at });
            self.twin("as a daemon", Act::Daemon(Box::new(Act::Read(own()))));
        }
    }

    fn changing(&mut self) {
        self.group = Group::Changing;
        let directory = self.ground.decoys.directory.clone();
        let open = self.allows(&directory.join(FILE), Kind::Write);
        let file = self.decoy(FILE);
        let new = |name: &str| format!("{}/{name}", directory.display());
        let acts = [
            ("D2.28", "create a file", Act::Create(new("created"))),
            ("A37", "make an unnamed file", Act::TmpFile(directory.display().to_string())),
            ("A40", "make a directory", Act::Mkdir(new("made"))),
            ("A38", "make a FIFO", Act::Fifo(new("fifo"))),
            ("A39", "bind a unix socket", Act::Bind(new("bound"))),
            ("D2.28", "open for writing", Act::Write(file.clone())),
            ("A30", "empty it", Act::Truncate(file.clone())),
            ("A33", "change its mode", Act::Chmod(file.clone())),
            ("A33", "change its owner", Act::Chown(file.clone())),
            ("A33", "change its times", Act::Times(file.clone())),
            ("A34", "set an extended attribute", Act::Xattr(file.clone())),
            ("A35", "set its flags", Act::Flags(file.clone())),
            ("A40", "remove a directory's place", Act::Rename(self.decoy(DIRECTORY), new("moved"))),
            ("A36", "rename it", Act::Rename(file.clone(), new("renamed"))),
            ("A40", "remove it", Act::Unlink(file.clone())),
        ];
        for (row, name, act) in acts {
            self.unless(open, row, name, act);
        }
        if self.has_place() {
            let own = |name: &str| format!("TMPDIR/{name}");
            self.twin("create a file", Act::Create(own("mine")));
            self.unless(open, "A36", "move a file over it", Act::Rename(own("mine"), file.clone()));
            self.unless(open, "A14", "link a file there", Act::Link(own("own"), new("linked")));
            self.twin("open for writing", Act::Write(own("own")));
            self.twin("change its mode", Act::Chmod(own("own")));
            self.twin("change its times", Act::Times(own("own")));
            self.twin("make an unnamed file", Act::TmpFile(own("")));
            self.twin("empty it", Act::Truncate(own("own")));
            self.twin("rename it", Act::Rename(own("own"), own("other")));
            self.twin("remove it", Act::Unlink(own("other")));
        }
        for place in ["/etc/sandbox", "/run/sandbox", "/sys/fs/bpf/sandbox"] {
            let new = format!("{place}/selftest-{}", std::process::id());
            self.never("A61", format!("make a file in {place}"), Act::Passing(new));
        }
    }

    fn running(&mut self) {
        self.group = Group::Running;
        let runs =
            |path: &Path| [Kind::Read, Kind::Execute].iter().all(|kind| self.allows(path, *kind));
        let (decoy, own) = (self.decoy(PROGRAM), "TMPDIR/program".to_owned());
        let mut tried = vec![("", runs(decoy.as_ref()), decoy)];
        if self.has_place() {
            tried.push((
                " of its own making",
                runs(&self.ground.temporary.join("program")),
                own.clone(),
            ));
            self.twin("make a program", Act::Program(own));
        }
        for (whose, open, path) in tried {
            let run = Act::Execute(vec![path.clone()]);
            self.unless(open, "A45", format!("run a program{whose}"), run);
            self.unless(open, "A45", format!("map one{whose}, as the loader does"), Act::Map(path));
        }
        let this = self.ground.program.to_string_lossy().into_owned();
        // That one ends with its standard input, which has ended.
        self.twin("run a program", Act::Execute(vec![this.clone(), DECOY.to_owned()]));
        self.twin("map one, as the loader does", Act::Map(this));
    }

    fn leaving(&mut self) {
        self.group = Group::Leaving;
        let cgroups = self.ground.cgroups.to_string_lossy().into_owned();
        for file in ["cgroup.procs", "cgroup.threads", "sandbox/cgroup.procs"] {
            self.never(
                "A1",
                format!("enter {cgroups}/{file}"),
                Act::Enter(format!("{cgroups}/{file}")),
            );
        }
        let sub = format!("{cgroups}/sandbox-selftest-{}", std::process::id());
        self.never("A3", "make a cgroup", Act::PassingDirectory(sub));
        self.never("A2", "be born in another cgroup", Act::CloneInto(cgroups));
        if self.has_place() {
            let at = "TMPDIR/mount".to_owned();
            self.never("D5.77", "enter by a mount of its own", Act::OwnCgroups(at));
        }
        self.unless(self.ground.namespaces, "D5.87", "make a user namespace", Act::UserNamespace);
        let runtime = format!("/run/user/{}", self.ground.user.uid);
        let of_user = OF_USER.iter().map(|name| format!("{runtime}/{name}"));
        let agent = std::env::var("SSH_AUTH_SOCK").ok();
        let services = SERVICES.iter().map(|path| (*path).to_owned()).chain(of_user).chain(agent);
        for path in services {
            let there = Path::new(&path).metadata().is_ok_and(|meta| meta.file_type().is_socket());
            if there {
                let permitted = self.allows(path.as_ref(), Kind::Connect);
                self.unless(permitted, "A4", format!("ask {path}"), Act::UnixStream(path));
            }
        }
        let bus = |path: &str| self.allows(path.as_ref(), Kind::Connect);
        let system = bus("/run/dbus/system_bus_socket") || bus("/run/systemd/private");
        let session = bus(&format!("{runtime}/bus")) || bus(&format!("{runtime}/systemd/private"));
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let start = "call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
            org.freedesktop.systemd1.Manager StartTransientUnit ssa(sv)a(sa(sv)) \
            sandbox-selftest.scope fail 1 PIDs au 1 OWN-PID 0";
        for (needs, words, permitted) in [
            ("systemd-run", words("systemd-run --quiet --scope true"), system),
            ("systemd-run", words("systemd-run --quiet --user --scope true"), session),
            ("busctl", words(&format!("busctl --system {start}")), system),
            ("busctl", words(&format!("busctl --user {start}")), session),
        ] {
            if installed(needs) {
                let name = words.iter().take(4).cloned().collect::<Vec<_>>().join(" ");
                self.unless(permitted, "A6", name, Act::Run(words));
            }
        }
    }

    fn processes(&mut self) {
        self.group = Group::Processes;
        let pid = self.ground.decoys.outsider;
        self.never("A49", "signal another process of the user", Act::Signal(pid));
        self.never("A49", "signal it by a pidfd", Act::PidfdSignal(pid));
        self.never("A49", "signal the first process", Act::Signal(1));
        self.never("A56", "trace it", Act::Seize(pid));
        self.never("A56", "read its memory", Act::VmRead(pid));
        self.never("A11", "take its descriptor", Act::GetFd(pid));
        for file in ["environ", "mem", "maps", "auxv"] {
            let act = Act::ReadByte(format!("/proc/{pid}/{file}"));
            self.never("A56", format!("read its /proc/PID/{file}"), act);
        }
        // Their numbers are no secret, see docs/threat-model.md; what is behind them is.
        self.never("A56", "open its descriptor", Act::ReadByte(format!("/proc/{pid}/fd/0")));
        self.never(
            "D1.23",
            "read the first process's environment",
            Act::ReadByte("/proc/1/environ".into()),
        );
        self.never("A49", "change its nice value", Act::Nice(pid));
        self.never("A49", "bind it to processors", Act::Affinity(pid));
        self.never("A49", "change its limits", Act::Limit(pid));
        self.twin("signal itself", Act::SignalSelf);
        self.twin("read its own environment", Act::ReadByte("/proc/self/environ".into()));
    }

    fn kernel(&mut self) {
        self.group = Group::Kernel;
        self.never("A46", "look at BPF maps", Act::BpfLook);
        self.never("A52", "make a BPF map", Act::BpfMake);
        self.never("A51", "open a perf event", Act::Perf);
        self.never("A51", "load a module", Act::Module);
        self.never("A51", "look at the kernel's log", Act::Log);
        self.never("A51", "set the clock", Act::Clock);
        if self.has_place() {
            self.never("A43", "mount something", Act::Mount("TMPDIR/mount".into()));
        }
        for (row, path) in SETTINGS {
            if Path::new(path).exists() {
                self.never(row, format!("open {path}"), Act::Write((*path).to_owned()));
            }
        }
    }

    fn network(&mut self) {
        self.group = Group::Network;
        for (ip, tcp, udp) in self.ground.decoys.ports.clone() {
            let (stream, datagram) = (SocketAddr::new(ip, tcp), SocketAddr::new(ip, udp));
            let (by_tcp, by_udp) =
                (self.reaches(ip, tcp, Protocol::Tcp), self.reaches(ip, udp, Protocol::Udp));
            self.unless(by_tcp, "A65", format!("connect to {stream}"), Act::Tcp(stream));
            self.unless(by_tcp, "A71", format!("fast open to {stream}"), Act::FastOpen(stream));
            self.unless(by_udp, "A67", format!("send to {datagram}/udp"), Act::Udp(datagram));
            let connected = Act::UdpConnected(datagram);
            self.unless(by_udp, "A70", format!("connect and send to {datagram}/udp"), connected);
            if let IpAddr::V4(v4) = ip {
                let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), tcp);
                self.unless(by_tcp, "A66", format!("connect to {mapped}"), Act::Tcp(mapped));
            }
        }
        let metadata = SocketAddr::from(([169, 254, 169, 254], 80));
        let permitted = self.reaches(metadata.ip(), 80, Protocol::Tcp);
        self.unless(permitted, "D3.65", format!("connect to {metadata}"), Act::Tcp(metadata));
        for (row, name, (family, kind, protocol)) in [
            ("A77", "a raw socket", (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
            ("A78", "a ping socket", (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP)),
            ("A73", "an SCTP socket", (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP)),
            ("A76", "a UDP-Lite socket", (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE)),
            ("A79", "a packet socket", (libc::AF_PACKET, libc::SOCK_RAW, 0)),
            ("A80", "a vsock socket", (libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
            ("D3.54", "a socket for the kernel's ciphers", (libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
            (
                "D3.54",
                "a netlink socket for nftables",
                (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER),
            ),
        ] {
            self.never(row, name, Act::Socket(family, kind, protocol));
        }
        let [stream, datagram] = SOCKETS.map(|name| self.decoy(name));
        let open = |path: &str| self.allows(path.as_ref(), Kind::Connect);
        let (by_stream, by_datagram) = (open(&stream), open(&datagram));
        self.unless(by_stream, "A81", "connect to a unix socket", Act::UnixStream(stream));
        self.unless(by_datagram, "A81", "send to a unix socket", Act::UnixDatagram(datagram));
        let hidden = self.ground.decoys.hidden.clone();
        self.never("A58", "connect to an abstract unix socket", Act::Abstract(hidden));
        self.twin("make a TCP socket", Act::Socket(libc::AF_INET, libc::SOCK_STREAM, 0));
        if self.has_place() {
            self.twin("talk to itself", Act::OwnSocket("TMPDIR/socket".into()));
        }
    }
}

/// The last name of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn installed(program: &str) -> bool {
    ["/usr/bin", "/bin"].iter().any(|directory| Path::new(directory).join(program).exists())
}
