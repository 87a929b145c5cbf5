//! What the language says of an operation: which may succeed, which must be refused.
//!
//! Places are judged by [`decide::path`], the language's meaning. What that leaves open is said here
//! once more, independently of the kernel side: which accesses an operation takes, that moving and
//! linking never gain, and what holds where a place is seen by several paths.

use super::model::{Last, Lost, Model, Name, Names, Spot, Target, followed};
use super::operation::{Action, Op};
use sandbox_userspace::kernel::mounts::{Components, to_components};
use sandbox_userspace::policy::expand::{Placed, expand};
use sandbox_userspace::policy::rule::{Defaults, Kind, Step};
use sandbox_userspace::policy::{Context, decide, load_text};
use std::collections::BTreeSet;
use std::path::Path;

/// The verdict on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    Allow,
    Deny,
    /// Refused only after the file was made: its name may be made, but it may not be opened so.
    DenyAndLeave,
    /// The language leaves it open, or promises too little to be held to it.
    Unsure,
}

impl Say {
    fn of(allow: bool) -> Self {
        if allow { Self::Allow } else { Self::Deny }
    }

    /// Both must be allowed.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Allow, _) => other,
            (Self::Unsure, Self::Deny) => Self::Deny,
            _ => self,
        }
    }
}

/// The rules of a policy, resolved, and what holds where none speaks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    placed: Vec<Placed>,
    defaults: Defaults,
}

/// Those that matter in one zone.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    rules: Rules,
    /// The same without patterns.
    spelled: Rules,
    /// The zone's root.
    zone: Components,
}

/// Reads and resolves a policy as `sandbox run` does in a workspace.
pub(crate) fn resolved(policy: &str, workspace: &Path) -> Result<Rules, String> {
    let context = Context {
        home: "/root".into(),
        workspace: workspace.into(),
        tmpdir: "/tmp/of-the-session".into(),
        terminal: None,
        surroundings: sandbox_userspace::policy::services::Surroundings::default(),
    };
    let policy = load_text("policy", policy.to_owned()).map_err(|error| error.to_string())?;
    let placed = expand(&policy, &context).map_err(|error| error.to_string())?;
    Ok(Rules { placed, defaults: policy.defaults })
}

impl Rules {
    /// Whether an object may be accessed so, by its absolute path.
    fn allow(&self, kind: Kind, path: &[Name]) -> bool {
        decide::path(&self.placed, self.defaults, kind, path).allow
    }

    /// The same, for a path of which no part is seen elsewhere.
    pub(crate) fn allow_path(&self, kind: Kind, path: &Path) -> bool {
        self.allow(kind, &to_components(path))
    }

    fn filtered(&self, keep: impl Fn(&&Placed) -> bool) -> Self {
        let placed = self.placed.iter().filter(keep).cloned().collect();
        Self { placed, defaults: self.defaults }
    }
}

impl Reference {
    /// Keeps those of the rules that can speak of something in the zone.
    pub(crate) fn new(rules: &Rules, zone: &Path) -> Self {
        let zone = to_components(zone);
        let rules =
            rules.filtered(|rule| rule.path.starts_with(&zone) || zone.starts_with(&rule.path));
        let spelled = rules.filtered(|rule| rule.tail.is_empty());
        Self { rules, spelled, zone }
    }

    fn absolute(&self, view: &[Name]) -> Components {
        [self.zone.as_slice(), view].concat()
    }

    fn place(&self, model: &Model, spot: &Spot, kind: Kind) -> Say {
        self.place_by(&self.rules, model, spot, kind)
    }

