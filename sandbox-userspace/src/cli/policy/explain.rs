//! `sandbox policy explain`: what would happen, by which rule, and what would turn it.

use super::FAILURE;
use super::look::{Look, Where, look};
use crate::policy::check::{address, unix};
use crate::policy::explain::{Answer, Asked, Change, Named, Object, Wish};
use crate::policy::rule::{Host, Kind, Protocol, Sockets};
use crate::sinks::escape::printable;
use clap::{Args, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status where something is denied.
const DENIED: u8 = 1;

#[derive(Args, Debug)]
pub(super) struct ExplainArgs {
    /// A file, directory or unix socket (`@NAME` for an abstract one), or an address or name with its port: `10.0.0.1:443`,
    /// `[::1]:80/udp`, `api.example.com:443`; with `--access run` a command, `git push`
    object: OsString,
    /// What would be done to it; all that can be done to it without this
    #[arg(long, value_enum, value_delimiter = ',')]
    access: Vec<AccessName>,
    #[command(flatten)]
    at: Where,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// An access by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum AccessName {
    Read,
    Write,
    Delete,
    Attributes,
    Exec,
    Connect,
    /// Running a command: whether a person is asked first
    Run,
}

/// One question and its answer.
#[derive(Debug, serde::Serialize)]
struct Line {
    access: AccessName,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(flatten)]
    answer: Answer,
}

/// Exit status 0 where all of it is allowed, 1 where something is denied.
pub(super) fn execute(args: &ExplainArgs) -> ExitCode {
    let found =
        look(&args.at).map_err(|error| error.coloured()).and_then(|look| answer(args, &look));
    match found {
        Ok((object, lines)) => {
            if args.json {
                let answers = serde_json::json!({ "object": object, "answers": lines });
                anstream::println!("{answers}");
            } else {
                for line in &lines {
                    print(&object, line);
                }
            }
            let all = lines.iter().all(|line| line.answer.allow);
            if all { ExitCode::SUCCESS } else { ExitCode::from(DENIED) }
        }
        Err(error) => {
            anstream::eprintln!("{error}");
            ExitCode::from(FAILURE)
        }
    }
}

fn answer(args: &ExplainArgs, look: &Look) -> Result<(String, Vec<Line>), String> {
    let asked =
        Asked::new(&look.policy, &look.context, &look.table).map_err(|error| error.coloured())?;
    if args.access.contains(&AccessName::Run) {
        let object = a_command(args)?;
        let line = Line {
            access: AccessName::Run,
            protocol: None,
            answer: asked.explain(&object, Wish::Run),
        };
        return Ok((printable(args.object.as_bytes()), vec![line]));
    }
    if let Some((object, protocols)) = an_address(&args.object) {
        let shown = match &object {
            Object::Address(address, port) => {
                std::net::SocketAddr::new(*address, *port).to_string()
            }
            Object::Name(name, port) => format!("{name}:{port}"),
            Object::Path(path) => printable(&path.join(&b'/')),
            Object::Abstract(name) => format!("@{}", printable(name)),
            Object::Command(words) => words.join(" "),
        };
        let ask = |protocol: &Protocol| Line {
            access: AccessName::Connect,
            protocol: Some(if *protocol == Protocol::Tcp { "tcp" } else { "udp" }),
            answer: asked.explain(&object, Wish::Reach(*protocol)),
        };
        return Ok((shown, protocols.iter().map(ask).collect()));
    }
    if let Some(object) = an_abstract_name(&args.object)? {
        let answer = asked.explain(&object, Wish::File(Kind::Connect));
        let line = Line { access: AccessName::Connect, protocol: None, answer };
        return Ok((args.object.to_string_lossy().into_owned(), vec![line]));
    }
    let path = a_path(&args.object, look)?;
    let resolved = Asked::resolve(&path)
        .map_err(|error| format!("cannot resolve {}: {error}", path.display()))?;
    let real = crate::kernel::mounts::to_path(&resolved);
    let object = Object::Path(resolved);
    let ask = |access: AccessName| {
        let kind = match access {
            AccessName::Read => Kind::Read,
            AccessName::Write => Kind::Write,
            AccessName::Delete => Kind::Delete,
            AccessName::Attributes => Kind::Attributes,
            AccessName::Exec => Kind::Execute,
            AccessName::Connect => Kind::Connect,
            // Of a command, above.
            AccessName::Run => return None,
        };
        let answer = asked.explain(&object, Wish::File(kind));
        // What is run must be readable, too.
        let unreadable = (kind == Kind::Execute && answer.allow)
            .then(|| asked.explain(&object, Wish::File(Kind::Read)))
            .filter(|answer| !answer.allow);
        Some(Line { access, protocol: None, answer: unreadable.unwrap_or(answer) })
    };
    let is_socket = real.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    let all: &[AccessName] = match args.access.as_slice() {
        [] if is_socket => &[AccessName::Connect],
        [] => &PATH,
        named => named,
    };
    let mut lines: Vec<Line> = all.iter().filter_map(|access| ask(*access)).collect();
    if args.access.is_empty() {
        leave_out_the_same(&mut lines);
    }
    Ok((printable(real.as_os_str().as_bytes()), lines))
}

