//! The compiled policy, walked as the kernel walks it, against the meaning of the rules.

use super::compiled::CompiledPolicy;
use super::decide::{self, Decision};
use super::expand::{Context, expand};
use super::rule::Kind;
use super::walk::Walker;
pub(super) use super::walk::decision;
use super::{compile, load, load_text};
use crate::kernel::mounts::{Components, MountTable, to_components};
use sandbox_common::Access;
use sandbox_common::path::{Rights, kernel_dev};
use std::fmt::Write as _;
use std::path::Path;

/// Everything here lies beneath a directory that no machine has, so that no link is followed.
pub(super) const BASE: &str = "/nonexistent-sandbox-test";

pub(super) fn at(path: &str) -> Components {
    to_components(Path::new(path))
}

/// Lines of `id parent minor root point`; the device's major number is 8.
pub(super) fn table(lines: &str) -> MountTable {
    let mut text = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let [id, parent, minor, root, point] =
            line.split_whitespace().collect::<Vec<_>>().try_into().unwrap();
        writeln!(text, "{id} {parent} 8:{minor} {root} {point} rw - ext4 x rw").unwrap();
    }
    MountTable::parse(text.as_bytes()).unwrap()
}

pub(super) fn context() -> Context {
    Context {
        home: format!("{BASE}/home").into(),
        workspace: format!("{BASE}/w").into(),
        tmpdir: format!("{BASE}/t").into(),
        terminal: Some(kernel_dev(136, 4)),
        surroundings: crate::policy::services::Surroundings::default(),
    }
}

pub(super) struct Compiled {
    pub(super) policy: CompiledPolicy,
    table: MountTable,
    pub(super) warnings: Vec<String>,
}

/// `@` stands for [`BASE`] in the policy and in the table.
pub(super) fn compiled(rules: &str, mounts: &str) -> Compiled {
    let text = format!("version = 1\n[files]\n{}", rules.replace('@', BASE));
    let table = table(&mounts.replace('@', BASE));
    let policy = load_text("p.toml", text).unwrap();
    let (policy, warnings) = compile(&policy, &context(), &table).unwrap();
    let warnings = warnings.into_iter().map(|warning| warning.message.replace(BASE, "@")).collect();
    Compiled { policy, table, warnings }
}

/// Walks as the kernel does.
pub(super) fn walk(policy: &CompiledPolicy, dev: u32, place: &[Vec<u8>]) -> Option<Rights> {
    walker(policy).walk(dev, place, false)
}

pub(super) fn walker(policy: &CompiledPolicy) -> Walker<'_> {
    Walker::new(policy)
}

impl Compiled {
    pub(super) fn rights(&self, path: &str) -> Rights {
        let (dev, place) = self.table.locate(&at(&path.replace('@', BASE))).unwrap();
        walk(&self.policy, dev, &place).unwrap()
    }

    /// The rule numbers that allow reading and writing; negative where they deny.
    pub(super) fn of(&self, path: &str) -> (i32, i32) {
        let rights = self.rights(path);
        let number = |kind| {
            let Decision { allow, rule } = decision(rights, kind);
            match (allow, i32::try_from(rule).unwrap()) {
                (true, 0) => YES,
                (false, 0) => NO,
                (true, rule) => rule,
                (false, rule) => -rule,
            }
        };
        (number(Kind::Read), number(Kind::Write))
    }
}

/// Allowed by the default.
const YES: i32 = 99;
/// Denied by the default.
const NO: i32 = -99;
/// One file system.
pub(super) const ONE: &str = "1 0 1 / /";

#[test]
fn a_rule_covers_the_object_or_only_what_lies_beneath() {
    let sandbox = compiled("write.allow = ['@/tree', '@/beneath/**']", ONE);
    assert_eq!(sandbox.of("@/tree"), (YES, 1));
    assert_eq!(sandbox.of("@/tree/a/b"), (YES, 1));
    assert_eq!(sandbox.of("@/trees"), (YES, NO));
    assert_eq!(sandbox.of("@/beneath"), (YES, NO));
    assert_eq!(sandbox.of("@/beneath/a/b"), (YES, 2));
    assert_eq!(sandbox.of("@"), (YES, NO));
    assert_eq!(sandbox.of("/"), (YES, NO));
}

