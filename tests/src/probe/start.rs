//! Becoming a program, by every call that does it.

use super::Place;
use super::answer::{Answer, Failure, Outcome, Stage as _};
use super::kinds::entry32;
use super::process::{exit_now, fork};
use rustix::io::Errno;
use rustix::process::{WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::{CString, c_char};
use std::io::{Read as _, Write as _};

/// A way to become a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// `execve(2)`.
    Execve,
    /// `execveat(2)` of an `O_PATH` descriptor, with an empty name.
    Execveat,
    /// `execve(2)` of 32-bit programs: `int 0x80`.
    Old,
}

/// A child that becomes the program, with itself as first argument and these words behind.
pub(super) fn start(name: &str, path: &Place, words: &[String], by: Call) -> Answer {
    match started(path, words, by) {
        Ok((child, outcome)) => Answer { pid: child, ..Answer::new(name, outcome) },
        Err(failure) => Answer::new(name, Err(failure)),
    }
}

/// The process that tried to become the program, and how that went.
fn started(path: &Place, words: &[String], by: Call) -> Result<(i32, Outcome), Failure> {
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| Failure { errno: Errno::INVAL, stage: "path" })
    };
    let path = text(path.bytes())?;
    let words: Vec<CString> =
        words.iter().map(|word| text(word.as_bytes())).collect::<Result<_, _>>()?;
    let all: Vec<&CString> = [&path].into_iter().chain(&words).collect();
    let low = if by == Call::Old { Some(low(&all)?) } else { None };
    let (mut reader, writer) = std::io::pipe().stage("pipe")?;
    let Some(child) = fork()? else {
        let arguments: Vec<*const c_char> =
            all.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
        let errno = become_it(&path, &arguments, by, low);
        // The pipe closes by itself where the call succeeded.
        let _ = (&writer).write_all(&errno.to_ne_bytes());
        exit_now(1);
    };
    drop(writer);
    let mut errno = Vec::new();
    reader.read_to_end(&mut errno).stage("read of errno")?;
    waitpid(Some(child), WaitOptions::empty()).stage("waitpid")?;
    let outcome = match <[u8; 4]>::try_from(errno.as_slice()) {
        Ok(errno) => Err(Failure {
            errno: Errno::from_raw_os_error(i32::from_ne_bytes(errno)),
            stage: "execve",
        }),
        Err(_) => Ok(Value::Null),
    };
    Ok((child.as_raw_nonzero().get(), outcome))
}

/// Returns only where it failed: the error number.
fn become_it(path: &CString, arguments: &[*const c_char], by: Call, low: Option<Low>) -> i32 {
    let environment = [std::ptr::null::<c_char>()];
    // SAFETY: all strings and lists live until the call replaces or returns to us.
    unsafe {
        match (by, low) {
            (Call::Execve, _) => {
                libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            }
            (Call::Execveat, _) => {
                let file = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
                let (empty, flags) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
                let (arguments, environment) = (arguments.as_ptr(), environment.as_ptr());
                libc::syscall(libc::SYS_execveat, file, empty, arguments, environment, flags);
            }
            (Call::Old, Some(low)) => return old_execve(low),
            (Call::Old, None) => return libc::EINVAL,
        }
    }
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Addresses below 2 GiB: of a path and of the list of its arguments.
#[derive(Clone, Copy)]
struct Low {
    path: i32,
    arguments: i32,
}

/// Bytes for them.
const LOW_BYTES: usize = 64 << 10;

/// Copies texts to where 32-bit programs have their memory; the first is the path.
fn low(texts: &[&CString]) -> Result<Low, Failure> {
    let lengths = texts.iter().map(|text| text.as_bytes_with_nul().len() + 4);
    if lengths.sum::<usize>() + 4 > LOW_BYTES {
        return Err(Failure { errno: Errno::NOMEM, stage: "arguments" });
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below 2 GiB")]
    let short = |address: *const u8| address as usize as i32;
    // SAFETY: a new mapping below 2 GiB, which has room for the list, its end and all texts.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), LOW_BYTES, protection, kind, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(Failure { errno: Errno::NOMEM, stage: "mmap" });
        }
        let list = at.cast::<i32>();
        let mut behind = (texts.len() + 1) * 4;
        let path = short(at.cast::<u8>().add(behind));
        for (index, text) in texts.iter().enumerate() {
            let bytes = text.as_bytes_with_nul();
            let to = at.cast::<u8>().add(behind);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            list.add(index).write(short(to));
            behind += bytes.len();
        }
        Ok(Low { path, arguments: short(at.cast()) })
    }
}

/// The error number.
fn old_execve(low: Low) -> i32 {
    /// `__NR_execve`, `arch/x86/entry/syscalls/syscall_32.tbl`
    const EXECVE: i32 = 11;
    -entry32(EXECVE, low.path, low.arguments, 0)
}
