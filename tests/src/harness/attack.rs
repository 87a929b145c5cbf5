//! An attack, what must come of it, and its harmless twin.

use super::denial::Denial;
use super::{Bystander, Ground, Policy, Session, difference, snapshot};
use crate::probe::Operation;
use anyhow::bail;

#[derive(Clone, Debug)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) operation: Operation,
    pub(crate) denial: Denial,
    /// The same technique aimed at something allowed.
    pub(crate) twin: Operation,
}

/// A member is refused every attack, with an event that explains it, and allowed every twin.
pub(crate) fn member_is_refused(session: &mut Session, attacks: &[Attack]) -> anyhow::Result<()> {
    for attack in attacks {
        session.refused(attack.name, &attack.operation, &attack.denial)?;
        session.allowed(&format!("{} (harmless twin)", attack.name), &attack.twin)?;
    }
    Ok(())
}

/// The same, and after it everything outside the workspace is as before.
pub(crate) fn member_changes_nothing(
    name: &str,
    policy: impl FnOnce(&Ground) -> Policy,
    attacks: impl FnOnce(&Ground) -> anyhow::Result<Vec<Attack>>,
) -> anyhow::Result<()> {
    let ground = Ground::new(name)?;
    let attacks = attacks(&ground)?;
    let before = snapshot(ground.outside().path())?;
    let mut session = Session::start(&ground, &policy(&ground))?;
    member_is_refused(&mut session, &attacks)?;
    for change in difference(&before, &snapshot(ground.outside().path())?) {
        session.problem(format!("something changed outside the workspace: {change}"));
    }
    session.finish()
}

/// Whoever is in no session can do all of it while a session runs on another ground.
pub(crate) fn bystander_is_free_beside_a_session(
    name: &str,
    attacks: impl FnOnce(&Ground) -> anyhow::Result<Vec<Attack>>,
) -> anyhow::Result<()> {
    let (ground, own) = (Ground::new(&format!("{name}-session"))?, Ground::new(name)?);
    let attacks = attacks(&own)?;
    let session = Session::start(&ground, &Policy::preset())?;
    bystander_is_free(&attacks, &[])?;
    session.finish()
}

/// Whoever is in no session can do all of it: what stops a member is the session, and the attacks
/// are real. Errors in `known` say that the machine lacks the object, not that it is guarded.
pub(crate) fn bystander_is_free(attacks: &[Attack], known: &[i32]) -> anyhow::Result<()> {
    let mut bystander = Bystander::new()?;
    let mut problems = Vec::new();
    for attack in attacks {
        for (what, operation) in [("attack", &attack.operation), ("twin", &attack.twin)] {
            let answer = bystander.perform(operation)?;
            if answer.errno != 0 && !known.contains(&answer.errno) {
                problems.push(format!("{} ({what}): {answer}\n    {operation:?}", attack.name));
            }
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("a bystander was hindered\n  - {}", problems.join("\n  - "))
}
