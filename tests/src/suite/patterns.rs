//! Patterns: names anywhere, carve-outs, what comes later, what would be moved out of reach; and the
//! rules about running, and about reading only what is listed.

use crate::harness::{
    Attack, Denial, Ground, Policy, Session, Why, bystander_is_free, member_is_refused, trial,
    write,
};
use crate::probe::{Operation, Place};
use crate::suite::writes::EXCHANGE;
use libtest_mimic::Trial;

const READ_DENY: &str = "files.read.deny";
const WRITE_DENY: &str = "files.write.deny";

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("patterns::member_cannot_reach_what_they_close", member),
        trial("patterns::bystander_reaches_it", bystander),
        trial("patterns::names_are_closed_everywhere_by_the_preset", preset),
        trial("patterns::they_hold_for_what_comes_later", later),
        trial("patterns::deeper_and_spelled_out_rules_open_parts", carved),
        trial("patterns::nothing_moves_out_of_their_reach", moved),
        trial("patterns::a_mount_does_not_hide_from_them", mounted),
        trial("patterns::programs_run_by_rules_of_their_own", running),
        trial("patterns::only_what_is_listed_is_read", listed),
    ]
}

fn open(path: impl Into<Place>) -> Operation {
    Operation::Open { path: path.into(), flags: libc::O_RDONLY }
}

fn list(path: impl Into<Place>) -> Operation {
    Operation::Open { path: path.into(), flags: libc::O_RDONLY | libc::O_DIRECTORY }
}

/// Directories and files of the workspace.
fn furnish(ground: &Ground, files: &[&str]) -> anyhow::Result<()> {
    for name in files {
        let file = ground.workspace().join(name);
        if let Some(parent) = file.path().parent() {
            std::fs::create_dir_all(parent)?;
        }
        write(&file, "content")?;
    }
    Ok(())
}

/// What a name is, what rule closes it, and a name beside it that no pattern matches.
const NAMES: [(&str, &str, &str); 9] = [
    ("a/b/token.key", "**/*.key", "a/b/token.keys"),
    (".key", "**/*.key", ".keyx"),
    ("a/secrets/x", "**/secrets/**", "a/secret/x"),
    ("secrets/deep/er/x", "**/secrets/**", "secretsx/deep/er/x"),
    ("a/pass-1", "${WORKSPACE}/*/pass-[0-9]", "a/pass-x"),
    ("b/pass-9/x/y", "${WORKSPACE}/*/pass-[0-9]", "b/c/pass-9x"),
    ("x/1/y/2/z", "${WORKSPACE}/x/**/y/**/z", "x/1/y/2/zz"),
    ("\u{e4}c/one", "${WORKSPACE}/?c/one", "cc/c/one"),
    ("v1.2/release", "${WORKSPACE}/v*.[!0]/{debug,release}", "v1.0/release"),
];

fn policy() -> Policy {
    let mut rules: Vec<&str> = NAMES.iter().map(|(_, rule, _)| *rule).collect();
    rules.dedup();
    rules.into_iter().fold(Policy::preset(), Policy::read_deny)
}

fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let workspace = ground.workspace();
    for (closed, _, open) in NAMES {
        furnish(ground, &[closed, open])?;
    }
    Ok(NAMES
        .iter()
        .map(|(closed, rule, twin)| {
            let path = workspace.join(closed);
            let denial = Denial::read(&path).rule(READ_DENY, *rule);
            Attack { name: closed, operation: open(path), denial, twin: open(workspace.join(twin)) }
        })
        .collect())
}

fn member() -> anyhow::Result<()> {
    let ground = Ground::new("patterns")?;
    let attacks = attacks(&ground)?;
    let mut session = Session::start(&ground, &policy())?;
    member_is_refused(&mut session, &attacks)?;
    // A directory's own name is not beneath it.
    session.allowed("list of the directory", &list(ground.workspace().join("secrets")))?;
    session.finish()
}

fn bystander() -> anyhow::Result<()> {
    let (ground, own) = (Ground::new("patterns-session")?, Ground::new("patterns-bystander")?);
    let attacks = attacks(&own)?;
    let session = Session::start(&ground, &policy())?;
    bystander_is_free(&attacks, &[])?;
    session.finish()
}

