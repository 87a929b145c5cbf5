//! Directories that compare names without regard to case.

use crate::harness::{
    Denial, Disk, Ground, Policy, Session, Why, disregard_case, ext4_image, forget_names, trial,
    write, write_fat,
};
use crate::probe::{Operation, Place};
use anyhow::ensure;
use libtest_mimic::Trial;
use rustix::mount::MountFlags;

const READ_DENY: &str = "files.read.deny";

/// Rows of the threat tables and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[("A13", "folding::fat"), ("A13", "folding::casefold")];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("folding::fat", fat), trial("folding::casefold", casefold)]
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

/// Had the kernel always the name that the rule has, nothing would have been tried.
fn spelled_otherwise(session: &Session, names: &[&str]) -> anyhow::Result<()> {
    let told = session.events().all();
    let paths: Vec<_> = told.iter().filter_map(|event| event["object"]["path"].as_str()).collect();
    let seen = |name: &&str| paths.iter().any(|path| path.ends_with(*name));
    ensure!(names.iter().any(seen), "no event has one of {names:?}: {paths:?}");
    Ok(())
}

const ENV: &str = "${WORKSPACE}/disk/.env";
const VAULT: &str = "${WORKSPACE}/disk/Vault/**";
const LONG: &str = "${WORKSPACE}/disk/A rather long name, longer than most.Text";

/// FAT: no case, short names, dots behind names that are not there.
fn fat() -> anyhow::Result<()> {
    let ground = Ground::new("fat")?;
    let (image, disk) = (ground.papers("fat.image"), ground.workspace().join("disk"));
    write_fat(&image)?;
    std::fs::create_dir(&disk)?;
    let _mounted = Disk::mount(&image, "vfat", "iocharset=iso8859-1,codepage=437", &disk)?;
    std::fs::create_dir(disk.join("Vault"))?;
    std::fs::create_dir(disk.join("plain"))?;
    for name in [".env", ".envrc", "Vault/key", "plain/.env", "plain/notes", "Some long name.text"]
    {
        write(&disk.join(name), "content")?;
    }
    let long = LONG.rsplit('/').next().unwrap_or_default();
    write(&disk.join(long), "content")?;
    let policy = Policy::preset().read_deny(ENV).read_deny(VAULT).read_deny(LONG);
    let mut session = Session::start(&ground, &policy)?;

    for (rule, name) in [
        (ENV, ".env"),
        (ENV, ".ENV"),
        (ENV, ".Env"),
        (VAULT, "Vault/key"),
        (VAULT, "vault/key"),
        (VAULT, "VAULT/KEY"),
        (LONG, long),
        (LONG, &long.to_uppercase()),
        (LONG, &long.to_lowercase()),
    ] {
        forget_names()?;
        let path = disk.join(name);
        // The kernel names it as it was looked up first, by the member or by somebody before it.
        let denial = Denial::read(&path).beneath(&disk).rule(READ_DENY, rule);
        session.refused(name, &open(&path), &denial)?;
        // And now that it has a name.
        let _known = std::fs::metadata(disk.join(rule.rsplit("/disk/").next().unwrap_or_default()));
        let denial = Denial::read(&path).beneath(&disk).rule(READ_DENY, rule);
        session.refused(name, &open(&path), &denial)?;
    }
    spelled_otherwise(&session, &[".ENV", ".Env", "VAULT/KEY"])?;
    // Short names, and dots that the file system takes away, cannot be told from others.
    let doubtful = |path: &Place| {
        Denial::read(path).beneath(&disk).because(Why::Reason(&["case_insensitive", "rule"]))
    };
    for name in ["ENV~1", "env~1", "ARATHE~1.TEX", "aRATHE~1.tEX", ".env.", ".ENV...", "vault./key"]
    {
        forget_names()?;
        let path = disk.join(name);
        session.refused(name, &open(&path), &doubtful(&path))?;
    }
    // The preset's pattern holds for every spelling too.
    for name in ["plain/.env", "PLAIN/.ENV", "plain/.Env"] {
        forget_names()?;
        let path = disk.join(name);
        let denial = Denial::read(&path).beneath(&disk).because(Why::Reason(&["rule"]));
        session.refused(name, &open(&path), &denial)?;
    }
    for name in [
        ".envrc",
        ".ENVRC",
        "plain/notes",
        "PLAIN/NOTES",
        "Some long name.text",
        "SOME LONG NAME.TEXT",
    ] {
        forget_names()?;
        session.allowed(name, &open(&disk.join(name)))?;
    }
    // Patterns speak of every directory, so such names open nothing anywhere.
    let short = disk.join("plain/ENV~1");
    session.refused("short name in another directory", &open(&short), &doubtful(&short))?;
    // Under any spelling it is the same when it comes later.
    session.allowed("removal", &Operation::Unlink { path: disk.join(".eNv") })?;
    session.allowed("new under another name", &Operation::Create { path: disk.join(".eNV") })?;
    forget_names()?;
    for name in [".env", ".eNV", ".ENv"] {
        let path = disk.join(name);
        let denial = Denial::read(&path).beneath(&disk).rule(READ_DENY, ENV);
        session.refused(name, &open(&path), &denial)?;
    }
    session.finish()
}

