//! Services of the machine by a word: where their unix sockets are.
//!
//! Most have places of their own, which are written here; some are where a variable of whoever starts the
//! session says.

use super::check;
use super::rule::{Base, Pattern, Scope};
use crate::kernel::mounts::to_components;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A service that `network.unix` names by a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service(usize);

/// A service: its word, where its sockets are (paths of the policy, abstract names with an `@`), and the
/// variables that say where one is.
struct Known {
    word: &'static str,
    sockets: &'static [&'static str],
    variables: &'static [(&'static str, Form)],
}

/// What a variable holds.
#[derive(Clone, Copy)]
enum Form {
    /// A path.
    Path,
    /// `unix:///PATH`, and other addresses, which are of no socket of this machine.
    Url,
    /// Addresses of D-Bus: `unix:path=PATH,guid=…;unix:abstract=NAME`.
    Bus,
    /// A path, or a name in `XDG_RUNTIME_DIR`.
    InRuntime,
    /// `:DISPLAY.SCREEN` of X.
    Display,
    /// `PATH,PID,SESSION` of tmux.
    BeforeComma,
    /// A directory, in which the socket is.
    Directory(&'static str),
}

const fn known(
    word: &'static str,
    sockets: &'static [&'static str],
    variables: &'static [(&'static str, Form)],
) -> Known {
    Known { word, sockets, variables }
}

/// Sources: the programs' manual pages (ssh-agent(1), gnupg's `gpgconf --list-dirs`, dockerd(8),
/// podman-system-service(1), containerd(8), dbus-daemon(1), Xserver(1), pipewire(1), tmux(1)), the unit files
/// of Debian 13, and `wl_display_connect(3)`.
const SERVICES: [Known; 14] = [
    known(
        "ssh-agent",
        &[
            "${RUNTIME_DIR}/ssh-agent.socket",
            "${RUNTIME_DIR}/openssh_agent",
            "${RUNTIME_DIR}/keyring/{ssh,.ssh}",
            "${RUNTIME_DIR}/gcr/ssh",
            "${RUNTIME_DIR}/gnupg/S.gpg-agent.ssh",
            "~/.gnupg/S.gpg-agent.ssh",
            "~/.ssh/agent/**",
        ],
        &[("SSH_AUTH_SOCK", Form::Path)],
    ),
    known(
        "gpg-agent",
        &[
            "${RUNTIME_DIR}/gnupg/{S.gpg-agent,S.gpg-agent.extra,S.gpg-agent.browser,S.keyboxd}",
            "${RUNTIME_DIR}/gnupg/d.*/{S.gpg-agent,S.keyboxd}",
            "~/.gnupg/{S.gpg-agent,S.gpg-agent.extra,S.gpg-agent.browser,S.keyboxd}",
        ],
        &[("GNUPGHOME", Form::Directory("S.gpg-agent"))],
    ),
    known(
        "docker",
        &[
            "/run/docker.sock",
            "/var/run/docker.sock",
            "${RUNTIME_DIR}/docker.sock",
            "~/.docker/{run,desktop}/docker.sock",
        ],
        &[("DOCKER_HOST", Form::Url)],
    ),
    known(
        "podman",
        &["/run/podman/podman.sock", "${RUNTIME_DIR}/podman/podman.sock"],
        &[("CONTAINER_HOST", Form::Url)],
    ),
    known(
        "containerd",
        &[
            "/run/containerd/{containerd.sock,containerd.sock.ttrpc}",
            "/run/k3s/containerd/containerd.sock",
        ],
        &[("CONTAINERD_ADDRESS", Form::Path)],
    ),
    known(
        "dbus-system",
        &["/run/dbus/system_bus_socket", "/var/run/dbus/system_bus_socket"],
        &[("DBUS_SYSTEM_BUS_ADDRESS", Form::Bus)],
    ),
    known("dbus-session", &["${RUNTIME_DIR}/bus"], &[("DBUS_SESSION_BUS_ADDRESS", Form::Bus)]),
    known(
        "systemd",
        &[
            "/run/systemd/{private,io.systemd.Manager}",
            "${RUNTIME_DIR}/systemd/{private,io.systemd.Manager}",
        ],
        &[],
    ),
    known(
        "resolved",
        &["/run/systemd/resolve/{io.systemd.Resolve,io.systemd.Resolve.Monitor}"],
        &[],
    ),
    known("nscd", &["/run/nscd/socket", "/var/run/nscd/socket"], &[]),
    known("x11", &["/tmp/.X11-unix/X0", "@/tmp/.X11-unix/X0"], &[("DISPLAY", Form::Display)]),
    known(
        "wayland",
        &["${RUNTIME_DIR}/{wayland-0,wayland-1}"],
        &[("WAYLAND_DISPLAY", Form::InRuntime)],
    ),
    known(
        "pipewire",
        &["${RUNTIME_DIR}/{pipewire-0,pipewire-0-manager,pulse/native}"],
        &[("PIPEWIRE_REMOTE", Form::InRuntime)],
    ),
    known("tmux", &["/tmp/tmux-${UID}/**"], &[("TMUX", Form::BeforeComma)]),
];

