//! Moving never gains: what a rule protects stays protected, wherever it would be moved.

use crate::harness::{
    Attack, Bystander, Denial, Ground, Policy, Session, Why, bystander_is_free, difference,
    member_is_refused, snapshot, trial, write,
};
use crate::probe::{Operation, Place};
use crate::suite::writes::EXCHANGE;
use libtest_mimic::Trial;

const READ_DENY: &str = "files.read.deny";

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A14", "moves::member_cannot_move_what_is_protected"),
    ("A36", "moves::member_cannot_move_what_is_protected"),
    ("D2.31", "moves::member_cannot_move_what_is_protected"),
    ("D2.34", "moves::member_cannot_move_what_is_protected"),
    ("A27", "moves::rules_hold_after_an_atomic_replace"),
    ("A28", "moves::rules_hold_for_files_that_come_later"),
    ("D1.14", "moves::rules_hold_after_an_atomic_replace"),
    ("D1.1", "moves::member_cannot_move_what_is_protected"),
    ("D1.15", "moves::rules_hold_for_files_that_come_later"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("moves::member_cannot_move_what_is_protected", member),
        trial("moves::bystander_moves_it", bystander),
        trial("moves::rules_hold_for_files_that_come_later", later),
        trial("moves::rules_hold_after_an_atomic_replace", replaced),
    ]
}

fn policy() -> Policy {
    Policy::preset()
        .read_deny("${WORKSPACE}/secret/**")
        .read_deny("${WORKSPACE}/vault/inner/key")
        .write_deny("${WORKSPACE}/repository/hooks/**")
}

/// The protected places and what lies there.
fn furnish(ground: &Ground) -> anyhow::Result<()> {
    let workspace = ground.workspace();
    for directory in ["secret", "vault", "vault/inner", "repository", "repository/hooks", "plain"] {
        std::fs::create_dir(workspace.join(directory))?;
    }
    for file in ["secret/key", "vault/inner/key", "repository/hooks/hook", "plain/file"] {
        write(&workspace.join(file), "content")?;
    }
    Ok(())
}

/// Each is undone by nobody: the order is such that a bystander can do all of them.
fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let workspace = ground.workspace();
    let at = |name: &str| workspace.join(name);
    let mut attacks = Vec::new();
    let mut add = |name, hook, operation, twin| {
        let denial = Denial::by(&[hook])
            .beneath(&workspace)
            .because(Why::Reason(&["rule", "gain", "rule_beneath"]))
            .or_error(libc::EXDEV);
        attacks.push(Attack { name, operation, denial, twin });
    };
    let rename = |from: Place, to: Place| Operation::Rename { from, to, flags: 0 };
    let exchange = |from: Place, to: Place| Operation::Rename { from, to, flags: EXCHANGE };
    let file = || ground.file(&workspace);
    let pair = || -> anyhow::Result<Operation> { Ok(exchange(file()?, file()?)) };
    let step = || -> anyhow::Result<Operation> { Ok(rename(file()?, ground.absent(&workspace))) };
    let link = |from: Place| Operation::Link { from, to: ground.absent(&workspace) };
    add("link out of a denied place", "path_link", link(at("secret/key")), link(file()?));
    add("exchange with a denied file", "path_rename", exchange(file()?, at("secret/key")), pair()?);
    add("the same, other way round", "path_rename", exchange(at("secret/key"), file()?), pair()?);
    add(
        "rename out of a denied place",
        "path_rename",
        rename(at("secret/key"), ground.absent(&workspace)),
        step()?,
    );
    let walk = || -> anyhow::Result<Operation> {
        Ok(rename(ground.directory(&workspace)?, ground.absent(&workspace)))
    };
    let swap = || -> anyhow::Result<Operation> {
        Ok(exchange(ground.directory(&workspace)?, ground.directory(&workspace)?))
    };
    for (name, directory) in [
        ("exchange of a protected directory", "secret"),
        ("exchange of a directory above", "vault"),
        ("exchange of a directory above a write rule", "repository"),
    ] {
        let other = ground.directory(&workspace)?;
        add(name, "path_rename", exchange(at(directory), other), swap()?);
    }
    for (name, directory) in [
        ("exchange of a protected directory, second", "secret"),
        ("exchange of a directory above, second", "vault"),
    ] {
        let other = ground.directory(&workspace)?;
        add(name, "path_rename", exchange(other, at(directory)), swap()?);
    }
    for (name, directory) in [
        ("rename of a protected directory", "secret"),
        ("rename of the directory above", "vault"),
        ("rename of the directory above a write rule", "repository"),
    ] {
        add(name, "path_rename", rename(at(directory), ground.absent(&workspace)), walk()?);
    }
    Ok(attacks)
}

