//! Layers of policy: nobody goes beyond the administrator's, and no session writes any of them.

use super::network::{Service, V4, V6, must_arrive, ways};
use crate::harness::{
    Denial, Ground, Policy, Runner, Session, Traces, Why, eventually, key, trial, verb, write,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

pub(super) const ROWS: &[(&str, &str)] = &[("D3.67", "layers::variables_and_reports")];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("layers::no_session_writes_a_policy", own),
        trial("layers::the_administrators_word_stands", managed),
        trial("layers::half_a_ceiling_starts_nothing", broken),
        trial("layers::a_project_narrows_until_it_is_trusted", project),
        trial("layers::variables_and_reports", variables),
        trial("layers::a_running_session_is_changed_in_one_step", live),
    ]
}

const MANAGED: &str = "/etc/sandbox/managed.d";
const TRUST: &str = "/root/.config/sandbox";

/// The administrator's policy, until this is dropped.
pub(super) struct Managed;

impl Managed {
    pub(super) fn put(name: &str, text: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(MANAGED)?;
        for path in [Path::new("/etc/sandbox"), Path::new(MANAGED)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
        }
        let path = Path::new(MANAGED).join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        Ok(Self)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Of a machine that is thrown away.
        let _ = std::fs::remove_dir_all("/etc/sandbox");
    }
}

fn create(path: &Place) -> Operation {
    Operation::Create { path: path.clone() }
}