/// The words.
pub fn words() -> Vec<&'static str> {
    SERVICES.iter().map(|service| service.word).collect()
}

/// Sockets by their paths and by their abstract names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// Paths.
    pub patterns: Vec<Pattern>,
    /// Abstract names, without the leading zero.
    pub names: Vec<Vec<u8>>,
}

impl Service {
    /// The service of a word.
    pub fn of(word: &str) -> Option<Self> {
        SERVICES.iter().position(|service| service.word == word).map(Self)
    }

    fn known(self) -> Option<&'static Known> {
        SERVICES.get(self.0)
    }

    /// Where its sockets are whatever the variables say.
    fn usual(self, uid: u32) -> Sockets {
        let mut found = Sockets::default();
        for text in self.known().map_or(&[][..], |known| known.sockets) {
            if let Some(name) = text.strip_prefix('@') {
                found.names.push(name.as_bytes().to_vec());
                continue;
            }
            let text = text.replace("${UID}", &uid.to_string());
            found.patterns.extend(check::path::parse(&text).into_iter().flatten());
        }
        found
    }
}

/// What the services' sockets depend on: whose they are, and the variables of whoever starts the session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    uid: u32,
    /// Of each service that variables speak of: where these say that it is.
    named: Vec<(Service, Place)>,
}

/// Where a variable leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

impl Surroundings {
    /// Of a user, with the variables of this process.
    pub fn own(uid: u32) -> Self {
        Self::new(uid, |name| std::env::var_os(name))
    }

    /// Of a user, with these variables.
    pub fn new(uid: u32, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut named = Vec::new();
        let runtime = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = runtime.filter(|dir| dir.is_absolute()).unwrap_or_else(|| runtime_dir(uid));
        for (index, known) in SERVICES.iter().enumerate() {
            for (name, form) in known.variables {
                let Some(value) = variable(name).filter(|value| !value.is_empty()) else {
                    continue;
                };
                let places = form.places(&value, &runtime);
                named.extend(places.into_iter().map(|place| (Service(index), place)));
            }
        }
        Self { uid, named }
    }

    /// The user's runtime directory, `${RUNTIME_DIR}`: that of systemd, whatever a variable says. Rules of an
    /// administrator start from it too.
    pub fn runtime_dir(&self) -> PathBuf {
        runtime_dir(self.uid)
    }

    /// Where the sockets of a service are; `by_variables`: there too where variables say so.
    pub fn sockets(&self, service: Service, by_variables: bool) -> Sockets {
        let mut found = service.usual(self.uid);
        let named = self.named.iter().filter(|(of, _)| by_variables && *of == service);
        for (_, place) in named {
            match place {
                Place::Path(path) => found.patterns.push(Pattern {
                    base: Base::Root,
                    components: to_components(path),
                    tail: Vec::new(),
                    scope: Scope::Tree,
                }),
                Place::Abstract(name) => found.names.push(name.clone()),
            }
        }
        found
    }
}

