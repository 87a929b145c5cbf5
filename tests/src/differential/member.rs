//! The member's side: performs batches of operations and answers with their error numbers.

use super::operation::Op;
use anyhow::Context as _;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// `probe batches WORKSPACE`, until standard input ends.
pub(crate) fn serve(workspace: &str) -> ExitCode {
    match answer(Path::new(workspace)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("probe: {error:#}");
            ExitCode::from(99)
        }
    }
}

fn answer(workspace: &Path) -> anyhow::Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let zones: Vec<PathBuf> =
        (0..=u8::MAX).map(|zone| workspace.join(format!("z{zone}"))).collect();
    let mut batch = Vec::new();
    let mut answers = Vec::new();
    loop {
        let mut length = [0; 4];
        match input.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            result => result.context("reading the length of a batch")?,
        }
        batch.resize(u32::from_le_bytes(length) as usize, 0);
        input.read_exact(&mut batch).context("reading a batch")?;
        let mut rest = batch.as_slice();
        answers.clear();
        while !rest.is_empty() {
            let (zone, op) = Op::decode(&mut rest)?;
            answers.extend(op.perform(&zones[usize::from(zone)]).to_le_bytes());
        }
        output.write_all(&answers).and_then(|()| output.flush()).context("answering")?;
    }
}