/// All that can be done to a path.
const PATH: [AccessName; 5] = [
    AccessName::Read,
    AccessName::Write,
    AccessName::Delete,
    AccessName::Attributes,
    AccessName::Exec,
];

/// Leaves out what of writing is decided as writing itself is.
fn leave_out_the_same(lines: &mut Vec<Line>) {
    let decided = |line: &Line| (line.answer.allow, line.answer.rule.clone());
    let write = lines.iter().find(|line| line.access == AccessName::Write).map(decided);
    lines.retain(|line| {
        let finer = matches!(line.access, AccessName::Delete | AccessName::Attributes);
        !finer || Some(decided(line)) != write
    });
}

/// Words between spaces.
fn a_command(args: &ExplainArgs) -> Result<Object, String> {
    if args.access.len() > 1 {
        return Err("`run` is about a command, the others about a file: ask one by one".to_owned());
    }
    let text = args.object.to_str().ok_or("a command that is not UTF-8 is no rule's")?;
    let words: Vec<String> =
        text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    if words.is_empty() { Err("an empty command".to_owned()) } else { Ok(Object::Command(words)) }
}

/// An address or a name with one port, as rules write it; what is there as a file is a file.
fn an_address(text: &OsStr) -> Option<(Object, &'static [Protocol])> {
    let target = match address::parse_host(text.to_str()?).ok()? {
        Host::Net(target) => target,
        Host::Name(name, ports, protocols) => {
            let port = (ports.start() == ports.end()).then_some(*ports.start())?;
            let meant = !name.beneath && Path::new(text).symlink_metadata().is_err();
            return meant.then_some((Object::Name(name.name, port), protocols));
        }
    };
    let port = (target.ports.start() == target.ports.end()).then_some(*target.ports.start())?;
    let single = target.net.prefix_len() == target.net.max_prefix_len();
    single.then(|| (Object::Address(target.net.addr(), port), target.protocols))
}

/// An abstract name of a unix socket, as rules write it; what is there as a file is a file.
fn an_abstract_name(text: &OsStr) -> Result<Option<Object>, String> {
    let named = text.to_str().filter(|text| text.starts_with('@'));
    let Some(text) = named.filter(|text| Path::new(text).symlink_metadata().is_err()) else {
        return Ok(None);
    };
    match unix::parse(text) {
        Ok(Sockets::Abstract(name)) => Ok(Some(Object::Abstract(name))),
        Ok(_) => Ok(None),
        Err(problem) => Err(format!("{}: {}", problem.message, problem.help)),
    }
}

/// A path, from where rules begin too; relative ones from the current directory.
fn a_path(text: &OsStr, look: &Look) -> Result<PathBuf, String> {
    let runtime = look.context.surroundings.runtime_dir();
    let begins = [
        ("~", &look.context.home),
        ("${WORKSPACE}", &look.context.workspace),
        ("${TMPDIR}", &look.context.tmpdir),
        ("${RUNTIME_DIR}", &runtime),
    ];
    for (begin, base) in begins {
        let rest = text.as_bytes().strip_prefix(begin.as_bytes());
        if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with(b"/")) {
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            return Ok(base.join(OsStr::from_bytes(rest)));
        }
    }
    std::path::absolute(Path::new(text))
        .map_err(|error| format!("cannot use it as a path: {error}"))
}

