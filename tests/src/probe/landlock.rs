//! A program that confines itself, as more and more do.

use super::{Failure, Place};
use landlock::{
    ABI, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus,
};
use rustix::io::Errno;

/// From now on this task opens for reading only what lies beneath.
pub(super) fn confine(beneath: &Place) -> Result<(), Failure> {
    let failed = |stage| Failure { errno: Errno::NOSYS, stage };
    let read = AccessFs::from_read(ABI::V1);
    let confine = || -> Result<_, RulesetError> {
        let ruleset = Ruleset::default().handle_access(read)?.create()?;
        let Ok(place) = PathFd::new(beneath.path()) else { return Ok(None) };
        let ruleset = ruleset.add_rule(PathBeneath::new(place, read))?;
        Ok(Some(ruleset.restrict_self()?.ruleset))
    };
    match confine() {
        Ok(Some(RulesetStatus::FullyEnforced)) => Ok(()),
        Ok(Some(_)) => Err(failed("Landlock is not there")),
        Ok(None) => Err(failed("open of the place")),
        Err(_) => Err(failed("Landlock")),
    }
}
