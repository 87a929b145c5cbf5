//! What was decided of an address lately.
//!
//! A slot does not change once members have it, so what its rules say of an address does not either; and it
//! counts in the generation in which the *session* was looked up (`Control::generation`), as a label's copy of its
//! subject does: whoever still holds a slot that was withdrawn meanwhile leaves nothing for the next to have it.
//! What names have opened is no part of it, for that changes at any time.

use crate::net::Address;
use crate::shelf::Shelf;
use sandbox_common::decide::Decision;

/// 256 KiB.
static DECISIONS: Shelf<4096> = Shelf::new();

/// | word | bits from the lowest |
/// |---|---|
/// | 0 and 1 | the address |
/// | 2 | 16 port, 16 protocol (with `LISTEN`), 32 slot |
/// | 3 | generation |
/// | 4 | the [`Decision`]: 16 `denied`, 16 `reason`, 32 `rule` |
pub(crate) struct Key([u64; 4]);

impl Key {
    /// `generation`: that in which the session was found to have the slot; 0 where nobody knows it, then nothing is
    /// remembered. `port` is in network byte order.
    #[inline(always)]
    pub(crate) fn new(
        (slot, generation): (u32, u64),
        address: &Address,
        protocol: u16,
        port: u16,
    ) -> Self {
        let [a, b, c, d] = address.0.map(u64::from);
        let what = u64::from(slot) << 32 | u64::from(protocol) << 16 | u64::from(port);
        Self([a | b << 32, c | d << 32, what, generation])
    }

    #[inline(always)]
    fn place(&self) -> u64 {
        let [first, second, what, _] = self.0;
        first ^ second ^ what
    }

    #[inline(always)]
    pub(crate) fn look(&self) -> Option<Decision> {
        let [first, second, what, generation] = self.0;
        let found = DECISIONS.look(self.place(), generation, |words| {
            let differs = words.get(0) ^ first
                | words.get(1) ^ second
                | words.get(2) ^ what
                | words.get(3) ^ generation;
            (differs, words.get(4))
        })?;
        Some(Decision {
            denied: found as u16,
            reason: (found >> 16) as u16,
            rule: (found >> 32) as u32,
        })
    }

    #[inline(always)]
    pub(crate) fn put(&self, decision: Decision) {
        let Decision { denied, reason, rule } = decision;
        let decision = u64::from(rule) << 32 | u64::from(reason) << 16 | u64::from(denied);
        DECISIONS.put(self.place(), |words| {
            for (at, word) in self.0.into_iter().enumerate() {
                words.set(at, word);
            }
            words.set(4, decision);
        });
    }
}