    /// Whether an object at a place may be accessed so.
    ///
    /// Where it is seen by several paths, what closes it by one is open by no other, but for a rule
    /// that opens by name what lies in the part that is mounted. Whether a pattern does so too is
    /// left open.
    fn place_by(&self, rules: &Rules, model: &Model, spot: &Spot, kind: Kind) -> Say {
        let views: Vec<Components> =
            model.views(spot).iter().map(|view| self.absolute(view)).collect();
        if views.is_empty() {
            // Covered by a mount: what of it can be done is hardly anything.
            return Say::Unsure;
        }
        let open = views.iter().filter(|view| self.allow_across(rules, model, kind, view)).count();
        if open == 0 || open == views.len() {
            return Say::of(open > 0);
        }
        let mounted = model.mounts.iter().skip(1).filter(|mount| {
            mount.file_system == spot.file_system && spot.names.starts_with(&mount.root)
        });
        let mut parts = mounted.flat_map(|mount| [&mount.point, &mount.root]);
        let opens = |rule: &&Placed| rule.allow && rule.kind == kind;
        let named = parts.any(|part| {
            let part = self.absolute(part);
            rules.placed.iter().filter(opens).any(|rule| {
                rule.path.starts_with(&part)
                    && views.iter().any(|view| view.starts_with(&rule.path))
            })
        });
        let matched = rules.placed.iter().filter(opens).any(|rule| !rule.tail.is_empty());
        if named || matched { Say::Unsure } else { Say::Deny }
    }

    /// Whether an object may be accessed so, by its absolute path: a pattern that allows never reaches
    /// across a mount point.
    fn allow_across(&self, rules: &Rules, model: &Model, kind: Kind, view: &[Name]) -> bool {
        let points: Vec<Components> =
            model.mounts.iter().skip(1).map(|mount| self.absolute(&mount.point)).collect();
        let points: Vec<&[Name]> = points.iter().map(Vec::as_slice).collect();
        decide::path_across(&rules.placed, rules.defaults, kind, view, &points).allow
    }

    fn all(&self, model: &Model, spot: &Spot, kinds: &[Kind]) -> Say {
        kinds.iter().fold(Say::Allow, |say, kind| say.and(self.place(model, spot, *kind)))
    }

    /// What the rules name strictly beneath a place, from there; a directory that is seen elsewhere
    /// too is named by the rules about that path.
    fn named_beneath(&self, model: &Model, spot: &Spot) -> Vec<Names> {
        let shared = model.mounts.iter().skip(1).filter(|m| m.file_system == spot.file_system);
        let mut found: Vec<Names> = shared
            .filter_map(|mount| mount.root.strip_prefix(spot.names.as_slice()))
            .filter(|rest| !rest.is_empty())
            .map(<[Name]>::to_vec)
            .collect();
        for view in model.views(spot) {
            let view = self.absolute(&view);
            let rules = self.rules.placed.iter();
            let beneath = rules.filter_map(|rule| rule.path.strip_prefix(&*view));
            found.extend(beneath.filter(|rest| !rest.is_empty()).map(<[Name]>::to_vec));
        }
        found
    }

    /// Whether what is at one place may be at the other.
    ///
    /// Nothing may gain a right, neither the object nor anything that is or will be in it. A
    /// directory beneath whose old or new place a rule says something else than holds around it
    /// stays; where such a rule only repeats what holds, either is right.
    fn moving(&self, model: &Model, from: &Spot, to: &Spot, directory: bool) -> Say {
        let mut inside = vec![Names::new()];
        let mut repeated = false;
        if directory {
            let any = vec![b"any".to_vec()];
            for place in [from, to] {
                for named in self.named_beneath(model, place) {
                    repeated = true;
                    let below = [named.as_slice(), &any].concat();
                    for names in [&named, &below] {
                        for kind in Kind::ALL {
                            let say = |names: &[Name]| {
                                self.place_by(&self.spelled, model, &place.join(names), kind)
                            };
                            let (around, there) = (say(&any), say(names));
                            if around == Say::Unsure || there == Say::Unsure {
                                return Say::Unsure;
                            }
                            if around != there {
                                return Say::Deny;
                            }
                        }
                    }
                    inside.extend([named, below]);
                }
            }
            inside.push(any.clone());
            if self.spelled.placed.len() < self.rules.placed.len() {
                repeated |= !self.match_alike(model, from, to);
                for example in EXAMPLES {
                    let names: Names = example.iter().map(|name| name.to_vec()).collect();
                    inside.extend([[names.as_slice(), &any].concat(), names]);
                }
            }
        }
        for names in &inside {
            for kind in Kind::ALL {
                match (
                    self.place(model, &from.join(names), kind),
                    self.place(model, &to.join(names), kind),
                ) {
                    (Say::Unsure, _) | (_, Say::Unsure) => return Say::Unsure,
                    (Say::Deny, Say::Allow) => return Say::Deny,
                    _ => {}
                }
            }
        }
        if repeated { Say::Unsure } else { Say::Allow }
    }