fn preset() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-preset")?;
    let closed = [".env", "app/.env.local", ".env.test.local", "a/.env.production", "x/.netrc"];
    let open_ones = [".env.example", "app/.env.sample", ".env.test", "a/.npmrc", "x/cacert.pem"];
    furnish(&ground, &closed)?;
    furnish(&ground, &open_ones)?;
    let elsewhere = ground.outside().join(".env");
    write(&elsewhere, "content")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let denial = |path: &Place| Denial::read(path).because(Why::Preset(READ_DENY, "**/."));
    for name in closed {
        let path = ground.workspace().join(name);
        session.refused(name, &open(&path), &denial(&path))?;
    }
    session.refused("outside of the workspace", &open(&elsewhere), &denial(&elsewhere))?;
    for name in open_ones {
        session.allowed(name, &open(ground.workspace().join(name)))?;
    }
    session.finish()
}

fn later() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-later")?;
    let policy = Policy::preset().read_deny("**/*.key").write_deny("**/locked/**");
    let mut session = Session::start(&ground, &policy)?;
    let file = ground.workspace().join("new/deep/down.key");
    let absent = session.perform(&open(&file))?;
    if absent.errno != libc::ENOENT {
        session.problem(format!("{file} does not exist yet, but {absent}"));
    }
    furnish(&ground, &["new/deep/down.key", "new/deep/down.txt", "new/locked/x"])?;
    session.refused("file", &open(&file), &Denial::read(&file).rule(READ_DENY, "**/*.key"))?;
    session.allowed("file beside it", &open(ground.workspace().join("new/deep/down.txt")))?;
    // The member's own: what it makes it may write, not read again.
    let own = ground.workspace().join("own.key");
    session.allowed("creation", &Operation::Create { path: own.clone() })?;
    session.refused("own file", &open(&own), &Denial::read(&own).rule(READ_DENY, "**/*.key"))?;
    let inside = ground.workspace().join("new/locked/y");
    let denial = Denial::by(&["path_mknod"]).path(&inside).rule(WRITE_DENY, "**/locked/**");
    session.refused("creation where it is closed", &Operation::Create { path: inside }, &denial)?;
    session.allowed(
        "creation beside",
        &Operation::Create { path: ground.workspace().join("new/y") },
    )?;
    session.finish()
}

/// The deeper match decides; at one place a path that is spelled out, then deny.
fn carved() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-carved")?;
    furnish(&ground, &["s/a.key", "s/public/b", "s/public/s/c", "ca.key", "both.key", "t/s/d"])?;
    let policy = Policy::preset()
        .with("files.read.allow", "**/s/public")
        .with("files.read.allow", "${WORKSPACE}/ca.key")
        .with("files.read.allow", "${WORKSPACE}/both.*")
        .read_deny("**/s/**")
        .read_deny("**/*.key");
    let mut session = Session::start(&ground, &policy)?;
    let at = |name: &str| ground.workspace().join(name);
    for name in ["s/public/b", "ca.key"] {
        session.allowed(name, &open(at(name)))?;
    }
    for (name, rule) in [
        ("s/a.key", "**/*.key"),
        ("s/public/s/c", "**/s/**"),
        ("both.key", "**/*.key"),
        ("t/s/d", "**/s/**"),
    ] {
        let denial = Denial::read(at(name)).rule(READ_DENY, rule);
        session.refused(name, &open(at(name)), &denial)?;
    }
    session.finish()
}

fn moved() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-moved")?;
    furnish(&ground, &["r/.git/hooks/h", "r/.git/config", "r/x.key", "r/plain/file", "r/file"])?;
    let policy = Policy::preset()
        .write_deny("**/.git/hooks/**")
        .read_deny("**/*.key")
        .read_deny("**/in/**/deep");
    let workspace = ground.workspace();
    let at = |name: &str| workspace.join("r").join(name);
    let rename = |from: Place, to: Place| Operation::Rename { from, to, flags: 0 };
    let exchange = |from: Place, to: Place| Operation::Rename { from, to, flags: EXCHANGE };
    let denial = |hook| {
        Denial::by(&[hook])
            .beneath(&workspace)
            .because(Why::Reason(&["rule", "gain", "rule_beneath"]))
            .or_error(libc::EXDEV)
    };
    let mut attacks = Vec::new();
    let mut add = |name, hook, operation, twin| {
        attacks.push(Attack { name, operation, denial: denial(hook), twin });
    };
    let fresh = || ground.absent(&workspace);
    let walk =
        || -> anyhow::Result<Operation> { Ok(rename(ground.directory(&workspace)?, fresh())) };
    let step = || -> anyhow::Result<Operation> { Ok(rename(ground.file(&workspace)?, fresh())) };
    add("directory on the way of a pattern", "path_rename", rename(at(".git"), at("git")), walk()?);
    add("its protected directory", "path_rename", rename(at(".git/hooks"), at(".git/h")), walk()?);
    add("file out of a pattern", "path_rename", rename(at("x.key"), at("x")), step()?);
    add(
        "exchange with another file",
        "path_rename",
        exchange(at("x.key"), at("file")),
        exchange(ground.file(&workspace)?, ground.file(&workspace)?),
    );
    add(
        "second name",
        "path_link",
        Operation::Link { from: at("x.key"), to: fresh() },
        Operation::Link { from: ground.file(&workspace)?, to: fresh() },
    );
    let mut session = Session::start(&ground, &policy)?;
    member_is_refused(&mut session, &attacks)?;
    // Where the same patterns hold at both places a directory moves with its files.
    session
        .allowed("directory that holds a match", &rename(at("plain"), workspace.join("moved")))?;
    session.allowed("and a repository", &rename(workspace.join("r"), workspace.join("s")))?;
    let key = workspace.join("s/x.key");
    let denial = Denial::read(&key).rule(READ_DENY, "**/*.key");
    session.refused("a match that moved along", &open(&key), &denial)?;
    session.finish()
}

