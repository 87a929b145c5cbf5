//! Rules tied to a machine: variables replaced, symbolic links resolved.

use super::diagnostic::{Diagnostic, PolicyError, checked};
use super::resolve::{Resolved, Resolver};
use super::rule::{Base, FileRule, Kind, Pattern, Policy, Scope, Step};
use super::services::Surroundings;
use super::worktree;
use crate::kernel::mounts::{Components, to_components, to_path};
use sandbox_common::Access;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

/// What the variables of a policy stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The agent user's home: `~`.
    pub home: PathBuf,
    /// The directory the agent works in: `${WORKSPACE}`.
    pub workspace: PathBuf,
    /// The session's own temporary directory: `${TMPDIR}`.
    pub tmpdir: PathBuf,
    /// The session's terminal, if it has one: its device number in the kernel's encoding.
    pub terminal: Option<u32>,
    /// Whose sockets the services' are.
    pub surroundings: Surroundings,
}

impl Context {
    fn base(&self, base: Base) -> Cow<'_, Path> {
        match base {
            Base::Everywhere | Base::Root => Path::new("/").into(),
            Base::Home => self.home.as_path().into(),
            Base::Workspace => self.workspace.as_path().into(),
            Base::Tmpdir => self.tmpdir.as_path().into(),
            Base::Runtime => self.surroundings.runtime_dir().into(),
        }
    }
}

/// A rule on one place, or on those beneath it that a pattern matches. A rule that names a symbolic
/// link is two of them, and one with braces several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// The rule; 0 is the default of a ceiling.
    pub id: u32,
    /// Whose rule it is: 0 the policy's own, else the number of the ceiling, from 1.
    pub layer: u16,
    /// The accesses it speaks of, see [`FileRule::access`].
    pub access: Access,
    /// Its verdict.
    pub allow: bool,
    /// The place: absolute, symbolic links resolved.
    pub path: Components,
    /// The pattern beneath it; empty where the place itself is meant.
    pub tail: Vec<Step>,
    /// The pattern is meant in every file system, those too that nobody knows yet.
    pub everywhere: bool,
    /// Whether the place itself is meant too.
    pub scope: Scope,
}

/// Ties the file rules of a policy and of its ceilings to this machine. What a ceiling does not allow
/// where no rule of it speaks is a rule on `/`.
pub fn expand(policy: &Policy, context: &Context) -> Result<Vec<Placed>, PolicyError> {
    let mut machine = Machine::new(context);
    let mut placed = Vec::new();
    let mut diagnostics = Vec::new();
    let ceilings = (1..).zip(&policy.ceilings);
    for (layer, ceiling) in ceilings.clone() {
        let closed = Kind::ALL.into_iter().filter(|kind| !ceiling.ceiling_allows(*kind));
        placed.extend(closed.map(|kind| Placed::default_of(layer, kind)));
    }
    for (layer, policy) in [(0, policy)].into_iter().chain(ceilings) {
        for rule in &policy.files {
            let begin = placed.len();
            if let Err(diagnostic) = machine.place_of(rule, layer, &mut placed) {
                diagnostics.push(diagnostic);
            }
            placed[begin..].iter_mut().for_each(|placed| placed.layer = layer);
        }
    }
    checked(placed, diagnostics)
}

impl Placed {
    /// Whether it speaks of a kind.
    pub const fn speaks_of(&self, kind: Kind) -> bool {
        self.access.intersects(kind.access())
    }

    /// A ceiling allows nothing of a kind but what its rules name.
    fn default_of(layer: u16, kind: Kind) -> Self {
        Self {
            id: 0,
            layer,
            access: kind.access(),
            allow: false,
            path: Components::new(),
            tail: Vec::new(),
            everywhere: false,
            scope: Scope::Tree,
        }
    }
}

/// Whether a service is also where variables say: whoever starts the session sets them, so they open nothing
/// that a ceiling leaves open by its service alone.
pub(super) const fn by_variables(layer: u16, allow: bool) -> bool {
    layer == 0 || !allow
}

/// The machine that rules are tied to.
pub(super) struct Machine<'a> {
    context: &'a Context,
    resolver: Resolver,
}

impl<'a> Machine<'a> {
    pub(super) fn new(context: &'a Context) -> Self {
        Self { context, resolver: Resolver::default() }
    }

    /// Appends the places of a rule of the policy itself, see [`place_of`](Self::place_of).
    pub(super) fn place(
        &mut self,
        rule: &FileRule,
        placed: &mut Vec<Placed>,
    ) -> Result<(), Diagnostic> {
        self.place_of(rule, 0, placed)
    }

