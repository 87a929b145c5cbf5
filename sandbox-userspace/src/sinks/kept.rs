//! The latest denials of a session, kept for `sandbox why` beside its state, and for a while after its end.

use super::json::Json;
use super::{Event, Sink};
use crate::session::SessionId;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of denials after which older ones are forgotten: up to twice as much is kept.
const HALF: u64 = 256 << 10;
/// Sessions whose denials are kept.
const SESSIONS: usize = 16;
const BEGIN: &str = "denials-";
const END: &str = ".jsonl";
const OLD: &str = ".old";

/// Keeps denials.
#[derive(Debug)]
pub struct Kept {
    directory: PathBuf,
    id: SessionId,
    /// Made with the first denial.
    file: Option<Json<File>>,
}

impl Kept {
    /// In the directory of all sessions' states.
    pub const fn new(directory: PathBuf, id: SessionId) -> Self {
        Self { directory, id, file: None }
    }
}

impl Sink for Kept {
    fn write(&mut self, event: &Event) -> io::Result<()> {
        if !matches!(event, Event::Denial(_)) {
            return Ok(());
        }
        let path = path(&self.directory, &self.id);
        if self.file.is_none() {
            forget(&self.directory, SESSIONS - 1)?;
        } else if fs::metadata(&path).is_ok_and(|meta| meta.len() > HALF) {
            fs::rename(&path, old(&path))?;
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(Json::append(&path)?),
        };
        file.write(event)
    }
}

/// The denials of a session, as JSON, the latest last; of the session that had one last where none is named.
pub fn read(directory: &Path, id: Option<&SessionId>) -> io::Result<Option<(SessionId, String)>> {
    let id = match id {
        Some(id) => Some(id.clone()),
        None => files(directory)?.into_iter().max_by_key(|(time, _)| *time).map(|(_, id)| id),
    };
    let Some(id) = id else { return Ok(None) };
    let path = path(directory, &id);
    let mut text = match fs::read_to_string(old(&path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => text.push_str(&other?),
    }
    Ok(Some((id, text)))
}

fn path(directory: &Path, id: &SessionId) -> PathBuf {
    directory.join(format!("{BEGIN}{id}{END}"))
}

fn old(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OLD);
    name.into()
}

/// Removes all but the latest `left`.
fn forget(directory: &Path, left: usize) -> io::Result<()> {
    let mut files = files(directory)?;
    files.sort_by(|(a, _), (b, _)| b.cmp(a));
    for (_, id) in files.into_iter().skip(left) {
        let path = path(directory, &id);
        for path in [old(&path), path] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// The sessions of which denials are kept, and when the last one was.
fn files(directory: &Path) -> io::Result<Vec<(SystemTime, SessionId)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let id = name
            .to_str()
            .and_then(|name| name.strip_prefix(BEGIN)?.strip_suffix(END)?.parse().ok());
        // Another session may forget it at this moment.
        if let (Some(id), Ok(time)) = (id, entry.metadata().and_then(|meta| meta.modified())) {
            found.push((time, id));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::denial::{Denial, Target, Verdict};

    fn denial(comm: &str) -> Event {
        Event::Denial(Box::new(Denial {
            time: "2026-11-29T12:00:00Z".into(),
            session: "0123abcd".parse().unwrap(),
            hook: "file_open".into(),
            access: vec!["read".into()],
            reason: "default".into(),
            verdict: Verdict::Denied,
            pid: 1,
            tid: 1,
            uid: 0,
            comm: comm.into(),
            object: Target::Task,
            rule: None,
            message: "x".repeat(1000),
            hint: None,
        }))
    }

    #[test]
    fn the_latest_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let id: SessionId = "0123abcd".parse().unwrap();
        let mut kept = Kept::new(place.path().to_owned(), id.clone());
        assert!(read(place.path(), None).unwrap().is_none());
        for number in 0..1000 {
            kept.write(&denial(&number.to_string())).unwrap();
        }
        let (found, text) = read(place.path(), None).unwrap().unwrap();
        assert_eq!(found, id);
        assert!(text.len() > 200_000 && text.len() < 600_000, "{}", text.len());
        assert!(text.lines().last().unwrap().contains(r#""comm":"999""#));
        assert!(!text.contains(r#""comm":"0""#));
    }

    #[test]
    fn only_some_sessions_are_remembered() {
        let place = tempfile::tempdir().unwrap();
        for number in 0..20 {
            let id: SessionId = format!("{number:08x}").parse().unwrap();
            Kept::new(place.path().to_owned(), id).write(&denial("x")).unwrap();
        }
        assert_eq!(files(place.path()).unwrap().len(), SESSIONS);
    }
}
