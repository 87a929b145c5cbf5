//! An attack, what must come of it, and its harmless twin.

use super::denial::Denial;
use super::{Bystander, Session};
use crate::probe::Operation;
use anyhow::bail;

#[derive(Debug)]
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