#[test]
fn the_deepest_rule_decides_and_deny_wins_at_the_same_place() {
    let sandbox = compiled(
        "write.allow = ['@/a', '@/a/b/c', '@/a/x']\nwrite.deny = ['@/a/b/**', '@/a/x']",
        ONE,
    );
    assert_eq!(sandbox.of("@/a/b"), (YES, 1));
    assert_eq!(sandbox.of("@/a/b/z"), (YES, -4));
    assert_eq!(sandbox.of("@/a/b/c"), (YES, 2));
    assert_eq!(sandbox.of("@/a/b/c/d"), (YES, 2));
    assert_eq!(sandbox.of("@/a/x/y"), (YES, -5));
}

#[test]
fn kinds_do_not_meddle() {
    let sandbox = compiled("read.deny = ['@/w/secret']\nwrite.allow = ['@/w/**']", ONE);
    assert_eq!(sandbox.of("@/w/secret"), (-1, 2));
    assert_eq!(sandbox.of("@/w"), (YES, NO));
}

#[test]
fn every_mounted_file_system_is_known_with_the_default() {
    let sandbox = compiled("", "1 0 1 / /\n2 1 2 / /proc\n3 2 3 / /proc/x\n4 1 4 / /proc");
    let devs: Vec<u32> = sandbox.policy.roots.iter().map(|(dev, _)| *dev).collect();
    let known = [1, 2, 3, 4].map(|minor| kernel_dev(8, minor));
    assert_eq!(devs, [&[0], known.as_slice()].concat());
    let ids: Vec<u32> = sandbox.policy.roots.iter().map(|(_, root)| root.below.node).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    assert_eq!(sandbox.of("/proc/x"), (YES, NO));
    assert!(sandbox.policy.edges.is_empty());
}

#[test]
fn rules_reach_into_mounts_beneath_them() {
    let mounts = "1 0 1 / /\n2 1 2 /sub @/w/mnt\n3 1 3 / @/home/.ssh/agent";
    let sandbox = compiled("read.deny = ['~/.ssh/**']\nwrite.allow = ['${WORKSPACE}/**']", mounts);
    assert_eq!(sandbox.of("@/w/mnt"), (YES, 2));
    assert_eq!(sandbox.of("@/w/mnt/x"), (YES, 2));
    assert_eq!(sandbox.of("@/home/.ssh/agent"), (-1, NO));
    assert_eq!(sandbox.of("@/home/.ssh/agent/x"), (-1, NO));
    assert_eq!(sandbox.of("@/home/.ssh"), (YES, NO));
    assert_eq!(sandbox.warnings, [""; 0]);
    // The rest of the mounted file system is not opened.
    let other = walk(&sandbox.policy, kernel_dev(8, 2), &at("/other")).unwrap();
    assert!(!decision(other, Kind::Write).allow);
}

#[test]
fn a_deeper_rule_above_a_mount_decides_on_it() {
    let mounts = "1 0 1 / /\n2 1 2 / @/w/a/mnt\n3 1 3 / @/w/b";
    let sandbox = compiled(
        "write.deny = ['@/w/a', '/']\nwrite.allow = ['@/w/**', '@/w/b/**', '@/w/a/mnt/in']",
        mounts,
    );
    assert_eq!(sandbox.of("@/w/a/mnt/x"), (YES, -1));
    assert_eq!(sandbox.of("@/w/a/mnt/in"), (YES, 5));
    assert_eq!(sandbox.of("@/w/b"), (YES, 3));
    assert_eq!(sandbox.of("@/w/b/x"), (YES, 4));
    assert_eq!(sandbox.warnings, [""; 0]);
}

#[test]
fn a_bind_mount_of_a_secret_in_the_workspace_stays_closed() {
    let bind = |root: &str| format!("1 0 1 / /\n2 1 1 {root} @/w/in");
    let rules = "read.deny = ['~/.ssh/**']\nwrite.allow = ['${WORKSPACE}/**']\n\
                 read.allow = ['${WORKSPACE}/**']";
    let sandbox = compiled(rules, &bind("@/home/.ssh"));
    assert_eq!(sandbox.of("@/w/in/key"), (-1, NO));
    assert_eq!(
        sandbox.warnings,
        [
            "`@/w/in` stays closed to read: it is the same as `@/home/.ssh`, which \
             files.read.deny \"~/.ssh/**\" closes",
            "`@/w/in` stays closed to write: it is the same as `@/home/.ssh`, which no rule \
             allows to write",
        ]
    );
    // A directory within the secret one too, and a directory around it.
    assert_eq!(compiled(rules, &bind("@/home/.ssh/sub")).of("@/w/in/key"), (-1, NO));
    let around = compiled(rules, &bind("@/home"));
    assert_eq!(around.of("@/w/in/.ssh/key"), (-1, NO));
    assert_eq!(around.of("@/w/in/x"), (3, NO));
}

