//! What the language says of an operation: which may succeed, which must be refused.
//!
//! Places are judged by [`decide::path`], the language's meaning. What that leaves open is said here
//! once more, independently of the kernel side: which accesses an operation takes, that moving and
//! linking never gain, and what holds where a place is seen by several paths.

use super::model::{Id, Last, Lost, Model, Name, Names, Object, Spot, Target, followed};
use super::operation::{Action, Op};
use super::told::joined;
use sandbox_userspace::kernel::mounts::{Components, to_components};
use sandbox_userspace::policy::decide::{self, Decision};
use sandbox_userspace::policy::expand::{Placed, expand};
use sandbox_userspace::policy::rule::{Defaults, Kind, Origin, Step};
use sandbox_userspace::policy::{Context, load_text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

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
    /// What each number stands for.
    names: Rc<BTreeMap<u32, RuleName>>,
}

/// Key and text of a rule, as events have them.
pub(crate) type RuleName = (String, String);

/// Those that matter in one zone.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    rules: Rules,
    /// The same without patterns.
    spelled: Rules,
    /// The zone's root.
    zone: Components,
    /// What is mounted beneath it, by absolute paths.
    points: Vec<Components>,
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
    let name = |origin: &Origin| (origin.id, (origin.key.to_owned(), origin.text.clone()));
    let names = Rc::new(policy.origins().map(name).collect());
    Ok(Rules { placed, defaults: policy.defaults, names })
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
        Self { placed, defaults: self.defaults, names: Rc::clone(&self.names) }
    }
}

impl Reference {
    /// Keeps those of the rules that can speak of something in the zone.
    pub(crate) fn new(rules: &Rules, zone: &Path, model: &Model) -> Self {
        let zone = to_components(zone);
        let mounts = model.mounts.iter().skip(1);
        let points = mounts.map(|mount| [zone.as_slice(), &mount.point].concat()).collect();
        let rules =
            rules.filtered(|rule| rule.path.starts_with(&zone) || zone.starts_with(&rule.path));
        let spelled = rules.filtered(|rule| rule.tail.is_empty());
        Self { rules, spelled, zone, points }
    }

    fn absolute(&self, view: &[Name]) -> Components {
        [self.zone.as_slice(), view].concat()
    }

    /// The absolute paths at which a place is seen.
    fn seen(&self, model: &Model, spot: &Spot) -> Vec<Components> {
        model.views(spot).iter().map(|view| self.absolute(view)).collect()
    }

    fn place(&self, model: &Model, spot: &Spot, kind: Kind) -> Say {
        self.place_by(&self.rules, model, (spot, &self.seen(model, spot)), kind)
    }

