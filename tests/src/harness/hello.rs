//! What TLS clients send first, in shapes that no client at hand sends.

/// A first message: each of its extensions by number and content.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) extensions: Vec<(u16, Vec<u8>)>,
}

/// With its length before it.
fn counted(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes()[..], bytes].concat()
}

/// An extension that names servers, by the type of each.
pub(crate) fn names(names: &[(u8, &[u8])]) -> (u16, Vec<u8>) {
    let list: Vec<u8> =
        names.iter().flat_map(|(kind, name)| [vec![*kind], counted(name)].concat()).collect();
    (0, counted(&list))
}

impl Hello {
    /// As browsers send it: with values that mean nothing (GREASE) and a key of 1,216 bytes.
    pub(crate) fn of_browser(name: &str) -> Self {
        let mut share = counted(&[0x1a; 1]);
        share.splice(0..0, [0x8a, 0x8a]);
        let key = [vec![0x11, 0xec], counted(&[7; 1216])].concat();
        let shares = counted(&[share, key].concat());
        Self {
            extensions: vec![
                (0x2a2a, Vec::new()),
                (43, vec![4, 3, 4, 3, 3]),
                (51, shares),
                (16, counted(b"\x02h2\x08http/1.1")),
                (0xfe0d, vec![0; 186]),
                names(&[(0, name.as_bytes())]),
                (10, counted(&[0x11, 0xec, 0, 29, 0, 23])),
                (0x3a3a, vec![0]),
            ],
        }
    }

    /// With this name and little else.
    pub(crate) fn of(name: &str) -> Self {
        Self { extensions: vec![(43, vec![2, 3, 4]), names(&[(0, name.as_bytes())])] }
    }

    /// The message's body.
    pub(crate) fn body(&self) -> Vec<u8> {
        let extensions = self
            .extensions
            .iter()
            .flat_map(|(kind, content)| [&kind.to_be_bytes()[..], &counted(content)].concat());
        let extensions: Vec<u8> = extensions.collect();
        let begin = [&[3, 3][..], &[0x55; 32], &[32], &[0x66; 32]].concat();
        [begin, counted(&[0x5a, 0x5a, 0x13, 1, 0x13, 2]), vec![1, 0], counted(&extensions)].concat()
    }

    /// The record that holds it.
    pub(crate) fn record(&self) -> Vec<u8> {
        record(&message(&self.body()))
    }
}

/// A handshake's first message.
pub(crate) fn message(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[1][..], &length[1..], body].concat()
}

/// A record of a handshake.
pub(crate) fn record(content: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &counted(content)].concat()
}