#[test]
fn a_bind_mount_within_the_workspace_is_open() {
    let sandbox = compiled(
        "write.allow = ['${WORKSPACE}/**']\nwrite.deny = ['${WORKSPACE}/.git/hooks/**']",
        "1 0 1 / /\n2 1 1 @/w/src @/w/copy\n3 1 1 @/w/.git/hooks/sub @/w/hooks",
    );
    assert_eq!(sandbox.of("@/w/copy/x"), (YES, 1));
    assert_eq!(sandbox.of("@/w/hooks/x"), (YES, -2));
    assert_eq!(sandbox.warnings.len(), 1, "{:?}", sandbox.warnings);
}

#[test]
fn a_workspace_that_is_a_bind_mount_is_open() {
    let sandbox = compiled(
        "write.allow = ['${WORKSPACE}/**']",
        "1 0 1 / /\n2 1 1 /srv/project @/w\n3 1 1 /srv /mnt",
    );
    assert_eq!(sandbox.of("@/w/x"), (YES, 1));
    assert_eq!(sandbox.of("/srv/project/x"), (YES, 1));
    assert_eq!(sandbox.of("/mnt/project/x"), (YES, 1));
    assert_eq!(sandbox.of("/srv/x"), (YES, NO));
    assert_eq!(sandbox.warnings, [""; 0]);
}

#[test]
fn a_denial_follows_to_every_path_of_the_same_place() {
    let sandbox = compiled(
        "read.deny = ['~/.ssh/**', '@/closed']\nwrite.allow = ['@/w', '@/closed/mnt/y']",
        "1 0 1 / /\n2 1 1 @/home /mnt\n3 1 2 /pub @/closed/mnt\n4 1 2 / /disk",
    );
    assert_eq!(sandbox.of("/mnt/.ssh/key"), (-1, NO));
    assert_eq!(sandbox.of("/disk/pub/x"), (-2, NO));
    assert_eq!(sandbox.of("/disk/x"), (YES, NO));
    assert_eq!(sandbox.of("/disk/pub/y"), (-2, 4));
}

#[test]
fn deny_wins_where_two_paths_name_one_place() {
    let sandbox =
        compiled("write.allow = ['@/w/**']\nwrite.deny = ['/mnt/**']", "1 0 1 / /\n2 1 1 @/w /mnt");
    assert_eq!(sandbox.of("@/w/x"), (YES, -2));
    assert_eq!(
        sandbox.warnings,
        ["`@/w` stays closed to write: it is the same as `/mnt`, which files.write.deny \
             \"/mnt/**\" closes"]
    );
}

#[test]
fn a_part_of_an_opened_mount_that_another_path_shows_stays_closed() {
    let sandbox = compiled(
        "write.allow = ['${WORKSPACE}/**']",
        "1 0 1 / /\n2 1 2 /data @/w/data\n3 1 2 /data/etc /etc/app",
    );
    assert_eq!(sandbox.of("@/w/data/x"), (YES, 1));
    assert_eq!(sandbox.of("@/w/data/etc/x"), (YES, NO));
    assert_eq!(sandbox.of("/etc/app"), (YES, NO));
    assert_eq!(
        sandbox.warnings,
        ["`@/w/data/etc` stays closed to write: it is the same as `/etc/app`, which no rule \
             allows to write"]
    );
}

#[test]
fn what_a_mount_hides_closes_nothing() {
    // The same file system beneath the workspace and at a path that another mount covers.
    let sandbox = compiled(
        "write.allow = ['${WORKSPACE}/**']",
        "1 0 1 / /\n2 1 2 / @/w/in\n3 1 2 / /cover/old\n4 1 3 / /cover",
    );
    assert_eq!(sandbox.of("@/w/in/x"), (YES, 1));
    assert_eq!(sandbox.warnings, [""; 0]);
}

#[test]
fn a_denied_place_stays_closed_where_a_mount_hides_its_own_path() {
    let sandbox = compiled(
        "read.deny = ['~/.ssh/**']\nread.allow = ['${WORKSPACE}/**']",
        "1 0 1 / /\n2 1 1 @/home/.ssh/sub @/w/in\n3 1 2 / @/home/.ssh/sub",
    );
    assert_eq!(sandbox.of("@/w/in/key"), (-1, NO));
    assert_eq!(sandbox.of("@/home/.ssh/sub/key"), (-1, NO));
    assert_eq!(
        sandbox.warnings,
        ["`@/w/in` stays closed to read: files.read.deny \"~/.ssh/**\" closes the same place"]
    );
}