    /// Whether an object at a place, which is seen at these paths, may be accessed so.
    ///
    /// Where it is seen by several paths, what closes it by one is open by no other, but for a rule
    /// that opens by name what lies in the part that is mounted. Whether a pattern does so too is
    /// left open.
    fn place_by(
        &self,
        rules: &Rules,
        model: &Model,
        (spot, views): (&Spot, &[Components]),
        kind: Kind,
    ) -> Say {
        if views.is_empty() {
            // Covered by a mount: what of it can be done is hardly anything.
            return Say::Unsure;
        }
        let open = views.iter().filter(|view| self.decide(rules, kind, view).allow).count();
        if open == 0 || open == views.len() {
            return Say::of(open > 0);
        }
        let mounted = model.mounts.iter().skip(1).filter(|mount| {
            mount.file_system == spot.file_system && spot.names.starts_with(&mount.root)
        });
        let mut parts = mounted.flat_map(|mount| [&mount.point, &mount.root]);
        let opens = |rule: &&Placed| rule.allow && rule.speaks_of(kind);
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

    /// The verdict on an object by its absolute path: a pattern that allows never reaches across a mount
    /// point.
    fn decide(&self, rules: &Rules, kind: Kind, view: &[Name]) -> Decision {
        let points: Vec<&[Name]> = self.points.iter().map(Vec::as_slice).collect();
        decide::path_across(&rules.placed, rules.defaults, kind, view, &points)
    }

    /// Every absolute path at which a place is seen.
    pub(crate) fn paths(&self, model: &Model, spot: &Spot) -> Vec<Vec<u8>> {
        model.views(spot).iter().map(|view| joined(&self.absolute(view))).collect()
    }

    /// What closes a place by any of the paths at which it is seen; `None` is the default.
    pub(crate) fn closing(&self, model: &Model, spot: &Spot, kind: Kind) -> Vec<Option<RuleName>> {
        let decide = |view: Names| self.decide(&self.rules, kind, &self.absolute(&view));
        let denials = model.views(spot).into_iter().map(decide).filter(|decision| !decision.allow);
        denials.map(|decision| self.rules.names.get(&decision.rule).cloned()).collect()
    }

    fn all(&self, model: &Model, spot: &Spot, kinds: &[Kind]) -> Say {
        let seen = self.seen(model, spot);
        kinds.iter().fold(Say::Allow, |say, kind| {
            say.and(self.place_by(&self.rules, model, (spot, &seen), *kind))
        })
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
                                let spot = place.join(names);
                                let seen = self.seen(model, &spot);
                                self.place_by(&self.spelled, model, (&spot, &seen), kind)
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
                // At a directory that is mounted elsewhere too a pattern begins once more, and is not taken for the same.
                let seen = |spot: &Spot| model.views(spot).len();
                repeated |= seen(from) != seen(to) || !self.match_alike(model, from, to);
                for example in EXAMPLES {
                    let names: Names = example.iter().map(|name| name.to_vec()).collect();
                    inside.extend([[names.as_slice(), &any].concat(), names]);
                }
            }
        }
        for names in &inside {
            let places = [from, to].map(|place| place.join(names));
            let seen = [0, 1].map(|at: usize| self.seen(model, &places[at]));
            for kind in Kind::ALL {
                let say =
                    |at: usize| self.place_by(&self.rules, model, (&places[at], &seen[at]), kind);
                match (say(0), say(1)) {
                    (Say::Unsure, _) | (_, Say::Unsure) => return Say::Unsure,
                    (Say::Deny, Say::Allow) => return Say::Deny,
                    _ => {}
                }
            }
        }
        if repeated { Say::Unsure } else { Say::Allow }
    }

    /// Whether a symbolic link may have a name, as far as what lies beneath it is concerned: not where rules close
    /// for writing something that would lie there. What is named there, whatever of it, is left open.
    fn leading(&self, model: &Model, to: &Spot) -> Say {
        if !self.named_beneath(model, to).is_empty() {
            return Say::Unsure;
        }
        let beneath = to.join(&[b"any".to_vec()]);
        let (own, any) =
            (self.place(model, to, Kind::Write), self.place(model, &beneath, Kind::Write));
        if (own, any) == (Say::Allow, Say::Deny) {
            return Say::Deny;
        }
        let closes = |rule: &&Placed| !rule.allow && rule.speaks_of(Kind::Write);
        let views = self.seen(model, to);
        for rule in self.rules.placed.iter().filter(closes).filter(|rule| !rule.tail.is_empty()) {
            for view in &views {
                let Some(rest) = view.strip_prefix(rule.path.as_slice()) else { continue };
                if rest.is_empty() {
                    return Say::Unsure;
                }
                // Where a pattern's first `**` still goes on, any name is as good as any other; at its end there
                // is nothing beneath.
                let first = usize::from(rule.tail[0] == Step::Deep);
                let mut left = remaining(&rule.tail, rest).into_iter();
                if left.any(|at| at > first && at < rule.tail.len()) {
                    return Say::Deny;
                }
            }
        }
        if own == Say::Unsure || any == Say::Unsure { Say::Unsure } else { Say::Allow }
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
        let verdict = match self.verdict(model, op) {
            Err(Lost::Outside) => return Some(Say::Unsure),
            verdict => verdict.ok(),
        };
        // The kernel comes to the links first, whatever lies behind them.
        match self.through_links(model, op) {
            Say::Allow => verdict,
            say => Some(say),
        }
    }

    /// Whether the links that an operation's paths lead through are followed.
    pub(crate) fn through_links(&self, model: &Model, op: &Op) -> Say {
        let itself = if op.number == 1 { Last::Itself } else { Last::Followed };
        let last = match op.action {
            Action::Open => followed(op.flags()),
            Action::Truncate
            | Action::Chmod
            | Action::SetAttribute
            | Action::RemoveAttribute
            | Action::Execute => Last::Followed,
            Action::Chown | Action::Times => itself,
            Action::Link | Action::Stat => Last::Itself,
            _ => Last::Name,
        };
        let mut through = Vec::new();
        let _ = model.walk(&op.path, last, &mut through);
        if matches!(op.action, Action::Link | Action::Rename) {
            let _ = model.walk(&op.second, Last::Name, &mut through);
        }
        through.iter().fold(Say::Allow, |say, link| say.and(self.following(model, link)))
    }

    /// Whether a symbolic link at a place is followed. Where it is seen by several paths, of which only
    /// some are closed, or something is named beneath it, that is left open.
    fn following(&self, model: &Model, link: &Spot) -> Say {
        let views = self.seen(model, link);
        let points: Vec<&[Name]> = self.points.iter().map(Vec::as_slice).collect();
        let Rules { placed, defaults, .. } = &self.rules;
        let follows =
            |view: &&Components| decide::following(placed, *defaults, view, &points).allow;
        let open = views.iter().filter(follows).count();
        match open {
            _ if views.is_empty() => Say::Unsure,
            _ if open == views.len() => Say::Allow,
            0 if self.named_beneath(model, link).is_empty() => Say::Deny,
            _ => Say::Unsure,
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
            Action::Mkdir | Action::Mknod => made(),
            Action::Symlink => {
                let say = made()?;
                let target = model.resolve(&op.path, Last::Name)?;
                Ok(say.and(self.leading(model, &model.spot(&target))))
            }
            Action::Unlink | Action::Rmdir => one(Last::Name, &[Kind::Delete]),
            Action::Truncate => one(Last::Followed, &[Kind::Write]),
            Action::Chmod | Action::SetAttribute | Action::RemoveAttribute => {
                one(Last::Followed, &[Kind::Attributes])
            }
            Action::Chown | Action::Times => one(itself, &[Kind::Attributes]),
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
        if flags & libc::O_TRUNC != 0 && matches!(model.object(object), Object::File) {
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
        let is_link = from.object.is_some_and(|object| is_link(model, object));
        let (from, to) = (model.spot(&from), model.spot(&to));
        let mut say = self.place(model, &to, Kind::Write);
        say = say.and(self.all(model, &from, &[Kind::Read, Kind::Write]));
        if is_link {
            say = say.and(self.leading(model, &to));
        }
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
        let (taken, both) = (&[Kind::Delete][..], &[Kind::Write, Kind::Delete][..]);
        let mut say = self.all(model, &old, if exchange { both } else { taken });
        let replaces = to.object.is_some();
        say = say.and(self.all(model, &new, if replaces { both } else { &[Kind::Write] }));
        if say == Say::Deny {
            return Ok(say);
        }
        if is_link(model, moved) {
            say = say.and(self.leading(model, &new));
        }
        say = say.and(self.moving(model, &old, &new, model.is_directory(moved)));
        if exchange {
            let other = to.object.ok_or(Lost::Nowhere)?;
            if is_link(model, other) {
                say = say.and(self.leading(model, &old));
            }
            say = say.and(self.moving(model, &new, &old, model.is_directory(other)));
        }
        Ok(say)
    }
}

fn is_link(model: &Model, object: Id) -> bool {
    matches!(model.object(object), Object::Link { .. })
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
