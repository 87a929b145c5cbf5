//! Taking more of everything than others leave room for.

use super::process::{exit_now, fork};
use super::{Outcome, Place, Stage as _};
use rustix::fs::{Mode, OFlags};
use rustix::process::{WaitOptions, wait};
use serde_json::json;
use std::io::{PipeWriter, Read as _, Write as _};

/// Files to a directory: more directories than any table remembers, with few files.
const EACH: u32 = 10;

pub(super) fn many(directory: &Place, files: u32) -> Outcome {
    let mut opened = 0_u32;
    for number in 0..files.div_ceil(EACH) {
        let place = directory.join(format!("many-{number}"));
        rustix::fs::mkdir(place.path(), Mode::from(0o755)).stage("mkdir")?;
        for file in 0..EACH.min(files - number * EACH) {
            let path = place.join(file.to_string());
            let mode = Mode::from(0o644);
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            drop(rustix::fs::open(path.path(), flags, mode).stage("creating")?);
            drop(rustix::fs::open(path.path(), OFlags::RDONLY, mode).stage("openat")?);
            rustix::fs::unlink(path.path()).stage("unlink")?;
            opened += 1;
        }
        rustix::fs::rmdir(place.path()).stage("rmdir")?;
    }
    Ok(json!(opened))
}

/// What each process tells the first one, a byte each.
const BORN: u8 = b'b';
const REFUSED: u8 = b'r';
const OPENED: u8 = b'o';

pub(super) fn bomb(path: &Place) -> Outcome {
    let (mut reader, mut teller) = std::io::pipe().stage("pipe")?;
    // Everybody stays, so that it gets no emptier, until the first one lets go of its end.
    let (mut stay, go) = std::io::pipe().stage("pipe")?;
    let mut go = Some(go);
    loop {
        match fork() {
            Ok(Some(_)) => {}
            Ok(None) => {
                go = None;
                tell(&mut teller, BORN);
                if rustix::fs::open(path.path(), OFlags::RDONLY, Mode::empty()).is_ok() {
                    tell(&mut teller, OPENED);
                }
            }
            Err(_) => break tell(&mut teller, REFUSED),
        }
    }
    if go.is_none() {
        // Ends with the first one, however that ends.
        let _ = stay.read(&mut [0]);
        exit_now(0);
    }
    drop(teller);
    let (mut born, mut refused, mut opened) = (0_u32, 0_u32, 0_u32);
    let mut byte = [0];
    while refused < born + 1 {
        reader.read_exact(&mut byte).stage("read")?;
        match byte[0] {
            BORN => born += 1,
            REFUSED => refused += 1,
            _ => opened += 1,
        }
    }
    drop(go);
    // Until there is no child of its own left; the others' go to whoever adopts them.
    while wait(WaitOptions::empty()).is_ok() {}
    Ok(json!({ "born": born, "refused": refused, "opened": opened }))
}

/// Whoever cannot tell is missed by the first one, which then waits in vain: the test fails.
fn tell(teller: &mut PipeWriter, what: u8) {
    let _ = teller.write_all(&[what]);
}
