//! With the real git, as the user who runs the tests.

use super::*;
use crate::policy::load_text;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// A repository `main`, its linked worktree `tree`, and a directory `other`.
struct Machine {
    _guard: tempfile::TempDir,
    root: PathBuf,
    user: u32,
}

impl Machine {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        let machine = Self { _guard: guard, root, user: rustix::process::geteuid().as_raw() };
        for name in ["main", "other", "home", "tmp"] {
            fs::create_dir(machine.at(name)).unwrap();
        }
        machine.git("main", &["init", "-q"]);
        machine.git("main", &["commit", "-q", "--allow-empty", "-m", "first"]);
        machine.git("main", &["worktree", "add", "-q", "../tree", "-b", "side"]);
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn git(&self, directory: &str, arguments: &[&str]) {
        let mut command = Command::new("git");
        let identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"];
        command.args(identity).args(arguments).current_dir(self.at(directory));
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"] {
            command.env_remove(name);
        }
        let output = command.env("HOME", self.at("home")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    fn find(&self) -> Result<Option<Worktree>, Refusal> {
        find(&self.at("tree"), self.user)
    }

    fn refused(&self) -> String {
        self.find().unwrap_err().to_string()
    }

    /// Extends a policy that has these rules; `@` stands for this machine's directory.
    fn extend(&self, rules: &str) -> (Policy, Option<Refusal>) {
        let root = self.root.to_str().unwrap();
        let text = format!("version = 1\n[files]\n{}", rules.replace('@', root));
        extend(load_text("p.toml", text).unwrap(), &self.context(), self.user).unwrap()
    }

    fn context(&self) -> Context {
        Context {
            home: self.at("home"),
            workspace: self.at("tree"),
            tmpdir: self.at("tmp"),
            terminal: None,
            surroundings: crate::policy::services::Surroundings::default(),
        }
    }
}

const OPEN: &str = "write.allow = ['${WORKSPACE}/**']\n";

#[test]
fn what_git_writes_is_opened_and_nothing_else() {
    let machine = Machine::new();
    let (policy, refusal) = machine.extend(OPEN);
    assert!(refusal.is_none(), "{refusal:?}");
    let placed = expand::expand(&policy, &machine.context()).unwrap();
    let may = |path: &str| decided(&policy, &placed, Kind::Write, &machine.at(path)).allow;
    for open in [
        "worktrees/tree/index.lock",
        "worktrees/tree/HEAD",
        "worktrees/tree/logs/HEAD",
        "objects/12/tmp_obj_x",
        "objects/pack/tmp_pack_x",
        "objects/info/commit-graph.lock",
        "refs/heads/side.lock",
        "logs/refs/heads/side",
        "packed-refs",
        "packed-refs.lock",
        "packed-refs.new",
        "shallow.lock",
        "rr-cache/12/preimage",
        "lfs/tmp/1",
    ] {
        assert!(may(&format!("main/.git/{open}")), "{open}");
    }
    for closed in [
        "main/.git/config",
        "main/.git/config.lock",
        "main/.git/config.worktree",
        "main/.git/hooks/pre-commit",
        "main/.git/info/attributes",
        "main/.git/modules/m/hooks/pre-commit",
        "main/.git/HEAD",
        "main/.git/index",
        "main/.git/logs/HEAD",
        "main/.git/objects",
        "main/.git/objects/info/alternates",
        "main/.git/refs",
        "main/.git/worktrees",
        "main/.git/worktrees/other/HEAD",
        "main/.git/worktrees/tree",
        "main/.git/worktrees/tree/gitdir",
        "main/.git/worktrees/tree/commondir",
        "main/.git/worktrees/tree/config",
        "main/.git/worktrees/tree/config.worktree",
        "main/.git/worktrees/tree/modules/m/hooks/pre-commit",
        "main/.git",
        "main/file",
        "tree/.git",
        "other/file",
    ] {
        assert!(!may(closed), "{closed}");
    }
    assert!(may("tree/file"));
}

#[test]
fn the_rules_can_be_named() {
    let machine = Machine::new();
    let (policy, _) = machine.extend(OPEN);
    let own = policy.files.iter().filter(|rule| rule.origin.place.source.layer == LAYER);
    let mut ids: Vec<_> = policy.files.iter().map(|rule| rule.origin.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), policy.files.len());
    for rule in own {
        let Origin { place, text, .. } = &rule.origin;
        assert!(place.source.text()[place.span.clone()].contains(text.as_str()), "{text}");
        assert!(named(&rule.origin).contains("workspace:git:"));
    }
}

