//! No limit is skipped silently: deep places, long names, odd names.

use crate::harness::{Denial, Ground, Policy, Session, Traces, Why, trial, verb, write};
use crate::probe::{Operation, Place, deep_directory};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

const READ_DENY: &str = "files.read.deny";
const RULE: &str = "${WORKSPACE}/denied/**";

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A19", "limits::depth"),
    ("A20", "limits::depth"),
    ("A20", "limits::deep_places_cannot_be_written"),
    ("A20", "limits::rule_components_of_every_length"),
    ("A21", "limits::odd_names"),
    ("D1.12", "limits::depth"),
    ("D1.13", "limits::rule_components_of_every_length"),
    ("A19", "limits::longer_than_a_path_may_be"),
    ("A22", "limits::odd_names"),
    ("D1.11", "limits::deny_in_allow_in_deny"),
    ("D1.12", "limits::longer_than_a_path_may_be"),
    ("D1.13", "limits::rule_of_ten_long_names"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("limits::depth", depth),
        trial("limits::deep_places_cannot_be_written", deep_writes),
        trial("limits::rule_components_of_every_length", components),
        trial("limits::odd_names", odd_names),
        trial("limits::longer_than_a_path_may_be", long_paths),
        trial("limits::rule_of_ten_long_names", long_rule),
        trial("limits::deny_in_allow_in_deny", nested),
        trial("limits::opening_files_takes_no_memory", many_files),
    ]
}

/// Makes `file` below `depth` directories.
fn deep_file(base: &Place, depth: usize) -> anyhow::Result<()> {
    named_deep_file(base, "d", depth)
}

fn named_deep_file(base: &Place, level: &str, depth: usize) -> anyhow::Result<()> {
    let directory = deep_directory(base, level, depth, true).context("making deep directories")?;
    let flags = OFlags::CREATE | OFlags::WRONLY;
    rustix::fs::openat(&directory, "file", flags, Mode::from(0o644)).context("deep file")?;
    Ok(())
}

fn open_deep(base: &Place, depth: usize, flags: i32) -> Operation {
    named_open_deep(base, "d", depth, flags)
}

fn named_open_deep(base: &Place, level: &str, depth: usize, flags: i32) -> Operation {
    let (base, level, name) = (base.clone(), level.to_owned(), "file".to_owned());
    Operation::OpenDeep { base, level, depth, name, flags }
}

fn depth() -> anyhow::Result<()> {
    let ground = Ground::new("depth")?;
    let (allowed, denied) = (ground.workspace().join("allowed"), ground.workspace().join("denied"));
    for base in [&allowed, &denied] {
        std::fs::create_dir(base)?;
        deep_file(base, 600)?;
        for depth in [1, 21, 64, 65, 300] {
            deep_file(base, depth)?;
        }
    }
    let before = too_deep(&ground)?;
    let mut session = Session::start(&ground, &Policy::preset().read_deny(RULE))?;
    for depth in [1, 21, 64, 65, 300] {
        let path = format!("{denied}/{}file", "d/".repeat(depth));
        let denial = Denial::read(path).rule(READ_DENY, RULE);
        let open = |base| open_deep(base, depth, libc::O_RDONLY);
        session.refused(&format!("{depth} deep, denied"), &open(&denied), &denial)?;
        session.allowed(&format!("{depth} deep, allowed"), &open(&allowed))?;
    }
    // Deeper than the walk goes: the place cannot be known, so it is denied.
    let denial = Denial::read("").any_object().because(Why::Reason(&["too_deep"]));
    for base in [&denied, &allowed] {
        let open = open_deep(base, 600, libc::O_RDONLY);
        session.refused("600 deep", &open, &denial)?;
    }
    session.finish()?;
    let counted = too_deep(&ground)? - before;
    ensure!(counted == 2, "of two faults {counted} were counted");
    Ok(())
}