#[test]
fn a_linked_home_of_keys_is_closed_where_it_really_is() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    std::fs::create_dir_all(root.join("keys")).unwrap();
    std::fs::create_dir_all(root.join("home")).unwrap();
    std::os::unix::fs::symlink("../keys", root.join("home/.ssh")).unwrap();
    let context = Context { home: root.join("home"), ..context() };
    let table = MountTable::read(None).unwrap();
    let (policy, _) = compile(&load(None).unwrap(), &context, &table).unwrap();
    let (dev, place) = table.locate(&to_components(&root.join("keys/id_ed25519"))).unwrap();
    let rights = walk(&policy, dev, &place).unwrap();
    assert!(!decision(rights, Kind::Read).allow);
    let rule = &policy.rules[rights.rules[0] as usize - 1];
    assert_eq!((rule.id, rule.text.as_str()), (rights.rules[0], "~/.ssh/**"));
    assert_eq!((rule.layer.as_str(), rule.file.as_str()), ("preset", "preset:credentials"));
    let line =
        include_str!("presets/credentials.toml").lines().nth(rule.line as usize - 1).unwrap();
    assert_eq!(line, "    \"~/.ssh/**\",");
    assert_eq!(rule.column, 5);
}

#[test]
fn what_is_mounted_later_is_read_only_or_closed() {
    let unknown = |rules| {
        let policy = compiled(rules, ONE).policy;
        let rights = walk(&policy, 0, &at("/x")).unwrap();
        assert_eq!(Some(rights), walk(&policy, 0, &[]));
        assert_eq!(policy.roots[0].1.below.unknown, 1);
        (Access::from_bits_retain(rights.allow), rights.rules[0])
    };
    assert_eq!(unknown("write.allow = ['/']"), (Access::READ | Access::EXECUTE, 0));
    assert_eq!(unknown("read.deny = ['/']\nread.allow = ['@/w']"), (Access::EXECUTE, 1));
    assert_eq!(unknown("read.deny = ['/**']"), (Access::EXECUTE, 1));
}

#[test]
fn devices_are_the_common_ones_and_the_terminal() {
    let sandbox = compiled("", ONE);
    let devs: Vec<u32> = sandbox.policy.devices.iter().map(|device| device.dev).collect();
    let numbers = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, 4)];
    assert_eq!(devs, numbers.map(|(major, minor)| kernel_dev(major, minor)));
    let both = Access::READ | Access::WRITE;
    assert!(sandbox.policy.devices.iter().all(|device| device.allow == both));
}

#[test]
fn a_place_too_deep_in_its_file_system_is_an_error() {
    let root = "/x".repeat(60);
    let table = table(&format!("1 0 1 / /\n2 1 2 {root} {BASE}/mnt"));
    let rule = |names: usize| {
        let path = format!("{BASE}/mnt{}", "/y".repeat(names));
        let text = format!("version = 1\nfiles.read.deny = ['{path}']");
        compile(&load_text("p.toml", text).unwrap(), &context(), &table)
    };
    assert!(rule(4).is_ok());
    let error = rule(5).err().unwrap();
    let position = error.diagnostics[0].position.as_ref().unwrap();
    assert_eq!((position.line, position.column), (2, 20));
    assert!(error.diagnostics[0].message.contains("65 components deep"), "{error}");
}

#[test]
fn a_table_without_a_root_is_an_error() {
    let text = format!("version = 1\nfiles.read.deny = ['{BASE}/x']");
    let policy = load_text("p.toml", text).unwrap();
    let error = compile(&policy, &context(), &table("7 3 5 / /proc")).err().unwrap();
    assert!(error.diagnostics[0].message.contains("no mount holds"), "{error}");
}

/// Mounts the given roots (minor number of the device, place) at the given points, one after the
/// other, each on what the path reaches at that time.
pub(super) fn mounted<'a>(
    mounts: impl Iterator<Item = (usize, &'a str, &'a str)>,
) -> (String, MountTable) {
    let mut lines = ONE.to_owned();
    for (id, (minor, root, point)) in (2..).zip(mounts) {
        let parent = table(&lines).holder(&at(point)).unwrap().id;
        write!(lines, "\n{id} {parent} {minor} {root} {point}").unwrap();
    }
    let table = table(&lines);
    (lines, table)
}

