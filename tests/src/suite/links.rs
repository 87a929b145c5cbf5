//! Names that somebody else makes while a session runs, and that lead to what another name protects.

use crate::harness::{Bystander, Denial, Ground, HOME, Policy, Session, Why, trial, write};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::os::unix::fs::symlink;

const READ_DENY: &str = "files.read.deny";
const SECRET: &str = "${WORKSPACE}/secret/**";

/// Rows of the threat tables and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D1.9", "links::a_closed_name_that_is_a_link_leads_nowhere"),
    ("A13", "links::a_closed_name_that_is_a_link_leads_nowhere"),
    ("A28", "links::a_closed_name_that_is_a_link_leads_nowhere"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("links::a_closed_name_that_is_a_link_leads_nowhere", symbolic),
        trial("links::none_takes_a_name_beneath_which_writing_is_closed", planted),
    ]
}

/// `RENAME_EXCHANGE`, linux/fs.h.
const EXCHANGE: u32 = 2;

fn read(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

fn open_for_writing(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_WRONLY }
}

/// A name that was made in the home directory, removed in the end.
struct AtHome(Place);

impl Drop for AtHome {
    fn drop(&mut self) {
        // The machine is thrown away.
        let _ = std::fs::remove_file(self.0.path());
    }
}

/// A name that a rule closes becomes a symbolic link to something that is open.
fn symbolic() -> anyhow::Result<()> {
    let ground = Ground::new("later-symlinks")?;
    let workspace = ground.workspace();
    let at = |name: &str| workspace.join(name);
    let home = |name: &str| Place::from(HOME).join(name);
    std::fs::create_dir(at("plain"))?;
    for file in ["file", "plain/credentials"] {
        write(&at(file), "content")?;
    }
    // It leads nowhere yet, and elsewhere later.
    let dangling = AtHome(home(".pgpass"));
    symlink(at("absent").path(), dangling.0.path())?;
    let mut session = Session::start(&ground, &Policy::preset().read_deny(SECRET))?;
    let file = at("file");
    let mut links = Vec::new();
    let mut link = |to: &Place, at: &Place| -> anyhow::Result<()> {
        symlink(to.path(), at.path()).with_context(|| format!("symlink {to} {at}"))?;
        links.push(AtHome(at.clone()));
        Ok(())
    };
    std::fs::remove_file(dangling.0.path())?;
    link(&file, &dangling.0)?;
    for (at, to) in [
        (home(".netrc"), file.clone()),
        (home(".aws"), at("plain")),
        (at(".env"), file.clone()),
        (at("secret"), at("plain")),
        // These are nobody's secrets.
        (at("other"), file.clone()),
        (at("others"), at("plain")),
    ] {
        link(&to, &at)?;
    }
    let through = |path: &Place, rule: Why| {
        Denial::by(&["inode_follow_link"]).access("read").path(path).because(rule)
    };
    let preset = |text| Why::Preset(READ_DENY, text);
    let own = |text: &str| Why::Rule(READ_DENY, text.to_owned());
    for (name, link, rest, twin, rule) in [
        ("a file", home(".netrc"), "", at("other"), preset("~/.netrc")),
        ("what led nowhere", dangling.0.clone(), "", at("other"), preset("~/.pgpass")),
        ("a directory", home(".aws"), "/credentials", at("others/credentials"), preset("~/.aws")),
        ("a name closed anywhere", at(".env"), "", at("other"), preset("**/.env")),
        ("a rule's own", at("secret"), "/credentials", at("others/credentials"), own(SECRET)),
    ] {
        let path = Place::from(format!("{link}{rest}"));
        let denial = through(&link, rule);
        for (way, operation, twin) in [
            ("read", read(&path), read(&twin)),
            ("write", open_for_writing(&path), open_for_writing(&twin)),
            (
                "read by io_uring",
                Operation::UringOpen { path: path.clone(), flags: 0, worker: true },
                Operation::UringOpen { path: twin.clone(), flags: 0, worker: true },
            ),
            (
                "truncate",
                Operation::Truncate { path: path.clone(), length: 7 },
                Operation::Truncate { path: twin.clone(), length: 7 },
            ),
        ] {
            session.refused(&format!("{name}: {way}"), &operation, &denial)?;
            session.allowed(&format!("{name}: {way} (twin)"), &twin)?;
        }
    }
    let by_root = Place::from("/proc/self/root").join(&home(".netrc").bytes()[1..]);
    let denial = through(&home(".netrc"), preset("~/.netrc"));
    session.refused("by /proc/self/root", &read(&by_root), &denial)?;
    // The file itself is open, by its own name.
    session.allowed("by its own name", &read(&file))?;
    let mut bystander = Bystander::new()?;
    for path in [home(".netrc"), at(".env"), at("secret/credentials")] {
        let answer = bystander.perform(&read(&path))?;
        ensure!(answer.errno == 0, "{path} by a bystander: {answer}");
    }
    session.finish()
}