/// How often `sandbox engine` says that an open was too deep.
fn too_deep(ground: &Ground) -> anyhow::Result<u64> {
    let listed = verb(&ground.papers("engine"), &["engine", "list", "--json"])?;
    let lines = listed.out.lines().map(serde_json::from_str::<serde_json::Value>);
    let lines = lines.collect::<Result<Vec<_>, _>>().with_context(|| listed.report())?;
    let faults = lines.iter().filter_map(|line| line["faults"].as_array()).flatten();
    let deep = faults.filter(|f| f["hook"] == "file_open" && f["reason"] == "too_deep");
    Ok(deep.filter_map(|fault| fault["count"].as_u64()).sum())
}

/// However many files a member opens, no map of the engine gets an entry by it.
fn many_files() -> anyhow::Result<()> {
    let ground = Ground::new("many-files")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    session.allowed("before", &open(&"/proc/self/status".into()))?;
    let before = Traces::places()?;
    for directory in 0..20 {
        let place = ground.workspace().join(format!("directory-{directory}"));
        std::fs::create_dir(&place)?;
        for file in 0..10 {
            let path = place.join(format!("file-{file}"));
            write(&path, "content")?;
            session.allowed("one of many files", &open(&path))?;
        }
    }
    before.must_return_at_once().context("after 200 files in 20 directories")?;
    session.finish()
}

fn deep_writes() -> anyhow::Result<()> {
    let ground = Ground::new("deep-writes")?;
    for base in [ground.workspace(), ground.outside()] {
        deep_file(&base, 21)?;
        deep_file(&base, 300)?;
    }
    let mut session = Session::start(&ground, &Policy::preset())?;
    for depth in [21, 300] {
        let outside = ground.outside();
        let path = format!("{outside}/{}file", "d/".repeat(depth));
        let write = open_deep(&outside, depth, libc::O_WRONLY);
        session.refused(&format!("write {depth} deep outside"), &write, &Denial::write(path))?;
        let write = open_deep(&ground.workspace(), depth, libc::O_WRONLY);
        session.allowed(&format!("write {depth} deep inside"), &write)?;
    }
    session.finish()
}

/// Names are compared whole: a rule for a name holds for exactly that name.
fn components() -> anyhow::Result<()> {
    let ground = Ground::new("components")?;
    let workspace = ground.workspace();
    let lengths = [1, 23, 24, 25, 26, 64, 254, 255];
    let names = lengths.map(|length| "n".repeat(length));
    let mut policy = Policy::preset();
    for name in &names {
        policy = policy.read_deny(format!("${{WORKSPACE}}/{name}"));
    }
    let mut session = Session::start(&ground, &policy)?;
    for name in &names {
        let path = workspace.join(name);
        write(&path, "secret")?;
        let denial = Denial::read(&path).rule(READ_DENY, format!("${{WORKSPACE}}/{name}"));
        let open = Operation::Open { path, flags: libc::O_RDONLY };
        session.refused(&format!("name of {} bytes", name.len()), &open, &denial)?;
        // The last byte is another one.
        let other = workspace.join(format!("{}x", &name[1..]));
        write(&other, "harmless")?;
        let open = Operation::Open { path: other, flags: libc::O_RDONLY };
        session.allowed(&format!("another name of {} bytes", name.len()), &open)?;
    }
    for length in [2, 22, 27, 63, 253] {
        let path = workspace.join("n".repeat(length));
        write(&path, "harmless")?;
        let open = Operation::Open { path, flags: libc::O_RDONLY };
        session.allowed(&format!("name of {length} bytes without a rule"), &open)?;
    }
    session.finish()
}

