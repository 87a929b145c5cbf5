//! A round: one session, several zones with rules of their own, and operations in turn.

use super::generate;
use super::hand::Hand;
use super::model::Model;
use super::operation::{Action, Op, at};
use super::reference::{self, Reference, Rules, Say};
use super::rules::{Language, Line};
use super::told::{self, Note, Told};
use super::twin;
use crate::harness::Ground;
use anyhow::{bail, ensure};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Operations that are on their way to the member at a time.
const BATCH: usize = 1000;

/// A zone as it is before the session: rules and objects, and what will be done in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    pub(crate) rules: Vec<Line>,
    pub(crate) setup: Vec<Op>,
    pub(crate) ops: Vec<Op>,
}

/// The kernel did not do what the reference says.
#[derive(Clone, Debug)]
pub(crate) struct Disagreement {
    /// Index in the operations of the zone.
    pub(crate) at: usize,
    pub(crate) op: Op,
    say: Say,
    /// What the bystander got.
    bystander: i32,
    member: i32,
    /// What is wrong with the events about it, where both ended as they should.
    told: Option<String>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |errno: i32| match errno {
            0 => "succeeded".to_owned(),
            _ => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        let say = match self.say {
            Say::Allow => "the reference allows",
            Say::Deny | Say::DenyAndLeave => "the reference denies",
            Say::Unsure => "the reference leaves open",
        };
        let (bystander, member) = (word(self.bystander), word(self.member));
        write!(f, "{:?}: {say}; the bystander: {bystander}; the member: {member}", self.op)?;
        self.told.iter().try_for_each(|told| write!(f, "; {told}"))
    }
}

/// How often each action was denied, done, and failed for everyone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    by_action: BTreeMap<Action, [u64; 3]>,
    unsure: u64,
}

impl Counts {
    pub(crate) fn total(&self) -> u64 {
        self.by_action.values().flatten().sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.unsure += other.unsure;
        for (action, counts) in &other.by_action {
            let own = self.by_action.entry(*action).or_default();
            own.iter_mut().zip(counts).for_each(|(own, count)| *own += count);
        }
    }

    /// Actions that were never refused, or never done; those on extended attributes only where files can have
    /// them.
    pub(crate) fn lacking(&self, attributes: bool) -> Vec<Action> {
        let one_sided = |(action, [denied, done, _]): (&Action, &[u64; 3])| {
            if !attributes && matches!(action, Action::SetAttribute | Action::RemoveAttribute) {
                return None;
            }
            let open = matches!(action, Action::Stat);
            (*done == 0 || (*denied == 0 && !open)).then_some(*action)
        };
        self.by_action.iter().filter_map(one_sided).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations (denied/done/failed anyway):", self.total())?;
        for (action, [denied, done, failed]) in &self.by_action {
            write!(f, " {action:?} {denied}/{done}/{failed}")?;
        }
        write!(f, "; {} left open and not tried", self.unsure)
    }
}

/// A zone in the run.
struct Zone {
    model: Model,
    reference: Reference,
    named: Vec<Vec<u8>>,
    /// The roots of the member's tree and of the bystander's.
    member: PathBuf,
    bystander: PathBuf,
    done: Vec<Op>,
    /// What there may be events about.
    notes: Vec<Note>,
    scripted: std::vec::IntoIter<Op>,
    finding: Option<Disagreement>,
}

/// An operation whose answer is awaited.
struct Waiting {
    zone: usize,
    at: usize,
    say: Option<Say>,
    errno: i32,
    /// What may be told of it, where it is denied.
    note: Option<Note>,
}

/// One session over the zones of `cases`.
pub(crate) struct Round {
    pub(crate) ground: Ground,
    zones: Vec<Zone>,
    language: Language,
    pub(crate) policy: String,
    pub(crate) counts: Counts,
}