/// ext4, and tmpfs where the kernel can do it: by directory.
fn casefold() -> anyhow::Result<()> {
    let ground = Ground::new("casefold")?;
    let image = ext4_image(&ground)?;
    for kind in ["ext4", "tmpfs"] {
        let disk = ground.workspace().join(kind);
        std::fs::create_dir(&disk)?;
        let _mounted = if kind == "ext4" {
            Some(Disk::mount(&image, kind, "", &disk)?)
        } else {
            // 6.13 and later.
            let options = Some(c"casefold");
            match rustix::mount::mount("none", disk.path(), kind, MountFlags::empty(), options) {
                Ok(()) => {}
                Err(rustix::io::Errno::INVAL) => continue,
                Err(error) => anyhow::bail!("mounting {kind}: {error}"),
            }
            None
        };
        let judged = by_directory(&ground, &disk, kind);
        if kind == "tmpfs" {
            rustix::mount::unmount(disk.path(), rustix::mount::UnmountFlags::DETACH)?;
        }
        judged?;
    }
    Ok(())
}

fn by_directory(ground: &Ground, disk: &Place, kind: &str) -> anyhow::Result<()> {
    for (name, folded) in [("plain", false), ("folded", true), ("sharp", true)] {
        let directory = disk.join(name);
        std::fs::create_dir(&directory)?;
        if folded {
            disregard_case(&directory)?;
        }
    }
    for name in ["plain/.env", "plain/.ENV", "folded/.env", "folded/other", "sharp/stra\u{df}e"] {
        write(&disk.join(name), "content")?;
    }
    let [plain, folded, sharp] = ["plain/.env", "folded/.env", "sharp/stra\u{df}e"]
        .map(|name| format!("${{WORKSPACE}}/{kind}/{name}"));
    let policy = Policy::preset().read_deny(&plain).read_deny(&folded).read_deny(&sharp);
    let mut session = Session::start(ground, &policy)?;
    for name in ["folded/.env", "folded/.ENV", "folded/.eNv"] {
        forget_names()?;
        let path = disk.join(name);
        let denial = Denial::read(&path).beneath(disk).rule(READ_DENY, &folded);
        session.refused(name, &open(&path), &denial)?;
        session.refused(name, &open(&path), &denial)?;
    }
    // A tmpfs keeps the name under which a file was made.
    if kind == "ext4" {
        spelled_otherwise(&session, &[".ENV", ".eNv"])?;
    }
    // Beyond ASCII a name can be spelled in ways that nobody here knows: none is believed.
    for name in ["sharp/stra\u{df}e", "sharp/STRASSE", "sharp/strasse"] {
        forget_names()?;
        let path = disk.join(name);
        let denial = Denial::read(&path).beneath(disk).because(Why::Reason(&["case_insensitive"]));
        session.refused(name, &open(&path), &denial)?;
    }
    let path = disk.join("plain/.env");
    session.refused("exact", &open(&path), &Denial::read(&path).rule(READ_DENY, &plain))?;
    session.allowed("another file where case counts", &open(&disk.join("plain/.ENV")))?;
    for name in ["folded/other", "folded/OTHER"] {
        forget_names()?;
        session.allowed(name, &open(&disk.join(name)))?;
    }
    session.finish()
}