fn member() -> anyhow::Result<()> {
    let ground = Ground::new("moves")?;
    furnish(&ground)?;
    let attacks = attacks(&ground)?;
    let protected = ["secret", "vault", "repository"].map(|name| ground.workspace().join(name));
    let before = protected.iter().map(|at| snapshot(at.path())).collect::<Result<Vec<_>, _>>()?;
    let mut session = Session::start(&ground, &policy())?;
    member_is_refused(&mut session, &attacks)?;
    for (at, before) in protected.iter().zip(&before) {
        match snapshot(at.path()) {
            Ok(after) => {
                for change in difference(before, &after) {
                    session.problem(format!("a protected place changed: {change}"));
                }
            }
            Err(error) => session.problem(format!("a protected place is gone: {error:#}")),
        }
    }
    for (rule, name) in [
        ("${WORKSPACE}/secret/**", "secret/key"),
        ("${WORKSPACE}/vault/inner/key", "vault/inner/key"),
    ] {
        let path = ground.workspace().join(name);
        let denial = Denial::read(&path).rule(READ_DENY, rule);
        let open = Operation::Open { path, flags: libc::O_RDONLY };
        session.refused("read of what was to be moved", &open, &denial)?;
    }
    session.finish()
}

fn bystander() -> anyhow::Result<()> {
    let (ground, own) = (Ground::new("moves-session")?, Ground::new("moves-bystander")?);
    for ground in [&ground, &own] {
        furnish(ground)?;
    }
    // An exchange leaves something else under the protected name; the next attack takes that.
    let attacks = attacks(&own)?;
    let session = Session::start(&ground, &policy())?;
    bystander_is_free(&attacks, &[])?;
    session.finish()
}

/// A place where nothing is when the session starts.
fn later() -> anyhow::Result<()> {
    let ground = Ground::new("later")?;
    let (file, directory) =
        (ground.workspace().join("later.env"), ground.outside().join("new/deep"));
    let rules = ("${WORKSPACE}/later.env", format!("{directory}/**"));
    let policy = Policy::preset().read_deny(rules.0).read_deny(rules.1.clone());
    let mut session = Session::start(&ground, &policy)?;
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    let absent = session.perform(&open(&file))?;
    if absent.errno != libc::ENOENT {
        session.problem(format!("{file} does not exist yet, but {absent}"));
    }
    write(&file, "secret")?;
    std::fs::create_dir_all(&directory)?;
    let inner = directory.join("token");
    write(&inner, "secret")?;
    let denial = Denial::read(&file).rule(READ_DENY, rules.0);
    session.refused("file that came later", &open(&file), &denial)?;
    let denial = Denial::read(&inner).rule(READ_DENY, rules.1);
    session.refused("directory that came later", &open(&inner), &denial)?;
    let beside = ground.file(&ground.workspace())?;
    session.allowed("file beside it", &open(&beside))?;
    session.finish()
}

/// Editors and credential helpers write a new file and rename it over the old one.
fn replaced() -> anyhow::Result<()> {
    let ground = Ground::new("replaced")?;
    let file = ground.outside().join("credentials");
    write(&file, "first")?;
    let policy = Policy::preset().read_deny(file.to_string());
    let mut session = Session::start(&ground, &policy)?;
    let mut bystander = Bystander::new()?;
    for round in 0..3 {
        let open = Operation::Open { path: file.clone(), flags: libc::O_RDONLY };
        let denial = Denial::read(&file).rule(READ_DENY, file.to_string());
        session.refused(&format!("after {round} replacements"), &open, &denial)?;
        let temporary = ground.file(&ground.outside())?;
        let rename = Operation::Rename { from: temporary, to: file.clone(), flags: 0 };
        let answer = bystander.perform(&rename)?;
        if answer.errno != 0 {
            session.problem(format!("the bystander's rename: {answer}"));
        }
    }
    session.finish()
}