#[test]
fn a_bare_repository_and_a_relative_link_are_good() {
    let machine = Machine::new();
    machine.git("other", &["clone", "-q", "--bare", "../main", "bare [x].git"]);
    machine.git("other/bare [x].git", &["worktree", "add", "-q", "../../of-bare", "side"]);
    let found = find(&machine.at("of-bare"), machine.user).unwrap().unwrap();
    assert_eq!(found.common, machine.at("other/bare [x].git"));
    assert!(found.source().unwrap().text().contains(r"/bare \\[x\\].git/objects/**"));

    fs::write(machine.at("tree/.git"), "gitdir: ../main/.git/worktrees/tree\n").unwrap();
    fs::write(machine.at("main/.git/worktrees/tree/gitdir"), "../../../../tree/.git\n").unwrap();
    assert_eq!(machine.find().unwrap().unwrap().common, machine.at("main/.git"));
}

#[test]
fn an_ordinary_repository_and_none_at_all_need_nothing() {
    let machine = Machine::new();
    for directory in ["main", "other"] {
        assert_eq!(find(&machine.at(directory), machine.user).unwrap(), None);
    }
}

/// What an earlier session's agent may have made of the workspace's `.git`.
#[test]
fn a_git_file_cannot_point_elsewhere() {
    let machine = Machine::new();
    machine.git("main", &["worktree", "add", "-q", "../second", "-b", "second"]);
    let git = machine.at("tree/.git");
    let good = fs::read(&git).unwrap();
    let main = machine.at("main/.git");
    for (target, problem) in [
        // Another worktree's directory, the repository itself, and places that are no repository.
        (main.join("worktrees/second"), "names"),
        (main.clone(), "is not one that linked worktrees share"),
        (machine.at("other"), "is not one that linked worktrees share"),
        (machine.at("home"), "is not one that linked worktrees share"),
        ("/".into(), "is not one that linked worktrees share"),
        (main.join("worktrees/absent"), "cannot be read"),
        (main.join("worktrees/tree/.."), "is not one that linked worktrees share"),
    ] {
        fs::write(&git, format!("gitdir: {}\n", target.display())).unwrap();
        let error = machine.refused();
        assert!(error.contains(problem), "{}: {error}", target.display());
    }
    for (text, problem) in [
        ("", "one line"),
        ("nonsense\n", "does not begin"),
        ("gitdir: \n", "is not one that linked"),
        ("gitdir: a\nb\n", "one line"),
        ("gitdir: a\0b\n", "one line"),
        (&"x".repeat(5000), "longer than a path"),
    ] {
        fs::write(&git, text).unwrap();
        let error = machine.refused();
        assert!(error.contains(problem), "{text:?}: {error}");
    }
    fs::remove_file(&git).unwrap();
    symlink(main.join("worktrees/tree"), &git).unwrap();
    assert!(machine.refused().contains("cannot be read"));
    fs::remove_file(&git).unwrap();
    let fifo = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &git, rustix::fs::FileType::Fifo, fifo, 0).unwrap();
    assert!(machine.refused().contains("no regular file"));
    fs::remove_file(&git).unwrap();
    fs::write(&git, good).unwrap();
    assert!(machine.find().unwrap().is_some());
}

#[test]
fn both_ends_must_agree() {
    let machine = Machine::new();
    let own = machine.at("main/.git/worktrees/tree");
    for (file, wrong) in [("gitdir", "other/.git"), ("gitdir", "tree/x"), ("commondir", "other")] {
        let right = fs::read(own.join(file)).unwrap();
        fs::write(own.join(file), machine.at(wrong).to_str().unwrap()).unwrap();
        assert!(machine.refused().contains(&format!("{file} names")), "{file} {wrong}");
        fs::write(own.join(file), right).unwrap();
    }
    for missing in ["main/.git/HEAD", "main/.git/worktrees/tree/HEAD"] {
        let right = fs::read(machine.at(missing)).unwrap();
        fs::remove_file(machine.at(missing)).unwrap();
        assert!(machine.refused().contains("cannot be read"), "{missing}");
        fs::write(machine.at(missing), right).unwrap();
    }
    assert!(machine.find().unwrap().is_some());
}

