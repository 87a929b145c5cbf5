//! Running other programs, with errors that can be acted upon.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Says on stderr what is going on; stdout belongs to what the verbs produce.
pub(crate) fn progress(message: &str) {
    eprintln!("xtask: {message}");
}

/// The command line as one could type it.
pub(crate) fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                word.into_owned()
            } else {
                format!("'{}'", word.replace('\'', r"'\''"))
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs to the end with its output on our stderr; any status but 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot start: {}", line(command)))?;
    if !status.success() {
        bail!("failed ({status}): {}", line(command));
    }
    Ok(())
}

/// Runs to the end and gives its stdout; any status but 0 is an error that holds its stderr.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start: {}", line(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("failed ({}): {}\n{}", output.status, line(command), stderr.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("not UTF-8 from: {}", line(command)))
}

/// Where a program is; root's directories are searched too, as other users lack them in PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed_again() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'a b'", ""]);
        assert_eq!(line(&command), r"sh -c 'echo '\''a b'\''' ''");
    }

    #[test]
    fn a_failure_names_status_command_and_stderr() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"]));
        let text = format!("{:#}", error.expect_err("exit 3 is a failure"));
        assert!(text.contains("exit status: 3") && text.contains("why"), "{text}");
        assert!(text.contains("sh -c"), "{text}");
    }
}