    /// Whether what every pattern still wants to see beneath two directories is the same.
    fn match_alike(&self, model: &Model, one: &Spot, other: &Spot) -> bool {
        let wanted = |spot: &Spot| -> BTreeSet<(u32, BTreeSet<usize>)> {
            let views = model.views(spot).into_iter().map(|view| self.absolute(&view));
            let views: Vec<Components> = views.collect();
            let patterns = self.rules.placed.iter().enumerate();
            let patterns = patterns.filter(|(_, rule)| !rule.tail.is_empty());
            patterns
                .filter_map(|(index, rule)| {
                    let mut left = BTreeSet::new();
                    for view in &views {
                        if let Some(rest) = view.strip_prefix(rule.path.as_slice()) {
                            left.extend(remaining(&rule.tail, rest));
                        }
                    }
                    (!left.is_empty()).then_some((u32::try_from(index).ok()?, left))
                })
                .collect()
        };
        wanted(one) == wanted(other)
    }

    /// The verdict on an operation; `None` where its paths lead nowhere, so that nobody can do it.
    pub(crate) fn judge(&self, model: &Model, op: &Op) -> Option<Say> {
        match self.verdict(model, op) {
            Ok(say) => Some(say),
            Err(Lost::Nowhere) => None,
            Err(Lost::Outside) => Some(Say::Unsure),
        }
    }

    fn verdict(&self, model: &Model, op: &Op) -> Result<Say, Lost> {
        let one = |last, kinds: &[Kind]| -> Result<Say, Lost> {
            let target = model.resolve(&op.path, last)?;
            // That it is missing the kernel says before anybody is asked.
            target.object.ok_or(Lost::Nowhere)?;
            Ok(self.all(model, &model.spot(&target), kinds))
        };
        let made = || -> Result<Say, Lost> {
            let target = model.resolve(&op.path, Last::Name)?;
            if target.object.is_some() {
                return Err(Lost::Nowhere);
            }
            Ok(self.place(model, &model.spot(&target), Kind::Write))
        };
        let itself = if op.number == 1 { Last::Itself } else { Last::Followed };
        match op.action {
            Action::Open => self.opening(model, op),
            Action::Mkdir | Action::Mknod | Action::Symlink => made(),
            Action::Unlink | Action::Rmdir => one(Last::Name, &[Kind::Write]),
            Action::Truncate | Action::Chmod | Action::SetAttribute | Action::RemoveAttribute => {
                one(Last::Followed, &[Kind::Write])
            }
            Action::Chown | Action::Times => one(itself, &[Kind::Write]),
            Action::Execute => one(Last::Followed, &RUNNING),
            Action::Link => self.linking(model, op),
            Action::Rename => self.renaming(model, op),
            Action::Stat => {
                model.resolve(&op.path, Last::Itself)?;
                Ok(Say::Allow)
            }
            Action::Bind | Action::Mount => Ok(Say::Unsure),
        }
    }

