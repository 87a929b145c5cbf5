//! Sessions: what one consists of, the agent's process, its life-time and what it leaves behind.
//!
//! A session is made in one order and taken down in the reverse one, see [`resources`]. Its
//! [`state`] is written first, so that whatever a killed supervisor leaves can be found and is
//! treated by [`orphan`].

use std::fmt;
use std::str::FromStr;

pub mod canary;
pub mod cgroup;
pub mod guard;
pub mod host;
pub mod launch;
pub mod leftovers;
pub mod live;
pub mod mounts;
pub mod orphan;
pub mod privileges;
pub mod process;
pub mod program;
pub mod request;
pub mod resources;
pub mod run;
pub mod signals;
pub mod state;
pub mod streams;
pub mod supervise;
pub mod tempdir;
pub mod terminal;
mod tie;
pub mod user;

/// Name of a session: eight lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// A new one, from the kernel's random numbers.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0_u8; 4];
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if got != bytes.len() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(format!("{:08x}", u32::from_ne_bytes(bytes))))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is no session id.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no session id: eight digits of 0-9 and a-f, as `sandbox sessions` prints them")]
pub struct NoSessionId(String);

impl FromStr for SessionId {
    type Err = NoSessionId;

    fn from_str(text: &str) -> Result<Self, NoSessionId> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() == 8 && digits {
            Ok(Self(text.into()))
        } else {
            Err(NoSessionId(text.into()))
        }
    }
}

impl TryFrom<String> for SessionId {
    type Error = NoSessionId;

    fn try_from(text: String) -> Result<Self, NoSessionId> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_eight_hexadecimal_digits() {
        let id = SessionId::random().unwrap();
        assert_eq!(id.as_str().parse::<SessionId>().unwrap(), id);
        for bad in ["", "../../etc", "ABCDEF01", "1234567", "123456789", "1234567g"] {
            assert!(bad.parse::<SessionId>().is_err(), "{bad}");
        }
    }
}