    /// Appends the places of a rule of a layer: where it was written and, for a symbolic link, where that leads.
    fn place_of(
        &mut self,
        rule: &FileRule,
        layer: u16,
        placed: &mut Vec<Placed>,
    ) -> Result<(), Diagnostic> {
        let of_service = rule.service.map(|service| {
            self.context.surroundings.sockets(service, by_variables(layer, rule.allow)).patterns
        });
        for pattern in rule.patterns.iter().chain(of_service.iter().flatten()) {
            let of = |path| Placed {
                id: rule.origin.id,
                layer: 0,
                access: rule.access,
                allow: rule.allow,
                path,
                tail: pattern.tail.clone(),
                everywhere: pattern.base == Base::Everywhere,
                scope: pattern.scope,
            };
            let (path, target) = self.paths(rule, pattern)?;
            placed.push(of(path));
            placed.extend(target.map(of));
        }
        Ok(())
    }

    /// The path of a pattern up to its first wildcard, and where that leads if it is a link.
    fn paths(
        &mut self,
        rule: &FileRule,
        pattern: &Pattern,
    ) -> Result<(Components, Option<Components>), Diagnostic> {
        let place = &rule.origin.place;
        let base = self.context.base(pattern.base);
        if !base.is_absolute() {
            return Err(place.error(
                format!("the rule starts from `{}`, which is no absolute path", base.display()),
                "give the session an absolute home, workspace and temporary directory",
            ));
        }
        let mut written = to_components(&base);
        written.extend_from_slice(&pattern.components);
        let fail = |error: io::Error| {
            place.error(
                format!("cannot resolve `{}`: {error}", to_path(&written).display()),
                "name the directory that the path leads to",
            )
        };
        let target = self.resolver.resolve(&written, true).map_err(fail)?;
        if target.links.is_empty() {
            return Ok((target.path, None));
        }
        let link = self.resolver.resolve(&written, false).map_err(fail)?.path;
        if rule.allow {
            self.stays_inside(rule, &target)?;
        }
        if place.source.layer == worktree::LAYER {
            return Err(place.error(
                "a symbolic link has just been put in the path, where there was none",
                "start the session again when nobody changes the repository",
            ));
        }
        let other = Some(target.path).filter(|target| *target != link);
        Ok((link, other))
    }