fn read(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

fn above(layer: &'static str, key: &'static str, text: impl Into<String>) -> Why {
    Why::Above(layer, key, text.into())
}

/// With a policy that opens everything.
fn own() -> anyhow::Result<()> {
    let ground = Ground::new("own-policies")?;
    std::fs::create_dir_all("/etc/sandbox")?;
    std::fs::create_dir_all(TRUST)?;
    let _managed = Managed;
    let policy = Policy::presets(&[]).with("files.write.allow", "/");
    let mut session = Session::start(&ground, &policy)?;
    let file = Place::from(session.runner_file());
    let rules = [
        (Place::from("/etc/sandbox/managed.d"), "/etc/sandbox".to_owned()),
        (Place::from("/etc/sandbox/x"), "/etc/sandbox".to_owned()),
        (Place::from(TRUST).join("trusted.json"), "~/.config/sandbox".to_owned()),
        (Place::from(TRUST).join("policy.toml"), "~/.config/sandbox".to_owned()),
        (Place::from("/run/sandbox/evil"), "/run/sandbox".to_owned()),
        (ground.workspace().join(".sandbox.toml"), "${WORKSPACE}/.sandbox.toml".to_owned()),
    ];
    for (path, rule) in rules {
        let denial = Denial::by(&["path_mknod"]).access("create").path(&path).because(above(
            "sandbox",
            "files.write.deny",
            rule,
        ));
        session.refused(&path.to_string(), &create(&path), &denial)?;
        ensure!(!path.path().exists(), "{path} was made");
    }
    let over = Operation::Write { path: file.clone(), text: "x".into(), flags: libc::O_WRONLY };
    let rule = above("sandbox", "files.write.deny", file.to_string());
    session.refused("the policy", &over, &Denial::write(&file).because(rule))?;
    let away = Operation::Rename {
        from: Place::from("/root/.config"),
        to: ground.workspace().join("config"),
        flags: 0,
    };
    let denial = Denial::by(&["path_rename"]).because(Why::Reason(&["rule_beneath", "rule"]));
    session.refused("the directory above the trust", &away, &denial)?;
    for path in [
        Place::from("/etc/sandbox2"),
        Place::from("/root/.config/sandbox2"),
        ground.workspace().join("sandbox.toml"),
        ground.outside().join("x"),
    ] {
        session.allowed(&path.to_string(), &create(&path))?;
        let _ = std::fs::remove_file(path.path());
    }
    session.finish()
}

fn managed() -> anyhow::Result<()> {
    let ground = Ground::new("managed")?;
    let outside = ground.outside();
    let (closed, open) = (ground.directory(&outside)?, ground.directory(&outside)?);
    let secret = ground.workspace().join("a.secret");
    let pattern = ground.workspace().join("pub").join("b.secret");
    std::fs::create_dir(ground.workspace().join("pub").path())?;
    for file in [&closed.join("x"), &open.join("x"), &secret, &pattern] {
        write(file, "content")?;
    }
    let text = format!(
        "version = 1\n[files]\nread.deny = [\"{closed}\", \"**/*.secret\"]\n\
         write.allow = [\"{}\", \"{open}\"]\n",
        ground.workspace()
    );
    let _managed = Managed::put("10-site.toml", &text)?;
    // Deeper, by name, and by a pattern of its own.
    let policy = Policy::preset()
        .with("files.read.allow", closed.join("x").to_string())
        .with("files.read.allow", secret.to_string())
        .with("files.read.allow", "${WORKSPACE}/**/pub/**")
        .with("files.write.allow", outside.to_string());
    let mut session = Session::start(&ground, &policy)?;
    for (path, rule) in [
        (closed.join("x"), closed.to_string()),
        (secret, "**/*.secret".to_owned()),
        (pattern, "**/*.secret".to_owned()),
    ] {
        let why = above("managed", "files.read.deny", rule);
        session.refused(&path.to_string(), &read(&path), &Denial::read(&path).because(why))?;
    }
    let made = closed.join("made");
    let denial = Denial::by(&["path_mknod"]).access("create").path(&made);
    session.refused("what the ceiling does not list", &create(&made), &denial)?;
    session.allowed("what both allow to read", &read(&open.join("x")))?;
    session.allowed("what both allow to write", &create(&open.join("made")))?;
    session.allowed("the workspace", &create(&ground.workspace().join("made")))?;
    let own = ground.directory(&ground.workspace())?.join("pub");
    session.allowed("a directory", &Operation::Mkdir { path: own })?;
    session.finish()
}

type Spoil<'a> = &'a dyn Fn() -> std::io::Result<()>;

fn broken() -> anyhow::Result<()> {
    let ground = Ground::new("broken-ceiling")?;
    let before = Traces::now()?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let file = Path::new(MANAGED).join("10.toml");
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    let good = "version = 1\n";
    let cases: [(&str, Spoil<'_>, &str); 6] = [
        ("writable by others", &|| mode(&file, 0o646), "chmod go-w"),
        ("a directory for all", &|| mode(Path::new(MANAGED), 0o777), "chmod go-w"),
        ("another's", &|| std::os::unix::fs::chown(&file, Some(1000), None), "chown 0"),
        ("broken", &|| std::fs::write(&file, "version = 1\n[files\n"), "10.toml:2:"),
        ("half of it", &|| std::fs::write(&file, ""), "`version` is missing"),
        ("no policy", &|| std::fs::write(file.with_extension("bak"), good), "is no policy"),
    ];
    let mut problems = Vec::new();
    for (name, spoil, expected) in cases {
        let _managed = Managed::put("10.toml", good)?;
        spoil().context(name)?;
        let mark = ground.workspace().join("started");
        let finished = runner.probe(&["touch", &mark.to_string()], "")?;
        if finished.code() != Some(125) || mark.path().exists() || !finished.err.contains(expected)
        {
            problems.push(format!("{name}: {}", finished.report()));
        }
    }
    before.must_return()?;
    let _managed = Managed::put("10.toml", good)?;
    let finished = runner.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "a good one: {}", finished.report());
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn project() -> anyhow::Result<()> {
    let ground = Ground::new("project")?;
    let key = key()?;
    let closed = ground.file(&ground.workspace())?;
    let made = ground.outside().join("made");
    let rule = format!("${{WORKSPACE}}/{}", closed.path().file_name().context("a name")?.display());
    let text = format!(
        "version = 1\n[files]\nread.deny = [\"{rule}\"]\nread.allow = [\"{key}\"]\n\
         write.allow = [\"{}\", \"{}\"]\n",
        ground.outside(),
        ground.workspace()
    );
    let file = ground.workspace().join(".sandbox.toml");
    write(&file, &text)?;
    let why = |layer| above(layer, "files.read.deny", rule.clone());
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.refused("closed", &read(&closed), &Denial::read(&closed).because(why("project")))?;
    session.refused("the key", &read(&key), &Denial::read(&key).of_key())?;
    let denial = Denial::by(&["path_mknod"]).access("create").path(&made);
    session.refused("outside", &create(&made), &denial)?;
    session.allowed("inside", &create(&ground.workspace().join("made")))?;
    session.finish()?;

    let papers = ground.papers("trust");
    let trusted = verb(&papers, &["policy", "trust", &ground.workspace().to_string()])?;
    ensure!(trusted.code() == Some(0), "{}", trusted.report());
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.refused("closed", &read(&closed), &Denial::read(&closed).because(why("project")))?;
    session.allowed("outside, trusted", &create(&made))?;
    session.finish()?;

    // One byte more is another file.
    write(&file, &format!("{text}\n"))?;
    std::fs::remove_file(made.path())?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.refused("outside, changed", &create(&made), &denial)?;
    session.finish()?;
    let revoked = verb(&papers, &["policy", "trust", "--revoke", &ground.workspace().to_string()])?;
    ensure!(revoked.code() == Some(0), "{}", revoked.report());
    std::fs::remove_dir_all(TRUST)?;
    Ok(())
}

/// What the agent does not get; and `mode = "audit"`.
fn variables() -> anyhow::Result<()> {
    let ground = Ground::new("variables")?;
    let key = key()?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let rules =
        "[environment]\ndeny = [\"*_TOKEN\"]\nsecrets = \"deny\"\nallow = [\"KEPT_TOKEN\"]\n";
    let text = format!("version = 1\nextends = [\"default\"]\nmode = \"audit\"\n{rules}");
    std::fs::write(&runner.policy, text)?;
    let set = [
        ("A_TOKEN", "gone-1".to_owned()),
        ("LOOKS", format!("ghp_{}", "gone-2".repeat(6))),
        ("AWS_SECRET_ACCESS_KEY", "gone-3".to_owned()),
        ("KEPT_TOKEN", "kept-1".to_owned()),
        ("KEPT", "kept-2".to_owned()),
    ];
    let mut command = runner.command(&crate::harness::probe_words(&["environment"])?);
    command.envs(set);
    let papers = ground.papers("variables");
    std::fs::create_dir_all(&papers)?;
    let finished = crate::harness::capture(&mut command, &papers, "")?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    ensure!(!finished.out.contains("gone-"), "{}", finished.report());
    ensure!(
        finished.out.contains("kept-1") && finished.out.contains("kept-2"),
        "{}",
        finished.report()
    );

    let mut session = runner.open()?;
    let answer = session.allowed("the key, reported only", &read(&key))?;
    let audited = || {
        let denials = session.events().denials_of(answer.pid);
        denials.iter().any(|event| event["verdict"] == "audited").then_some(())
    };
    if eventually(Duration::from_secs(10), audited).is_none() {
        let events = session.events().tail(5);
        session.problem(format!("no event tells of what was let pass\n{events}"));
    }
    for ip in [V4, V6] {
        let service = Service::new(ip)?;
        for (name, _, operation) in ways(service.address) {
            let name = format!("{name} to {ip}, reported only");
            must_arrive(&mut session, &name, &operation, &service)?;
        }
        for protocol in ["tcp", "udp"] {
            let audited = |event: &Value| {
                event["verdict"] == "audited"
                    && event["object"]["port"] == service.address.port()
                    && event["object"]["protocol"] == protocol
            };
            let told = || session.events().all().iter().any(audited).then_some(());
            if eventually(Duration::from_secs(10), told).is_none() {
                session.problem(format!("no event tells of {protocol} to {ip}"));
            }
        }
    }
    session.finish()?;

    // The administrator did not say so.
    let _managed = Managed::put("10.toml", "version = 1\n")?;
    let mut session = Runner::new(&ground, &Policy::preset())?;
    session.written.text = "version = 1\nextends = [\"default\"]\nmode = \"audit\"\n".into();
    std::fs::write(&session.policy, &session.written.text)?;
    let mut session = session.open()?;
    session.refused("the key, under a ceiling", &read(&key), &Denial::read(&key).of_key())?;
    session.finish()
}

/// Grants, another policy, a changed file; and what `sandbox why` says.
fn live() -> anyhow::Result<()> {
    let ground = Ground::new("live")?;
    let key = key()?;
    let outside = ground.outside();
    let closed = ground.directory(&outside)?;
    write(&closed.join("x"), "content")?;
    let text = format!("version = 1\n[files]\nread.deny = [\"{closed}\"]\n");
    let _managed = Managed::put("10.toml", &text)?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let id = session.id()?;
    let papers = ground.papers("verbs");
    let ask = |words: &[&str], code: i32, part: &str| -> anyhow::Result<()> {
        let finished = verb(&papers, words)?;
        let right =
            finished.code() == Some(code) && (finished.err.clone() + &finished.out).contains(part);
        ensure!(right, "{words:?} should end with {code} and say {part:?}: {}", finished.report());
        Ok(())
    };
    let named = key.to_string();
    let refused = Denial::read(&key).of_key();
    session.refused("the key", &read(&key), &refused)?;
    ask(&["why"], 0, "to allow it: add \"/root/.ssh/id_ed25519\" to files.read.allow")?;
    ask(&["grant", "--session", &id, "read", &named], 0, "granted")?;
    session.allowed("the key, granted", &read(&key))?;
    ask(&["revoke", "--session", &id, "read", &named], 0, "taken back")?;
    session.refused("the key, taken back", &read(&key), &refused)?;

    let made = outside.join("made");
    let no = Denial::by(&["path_mknod"]).access("create").path(&made);
    session.refused("outside", &create(&made), &no)?;
    // Long enough for the operation on a busy machine; then waited for.
    ask(&["grant", "write", &outside.to_string(), "--for", "20s"], 0, "granted")?;
    session.allowed("outside, granted", &create(&made))?;
    std::fs::remove_file(made.path())?;
    let over = || {
        let answer = session.perform(&create(&made)).ok()?;
        let _ = std::fs::remove_file(made.path());
        (answer.errno != 0).then_some(())
    };
    ensure!(eventually(Duration::from_mins(2), over).is_some(), "the grant does not end");

    let inner = closed.join("x").to_string();
    ask(&["grant", "read", &inner], 1, "stays closed by files.read.deny")?;
    let why = above("managed", "files.read.deny", closed.to_string());
    let denial = Denial::read(closed.join("x")).because(why);
    session.refused("what the administrator closes", &read(&closed.join("x")), &denial)?;
    ask(&["why"], 0, "only the administrator can allow it")?;

    let other = papers.join("other.toml");
    std::fs::write(&other, "version = 1\n[files\n")?;
    let other = other.display().to_string();
    ask(&["policy", "set", &other], 1, "other.toml:2:")?;
    session.refused("the key, after a broken policy", &read(&key), &refused)?;
    session.allowed("the workspace, still", &create(&ground.workspace().join("still")))?;
    std::fs::write(&other, "version = 1\n")?;
    ask(&["policy", "set", &other], 0, "is in force")?;
    session.allowed("the key, under another policy", &read(&key))?;
    let nothing = ground.workspace().join("nothing");
    let no = Denial::by(&["path_mknod"]).access("create").path(&nothing);
    session.refused("the workspace, under another policy", &create(&nothing), &no)?;
    // The file that is in force now is followed.
    std::fs::write(&other, "version = 1\nextends = [\"default\"]\n")?;
    let read_anew = || (session.perform(&read(&key)).ok()?.errno != 0).then_some(());
    ensure!(
        eventually(Duration::from_mins(1), read_anew).is_some(),
        "the changed file is not read"
    );
    session.finish()
}