fn usual_variables() -> usize {
    load(None).unwrap().variables.len()
}

/// The reference's examples are policies.
#[test]
fn the_examples_of_the_reference_are_policies() {
    let text = include_str!("../../../docs/policy.md");
    let mut examples = text.split("```toml\n").skip(1).filter_map(|part| part.split("```").next());
    let mut next = || examples.next().unwrap().to_owned();
    assert_eq!(load_text("policy.md", next()).unwrap().network.len(), 3);

    let policy = load_text("policy.md", next()).unwrap();
    let placed = expand(&policy, &context()).unwrap();
    let rule = |kind, path: &str| {
        let path = at(&path.replace('@', BASE));
        decide::path(&placed, policy.defaults, kind, &path).rule
    };
    for (path, expected) in [
        ("/x/.env", 1),
        ("/x/.env.local", 1),
        ("/x/.env.example", 0),
        ("/x/secrets", 0),
        ("/x/secrets/y/z", 2),
        ("@/home/clients/a/contracts/b", 3),
        ("@/home/clients/contracts", 0),
        ("@/w/a.key", 4),
        ("@/w/a/b/c.p12", 4),
        ("/srv/app/[id]/7x", 5),
        ("/srv/app/i/7x", 0),
    ] {
        assert_eq!(rule(Kind::Read, path), expected, "{path}");
    }
    assert_eq!(rule(Kind::Execute, "@/w/x"), 6);
    assert_eq!(rule(Kind::Execute, "@/w/a/bin/x"), 8);

    let sandbox = compiled(&next(), ONE);
    assert_eq!(sandbox.of("@/w/src/x"), (YES, 1));
    assert_eq!(sandbox.of("@/w/.git/config"), (YES, -3));
    assert_eq!(sandbox.of("@/w/.git/refs/heads/x"), (YES, 2));

    let finer = next();
    let sandbox = compiled(finer.split_once("[files]\n").unwrap().1, ONE);
    let may = |kind, path: &str| decision(sandbox.rights(path), kind).allow;
    assert!(may(Kind::Delete, "@/w/x") && may(Kind::Attributes, "@/w/x"));
    assert!(may(Kind::Write, "@/w/records/x") && may(Kind::Attributes, "@/w/records/x"));
    assert!(!may(Kind::Delete, "@/w/records/x") && !may(Kind::Attributes, "@/w/a/x.sh"));
    assert!(may(Kind::Write, "@/w/a/x.sh") && may(Kind::Delete, "@/w/a/x.sh"));
    let cached = "/var/cache/my-tool/x";
    assert!(may(Kind::Delete, cached) && !may(Kind::Write, cached));

    let listed = next();
    let sandbox = compiled(listed.split_once("[files]\n").unwrap().1, ONE);
    let read = |path: &str| decision(sandbox.rights(path), Kind::Read).allow;
    assert!(read("/usr/bin/env") && read("/etc/ssl/certs/x.pem") && read("@/w") && read("@/w/x"));
    assert!(read("/etc/ld.so.cache") && read("/etc/terminfo/x"));
    assert!(!read("/home/x") && !read("/etc/shadow") && !read("@/w/a/.env"));
    assert!(!read("/etc/ssl/private/x"));

    assert_eq!(load_text("policy.md", next()).unwrap().counting().count(), 2);
    assert_eq!(load_text("policy.md", next()).unwrap().names.len(), 3);
    let tls = load_text("policy.md", next()).unwrap();
    assert_eq!(tls.names.iter().filter(|rule| rule.sni).count(), 2);
    assert_eq!(tls.counting().count(), 1);

    let unix = load_text("policy.md", next()).unwrap();
    let named = unix.files.iter().filter(|rule| rule.access == Access::CONNECT && rule.allow);
    assert_eq!(named.count(), 3);

    assert_eq!(load_text("policy.md", next()).unwrap().variables.len(), usual_variables() + 3);
    assert_eq!(load_text("policy.md", next()).unwrap().asks.len(), 5);
    assert_eq!(load_text("policy.md", next()).unwrap().audits.len(), 2);

    let usual = load_text("policy.md", "version = 1\nextends = ['default']\n".to_owned()).unwrap();
    assert!(load_text("policy.md", next()).unwrap().files.len() < usual.files.len());
    assert!(load_text("policy.md", next()).unwrap().permits_namespaces());
    assert!(!usual.permits_namespaces());
    assert!(examples.next().is_none());
}