/// A member writes what rules close where no rule is, and links to it by the name that they are about: whoever
/// comes by that name outside would find it.
fn planted() -> anyhow::Result<()> {
    let ground = Ground::new("planted-links")?;
    let workspace = ground.workspace();
    let at = |name: &str| workspace.join(name);
    for directory in ["written", "sub", "deep", "modules", "starred"] {
        std::fs::create_dir(at(directory))?;
    }
    write(&at("written/pre-commit"), "evil")?;
    for link in ["one", "two", "three", "four", "plain"] {
        symlink(at("written").path(), at(link).path())?;
    }
    std::fs::create_dir(at("sub/.zed"))?;
    let policy = Policy::preset()
        .write_deny("${WORKSPACE}/absent/place")
        .write_deny("${WORKSPACE}/dist/**")
        .write_deny("${WORKSPACE}/modules/**/inner/hooks")
        .write_deny("${WORKSPACE}/starred/*/config");
    let mut session = Session::start(&ground, &policy)?;
    let made = |path: &str| {
        (
            path.to_owned(),
            "path_symlink",
            Operation::Symlink { target: at("written"), path: at(path) },
        )
    };
    let moved = |from: &str, path: &str, flags| {
        let operation = Operation::Rename { from: at(from), to: at(path), flags };
        (path.to_owned(), "path_rename", operation)
    };
    let named = |from: &str, path: &str| {
        (path.to_owned(), "path_link", Operation::Link { from: at(from), to: at(path) })
    };
    let mut attacks: Vec<_> = [
        // Of the preset: at any depth, what lies in it and what lies anywhere beneath.
        ".git",
        "sub/.git",
        "sub/.vscode",
        "sub/deeper/.idea",
        ".claude",
        ".github",
        // Spelled out: a place beneath, all beneath, behind a second `**`, behind a `*`.
        "absent",
        "dist",
        "modules/inner",
        "modules/x/inner",
        "starred/any",
    ]
    .map(made)
    .into();
    std::fs::create_dir(at("sub/deeper"))?;
    std::fs::create_dir(at("modules/x"))?;
    attacks.push(moved("one", "deep/.vscode", 0));
    attacks.push(moved("two", "sub/.zed", EXCHANGE));
    attacks.push(named("three", "deep/.idea"));
    for (path, hook, operation) in &attacks {
        let denial = Denial::by(&[hook]).because(Why::Reason(&["rule_beneath"]));
        let denial = denial.path(at(path));
        session.refused(path, operation, &denial)?;
    }
    let mut bystander = Bystander::new()?;
    for (path, _, operation) in &attacks {
        let answer = bystander.perform(operation)?;
        ensure!(answer.errno == 0, "{path}: a bystander is refused: {answer}");
    }
    // Their harmless twins: names beneath which rules say no more than around them.
    let twins = [
        made("link"),
        made("sub/link"),
        made("sub/deeper/.github-link"),
        made("modules/x/y"),
        moved("four", "deep/moved", 0),
        named("plain", "deep/named"),
        moved("sub/link", "sub/other", 0),
    ];
    for (path, _, operation) in &twins {
        session.allowed(path, operation)?;
    }
    // A directory by the name is made, and what rules close in it stays closed.
    let fresh = at("sub/deeper/.vscode");
    session.allowed("a directory", &Operation::Mkdir { path: fresh.clone() })?;
    let tasks = fresh.join("tasks.json");
    let denial = Denial::by(&["path_mknod"]).access("create").path(&tasks);
    let create = Operation::Create { path: tasks };
    session.refused("tasks", &create, &denial.because(Why::Reason(&["rule"])))?;
    session.finish()
}
