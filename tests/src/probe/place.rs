//! Paths that may hold any byte.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A path as the kernel knows it: bytes without a zero. In JSON a string, or an array of numbers
/// where the bytes are no UTF-8.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place(Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Json {
    Text(String),
    Bytes(Vec<u8>),
}

impl Place {
    pub(crate) fn join(&self, name: impl AsRef<[u8]>) -> Self {
        let mut bytes = self.0.clone();
        bytes.push(b'/');
        bytes.extend_from_slice(name.as_ref());
        Self(bytes)
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<T: AsRef<OsStr>> From<T> for Place {
    fn from(path: T) -> Self {
        Self(path.as_ref().as_bytes().to_vec())
    }
}

impl From<&Self> for Place {
    fn from(place: &Self) -> Self {
        place.clone()
    }
}

impl AsRef<Path> for Place {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().fmt(f)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(f)
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => Json::Text(text.to_owned()),
            Err(_) => Json::Bytes(self.0.clone()),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Json::deserialize(deserializer)? {
            Json::Text(text) => Self(text.into_bytes()),
            Json::Bytes(bytes) => Self(bytes),
        })
    }
}