    fn opening(&self, model: &Model, op: &Op) -> Result<Say, Lost> {
        let flags = op.flags();
        let target = model.resolve(&op.path, followed(flags))?;
        if flags & libc::O_PATH != 0 {
            return Ok(Say::Allow);
        }
        let kinds: &[Kind] = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => &[Kind::Read],
            libc::O_WRONLY => &[Kind::Write],
            _ => &[Kind::Read, Kind::Write],
        };
        let spot = model.spot(&target);
        let Some(object) = target.object else {
            if flags & libc::O_CREAT == 0 {
                return Err(Lost::Nowhere);
            }
            return Ok(match self.place(model, &spot, Kind::Write) {
                Say::Allow => match self.all(model, &spot, kinds) {
                    Say::Deny => Say::DenyAndLeave,
                    say => say,
                },
                say => say,
            });
        };
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            let spot = spot.join(&[b"#1".to_vec()]);
            return Ok(self.all(model, &spot, kinds).and(self.place(model, &spot, Kind::Write)));
        }
        let mut say = self.all(model, &spot, kinds);
        if flags & libc::O_TRUNC != 0 && matches!(model.object(object), super::model::Object::File)
        {
            say = say.and(self.place(model, &spot, Kind::Write));
        }
        Ok(say)
    }

    fn linking(&self, model: &Model, op: &Op) -> Result<Say, Lost> {
        let from = model.resolve(&op.path, Last::Itself)?;
        let to = model.resolve(&op.second, Last::Name)?;
        if from.object.is_none() || to.object.is_some() {
            return Err(Lost::Nowhere);
        }
        let (from, to) = (model.spot(&from), model.spot(&to));
        let say = self.place(model, &to, Kind::Write);
        let say = say.and(self.all(model, &from, &[Kind::Read, Kind::Write]));
        Ok(say.and(self.moving(model, &from, &to, false)))
    }

    fn renaming(&self, model: &Model, op: &Op) -> Result<Say, Lost> {
        let from = model.resolve(&op.path, Last::Name)?;
        let to = model.resolve(&op.second, Last::Name)?;
        let moved = from.object.ok_or(Lost::Nowhere)?;
        let exchange = op.number & libc::RENAME_EXCHANGE != 0;
        // The name decides, also where the object that it replaces lies elsewhere by another name.
        let spot = |target: &Target| {
            let directory = model.spot_of_directory(target.directory);
            directory.join(std::slice::from_ref(&target.name))
        };
        let (old, new) = (spot(&from), spot(&to));
        let mut say = self.all(model, &old, &[Kind::Write]);
        say = say.and(self.place(model, &new, Kind::Write));
        if say == Say::Deny {
            return Ok(say);
        }
        say = say.and(self.moving(model, &old, &new, model.is_directory(moved)));
        if exchange {
            let other = to.object.ok_or(Lost::Nowhere)?;
            say = say.and(self.moving(model, &new, &old, model.is_directory(other)));
        }
        Ok(say)
    }
}

/// What running a program takes.
const RUNNING: [Kind; 2] = [Kind::Read, Kind::Execute];

/// What the random patterns speak of.
const EXAMPLES: [&[&[u8]]; 8] = [
    &[b".env"],
    &[b".env.local"],
    &[b"x.pem"],
    &[b"id_rsa"],
    &[b".git", b"hooks"],
    &[b".git", b"config"],
    &[b"secret"],
    &[b"nna"],
];

/// From which of its steps on a pattern goes on after these names.
fn remaining(steps: &[Step], names: &[Name]) -> BTreeSet<usize> {
    let skip = |at: usize| {
        let deep = matches!(steps.get(at), Some(Step::Deep));
        std::iter::once(at).chain(deep.then_some(at + 1))
    };
    let mut left: BTreeSet<usize> = skip(0).collect();
    for name in names {
        left = left
            .into_iter()
            .filter_map(|at| match steps.get(at)? {
                Step::Deep => Some(at),
                Step::Any => Some(at + 1),
                Step::Name(glob) => glob.matches(name).then_some(at + 1),
            })
            .flat_map(skip)
            .collect();
    }
    left
}