fn odd_names() -> anyhow::Result<()> {
    let ground = Ground::new("odd-names")?;
    let workspace = ground.workspace();
    let newline = "new\nline \"quoted\" \\ tab\t";
    // In a rule a backslash makes the next character plain.
    let rule = format!("${{WORKSPACE}}/{}/**", newline.replace('\\', "\\\\"));
    let (allowed, denied) = (workspace.join("allowed"), workspace.join("denied"));
    for directory in [&allowed, &denied, &workspace.join(newline)] {
        std::fs::create_dir(directory)?;
    }
    let mut session = Session::start(&ground, &Policy::preset().read_deny(RULE).read_deny(&rule))?;
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    for name in [
        &b"two\nlines"[..],
        b"not utf-8: \xff\xfe",
        b" (deleted)",
        b"mnt:[4026531840]",
        b"{\"type\":\"denial\"}",
        b"..data",
        b"\x01\x1b[2J",
        &[b'x'; 255],
    ] {
        let text = OsStr::from_bytes(name).to_string_lossy().into_owned();
        let (good, bad) = (allowed.join(name), denied.join(name));
        for path in [&good, &bad] {
            write(path, "content")?;
        }
        // How an event spells bytes that are no text is its own affair.
        let denial = match std::str::from_utf8(name) {
            Ok(_) => Denial::read(&bad),
            Err(_) => Denial::read(&bad).beneath(format!("{denied}/not utf-8: ")),
        };
        session.refused(&format!("{text:?}"), &open(&bad), &denial.rule(READ_DENY, RULE))?;
        session.allowed(&format!("{text:?} (harmless twin)"), &open(&good))?;
    }
    let inner = workspace.join(newline).join("file");
    write(&inner, "secret")?;
    let denial = Denial::read(&inner).rule(READ_DENY, rule);
    session.refused("rule with a line break", &open(&inner), &denial)?;
    session.finish()
}

/// Longer than `PATH_MAX`: no string holds it, the walk does.
fn long_paths() -> anyhow::Result<()> {
    let ground = Ground::new("long-paths")?;
    let (allowed, denied) = (ground.workspace().join("allowed"), ground.workspace().join("denied"));
    let (level, depth) = ("l".repeat(200), 30);
    for base in [&allowed, &denied] {
        std::fs::create_dir(base)?;
        named_deep_file(base, &level, depth)?;
    }
    let mut session = Session::start(&ground, &Policy::preset().read_deny(RULE))?;
    let open = |base| named_open_deep(base, &level, depth, libc::O_RDONLY);
    let denial = Denial::read("").any_object().rule(READ_DENY, RULE);
    session.refused("6000 bytes, denied", &open(&denied), &denial)?;
    session.allowed("6000 bytes, allowed", &open(&allowed))?;
    session.finish()
}

/// A rule of ten names, each as long as a name can be.
fn long_rule() -> anyhow::Result<()> {
    let ground = Ground::new("long-rule")?;
    let name = "n".repeat(255);
    let deep = [name.as_str(); 10].join("/");
    let rule = format!("${{WORKSPACE}}/{deep}/**");
    let directory = ground.workspace().join(&deep);
    std::fs::create_dir_all(&directory)?;
    write(&directory.join("key"), "secret")?;
    write(&ground.workspace().join(&name).join("file"), "harmless")?;
    let mut session = Session::start(&ground, &Policy::preset().read_deny(&rule))?;
    let open = |path: Place| Operation::Open { path, flags: libc::O_RDONLY };
    let denial = Denial::read("").any_object().rule(READ_DENY, &rule);
    session.refused("beneath ten long names", &open(directory.join("key")), &denial)?;
    let above = ground.workspace().join(&name).join("file");
    session.allowed("beneath one of them", &open(above))?;
    session.finish()
}

/// The deepest rule decides.
fn nested() -> anyhow::Result<()> {
    let ground = Ground::new("nested")?;
    let workspace = ground.workspace();
    std::fs::create_dir_all(workspace.join("a/b/c"))?;
    for name in ["a/file", "a/b/file", "a/b/c/file", "file"] {
        write(&workspace.join(name), "content")?;
    }
    let (outer, inner) = ("${WORKSPACE}/a/**", "${WORKSPACE}/a/b/c/**");
    let policy = Policy::preset()
        .read_deny(outer)
        .with("files.read.allow", "${WORKSPACE}/a/b/**")
        .read_deny(inner);
    let mut session = Session::start(&ground, &policy)?;
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    for (name, rule) in [("a/file", outer), ("a/b/c/file", inner)] {
        let path = workspace.join(name);
        session.refused(name, &open(&path), &Denial::read(&path).rule(READ_DENY, rule))?;
    }
    for name in ["a/b/file", "file"] {
        session.allowed(name, &open(&workspace.join(name)))?;
    }
    session.finish()
}