fn runtime_dir(uid: u32) -> PathBuf {
    Path::new("/run/user").join(uid.to_string())
}

impl Form {
    /// The sockets that a variable names; what is of another form names none.
    fn places(self, value: &OsStr, runtime: &Path) -> Vec<Place> {
        let bytes = value.as_bytes();
        let path = |bytes: &[u8]| {
            let path = Path::new(OsStr::from_bytes(bytes));
            // `..` depends on links; no program writes it here.
            let plain =
                path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
            (plain && path != Path::new("/")).then(|| Place::Path(path.to_owned()))
        };
        match self {
            Self::Path => path(bytes).into_iter().collect(),
            Self::Url => {
                let rest = bytes.strip_prefix(b"unix://").or_else(|| bytes.strip_prefix(b"unix:"));
                rest.and_then(path).into_iter().collect()
            }
            Self::Bus => bytes.split(|byte| *byte == b';').filter_map(bus).collect(),
            Self::InRuntime if bytes.starts_with(b"/") => path(bytes).into_iter().collect(),
            Self::InRuntime => {
                path(runtime.join(value).as_os_str().as_bytes()).into_iter().collect()
            }
            Self::Display => display(bytes),
            Self::BeforeComma => {
                let first = bytes.split(|byte| *byte == b',').next().unwrap_or_default();
                path(first).into_iter().collect()
            }
            Self::Directory(name) => {
                path(Path::new(value).join(name).as_os_str().as_bytes()).into_iter().collect()
            }
        }
    }
}

/// One address of D-Bus (its specification, "Server addresses").
fn bus(address: &[u8]) -> Option<Place> {
    let rest = address.strip_prefix(b"unix:")?;
    rest.split(|byte| *byte == b',').find_map(|part| {
        if let Some(path) = part.strip_prefix(b"path=") {
            let path = PathBuf::from(OsStr::from_bytes(&unescaped(path)?));
            return path.is_absolute().then_some(Place::Path(path));
        }
        part.strip_prefix(b"abstract=").and_then(unescaped).map(Place::Abstract)
    })
}

/// `%XX` is a byte.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    Some(bytes)
}