#[test]
fn no_part_may_be_a_symbolic_link() {
    for part in ["objects", "refs", "logs", "logs/refs", "packed-refs.lock", "shallow", "lfs"] {
        let machine = Machine::new();
        let path = machine.at("main/.git").join(part);
        let _ = fs::rename(&path, machine.at("moved"));
        symlink(machine.at("home"), &path).unwrap();
        let error = machine.refused();
        assert!(error.contains("symbolic link") || error.contains("no directory"), "{error}");
    }
}

#[test]
fn a_link_put_in_afterwards_stops_everything() {
    let machine = Machine::new();
    let (policy, _) = machine.extend(OPEN);
    let objects = machine.at("main/.git/objects");
    fs::rename(&objects, machine.at("moved")).unwrap();
    symlink(machine.at("home"), &objects).unwrap();
    let error = expand::expand(&policy, &machine.context()).unwrap_err().to_string();
    assert!(error.contains("symbolic link") && error.contains("workspace:git"), "{error}");
}

#[test]
fn everything_belongs_to_the_agents_user() {
    let machine = Machine::new();
    let error = find(&machine.at("tree"), machine.user + 1).unwrap_err();
    assert!(matches!(error, Refusal::Owner { .. }), "{error}");
}

#[test]
fn rules_about_the_repository_are_obeyed() {
    let machine = Machine::new();
    for (rules, problem) in [
        ("write.allow = ['${WORKSPACE}/**', '@/main']", "the agent may write"),
        ("write.allow = ['${WORKSPACE}/**', '@/**']", "the agent may write"),
        ("write.allow = ['${WORKSPACE}/**', '@/main/.git/config']", "the agent may write"),
        ("write.allow = ['${WORKSPACE}/**']\nwrite.deny = ['@/main/**']", "is closed by"),
        ("write.allow = ['${WORKSPACE}/**']\nread.deny = ['@/main/.git/**']", "is closed by"),
        ("write.allow = ['${WORKSPACE}/**']\nwrite.deny = ['@/main/.git/refs']", "is closed by"),
    ] {
        let (policy, refusal) = machine.extend(rules);
        let refusal = refusal.unwrap().message();
        assert!(refusal.contains(problem) && refusal.contains("(p.toml:"), "{rules}: {refusal}");
        assert!(policy.files.iter().all(|rule| rule.origin.place.source.layer != LAYER));
    }
    // Who may not write the workspace, or its `.git`, gets nothing and need not be told.
    for rules in ["", "write.allow = ['${WORKSPACE}/**']\nwrite.deny = ['${WORKSPACE}/.git']"] {
        let (policy, refusal) = machine.extend(rules);
        assert!(refusal.is_none());
        assert!(policy.files.iter().all(|rule| rule.origin.place.source.layer != LAYER));
    }
    // Rules about one branch, and about what stays closed anyway, stand beside what was opened.
    let rules = format!(
        "{OPEN}write.deny = ['@/main/.git/refs/heads/main', '@/main/.git/config', \
         '@/main/.git/hooks/**']"
    );
    let (policy, refusal) = machine.extend(&rules);
    assert!(refusal.is_none());
    let placed = expand::expand(&policy, &machine.context()).unwrap();
    let may = |path: &str| decided(&policy, &placed, Kind::Write, &machine.at(path)).allow;
    assert!(!may("main/.git/refs/heads/main") && may("main/.git/refs/heads/side"));
}

#[test]
fn a_repository_in_the_workspace_is_not_believed() {
    let machine = Machine::new();
    fs::rename(machine.at("main"), machine.at("tree/main")).unwrap();
    let inner = machine.at("tree/main/.git/worktrees/tree");
    fs::write(machine.at("tree/.git"), format!("gitdir: {}\n", inner.display())).unwrap();
    let (_, refusal) = machine.extend(OPEN);
    assert!(matches!(refusal, Some(Refusal::Writable { .. })), "{refusal:?}");
}