fn print(object: &str, line: &Line) {
    let Line { access, protocol, answer } = line;
    let doing = match access {
        AccessName::Read => "read of",
        AccessName::Write => "write of",
        AccessName::Delete => "deletion of",
        AccessName::Attributes => "attribute change of",
        AccessName::Exec => "execution of",
        AccessName::Connect => "connection to",
        AccessName::Run => "run of",
    };
    let protocol = protocol.map(|protocol| format!("/{protocol}")).unwrap_or_default();
    let verdict = match (answer.allow, access) {
        (true, _) => "allowed",
        (false, AccessName::Run) => "a person is asked first",
        (false, _) => "denied",
    };
    let why = match &answer.rule {
        Some(rule) => named(rule),
        None if *access == AccessName::Run => "no rule asks about it".to_owned(),
        None if answer.allow => "no rule denies it".to_owned(),
        None => "no rule allows it".to_owned(),
    };
    anstream::println!("{doing} {object}{protocol}: {verdict}: {why}");
    if let Some(path) = &answer.by_path {
        let path = printable(path.as_os_str().as_bytes());
        anstream::println!("  it is the same as {path}, which is closed");
    }
    match answer.sni {
        Some(true) => {
            anstream::println!("  there TLS has to ask for a name that is allowed at this port");
        }
        Some(false) => anstream::println!(
            "  with it whatever other name has the same address: events tell those that were asked for; ` sni` \
             behind the name has checked what TLS asks for"
        ),
        None => {}
    }
    if let (AccessName::Run, Some(rule)) = (access, &answer.rule) {
        let text = printable(rule.text.as_bytes());
        anstream::println!("  to let it run in a session: sandbox grant run '{text}'");
    }
    let turn = match (answer.allow, access) {
        (true, AccessName::Run) => "be asked about",
        (true, _) => "deny",
        (false, _) => "allow",
    };
    match &answer.change {
        Change::Add { key, text } => {
            anstream::println!("  to {turn} it: add \"{}\" to {key}", printable(text.as_bytes()));
        }
        Change::Remove { rule, preset: None } => {
            anstream::println!("  to {turn} it: take away {}", named(rule));
        }
        Change::Remove { rule, preset: Some(preset) } => anstream::println!(
            "  to {turn} it: except = [\"{preset}\"], and of its rules those that you want without \"{}\"",
            printable(rule.text.as_bytes())
        ),
        Change::Above { rule, layer } => {
            let by = rule.as_ref().map(|rule| format!(": {}", named(rule))).unwrap_or_default();
            let who = match *layer {
                "managed" => "only the administrator can allow it",
                "project" => "the project's file closes it, until it is changed or trusted",
                _ => "no policy can allow it",
            };
            anstream::println!("  {who}{by}");
        }
        Change::None if *access == AccessName::Run && answer.allow => {
            anstream::println!("  no rule can ask about it by these words");
        }
        Change::None => anstream::println!("  no single rule would {turn} it"),
    }
}

/// A rule and where it stands.
pub(super) fn named(rule: &Named) -> String {
    let Named { key, text, layer, file, line } = rule;
    let (text, file) = (printable(text.as_bytes()), printable(file.as_bytes()));
    format!("{key} \"{text}\" ({file}:{line}, {layer})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_told_apart() {
        for text in ["10.0.0.1:443", "[::1]:80/udp", "127.0.0.1:1/tcp", "a.example:443", "a:443"] {
            assert!(an_address(OsStr::new(text)).is_some(), "{text}");
        }
        for text in [
            "10.0.0.1",
            "10.0.0.0/8:443",
            "a.example",
            "*.a.example:443",
            "./a:443",
            "./10.0.0.1:443",
            "/x",
            "10.0.0.1:1-2",
        ] {
            assert!(an_address(OsStr::new(text)).is_none(), "{text}");
        }
    }
}
