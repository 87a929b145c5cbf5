//! Small programs to be started: the serving probe, and commands for exit codes and signals.

use super::process::in_child;
use super::{Answer, Operation, perform};
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

/// Status that [`probe`]`("await-signal")` ends with when `SIGTERM` reaches it.
pub(crate) const SIGNALLED: u8 = 7;

pub(super) fn probe(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve"] => serve(),
        ["one", operation] => match serde_json::from_str::<Operation>(operation) {
            Ok(operation) => {
                let answer = perform(&operation);
                println!("{}", serde_json::to_string(&answer).unwrap_or_default());
                ExitCode::from(u8::from(answer.errno != 0))
            }
            Err(error) => wrong(&error.to_string()),
        },
        ["exit", status] => {
            status.parse::<u8>().map_or_else(|_| wrong("no status"), ExitCode::from)
        }
        ["signal", number] => {
            let number = number.parse().unwrap_or(libc::SIGKILL);
            // SAFETY: plain numbers; the signal is for this process.
            unsafe { libc::raise(number) };
            wrong("the signal did not end the process")
        }
        ["echo"] => match std::io::copy(&mut std::io::stdin(), &mut std::io::stdout()) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => wrong(&error.to_string()),
        },
        ["touch", file] => match std::fs::write(file, "started") {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => wrong(&error.to_string()),
        },
        ["environment"] => {
            for (name, value) in std::env::vars_os() {
                println!("{}={}", name.display(), value.display());
            }
            ExitCode::SUCCESS
        }
        ["await-signal"] => await_signal(),
        ["race", workspace, reads, writes] => crate::race::serve(workspace, reads, writes),
        ["batches", workspace] => crate::differential::serve(workspace),
        _ => wrong(
            "usage: probe serve | one JSON | exit N | signal N | echo | touch FILE | environment | await-signal | batches … | race …",
        ),
    }
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("probe: {message}");
    ExitCode::from(99)
}

/// Answers operations line by line until its standard input ends.
fn serve() -> ExitCode {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    loop {
        line.clear();
        match input.read_line(&mut line) {
            Ok(0) => return ExitCode::SUCCESS,
            Ok(_) => {}
            Err(error) => return wrong(&format!("standard input: {error}")),
        }
        let answer = match serde_json::from_str(&line) {
            Ok(operation) => answer(&operation),
            Err(error) => return wrong(&format!("{error} in {line}")),
        };
        let Ok(mut text) = serde_json::to_string(&answer) else { return wrong("answer") };
        text.push('\n');
        let mut output = std::io::stdout().lock();
        if output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err() {
            return wrong("standard output is closed");
        }
    }
}

/// A child each, so that what one does to itself (root, namespace, end) does not reach the next.
fn answer(operation: &Operation) -> Answer {
    match operation {
        Operation::Identity {} => perform(operation),
        _ => in_child(operation.name(), || perform(operation)),
    }
}

extern "C" fn leave(_signal: i32) {
    // SAFETY: `_exit` may be called from a signal handler.
    unsafe { libc::_exit(SIGNALLED.into()) }
}

fn await_signal() -> ExitCode {
    let handler: extern "C" fn(i32) = leave;
    // SAFETY: the handler only leaves.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
    println!("ready");
    std::thread::sleep(Duration::from_mins(2));
    wrong("no signal came")
}