fn mounted() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-mounted")?;
    let source = ground.directory(&ground.outside())?;
    write(&source.join("x.key"), "content")?;
    write(&source.join("public"), "content")?;
    let inside = ground.bind(&source, &ground.workspace())?;
    let policy = Policy::preset()
        .read_deny("${WORKSPACE}/**/*.key")
        .read_deny(format!("{source}/**"))
        .with("files.read.allow", "${WORKSPACE}/**/public");
    let mut session = Session::start(&ground, &policy)?;
    for at in [&source, &inside] {
        let key = at.join("x.key");
        let denial = Denial::read(&key)
            .paths(source.join("x.key"), inside.join("x.key"))
            .rule(READ_DENY, "${WORKSPACE}/**/*.key");
        session.refused("by either path", &open(&key), &denial)?;
        let public = at.join("public");
        let denial = Denial::read(&public)
            .paths(source.join("public"), inside.join("public"))
            .rule(READ_DENY, format!("{source}/**"));
        session.refused("what the pattern would open", &open(&public), &denial)?;
    }
    furnish(&ground, &["a/public", "a/x.keys"])?;
    session.allowed("the same in the workspace", &open(ground.workspace().join("a/public")))?;
    session.allowed("another name", &open(ground.workspace().join("a/x.keys")))?;
    session.finish()
}

/// A program in a directory of the workspace.
fn program(ground: &Ground, directory: &str) -> anyhow::Result<Place> {
    let directory = ground.workspace().join(directory);
    std::fs::create_dir_all(directory.path())?;
    let program = directory.join("program");
    std::fs::copy(std::env::current_exe()?, program.path())?;
    Ok(program)
}

fn running() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-running")?;
    let (closed, opened) = (program(&ground, "a")?, program(&ground, "a/bin")?);
    let policy = Policy::preset()
        .with("files.exec.deny", "${WORKSPACE}/**")
        .with("files.exec.allow", "${WORKSPACE}/**/bin/*");
    let mut session = Session::start(&ground, &policy)?;
    for descriptor in [false, true] {
        let execute = |path: &Place| Operation::Execute { path: path.clone(), descriptor };
        let denial = Denial::by(&["file_open"])
            .access("execute")
            .path(&closed)
            .error(libc::EACCES)
            .rule("files.exec.deny", "${WORKSPACE}/**");
        session.refused("program that may not run", &execute(&closed), &denial)?;
        session.allowed("program that may", &execute(&opened))?;
    }
    session.allowed("reading it", &open(&closed))?;
    session.finish()
}

fn listed() -> anyhow::Result<()> {
    let ground = Ground::new("patterns-listed")?;
    furnish(&ground, &["file"])?;
    let (outside, notes) = (ground.outside().join("file"), ground.outside().join("notes.md"));
    write(&outside, "content")?;
    write(&notes, "content")?;
    let mut policy = Policy::preset().close("files.read");
    for listed in
        ["/{bin,sbin,usr,lib,lib64,dev,proc,etc}/**", "${WORKSPACE}", "${TMPDIR}", "**/*.md"]
    {
        policy = policy.with("files.read.allow", listed);
    }
    // The suite's own program, which the members are.
    policy = policy.with("files.read.allow", std::env::current_exe()?.display().to_string());
    let mut session = Session::start(&ground, &policy)?;
    let denial = Denial::read(&outside).because(Why::Default);
    session.refused("what is not listed", &open(&outside), &denial)?;
    let denial = Denial::read(ground.outside()).because(Why::Default);
    session.refused("its directory", &list(ground.outside()), &denial)?;
    session.allowed("a name that is listed", &open(&notes))?;
    session.allowed("the workspace", &list(ground.workspace()))?;
    session.allowed("a file in it", &open(ground.workspace().join("file")))?;
    session.finish()
}