    /// An agent can plant a symbolic link in a directory that it may write to. A later session's allow
    /// rule that leads through it must not open what lies elsewhere.
    fn stays_inside(&mut self, rule: &FileRule, target: &Resolved) -> Result<(), Diagnostic> {
        for inside in [&self.context.workspace, &self.context.tmpdir] {
            let base = to_components(inside);
            let base = self.resolver.resolve(&base, true).map_or(base, |resolved| resolved.path);
            let planted = target.links.iter().find(|link| link.starts_with(&base));
            if let Some(link) = planted.filter(|_| !target.path.starts_with(&base)) {
                let (link, path) = (to_path(link), to_path(&target.path));
                return Err(rule.origin.place.error(
                    format!(
                        "the path leads out of `{}` by the link `{}`",
                        inside.display(),
                        link.display()
                    ),
                    format!("if that is meant, name where it leads: `{}`", path.display()),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;
    use std::os::unix::fs::symlink;

    /// A policy with one rule, and where it leads in a home `h`, a workspace `w` beneath `dir`.
    fn places_of(dir: &Path, key: &str, text: &str) -> Result<Vec<PathBuf>, String> {
        let policy = format!("version = 1\nfiles.{key} = ['{text}']\n");
        let policy = load_text("p", policy).map_err(|error| error.to_string())?;
        let context = Context {
            home: dir.join("h"),
            workspace: dir.join("w"),
            tmpdir: dir.join("t"),
            terminal: None,
            surroundings: Surroundings::default(),
        };
        let placed = expand(&policy, &context).map_err(|error| error.to_string())?;
        Ok(placed.into_iter().map(|rule| to_path(&rule.path)).collect())
    }

    /// A directory whose own path has no links, with `h` and `w`.
    fn home() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        for name in ["h", "w", "data/ssh"] {
            std::fs::create_dir_all(path.join(name)).unwrap();
        }
        (dir, path)
    }

    #[test]
    fn what_does_not_exist_is_taken_as_written() {
        let (_guard, dir) = home();
        let found = places_of(&dir, "read.deny", "~/a/b/**").unwrap();
        assert_eq!(found, [dir.join("h/a/b")]);
    }

    #[test]
    fn links_in_parents_are_resolved() {
        let (_guard, dir) = home();
        symlink("../data", dir.join("h/d")).unwrap();
        let found = places_of(&dir, "read.deny", "~/d/ssh/key").unwrap();
        assert_eq!(found, [dir.join("data/ssh/key")]);
    }

    #[test]
    fn a_link_is_covered_and_its_target_too() {
        let (_guard, dir) = home();
        symlink(dir.join("data/ssh"), dir.join("h/.ssh")).unwrap();
        let found = places_of(&dir, "read.deny", "~/.ssh/**").unwrap();
        assert_eq!(found, [dir.join("h/.ssh"), dir.join("data/ssh")]);
    }

    #[test]
    fn a_dangling_link_covers_what_it_will_lead_to() {
        let (_guard, dir) = home();
        symlink("../later/../data/x/y", dir.join("h/link")).unwrap();
        let found = places_of(&dir, "read.deny", "~/link").unwrap();
        assert_eq!(found, [dir.join("h/link"), dir.join("data/x/y")]);
    }

    #[test]
    fn a_loop_is_an_error() {
        let (_guard, dir) = home();
        symlink("b", dir.join("h/a")).unwrap();
        symlink("a", dir.join("h/b")).unwrap();
        let error = places_of(&dir, "read.deny", "~/a/x").unwrap_err();
        assert!(error.contains("cannot resolve"), "{error}");
    }

    #[test]
    fn an_allow_rule_does_not_follow_a_link_out_of_the_workspace() {
        let (_guard, dir) = home();
        symlink(dir.join("h"), dir.join("w/out")).unwrap();
        symlink("inner", dir.join("w/in")).unwrap();
        for text in ["${WORKSPACE}/out", "${WORKSPACE}/out/x", "${WORKSPACE}/out/**"] {
            for key in ["write.allow", "read.allow"] {
                let error = places_of(&dir, key, text).unwrap_err();
                assert!(error.contains("leads out of"), "{error}");
                assert!(error.contains("name where it leads"), "{error}");
            }
            assert!(places_of(&dir, "write.deny", text).is_ok());
        }
        symlink("../w/out", dir.join("data/through")).unwrap();
        for path in ["w/out/x", "data/through/x"] {
            let absolute = dir.join(path).display().to_string();
            assert!(places_of(&dir, "write.allow", &absolute).is_err());
        }
        let found = places_of(&dir, "write.allow", "${WORKSPACE}/in").unwrap();
        assert_eq!(found, [dir.join("w/in"), dir.join("w/inner")]);
    }

    #[test]
    fn a_workspace_behind_a_link_is_the_directory_itself() {
        let (_guard, dir) = home();
        std::fs::remove_dir(dir.join("w")).unwrap();
        symlink("data", dir.join("w")).unwrap();
        let found = places_of(&dir, "write.allow", "${WORKSPACE}/**").unwrap();
        assert_eq!(found, [dir.join("w"), dir.join("data")]);
    }

    #[test]
    fn a_workspace_is_taken_as_it_is_spelled() {
        let (_guard, dir) = home();
        for name in ["a (b)", "a[b]*", "{x,y}", "a.+?$", "line\nbreak", "\\", "~", "ä"] {
            let workspace = dir.join(name);
            let text = "version = 1\nfiles.write.allow = ['${WORKSPACE}/x', '${WORKSPACE}/*/y']\n";
            let policy = load_text("p", text.to_owned()).unwrap();
            let context = Context {
                home: dir.join("h"),
                workspace: workspace.clone(),
                tmpdir: dir.join("t"),
                terminal: None,
                surroundings: Surroundings::default(),
            };
            let placed = expand(&policy, &context).unwrap();
            assert_eq!(to_path(&placed[0].path), workspace.join("x"), "{name}");
            assert_eq!(to_path(&placed[1].path), workspace, "{name}");
        }
    }

    #[test]
    fn one_place_has_many_spellings() {
        let (_guard, dir) = home();
        symlink("data", dir.join("by link")).unwrap();
        let shown = dir.display();
        for text in [
            format!("{shown}/data/x"),
            format!("{shown}/data/x/"),
            format!("{shown}//data/x//"),
            format!("{shown}/./data/./x/."),
            format!("{shown}/by link/x"),
        ] {
            let found = places_of(&dir, "read.deny", &text);
            assert_eq!(found.unwrap(), [dir.join("data/x")], "{text}");
        }
        let other = places_of(&dir, "read.deny", "~ann/x").unwrap_err();
        assert!(other.contains("agent user's home and for no other"), "{other}");
    }
}