/// `:N`, `:N.S`, `unix:N`: display N of this machine.
fn display(value: &[u8]) -> Vec<Place> {
    let rest = value.strip_prefix(b"unix").unwrap_or(value);
    let number = rest.strip_prefix(b":").and_then(|rest| rest.split(|byte| *byte == b'.').next());
    let number = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u16>().ok());
    number.map_or_else(Vec::new, |number| {
        let path = format!("/tmp/.X11-unix/X{number}");
        vec![Place::Path(path.clone().into()), Place::Abstract(path.into_bytes())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(sockets: &Sockets) -> Vec<String> {
        let of = |pattern: &Pattern| {
            let parts = pattern.components.iter().map(|name| String::from_utf8_lossy(name));
            format!("{:?} /{}", pattern.base, parts.collect::<Vec<_>>().join("/"))
        };
        sockets.patterns.iter().map(of).collect()
    }

    fn with(variables: &[(&str, &str)], service: &str) -> Sockets {
        let of = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        Surroundings::new(7, of).sockets(Service::of(service).unwrap(), true)
    }

    #[test]
    fn every_place_of_the_table_is_a_rule() {
        let nothing = Surroundings::new(1000, |_| None);
        for (index, known) in SERVICES.iter().enumerate() {
            for text in known.sockets.iter().filter(|text| !text.starts_with('@')) {
                let text = text.replace("${UID}", "1000");
                assert!(check::path::parse(&text).is_ok(), "{text}");
            }
            let found = nothing.sockets(Service(index), true);
            assert!(!found.patterns.is_empty(), "{}", known.word);
            assert_eq!(Service::of(known.word), Some(Service(index)));
        }
    }

    #[test]
    fn the_document_lists_every_service() {
        let text = include_str!("../../../docs/policy.md");
        for known in &SERVICES {
            let row = text.lines().find(|line| line.starts_with(&format!("| `{}` |", known.word)));
            let row = row.unwrap_or_else(|| panic!("{} is not in docs/policy.md", known.word));
            for socket in known.sockets {
                assert!(row.contains(&format!("`{socket}`")), "{socket} of {}", known.word);
            }
            for (variable, _) in known.variables {
                assert!(row.contains(&format!("`{variable}`")), "{variable} of {}", known.word);
            }
        }
    }

    #[test]
    fn variables_name_places() {
        for (service, variable, value, path, name) in [
            ("ssh-agent", "SSH_AUTH_SOCK", "/tmp/ssh-x/agent.7", "/tmp/ssh-x/agent.7", ""),
            ("docker", "DOCKER_HOST", "unix:///a/d.sock", "/a/d.sock", ""),
            ("dbus-session", "DBUS_SESSION_BUS_ADDRESS", "unix:path=/b%20c,guid=1", "/b c", ""),
            (
                "dbus-session",
                "DBUS_SESSION_BUS_ADDRESS",
                "tcp:host=a;unix:guid=1,abstract=/tmp/dbus-%41",
                "",
                "/tmp/dbus-A",
            ),
            ("wayland", "WAYLAND_DISPLAY", "wayland-7", "/run/user/7/wayland-7", ""),
            ("wayland", "WAYLAND_DISPLAY", "/w", "/w", ""),
            ("x11", "DISPLAY", ":12.0", "/tmp/.X11-unix/X12", "/tmp/.X11-unix/X12"),
            ("tmux", "TMUX", "/tmp/tmux-7/work,12,0", "/tmp/tmux-7/work", ""),
            ("gpg-agent", "GNUPGHOME", "/g", "/g/S.gpg-agent", ""),
        ] {
            let (usual, found) = (with(&[], service), with(&[(variable, value)], service));
            let new: Vec<String> = paths(&found).split_off(usual.patterns.len());
            let expected: Vec<String> = Some(path)
                .filter(|path| !path.is_empty())
                .map(|path| format!("Root {path}"))
                .into_iter()
                .collect();
            assert_eq!(new, expected, "{value}");
            let names = &found.names[usual.names.len()..];
            assert_eq!(names.concat(), name.as_bytes(), "{value}");
        }
    }

    #[test]
    fn what_names_no_socket_of_this_machine_adds_nothing() {
        for (service, variable, value) in [
            ("ssh-agent", "SSH_AUTH_SOCK", "relative/agent"),
            ("ssh-agent", "SSH_AUTH_SOCK", "/"),
            ("ssh-agent", "SSH_AUTH_SOCK", "/a/../run/docker.sock"),
            ("docker", "DOCKER_HOST", "tcp://10.0.0.1:2375"),
            ("docker", "DOCKER_HOST", "ssh://host"),
            ("dbus-session", "DBUS_SESSION_BUS_ADDRESS", "unix:tmpdir=/tmp"),
            ("dbus-session", "DBUS_SESSION_BUS_ADDRESS", "unix:path=%"),
            ("x11", "DISPLAY", "host:0"),
            ("x11", "DISPLAY", ":x"),
            ("tmux", "TMUX", ",1,2"),
        ] {
            assert_eq!(with(&[(variable, value)], service), with(&[], service), "{value}");
        }
    }

    #[test]
    fn an_administrators_service_is_not_where_a_variable_says() {
        let surroundings = Surroundings::new(7, |name| {
            (name == "SSH_AUTH_SOCK").then(|| "/run/docker.sock".into())
        });
        let service = Service::of("ssh-agent").unwrap();
        assert!(
            !paths(&surroundings.sockets(service, false)).contains(&"Root /run/docker.sock".into())
        );
        assert!(
            paths(&surroundings.sockets(service, true)).contains(&"Root /run/docker.sock".into())
        );
    }
}