impl Round {
    /// Makes both trees of every zone. Rules that the policy compiler refuses are dropped first.
    pub(crate) fn new(cases: &[Case], language: &Language) -> anyhow::Result<Self> {
        let ground = Ground::new("differential")?;
        let mut zones = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            let name = format!("z{index}");
            let member = ground.workspace().join(&name).path().to_owned();
            let bystander = ground.outside().join(&name).path().to_owned();
            let mut model = Model::new();
            for root in [&member, &bystander] {
                std::fs::create_dir(root)?;
            }
            for op in &case.setup {
                let made = [&member, &bystander].map(|root| op.perform(root));
                ensure!(made[0] == made[1], "the two trees differ at {op:?}: {made:?}");
                if made[0] == 0 {
                    model
                        .apply(op)
                        .map_err(|lost| anyhow::anyhow!("the model: {op:?} leads {lost:?}"))?;
                }
                if made[0] == 0 && matches!(op.action, Action::Bind | Action::Mount) {
                    let point = if op.second.is_empty() { &op.path } else { &op.second };
                    for root in [&member, &bystander] {
                        ground.was_mounted(at(root, point));
                    }
                }
            }
            // So that there is something to be removed.
            let made = case.setup.iter();
            for made in made.filter(|op| matches!(op.action, Action::Mkdir | Action::Open)) {
                let op = Op::new(Action::SetAttribute, made.path.clone());
                let set = [&member, &bystander].map(|root| op.perform(root));
                ensure!(set[0] == set[1], "the two trees differ at {op:?}: {set:?}");
            }
            zones.push(Zone {
                model,
                // Filled below: the rules are resolved against the trees.
                reference: Reference::new(&Rules::default(), &member, &Model::new()),
                named: case.rules.iter().map(|line| line.example.clone()).collect(),
                member,
                bystander,
                done: Vec::new(),
                notes: Vec::new(),
                scripted: case.ops.clone().into_iter(),
                finding: None,
            });
        }
        let workspace = ground.workspace();
        let usable = |zone: usize, line: &Line| {
            let policy = language.policy(&[(zone, line)]);
            reference::resolved(&policy, workspace.path()).is_ok()
        };
        let lines: Vec<(usize, &Line)> = cases
            .iter()
            .enumerate()
            .flat_map(|(zone, case)| case.rules.iter().map(move |line| (zone, line)))
            .filter(|(zone, line)| usable(*zone, line))
            .collect();
        let policy = language.policy(&lines);
        let rules = reference::resolved(&policy, workspace.path()).map_err(anyhow::Error::msg)?;
        for zone in &mut zones {
            zone.reference = Reference::new(&rules, &zone.member, &zone.model);
        }
        let (counts, policy) = (Counts::default(), language.told(&lines));
        Ok(Self { ground, zones, language: language.clone(), policy, counts })
    }

    /// Performs the scripted operations of every zone, or random ones where there is an `rng`, until
    /// `count` were judged.
    pub(crate) fn run(&mut self, mut rng: Option<&mut Rng>, count: u64) -> anyhow::Result<()> {
        let mut member = Hand::of(self)?;
        let mut under_way: Option<Vec<Waiting>> = None;
        loop {
            // The next batch is thought out while the member is at the last.
            let mut batch = Vec::new();
            let mut waiting = Vec::new();
            while waiting.len() < BATCH {
                let next = match rng.as_deref_mut() {
                    Some(_) if self.counts.total() >= count => None,
                    Some(rng) => Some(self.random(rng)),
                    None => self.scripted(),
                };
                let Some((zone, op)) = next else { break };
                if let Some(expected) = self.expect(zone, &op)? {
                    op.encode(u8::try_from(zone)?, &mut batch)?;
                    waiting.push(expected);
                }
            }
            if let Some(expected) = under_way.take() {
                let answers = member.answers(expected.len())?;
                for (expected, answer) in expected.into_iter().zip(answers) {
                    self.compare(expected, answer);
                }
                if rng.is_some() && self.zones.iter().any(|zone| zone.finding.is_some()) {
                    break;
                }
                let denials = self.zones.iter().flat_map(|zone| &zone.notes);
                member.keep_up(denials.filter(|note| note.must).count())?;
            }
            if waiting.is_empty() {
                break;
            }
            member.send(&batch)?;
            under_way = Some(waiting);
        }
        let events = member.finish()?;
        self.compare_events(&events);
        self.compare_trees()
    }

    fn random(&self, rng: &mut Rng) -> (usize, Op) {
        let index = rng.usize(0..self.zones.len());
        let zone = &self.zones[index];
        (index, generate::operation(rng, &zone.model, &zone.named, &self.language))
    }

    fn scripted(&mut self) -> Option<(usize, Op)> {
        let mut zones = self.zones.iter_mut().enumerate();
        zones.find_map(|(index, zone)| zone.scripted.next().map(|op| (index, op)))
    }

    /// Lets the bystander go first and notes what the member must get; `None` where the reference
    /// leaves that open.
    fn expect(&mut self, index: usize, op: &Op) -> anyhow::Result<Option<Waiting>> {
        let zone = &mut self.zones[index];
        let say = zone.reference.judge(&zone.model, op);
        if say == Some(Say::Unsure) {
            self.counts.unsure += 1;
            return Ok(None);
        }
        let note = say
            .filter(|say| matches!(say, Say::Deny | Say::DenyAndLeave))
            .map(|_| Note::of(&zone.reference, &zone.model, op, zone.done.len()));
        let errno = twin::perform(&zone.bystander, &zone.model, op, say.unwrap_or(Say::Allow))?;
        if errno == 0 {
            let Some(say) = say else {
                bail!("the model says that nobody can do it, but the bystander did: {op:?}");
            };
            if say != Say::Deny && zone.model.apply(op).is_err() {
                bail!("the model does not know how the bystander did it: {op:?}");
            }
        }
        let counts = self.counts.by_action.entry(op.action).or_default();
        counts[match (say, errno) {
            (_, 1..) => 2,
            (Some(Say::Allow), _) => 1,
            _ => 0,
        }] += 1;
        zone.done.push(op.clone());
        Ok(Some(Waiting { zone: index, at: zone.done.len() - 1, say, errno, note }))
    }

    fn compare(&mut self, expected: Waiting, member: i32) {
        let refused = matches!(member, libc::EACCES | libc::EPERM);
        let same = member == expected.errno;
        let right = match expected.say {
            None | Some(Say::Allow) => same,
            Some(_) => refused || (same && expected.errno != 0),
        };
        let zone = &mut self.zones[expected.zone];
        if let Some(note) = expected.note {
            // What fails for everyone may fail before anybody is asked.
            zone.notes.push(note.ended(refused && !same, expected.errno, member));
        }
        if right || zone.finding.is_some() {
            return;
        }
        zone.finding = Some(Disagreement {
            at: expected.at,
            op: zone.done[expected.at].clone(),
            say: expected.say.unwrap_or(Say::Allow),
            bystander: expected.errno,
            member,
            told: None,
        });
    }

    /// The events about each zone must explain what was refused there, one by one and in turn.
    fn compare_events(&mut self, events: &[Told]) {
        for zone in self.zones.iter_mut().filter(|zone| zone.finding.is_none()) {
            let about = events.iter().filter(|told| told.is_of(&zone.member, &zone.notes));
            let about: Vec<Told> = about.cloned().collect();
            let Some((note, told)) = told::disagreement(&zone.notes, &about) else { continue };
            zone.finding = Some(Disagreement {
                at: note.at,
                op: zone.done[note.at].clone(),
                say: Say::Deny,
                bystander: note.bystander,
                member: note.member,
                told: Some(told),
            });
        }
    }

    /// What was done must have had the same effects, and what was refused none.
    fn compare_trees(&self) -> anyhow::Result<()> {
        for zone in self.zones.iter().filter(|zone| zone.finding.is_none()) {
            let found = twin::differences(&zone.member, &zone.bystander)?;
            ensure!(
                found.is_empty(),
                "every answer was right, but the trees differ in {}:\n  {}\n  after {:#?}",
                zone.member.display(),
                found.join("\n  "),
                zone.done
            );
        }
        Ok(())
    }

    /// What was found in each zone, and what had been done there.
    pub(crate) fn findings(&self) -> impl Iterator<Item = (Option<&Disagreement>, &[Op])> {
        self.zones.iter().map(|zone| (zone.finding.as_ref(), zone.done.as_slice()))
    }
}
